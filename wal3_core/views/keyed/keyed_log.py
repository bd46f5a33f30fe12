"""The public API of a keyed log: each key is a log of its own inside one log, with no partitions to plan.

A record's sequence number is its offset in the log.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Self

from wal3_core.arguments import checked, flag, instance_of, integer, optional, positive, record_bytes, seconds
from wal3_core.errors import InvalidRequestError
from wal3_core.format import parquet
from wal3_core.format.cursor import Owner
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import check_cursor_name, check_log_name
from wal3_core.format.record import Record
from wal3_core.log.read.consumer import ConsumerStart, Opening, consumer_start
from wal3_core.log.read.following import Calls, Following, awaited, in_thread
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import ConsumerOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import ObjectStore, a_store
from wal3_core.views.keyed.key_count import Bounding, KeyCount, count_exactly
from wal3_core.views.keyed.key_reader import Hit, KeyReader, follow_keys
from wal3_core.views.keyed.keyed_appends import KeyedAppends
from wal3_core.views.keyed.keyed_consumer import KeyedConsumer, extension_of, open_consumer
from wal3_core.views.keyed.reads import KeyBound, KeyedOptions, KeyMatch, OffsetBound, OffsetRange

# Records that are read ahead in asyncio.
_READY_MAX = 256


class KeyedScan:
    """An iterator over a scan's records. ``next_offset`` is where a scan continues that is to give what follows.

    ``start`` is where it begins: the log's first offset, if the start that was asked for lies before that. The range is
    fixed when the scan is made: what is appended later is left to the scan that continues it.
    """

    def __init__(
        self, keys: KeyReader, match: KeyMatch, offsets: OffsetRange, *, records_max: int | None, bytes_max: int | None
    ) -> None:
        manifest = keys.manifest()
        self._keys = keys
        self._match = match
        self._records_max = records_max
        self._bytes_max = bytes_max
        self.start, self._limit = offsets.within(manifest)
        # Records that were read, and up to where; in asyncio, some are read before they are given.
        self._num_read = 0
        self._at = self.next_offset = self.start
        self._ready: deque[Record] = deque()
        # One thread: a read whose caller was cancelled ends before the next one.
        self._async = Calls("wal3-scan")
        self._records = self._read(manifest)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Give the next record.

        GarbageCollectedError when it was collected since the scan was made, or may have been compacted away.
        """
        try:
            record = self._ready.popleft() if self._ready else next(self._records)
        except StopIteration:
            self.next_offset = self._at
            raise
        self.next_offset = record.offset + 1
        return record

    async def __aiter__(self) -> AsyncGenerator[Record, None]:
        """Go through the records from asyncio, as ``iter``: read in a thread, at most 256 ahead."""
        while await self._async.made(self._read_ahead):
            while self._ready:
                yield next(self)
        self._async.close()
        self.next_offset = self._at

    def _read_ahead(self) -> bool:
        while len(self._ready) < _READY_MAX and (record := next(self._records, None)) is not None:
            self._ready.append(record)
        return bool(self._ready)

    def _read(self, manifest: Manifest) -> Iterator[Record]:
        match, limit, num_bytes = self._match, self._limit, 0
        if limit <= self.start:
            # Also one that begins where the log does not.
            return
        chosen = None if self._records_max is None else partial(self._needed, self._records_max)
        for hit, table, begin in self._keys.hits_with_rows(match, self.start, limit, manifest, chosen=chosen):
            for record in parquet.records_of(self._keys.rows(hit, table, match, begin, limit)):
                num_bytes += len(record.key or b"") + len(record.body or b"")
                if self._bytes_max is not None and self._num_read and num_bytes > self._bytes_max:
                    return
                self._num_read += 1
                self._at = record.offset + 1
                yield record
                if self._num_read == self._records_max:
                    return
        self._at = limit

    def _needed(self, records_max: int, hits: Iterator[Hit]) -> Iterator[Hit]:
        """Yield as many fragments as hold the records that are left to give."""
        left = records_max - self._num_read
        for hit in hits:
            yield hit
            left -= hit.index.count(self._match, self._at, self._limit)
            if left <= 0:
                return


_SIZE = {"records_max": optional(positive), "bytes_max": optional(positive)}
_BYTES = optional(record_bytes)
_FOLLOWING = {"key": _BYTES, "prefix": _BYTES, "start": optional(integer), "idle_s": optional(seconds)}


