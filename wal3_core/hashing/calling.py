"""A call of the compiled code: columns of records by the addresses of their buffers, and what becomes of them.

Code is used only after its digests were compared with those of hashlib.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from wal3_core.hashing import item_of

# Results of the code. With any but DONE, nothing was summed. DAMAGED: bounds that fall, or lie beyond the values,
# which the caller's own check reports. UNEVEN: one record is so long that most lanes would wait for it.
DONE, DAMAGED, UNEVEN = range(3)
LANES_MAX = 8
# Words of a state, of what is kept of a lane, and of a block.
STATE_WORDS, LANE_WORDS, BLOCK_WORDS = 25, 8, 17
BLOCK_BYTES = 8 * BLOCK_WORDS
# Memory of the code's own: for each lane a state, its mask, where its next block lies, what is kept of it, and a block
# that is put together; then which record and which group come next.
# The first seven, and six for each column, as the code numbers them.
_JOB_WORDS = 19
_SCRATCH_WORDS = (STATE_WORDS + LANE_WORDS + BLOCK_WORDS + 2) * LANES_MAX + 2
# Vectors are read and written at multiples of their size.
_SCRATCH_ALIGNMENT = 8 * LANES_MAX
_SUMS = 8

Sums = np.ndarray[tuple[int, int], np.dtype[np.uint64]]
# Addresses that the code takes: of its result, of its errors, of which it has none, and of its job.
Function = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True)
class Binary:
    """A column of bytes, by the addresses of Arrow's buffers; see kernel.py. ``valid`` is 0 when no row is null."""

    bounds: int
    wide: bool
    values: int
    values_bytes: int
    valid: int
    first_bit: int


NO_COLUMN = Binary(0, wide=False, values=0, values_bytes=0, valid=0, first_bit=0)


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records, by the addresses of Arrow's buffers: their owner must keep these until the sums are there."""

    count: int
    offsets: int
    timestamps_us: int
    keys: Binary
    bodies: Binary


def call(function: Function, columns: RecordColumns, begins: Sequence[int], sums: Sums) -> int:
    """Run the code, without the GIL, and return its result. ``sums`` has a row for each group."""
    starts = np.array(begins, dtype=np.int64)
    scratch = np.empty(8 * _SCRATCH_WORDS + _SCRATCH_ALIGNMENT, dtype=np.uint8)
    aligned = -(-scratch.ctypes.data // _SCRATCH_ALIGNMENT) * _SCRATCH_ALIGNMENT
    results = np.zeros(2, dtype=np.int64)
    job = np.array(
        [
            *(columns.count, columns.offsets, columns.timestamps_us),
            *(starts.ctypes.data, len(starts), sums.ctypes.data, aligned),
            *astuple(columns.keys),
            *astuple(columns.bodies),
        ],
        dtype=np.uint64,
    )
    # The code reads so many words, unchecked.
    assert len(job) == _JOB_WORDS
    failed = function(results.ctypes.data, results[1:].ctypes.data, job.ctypes.data)
    return int(results[0]) or failed


def _column(values: Sequence[bytes | None]) -> tuple[Binary, tuple[np.ndarray[Any, Any], ...]]:
    """Lay out a column of bytes; return it, and the memory that it lies in, which must be kept."""
    present = [value or b"" for value in values]
    bounds = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.array([len(value) for value in present], dtype=np.int32), out=bounds[1:])
    data = np.frombuffer(b"".join(present), dtype=np.uint8)
    valid = np.packbits([value is not None for value in values], bitorder="little")
    column = Binary(
        bounds.ctypes.data,
        wide=False,
        values=data.ctypes.data,
        values_bytes=len(data),
        valid=valid.ctypes.data,
        first_bit=0,
    )
    return column, (bounds, data, valid)


def check(function: Function) -> None:
    """Compare digests of records that end anywhere in a block, with keys and without; RuntimeError if one differs."""
    rows = range(3 * BLOCK_BYTES)
    # A body of each length; of the keys, some are empty, and some longer than a block.
    keys = [None if row % 3 == 0 else bytes([row % 251]) * (row * 7 % 300) for row in rows]
    bodies = [None if row % 5 == 1 and keys[row] is not None else bytes([row % 241]) * row for row in rows]
    offsets = np.arange(len(rows), dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)
    timestamps_us = offsets[::-1].copy()
    sums = np.zeros((len(rows), _SUMS), dtype=np.uint64)
    (key_column, _key_memory), (body_column, _body_memory) = _column(keys), _column(bodies)
    columns = RecordColumns(len(rows), offsets.ctypes.data, timestamps_us.ctypes.data, key_column, body_column)
    result = call(function, columns, rows, sums)
    digests = [
        hashlib.sha3_256(item_of(*record)).digest()
        for record in zip(offsets.tolist(), timestamps_us.tolist(), keys, bodies, strict=True)
    ]
    expected = np.frombuffer(b"".join(digests), dtype="<u4").reshape(-1, _SUMS)
    if result != DONE or not np.array_equal(sums, expected):
        wrong = np.flatnonzero((sums != expected).any(axis=1)).tolist()
        raise RuntimeError(f"compiled code: expected the digests of hashlib, found others of records {wrong[:8]}")
