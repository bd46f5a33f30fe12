"""A scan: the records of one key, or of all keys with a prefix, in the order in which they were appended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.model import parquet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.record import Record
    from wal3_core.views.keyed.hits import Hit
    from wal3_core.views.keyed.key_reader import KeyReader
    from wal3_core.views.keyed.ranges import KeyMatch


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanBounds:
    """Where a scan ends: at an offset, after so many records, or before the record that would exceed the bytes."""

    start: int
    limit: int
    records_max: int | None = None
    bytes_max: int | None = None


class KeyedScan:
    """An iterator over a scan's records. ``next_offset`` is where a scan continues that is to give what follows.

    ``start`` is where it begins: the log's first offset, if the start that was asked for lies before that. The range is
    fixed when the scan is made: what is appended later is left to the scan that continues it.
    """

    def __init__(self, keys: KeyReader, match: KeyMatch, bounds: ScanBounds, manifest: Manifest) -> None:
        self._keys = keys
        self._match = match
        self._bounds = bounds
        self._given = 0
        self.start = self.next_offset = bounds.start
        self._records = self._read(manifest)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Record:
        """Give the next record.

        GarbageCollectedError when it was collected since the scan was made, or may have been compacted away.
        """
        return next(self._records)

    def _read(self, manifest: Manifest) -> Iterator[Record]:
        match, bounds, num_bytes = self._match, self._bounds, 0
        if bounds.limit <= bounds.start:
            # Also one that begins where the log does not.
            return
        chosen = None if bounds.records_max is None else partial(self._needed, bounds.records_max)
        hits = self._keys.hits_with_rows(match, bounds.start, bounds.limit, manifest, chosen=chosen)
        for hit, table, begin in hits:
            for record in parquet.records_of(self._keys.rows(hit, table, match, begin, bounds.limit)):
                num_bytes += len(record.key or b"") + len(record.body or b"")
                if bounds.bytes_max is not None and self._given and num_bytes > bounds.bytes_max:
                    return
                self._given += 1
                self.next_offset = record.offset + 1
                yield record
                if self._given == bounds.records_max:
                    return
        self.next_offset = max(bounds.start, bounds.limit)

    def _needed(self, records_max: int, hits: Iterator[Hit]) -> Iterator[Hit]:
        """Yield as many fragments as hold the records that are left to give."""
        left = records_max - self._given
        for hit in hits:
            yield hit
            left -= hit.index.count(self._match, self.next_offset, self._bounds.limit)
            if left <= 0:
                return