class KeyedLog(KeyedAppends):
    """Appends and reads by key. Safe to share between threads; a context manager, which closes its writer.

    In asyncio, use ``async with`` and ``async for``, and await the methods whose names end in ``_async``.

    Ranges are [start, limit), or as ``Excluded`` and ``Included`` say. A range of offsets is cut to what the log holds:
    it is empty beside that, and without a start or limit it begins with the log's first record, or ends with its last
    one. InvalidRequestError for a bound that is no offset. All that a process has open of one log shares what was read
    of it. Records without a key belong to no key: they are passed, and reported once.
    """

    @classmethod
    @checked(store=a_store, log=check_log_name)
    def open(
        cls, store: ObjectStore, log: str, *, options: KeyedOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Open a log: a GET, and another at the first append. LogNotFoundError when it was never created."""
        return cls(store, log, options=options or KeyedOptions(), runtime=runtime or shared_runtime())

    @classmethod
    @checked(store=a_store, log=check_log_name, options=optional(instance_of(KeyedOptions)))
    def open_or_create(
        cls, store: ObjectStore, log: str, *, options: KeyedOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Open a log, creating it first when it does not exist."""
        LogWriter.open_or_create(store, log, runtime=runtime).close()
        return cls.open(store, log, options=options, runtime=runtime)

    @property
    def num_strays(self) -> int:
        """The records without a key that reads by key have come to in this process; each was logged once."""
        return self._keys.shared.strays.count

    @checked(key=record_bytes, **_SIZE)
    def scan(
        self,
        key: bytes,
        start: OffsetBound | None = None,
        limit: OffsetBound | None = None,
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
    ) -> KeyedScan:
        """Go through a key's records in [start, limit), in order; a scan from its ``next_offset`` continues it.

        It ends after ``records_max`` records, and before the record with which keys and values exceed ``bytes_max``
        bytes, unless that is the first one. Reads the key columns of the fragments that the key roll-ups do not rule
        out, and of these the ones that have records of the key; of one that is arranged by key, its row groups.
        """
        offsets = OffsetRange.between(start, limit)
        return KeyedScan(self._keys, KeyMatch.of(key), offsets, records_max=records_max, bytes_max=bytes_max)

    scan_async = awaited(scan)

    @checked(prefix=record_bytes, **_SIZE)
    def scan_prefix(
        self,
        prefix: bytes,
        start: OffsetBound | None = None,
        limit: OffsetBound | None = None,
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
    ) -> KeyedScan:
        """Go through the records of all keys that begin with a prefix, in the order of the log; else as ``scan``."""
        match, offsets = KeyMatch.of_prefix(prefix), OffsetRange.between(start, limit)
        return KeyedScan(self._keys, match, offsets, records_max=records_max, bytes_max=bytes_max)

    scan_prefix_async = awaited(scan_prefix)

    @checked(**_SIZE)
    def scan_keys(
        self,
        start_key: KeyBound | None = None,
        limit_key: KeyBound | None = None,
        start: OffsetBound | None = None,
        limit: OffsetBound | None = None,
        *,
        records_max: int | None = None,
        bytes_max: int | None = None,
    ) -> KeyedScan:
        """Go through the records of the keys from ``start_key`` to below ``limit_key``, in the order of the log.

        Without a start or limit, from the first key, or to the last one; else as ``scan``.
        """
        match, offsets = KeyMatch.between(start_key, limit_key), OffsetRange.between(start, limit)
        return KeyedScan(self._keys, match, offsets, records_max=records_max, bytes_max=bytes_max)

    scan_keys_async = awaited(scan_keys)

    @checked(prefix=record_bytes, after=_BYTES, keys_max=optional(positive))
    def keys(
        self,
        prefix: bytes = b"",
        start: OffsetBound | None = None,
        limit: OffsetBound | None = None,
        *,
        after: bytes | None = None,
        keys_max: int | None = None,
    ) -> list[bytes]:
        """List the keys that begin with a prefix and have a record in [start, limit), rising; no values are read.

        Only those behind ``after``, and at most ``keys_max`` of them: a list continues after its last key.
        """
        match = KeyMatch.of_prefix(prefix)

        def listed(manifest: Manifest, first: int, end: int) -> list[bytes]:
            found: set[bytes] = set()
            for hit, begin in self._keys.hits(match, first, end, manifest):
                found.update(key for key in hit.index.keys_of(match, begin, end) if after is None or key > after)
                if keys_max is not None and len(found) > keys_max:
                    found = set(heapq.nsmallest(keys_max, found))
            return sorted(found)

        return self._keys.steady(OffsetRange.between(start, limit), listed)

    keys_async = awaited(keys)

    @checked(key=record_bytes)
    def tail(self, key: bytes) -> int:
        """Return the offset of the last record of a key in the log, 0 for none: what ``expect_tail`` compares with.

        Reads the log backwards from its end; once it has, only what was appended since.
        """
        return self._tails.find(key)[0]

    tail_async = awaited(tail)

    @checked(key=record_bytes, approximate=flag)
    def count(
        self,
        key: bytes,
        start: OffsetBound | None = None,
        limit: OffsetBound | None = None,
        *,
        approximate: bool = False,
    ) -> int:
        """Count a key's records in a range exactly, tombstones included; no values are read.

        An ``approximate`` count is an estimate from indexes alone: key roll-ups and what is in memory, and the keys of
        at most 32 fragments of which these say nothing, however long the log. It is within 20 % if the log's keys are
        spread evenly; ``count_bounds`` has it with its bounds.
        """
        match, offsets = KeyMatch.of(key), OffsetRange.between(start, limit)
        if not approximate:
            return count_exactly(self._keys, match, offsets)
        manifest = self._keys.manifest()
        return Bounding(self._keys, match, *offsets.within(manifest)).estimate(manifest).estimate

    count_async = awaited(count)

    @checked(key=record_bytes, requests_max=integer)
    def count_bounds(
        self, key: bytes, start: OffsetBound | None = None, limit: OffsetBound | None = None, *, requests_max: int = 0
    ) -> KeyCount:
        """Bound and estimate the number of a key's records in a range, by at most ``requests_max`` requests.

        With 0 they come from what is in memory: the bounds hold for the log as it was when its manifest was loaded
        last. One request loads that again; the others go where the bounds are widest. A request that the store does not
        answer is repeated, and counts once.
        """
        offsets = OffsetRange.between(start, limit)
        manifest = self._keys.manifest() if requests_max > 0 else self._keys.known
        return Bounding(self._keys, KeyMatch.of(key), *offsets.within(manifest)).bound(manifest, requests_max - 1)

    count_bounds_async = awaited(count_bounds)

    @checked(cursor=check_cursor_name, key=record_bytes)
    def lag(self, cursor: str, key: bytes) -> int:
        """Count a key's records at or after the position of a cursor of the log, exactly.

        InvalidRequestError when there is no such cursor. Of a consumer by key, ``KeyedConsumer.lag`` counts from the
        key's own position.
        """
        witness = self._keys.stores.cursors.load(cursor)
        if witness is None:
            raise InvalidRequestError(f"log {self._log}: expected a cursor {cursor}, found none")
        return self.count(key, witness.cursor.position.offset)

    lag_async = awaited(lag)

    @checked(name=check_cursor_name, prefix=record_bytes, start=consumer_start)
    def consumer(self, name: str, *, prefix: bytes = b"", start: ConsumerStart = "beginning") -> KeyedConsumer:
        """Open a consumer of the keys that begin with a prefix where it was saved last, or create it at ``start``.

        Its cursor has this name. InvalidRequestError when that is the cursor of something else, or of another prefix.
        """
        opening = Opening(
            store=self._store,
            name=name,
            start=start,
            options=ConsumerOptions(reader=self._options.reader),
            runtime=self._runtime,
            log_id=self._keys.known.log_id,
            owner=Owner.KEYED_CONSUMER,
            extension=extension_of(prefix),
        )
        return open_consumer(self._keys, opening, self._log, prefix)

    consumer_async = awaited(consumer)

    @checked(**_FOLLOWING)
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
        yield from self._followed(key, prefix, start, idle_s).records()

    @checked(**_FOLLOWING)
    def follow_async(
        self,
        key: bytes | None = None,
        *,
        prefix: bytes | None = None,
        start: int | None = None,
        idle_s: float | None = None,
    ) -> AsyncGenerator[Record, None]:
        """Follow from asyncio: as ``follow``, read in a thread that ends when the generator is closed or cancelled."""
        return in_thread(self._followed(key, prefix, start, idle_s))

    def _followed(self, key: bytes | None, prefix: bytes | None, start: int | None, idle_s: float | None) -> Following:
        if (key is None) == (prefix is None):
            message = "follow: expected a key or a prefix, found " + ("neither" if key is None else "both")
            raise InvalidRequestError(message)
        match = KeyMatch.of(key) if key is not None else KeyMatch.of_prefix(prefix or b"")
        return follow_keys(self._keys, match, start, idle_s)
