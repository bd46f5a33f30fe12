"""Which fragments hold a range of the log, and which of their records. Pure but for loading snapshots."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from wal3_core.errors import GarbageCollectedError, InvalidRequestError
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.position import AtTime, LogPosition, ReadStart
from wal3_core.model.strict_json import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer, Snapshot, SnapshotPointer
    from wal3_core.options import Limits


def check_start(manifest: Manifest, start: ReadStart) -> None:
    """Refuse an offset that the log does not hold any more, or not yet."""
    offset = _offset(start)
    first, following = manifest.first.position, manifest.next.position
    if offset is None:
        return
    if not 1 <= offset <= following.offset:
        message = f"read: expected an offset from 1 to {following.offset}, found {offset}"
        raise InvalidRequestError(message)
    if offset < first.offset:
        message = f"read: expected an offset the log still holds, from {first.offset}, found {offset}"
        raise GarbageCollectedError(message)


def _offset(start: ReadStart) -> int | None:
    match start:
        case LogPosition(offset, _):
            return offset
        case None | AtTime():
            return None
    try:
        # Whatever stands for an integer, numpy's and Arrow's included.
        return operator.index(start)
    except TypeError:
        message = f"read: expected to start at an offset, a position or a time, found {start!r}"
        raise InvalidRequestError(message) from None


def select(
    pointers: Iterable[Pointer], start: ReadStart, limits: Limits, load: Callable[[SnapshotPointer], Snapshot]
) -> Iterator[FragmentPointer]:
    """Go through the fragments that overlap the range, loading no snapshot that does not."""
    for pointer in pointers:
        if _before(pointer, start):
            continue
        if _beyond(pointer, limits):
            return
        if isinstance(pointer, FragmentPointer):
            yield pointer
        else:
            yield from select(load(pointer).pointers, start, limits, load)


def _before(pointer: Pointer, start: ReadStart) -> bool:
    if isinstance(start, AtTime):
        return pointer.limit.timestamp_us < start.timestamp_us
    offset = _offset(start)
    return offset is not None and pointer.limit.offset <= offset


def _beyond(pointer: Pointer, limits: Limits) -> bool:
    by_offset = limits.offset is not None and pointer.start.offset >= limits.offset
    return by_offset or (limits.timestamp_us is not None and pointer.start.timestamp_us >= limits.timestamp_us)


def clip(fragments: Iterable[FragmentPointer], start: ReadStart, limits: Limits) -> Iterator[FragmentPointer]:
    """Stop after so many fragments, bytes or records; the fragment that goes over is the last one."""
    num_bytes = num_records = 0
    for count, fragment in enumerate(fragments, start=1):
        yield fragment
        num_bytes += fragment.num_bytes
        # Of the fragment in which the read starts nobody knows yet how many records count.
        num_records += fragment.num_records if _starts_before(start, fragment) else 0
        if (
            _reached(count, limits.fragments)
            or _reached(num_bytes, limits.num_bytes)
            or _reached(num_records, limits.records)
        ):
            return


def _starts_before(start: ReadStart, fragment: FragmentPointer) -> bool:
    if isinstance(start, AtTime):
        return start.timestamp_us <= fragment.start.timestamp_us
    offset = _offset(start)
    return offset is None or offset <= fragment.start.offset


def _reached(amount: int, limit: int | None) -> bool:
    return limit is not None and amount >= limit


def trim(table: pa.Table, start: ReadStart, limits: Limits) -> pa.Table:
    """Cut a fragment's records down to the range."""
    if len(table) == 0:
        return table
    offsets, timestamps_us = table["offset"].to_numpy(), table["timestamp_us"].to_numpy()
    low, high = 0, len(table)
    offset = _offset(start)
    if offset is not None:
        low = int(np.searchsorted(offsets, np.uint64(offset)))
    elif isinstance(start, AtTime):
        low = int(np.searchsorted(timestamps_us, np.uint64(start.timestamp_us)))
    if limits.offset is not None and limits.offset <= U64_MAX:
        high = min(high, int(np.searchsorted(offsets, np.uint64(limits.offset))))
    if limits.timestamp_us is not None and limits.timestamp_us <= U64_MAX:
        high = min(high, int(np.searchsorted(timestamps_us, np.uint64(limits.timestamp_us))))
    return table.slice(low, max(0, high - low))
