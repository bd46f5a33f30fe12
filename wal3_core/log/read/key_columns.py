"""Reads the keys of fragments without their bodies, and computes key roll-ups from them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_rollup import FragmentKeys, KeyRollup
from wal3_core.format.snapshot import Snapshot
from wal3_core.log.read.reader import read_part
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Runtime, map_ahead
from wal3_core.store.object_store import ObjectStore, object_url, share_of
from wal3_core.store.retrying import reread_if_damaged

if TYPE_CHECKING:
    import pyarrow as pa


# Bytes at a file's end that are read first: one request costs less than two, and most footers are no longer.
_TAIL_BYTES = 2**16
_READS_AHEAD = 4


class KeyColumns:
    """Reads offsets, times and keys of fragments of one life of a log, whose objects ``store`` holds.

    A fragment takes one GET up to 64 KiB, else two or three: its footer, then the columns. Bodies are read only of a
    file with keys, from an older version, that does not say which records are tombstone records, and where they lie
    between the columns, as in a fragment that is arranged by key.
    """

    def __init__(self, store: ObjectStore, options: ReaderOptions) -> None:
        self._store = store
        self._options = options
        # Whose work the requests are.
        self.share = share_of(store)

    def read(self, pointer: FragmentPointer) -> pa.Table:
        """Return a table of offset (uint64), timestamp_us (uint64), key (binary) and tombstone (bool), in order.

        CorruptError names the fragment when it is damaged; MissingError when it is gone. Page checksums, positions
        and the count are checked. The setsum is not: nothing may be dropped before the whole fragment was read.
        """
        return reread_if_damaged(lambda: self._read(pointer), self._store)

    def read_or_arrangement(self, pointer: FragmentPointer) -> pa.Table | parquet.Arrangement:
        """Return what ``read`` does; of a fragment that is arranged by key, how it is: one or two requests."""
        return reread_if_damaged(lambda: self._read_or_arrangement(pointer), self._store)

    def groups(self, pointer: FragmentPointer, arrangement: parquet.Arrangement, numbers: range) -> pa.Table:
        """Read some row groups that follow one another: one request; a table as that of ``Fragment``, in order.

        CorruptError names the fragment when they are damaged; each group's setsum is checked.
        """

        def read() -> pa.Table:
            file = _PartOfFile(self._store, pointer, arrangement.ending)
            places = [arrangement.places[number] for number in numbers]
            file.load(min(start for start, _ in places), max(limit for _, limit in places))
            most = self._options.fragment_expanded_bytes_max
            return parquet.decode_groups(
                file.data, pointer, arrangement, numbers, expanded_bytes_max=most, what=file.what
            )

        return reread_if_damaged(read, self._store)

    def keys(self, pointer: FragmentPointer) -> FragmentKeys:
        """Return the hashes of a fragment's keys, for a key roll-up."""
        table = self.read(pointer)
        return FragmentKeys.of(pointer, table["key"], table["tombstone"].to_numpy())

    def _read(self, pointer: FragmentPointer) -> pa.Table:
        part = _PartOfFile(self._store, pointer)
        return self._columns_of(part, pointer, parquet.open_fragment(part.data, pointer, what=part.what))

    def _read_or_arrangement(self, pointer: FragmentPointer) -> pa.Table | parquet.Arrangement:
        part = _PartOfFile(self._store, pointer)
        file = parquet.open_fragment(part.data, pointer, what=part.what)
        found = parquet.read_arrangement(part.data, pointer, what=part.what, file=file)
        return found or self._columns_of(part, pointer, file)

    def _columns_of(self, part: _PartOfFile, pointer: FragmentPointer, file: parquet.Opened) -> pa.Table:
        for start, limit in _joined(parquet.key_ranges(part.data, pointer, what=part.what, file=file)):
            part.load(start, limit)
        most = self._options.fragment_expanded_bytes_max
        return parquet.decode_keys(part.data, pointer, expanded_bytes_max=most, what=part.what, file=file)


class _PartOfFile:
    """A file of which only some parts were read, its footer first; the others are zeros, which take no memory.

    ``ending`` is the footer and what follows it, if they were read before.
    """

    def __init__(self, store: ObjectStore, pointer: FragmentPointer, ending: bytes | None = None) -> None:
        self._store = store
        self._pointer = pointer
        self.what = pointer.named(object_url(store, pointer.path))
        num_bytes = pointer.num_bytes
        if ending is not None:
            self._limit = num_bytes - len(ending)
            self.data = np.zeros(num_bytes, dtype=np.uint8).data
            self.data[self._limit :] = ending
            return
        # What lies behind was read.
        self._limit = max(0, num_bytes - _TAIL_BYTES)
        # Before memory for the whole file is taken: an object that ends earlier than its pointer says is found here.
        tail = read_part(store, pointer, self._limit, num_bytes, what=self.what)
        self.data = np.zeros(num_bytes, dtype=np.uint8).data
        self.data[self._limit :] = tail
        try:
            footer = parquet.footer_start(memoryview(tail), num_bytes)
        except ValueError as error:
            raise parquet.unreadable(self.what, f"expected a Parquet file, found {error}") from error
        self.load(footer, self._limit)
        self._limit = min(self._limit, footer)

    def load(self, start: int, limit: int) -> None:
        """Read a range, except what was read at first."""
        limit = min(limit, self._limit)
        if start < limit:
            self.data[start:limit] = read_part(self._store, self._pointer, start, limit, what=self.what)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join ranges, in order, whose gap costs less than a request."""
    joined: list[tuple[int, int]] = []
    for start, limit in ranges:
        if joined and start <= joined[-1][1] + _TAIL_BYTES:
            joined[-1] = (joined[-1][0], max(joined[-1][1], limit))
        else:
            joined.append((start, limit))
    return joined


def build_key_rollup(
    snapshot: Snapshot, columns: KeyColumns, *, runtime: Runtime, known: Iterable[KeyRollup] = ()
) -> KeyRollup:
    """Compute the key roll-up of a snapshot of depth 1; only the fragments that ``known`` ones do not cover are read.

    ``known`` are those of the snapshots that it replaces, of which no two cover one fragment.
    """
    pointers = [pointer for pointer in snapshot.pointers if isinstance(pointer, FragmentPointer)]
    assert len(pointers) == len(snapshot.pointers), "expected a snapshot of depth 1"
    parts = [rollup.part(pointers) for rollup in known]
    covered = {each.seq_no for part in parts for each in part.fragments}
    unknown = [pointer for pointer in pointers if pointer.seq_no not in covered]
    read = map_ahead(runtime, columns.keys, unknown, count=_READS_AHEAD, share=columns.share)
    return KeyRollup.join([*parts, KeyRollup(tuple(read))])
