"""A consumer by key: how far it has come in each key's log, in one object, which keeps the records that it needs.

The object is a cursor. Its position is the floor: below it, all records are processed, and from there on collections
and key compaction leave every record alone. Keys that are ahead of the floor stand beside it, in the same object, so
that no crash comes between the two. Source: docs/keyed.md, "Consumers".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Iterator
from typing import TYPE_CHECKING

import numpy as np

from wal3_core.arguments import checked, instance_of, optional, record_bytes, seconds
from wal3_core.errors import CorruptError, CursorConflictError, InvalidRequestError
from wal3_core.format.cursor import Cursor, Extension, Owner
from wal3_core.format.manifest import Manifest
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Record
from wal3_core.format.strict_json import Fields, JsonObject
from wal3_core.log.read.following import Calls, awaited, in_thread
from wal3_core.store.documents.cursor_store import Witness
from wal3_core.views.keyed.key_count import count_exactly
from wal3_core.views.keyed.key_reader import Hit, KeyReader, follow_keys
from wal3_core.views.keyed.reads import KeyMatch, OffsetRange

if TYPE_CHECKING:
    from wal3_core.log.read.consumer import Opening

# Keys that a cursor has: collections read every cursor, so that it stays small.
KEYS_MAX = 8192
# Bytes that the keys take, well below what a cursor can take.
_KEYS_BYTES_MAX = 3 * 2**16


def open_consumer(keys: KeyReader, opening: Opening, log: str, prefix: bytes) -> KeyedConsumer:
    """Open a consumer where it was saved last; without a cursor of its name, create one."""
    opening.place(log).keep_successors(opening)
    witness = keys.stores.cursors.load(opening.name, Owner.KEYED_CONSUMER)
    if witness is None:
        message = f"log {log}, consumer {opening.name}: expected its cursor, which was just there, found it deleted"
        raise CursorConflictError(message)
    what, cursor = f"log {log}, consumer {opening.name}", witness.cursor
    end, furthest = keys.manifest().next.position.offset, max(cursor.position.offset, cursor.extension.limit)
    if furthest > end:
        # As after the restore of an older manifest: records would be skipped.
        message = f"{what}: expected positions up to the log's end, {end}, found {furthest}: move its cursor"
        raise InvalidRequestError(message)
    terms = cursor.extension.terms
    # The cursor of other keys would be moved over their records. Earlier versions do not say the prefix.
    if terms and terms != extension_of(prefix).terms:
        raise InvalidRequestError(
            f"{what}: expected a consumer of keys with the prefix {ascii(prefix)[:80]}, found one of"
            f" {ascii(terms.get('prefix'))[:120]} in base64: open it with that, or take another name"
        )
    return KeyedConsumer(keys, opening.name, prefix, witness)


class KeyedConsumer:
    """A named consumer of the keys with a prefix, each at a position of its own; ``KeyedLog.consumer`` opens it.

    At least once: a key's position moves past a record only when that is processed, and is saved by ``save`` alone.
    Records of other keys, and those without a key, do not concern it. One thread at a time may use it.
    """

    def __init__(self, keys: KeyReader, name: str, prefix: bytes, witness: Witness) -> None:
        self._keys = keys
        self._name = name
        self._prefix = prefix
        self._match = KeyMatch.of_prefix(prefix)
        self._witness = witness
        # One thread at a time.
        self._async = Calls("wal3-consumer")
        self._floor = witness.cursor.position
        self._ahead = _keys_of(witness.cursor, f"consumer {name}")

    @property
    def floor(self) -> int:
        """The offset below which the records of all its keys are processed; every record from there on is kept."""
        return self._floor.offset

    @checked(key=record_bytes)
    def position(self, key: bytes) -> int:
        """Return the offset from which on a key's records are not processed."""
        return max(self._floor.offset, self._ahead.get(key, 0))

    @checked(record=instance_of(Record))
    def finish(self, record: Record) -> None:
        """Count a record, and all before it of its key, as processed; that is saved by the next ``save``.

        InvalidRequestError for a record that is not of the consumer's keys, or lies beyond the log's end.
        """
        if record.key is None or not self._match.fits(record.key):
            message = f"consumer {self._name}: expected a record of its keys, found the key {ascii(record.key)[:80]}"
            raise InvalidRequestError(message)
        end = self._keys.known.next.position.offset
        if record.offset >= end and record.offset >= (end := self._keys.manifest().next.position.offset):
            # A position beyond the end would skip what is appended there.
            message = f"consumer {self._name}: expected a record below the log's end, {end}, found {record.offset}"
            raise InvalidRequestError(message)
        self._ahead[record.key] = max(self.position(record.key), record.offset + 1)

    finish_async = awaited(finish)

    @checked(idle_s=optional(seconds))
    def follow(self, *, idle_s: float | None = None) -> Iterator[Record]:
        """Go through the records that are not processed, in the order of the log, then wait for more, as a reader does.

        A record that is finished before its turn is left out.
        """
        for record in follow_keys(self._keys, self._match, self.floor, idle_s).records():
            if record.key is not None and record.offset >= self.position(record.key):
                yield record

    @checked(idle_s=optional(seconds))
    async def follow_async(self, *, idle_s: float | None = None) -> AsyncGenerator[Record, None]:
        """Follow from asyncio: as ``follow``, read in a thread that ends when the generator is closed or cancelled."""
        following = in_thread(follow_keys(self._keys, self._match, self.floor, idle_s))
        try:
            async for record in following:
                if record.key is not None and record.offset >= self.position(record.key):
                    yield record
        finally:
            await following.aclose()

    @checked(key=record_bytes)
    def lag(self, key: bytes) -> int:
        """Count the records of a key that are not processed, exactly; no values are read."""
        return count_exactly(self._keys, KeyMatch.of(key), self._from(self.position(key)))

    lag_async = awaited(lag)

    def lags(self) -> dict[bytes, int]:
        """Count the records that are not processed, by key, of all keys that have any; no values are read."""

        def counted(manifest: Manifest, floor: int, end: int) -> dict[bytes, int]:
            found: dict[bytes, int] = {}
            for _, key, left in self._left(manifest, floor, end):
                found[key] = found.get(key, 0) + left
            return found

        return self._keys.steady(self._from(self.floor), counted)

    lags_async = awaited(lags)

    def save(self) -> int:
        """Raise the floor as far as all below it is processed, and save it with the keys that are ahead of it.

        Return how many of these did not fit, 0 in general: their records are given again after a restart. At most
        8192 fit, in 192 KiB, those that are farthest ahead first. CursorConflictError when another process has moved
        the cursor.
        """
        floor = self._keys.steady(self._from(self.floor), self._risen)
        ahead = {key: offset for key, offset in self._ahead.items() if offset > floor.offset}
        stored = _fitting(ahead)
        kept, saved = extension_of(self._prefix, stored), self._witness.cursor
        if (floor.offset, kept) != (saved.position.offset, saved.extension):
            self._witness = self._keys.stores.cursors.save(
                self._name, floor, self._witness, owner=Owner.KEYED_CONSUMER, extension=kept
            )
        self._floor, self._ahead = floor, ahead
        return len(ahead) - len(stored)

    save_async = awaited(save)

    def delete(self) -> None:
        """Delete the cursor: the records that it kept can be collected. Its name can be used again at once."""
        self._keys.stores.cursors.delete(self._name)

    delete_async = awaited(delete)

    def _from(self, offset: int) -> OffsetRange:
        # Records below the log's first one that are not processed must not be counted as if they were.
        return OffsetRange(offset, held=True)

    def _risen(self, manifest: Manifest, floor: int, end: int) -> LogPosition:
        """Return the position of the first record that is not processed, the log's end when all are."""
        first = next(self._left(manifest, floor, end), None)
        if first is None:
            return max(self._floor, manifest.next.position)
        hit = first[0]
        offsets = (
            offset
            for key, group in hit.index.groups_of(self._match, floor, end)
            for offset in group[np.searchsorted(group, np.uint64(self.position(key))) :][:1].tolist()
        )
        return LogPosition(min(offsets), hit.pointer.start.timestamp_us)

    def _left(self, manifest: Manifest, floor: int, end: int) -> Iterator[tuple[Hit, bytes, int]]:
        """Yield, for each fragment from the floor on, the keys that are not processed there, and how many records."""
        for hit, begin in self._keys.hits(self._match, floor, end, manifest):
            for key, group in hit.index.groups_of(self._match, begin, end):
                left = len(group) - int(np.searchsorted(group, np.uint64(self.position(key))))
                if left:
                    yield hit, key, left


