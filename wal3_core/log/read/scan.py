"""Which fragments hold a range of the log, and which of their records. Pure except for loading snapshots."""

from __future__ import annotations

import operator
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from wal3_core.arguments import wrong
from wal3_core.errors import GarbageCollectedError, InvalidRequestError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.position import AtTime, LogPosition, ReadStart
from wal3_core.format.snapshot import count_fragments
from wal3_core.format.strict_json import U64_MAX
from wal3_core.options import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
    from wal3_core.options import Limits

    Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


@dataclass(frozen=True, slots=True)
class BegunAtTime(AtTime):
    """A start at a time, once the read has begun: nothing at or after the offset ``floor`` may be missing."""

    floor: int


def begun(manifest: Manifest, start: ReadStart) -> ReadStart:
    """Fix where a read starts by the first manifest it sees: what is collected from there on is never skipped."""
    match start:
        case None:
            return manifest.first.position.offset
        case AtTime(timestamp_us) if not isinstance(start, BegunAtTime):
            wanted = (pointer.start.offset for pointer in manifest.pointers if not lies_before(pointer, start))
            return BegunAtTime(timestamp_us, next(wanted, manifest.next.position.offset))
        case AtTime() | LogPosition():
            return start
    return offset_of(start)


def floor_of(start: ReadStart) -> int | None:
    """Return the offset below which a read needs nothing; None if it has not begun and starts at no offset."""
    return start.floor if isinstance(start, BegunAtTime) else offset_of(start)


def check_start(manifest: Manifest, start: ReadStart) -> None:
    """Refuse a start that the log no longer holds, or does not hold yet."""
    offset = floor_of(start)
    first, following = manifest.first.position, manifest.next.position
    # Collected records are not newer than the log's first position.
    if offset is None or (isinstance(start, AtTime) and first.timestamp_us < start.timestamp_us):
        return
    if not 1 <= offset <= following.offset:
        message = f"read: expected an offset from 1 to {following.offset}, found {offset}"
        raise InvalidRequestError(message)
    if offset < first.offset:
        message = f"read: expected an offset the log still holds, from {first.offset}, found {offset}"
        raise GarbageCollectedError(message)


def offset_of(start: ReadStart) -> int | None:
    """Return the offset that a read starts at, None if it starts at a time or the log's first record."""
    match start:
        case LogPosition(offset, _):
            return offset
        case None | AtTime():
            return None
        case bool():
            raise wrong("start", "an offset, a position or a time", start)
    try:
        # Any type of integer, numpy's and Arrow's included.
        return operator.index(start)
    except TypeError:
        raise wrong("start", "an offset, a position or a time", start) from None


def within(limits: Limits, manifest: Manifest) -> Limits:
    """Return the limits, cut to the manifest's end: a manifest loaded later may end further on."""
    end = manifest.next.position.offset
    return replace(limits, offset=end if limits.offset is None else min(end, limits.offset))


def is_empty(start: ReadStart, limits: Limits) -> bool:
    """Tell whether a range holds nothing, whatever the log holds: a limit does not lie behind its start."""
    if isinstance(start, AtTime):
        return limits.timestamp_us is not None and limits.timestamp_us <= start.timestamp_us
    offset = offset_of(start)
    return offset is not None and limits.offset is not None and limits.offset <= offset


def select(
    pointers: Iterable[Pointer], start: ReadStart, limits: Limits, load: Callable[[SnapshotPointer], Snapshot]
) -> Iterator[FragmentPointer]:
    """Go through the fragments that overlap the range, loading no snapshot that does not."""
    for pointer in pointers:
        if lies_before(pointer, start):
            continue
        if lies_beyond(pointer, limits):
            return
        if isinstance(pointer, FragmentPointer):
            yield pointer
        else:
            yield from select(load(pointer).pointers, start, limits, load)


def lies_before(pointer: Pointer, start: ReadStart) -> bool:
    """Tell whether all that a pointer stands for lies before a read's start."""
    if isinstance(start, AtTime):
        return pointer.limit.timestamp_us < start.timestamp_us
    offset = offset_of(start)
    return offset is not None and pointer.limit.offset <= offset


def lies_beyond(pointer: Pointer, limits: Limits) -> bool:
    """Tell whether all that a pointer stands for lies at or after a limit of offset or time."""
    by_offset = limits.offset is not None and pointer.start.offset >= limits.offset
    return by_offset or (limits.timestamp_us is not None and pointer.start.timestamp_us >= limits.timestamp_us)


class Counted:
    """How many fragments, bytes and records a read has come to; a snapshot counts all that it holds."""

    __slots__ = ("_num_bytes", "_num_fragments", "_num_records", "_start")

    def __init__(self, start: ReadStart) -> None:
        self._start = start
        self._num_fragments = self._num_bytes = self._num_records = 0

    def add(self, pointer: Pointer) -> None:
        """Count what a pointer stands for."""
        self._num_fragments += 1 if isinstance(pointer, FragmentPointer) else count_fragments((pointer,))
        self._num_bytes += pointer.num_bytes
        # In the pointer that the read starts in, it is not known yet how many records count.
        self._num_records += pointer.num_records if _starts_before(self._start, pointer) else 0

    def reached(self, limits: Limits) -> bool:
        """Tell whether a limit of fragments, bytes or records is reached; one of 0 is before the first fragment."""
        return (
            _reached(self._num_fragments, limits.fragments)
            or _reached(self._num_bytes, limits.num_bytes)
            or _reached(self._num_records, limits.records)
        )

    def copy(self) -> Counted:
        """Return a copy that counts independently."""
        return copy(self)


def _starts_before(start: ReadStart, pointer: Pointer) -> bool:
    if isinstance(start, AtTime):
        return start.timestamp_us <= pointer.start.timestamp_us
    offset = offset_of(start)
    return offset is None or offset <= pointer.start.offset


def _reached(amount: int, limit: int | None) -> bool:
    return limit is not None and amount >= limit


def first_rows(rows: Rows, count: int | None) -> Rows:
    """Return the first ``count`` rows; ``count`` may exceed what Arrow can represent."""
    return rows if count is None or count >= len(rows) else rows.slice(0, count)


def holds(table: pa.Table, start: ReadStart) -> bool:
    """Tell whether a fragment has records at or after a read's start."""
    return len(trim(table, start, UNLIMITED)) > 0


def trim(table: pa.Table, start: ReadStart, limits: Limits) -> pa.Table:
    """Cut a fragment's records down to the range."""
    if len(table) == 0:
        return table
    offsets, timestamps_us = table["offset"].to_numpy(), table["timestamp_us"].to_numpy()
    low, high = 0, len(table)
    offset = offset_of(start)
    if offset is not None:
        low = int(np.searchsorted(offsets, np.uint64(offset)))
    elif isinstance(start, AtTime):
        low = int(np.searchsorted(timestamps_us, np.uint64(start.timestamp_us)))
    if limits.offset is not None and limits.offset <= U64_MAX:
        high = min(high, int(np.searchsorted(offsets, np.uint64(limits.offset))))
    if limits.timestamp_us is not None and limits.timestamp_us <= U64_MAX:
        high = min(high, int(np.searchsorted(timestamps_us, np.uint64(limits.timestamp_us))))
    return table.slice(low, max(0, high - low))
