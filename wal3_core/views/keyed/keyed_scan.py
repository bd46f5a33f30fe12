"""A scan: the records of one key, or of all keys with a prefix, in the order in which they were appended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.log.read.following import Calls
from wal3_core.model import parquet

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.record import Record
    from wal3_core.views.keyed.hits import Hit
    from wal3_core.views.keyed.key_reader import KeyReader
    from wal3_core.views.keyed.ranges import KeyMatch

_READY_MAX = 256


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
        # How many records were read, and up to where; in asyncio, some are read before they are given.
        self._num_read = 0
        self._at = self.start = self.next_offset = bounds.start
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
        match, bounds, num_bytes = self._match, self._bounds, 0
        if bounds.limit <= bounds.start:
            # Also one that begins where the log does not.
            return
        chosen = None if bounds.records_max is None else partial(self._needed, bounds.records_max)
        hits = self._keys.hits_with_rows(match, bounds.start, bounds.limit, manifest, chosen=chosen)
        for hit, table, begin in hits:
            for record in parquet.records_of(self._keys.rows(hit, table, match, begin, bounds.limit)):
                num_bytes += len(record.key or b"") + len(record.body or b"")
                if bounds.bytes_max is not None and self._num_read and num_bytes > bounds.bytes_max:
                    return
                self._num_read += 1
                self._at = record.offset + 1
                yield record
                if self._num_read == bounds.records_max:
                    return
        self._at = bounds.limit

    def _needed(self, records_max: int, hits: Iterator[Hit]) -> Iterator[Hit]:
        """Yield as many fragments as hold the records that are left to give."""
        left = records_max - self._num_read
        for hit in hits:
            yield hit
            left -= hit.index.count(self._match, self._at, self._bounds.limit)
            if left <= 0:
                return