def extension_of(prefix: bytes, keys: tuple[tuple[bytes, int], ...] = ()) -> Extension:
    """Return what a cursor keeps: the prefix, and keys ahead of it, each with the offset of what is not processed."""
    terms: JsonObject = {"prefix": _text_of(prefix)}
    if not keys:
        return Extension(terms=terms)
    kept: JsonObject = {_text_of(key): offset for key, offset in keys}
    return Extension(terms=terms, ahead={"keys": kept}, limit=max(offset for _, offset in keys))


def _text_of(key: bytes) -> str:
    return base64.b64encode(key).decode()


def _keys_of(cursor: Cursor, what: str) -> dict[bytes, int]:
    """Read the keys ahead of a cursor's position; CorruptError names ``what`` when anything is off."""
    if not cursor.extension.ahead:
        return {}
    ahead = Fields(cursor.extension.ahead, what)
    kept = ahead.object("keys").integers(count_max=KEYS_MAX)
    ahead.finish()
    found = {}
    for text, offset in kept.items():
        try:
            key = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if _text_of(key) != text or not cursor.position.offset < offset <= cursor.extension.limit:
            message = f"{what}: expected keys as base64, ahead of its position, found {ascii(text)[:80]} at {offset}"
            raise CorruptError(message)
        found[key] = offset
    return found


def _fitting(ahead: dict[bytes, int]) -> tuple[tuple[bytes, int], ...]:
    """Return the keys that fit into a cursor, rising; of too many, those that are farthest ahead."""
    kept, num_bytes = [], 0
    for key, offset in sorted(ahead.items(), key=lambda item: (-item[1], item[0]))[:KEYS_MAX]:
        # As base64 and digits, between marks.
        size = (len(key) + 2) // 3 * 4 + len(str(offset)) + len('"":,')
        if num_bytes + size <= _KEYS_BYTES_MAX:
            kept.append((key, offset))
            num_bytes += size
    return tuple(sorted(kept))
