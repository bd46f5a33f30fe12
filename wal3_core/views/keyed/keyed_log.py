"""The public API of a keyed log: each key is a log of its own inside one log, with no partitions to plan.

A record's sequence number is its offset in the log.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, integer, optional, record_bytes, seconds, wrong
from wal3_core.errors import InvalidRequestError
from wal3_core.log.read.consumed import Opening
from wal3_core.log.read.consumer import consumer_start
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.cursor import Owner
from wal3_core.model.paths import check_cursor_name, check_log_name
from wal3_core.options import ConsumerOptions
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.object_store import a_store
from wal3_core.views.keyed.key_count import Bounding, KeyCount, count_exactly
from wal3_core.views.keyed.key_following import follow_keys
from wal3_core.views.keyed.key_index import KeyMatch
from wal3_core.views.keyed.key_reader import within
from wal3_core.views.keyed.keyed_appends import KeyedAppends
from wal3_core.views.keyed.keyed_consumer import extension_of, open_consumer
from wal3_core.views.keyed.keyed_options import KeyedOptions
from wal3_core.views.keyed.keyed_scan import KeyedScan, ScanBounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.log.read.consumed import ConsumerStart
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.record import Record
    from wal3_core.storage.object_store import ObjectStore
    from wal3_core.views.keyed.keyed_consumer import KeyedConsumer


def _positive(value: object, name: str) -> int:
    plain = integer(value, name)
    if plain < 1:
        raise wrong(name, "an integer from 1", value)
    return plain


_RANGE = {"start": optional(integer), "limit": optional(integer)}
_BOUNDS = {**_RANGE, "records_max": optional(_positive), "bytes_max": optional(_positive)}


class KeyedLog(KeyedAppends):
    """Appends and reads by key. Safe to share between threads; a context manager, which closes its writer.

    Ranges of offsets are [start, limit); without a start they begin with the log's first record, without a limit they
    end with its last one. GarbageCollectedError when the log no longer holds the start, InvalidRequestError when it
    lies beyond the end. All that a process has open of one log shares what was read of it. Records without a key
    belong to no key.
    """

    @classmethod
    @checked(
        store=a_store, log=check_log_name, options=optional(instance_of(KeyedOptions)), runtime=optional(a_runtime)
    )
    def open(
        cls, store: ObjectStore, log: str, *, options: KeyedOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Open a log: a GET, and another at the first append. LogNotFoundError when it was never initialized."""
        return cls(store, log, options=options or KeyedOptions(), runtime=runtime or shared_runtime())

    @classmethod
    @checked(
        store=a_store, log=check_log_name, options=optional(instance_of(KeyedOptions)), runtime=optional(a_runtime)
    )
    def open_or_initialize(
        cls, store: ObjectStore, log: str, *, options: KeyedOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Open a log, creating it first when it does not exist."""
        LogWriter.open_or_initialize(store, log, runtime=runtime).close()
        return cls.open(store, log, options=options, runtime=runtime)

    @checked(key=record_bytes, **_BOUNDS)
    def scan(
        self,
        key: bytes,
        start: int | None = None,
        limit: int | None = None,
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
    ) -> KeyedScan:
        """Go through a key's records in [start, limit), in order; a scan from its ``next_offset`` continues it.

        It ends after ``records_max`` records, and before the record with which keys and values exceed ``bytes_max``
        bytes, unless that is the first one. Reads the key columns of the fragments that the key roll-ups do not rule
        out, and of these the ones that have records of the key; of one that is arranged by key, its row groups.
        """
        return self._scan(KeyMatch(key), start, limit, records_max=records_max, bytes_max=bytes_max)

    @checked(prefix=record_bytes, **_BOUNDS)
    def scan_prefix(
        self,
        prefix: bytes,
        start: int | None = None,
        limit: int | None = None,
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
    ) -> KeyedScan:
        """Go through the records of all keys that begin with a prefix, in the order of the log; else as ``scan``."""
        return self._scan(KeyMatch(prefix, prefix=True), start, limit, records_max=records_max, bytes_max=bytes_max)

    def _scan(
        self, match: KeyMatch, start: int | None, limit: int | None, *, records_max: int | None, bytes_max: int | None
    ) -> KeyedScan:
        manifest = self._keys.manifest()
        start, limit = within(manifest, start, limit)
        bounds = ScanBounds(start=start, limit=limit, records_max=records_max, bytes_max=bytes_max)
        return KeyedScan(self._keys, match, bounds, manifest)

    @checked(prefix=record_bytes, **_RANGE, after=optional(record_bytes), keys_max=optional(_positive))
    def keys(
        self,
        prefix: bytes = b"",
        start: int | None = None,
        limit: int | None = None,
        *,
        after: bytes | None = None,
        keys_max: int | None = None,
    ) -> list[bytes]:
        """List the keys that begin with a prefix and have a record in [start, limit), rising; no values are read.

        Only those behind ``after``, and at most ``keys_max`` of them: a list continues after its last key.
        """
        match = KeyMatch(prefix, prefix=True)

        def listed(manifest: Manifest, first: int, end: int) -> list[bytes]:
            found: set[bytes] = set()
            for hit, begin in self._keys.hits(match, first, end, manifest):
                found.update(key for key in hit.index.keys_of(match, begin, end) if after is None or key > after)
                if keys_max is not None and len(found) > keys_max:
                    found = set(heapq.nsmallest(keys_max, found))
            return sorted(found)

        return self._keys.steady(start, limit, listed)

    @checked(key=record_bytes)
    def tail(self, key: bytes) -> int:
        """Return the offset of the last record of a key in the log, 0 for none: what ``expect_tail`` compares with.

        Reads the log backwards from its end; once it has, only what was appended since.
        """
        return self._tails.find(key)[0]

    @checked(key=record_bytes, **_RANGE)
    def count(self, key: bytes, start: int | None = None, limit: int | None = None) -> int:
        """Count a key's records in [start, limit) exactly, tombstones included; no values are read."""
        return count_exactly(self._keys, KeyMatch(key), start, limit)

    @checked(key=record_bytes, **_RANGE, requests_max=integer)
    def count_bounds(
        self, key: bytes, start: int | None = None, limit: int | None = None, *, requests_max: int = 0
    ) -> KeyCount:
        """Bound the number of a key's records in [start, limit), by at most ``requests_max`` requests.

        With 0 they come from what is in memory, and hold for the log as it was when its manifest was loaded last. One
        request loads that again; the others go where the bounds are widest. A request that the store does not answer
        is repeated, and counts once.
        """
        manifest = self._keys.manifest() if requests_max > 0 else self._keys.known
        start, limit = within(manifest, start, limit)
        return Bounding(self._keys, KeyMatch(key), start, limit).bound(manifest, requests_max - 1)

    @checked(cursor=check_cursor_name, key=record_bytes)
    def lag(self, cursor: str, key: bytes) -> int:
        """Count a key's records at or after the position of a cursor of the log, exactly.

        InvalidRequestError when there is no such cursor. Of a consumer by key, ``KeyedConsumer.lag`` counts from the
        key's own position.
        """
        witness = self._keys.stores.cursors.load(cursor)
        if witness is None:
            message = f"log {self._log}: expected a cursor {cursor}, found none"
            raise InvalidRequestError(message)
        return self.count(key, witness.cursor.position.offset)

    @checked(name=check_cursor_name, prefix=record_bytes, start=consumer_start)
    def consumer(self, name: str, *, prefix: bytes = b"", start: ConsumerStart = "beginning") -> KeyedConsumer:
        """Open a consumer of the keys that begin with a prefix where it was saved last, or create it at ``start``.

        Its cursor has this name. InvalidRequestError when that is the cursor of something else, or of another prefix.
        """
        reading = ConsumerOptions(reader=self._options.reader)
        opening = Opening(
            store=self._store,
            name=name,
            start=start,
            options=reading,
            runtime=self._runtime,
            log_id=self._keys.known.log_id,
            owner=Owner.KEYED_CONSUMER,
            extension=extension_of(prefix),
        )
        return open_consumer(self._keys, opening, self._log, prefix)

    @checked(
        key=optional(record_bytes), prefix=optional(record_bytes), start=optional(integer), idle_s=optional(seconds)
    )
    def follow(
        self,
        key: bytes | None = None,
        *,
        prefix: bytes | None = None,
        start: int | None = None,
        idle_s: float | None = None,
    ) -> Iterator[Record]:
        """Go through the records of a key, or of all keys with a prefix, then wait for more, as ``LogReader.follow``.

        All followers of a log in a process look at it together, and read each new fragment once.
        """
        if (key is None) == (prefix is None):
            message = "follow: expected a key or a prefix, found " + ("neither" if key is None else "both")
            raise InvalidRequestError(message)
        match = KeyMatch(key) if key is not None else KeyMatch(prefix or b"", prefix=True)
        yield from follow_keys(self._keys, match, start, idle_s).records()
