"""A call of the compiled code: columns of records by the addresses of their buffers, and what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wal3_core.hashing.layout import JOB_WORDS, SCRATCH_ALIGNMENT, SCRATCH_WORDS

if TYPE_CHECKING:
    from collections.abc import Sequence

Sums = np.ndarray[tuple[int, int], np.dtype[np.uint64]]
# It takes the addresses of its result, of its errors, of which it has none, and of its job.
Function = Callable[[int, int, int], int]


@dataclass(frozen=True, slots=True)
class Binary:
    """A column of bytes, by the addresses of Arrow's buffers; see layout.py. ``valid`` is 0 when no row is null."""

    bounds: int
    wide: bool
    values: int
    values_bytes: int
    valid: int
    first_bit: int


NO_COLUMN = Binary(0, wide=False, values=0, values_bytes=0, valid=0, first_bit=0)


@dataclass(frozen=True, slots=True)
class Columns:
    """Records, by the addresses of Arrow's buffers: their owner must keep these until the sums are there."""

    count: int
    offsets: int
    timestamps_us: int
    keys: Binary
    bodies: Binary


def call(function: Function, columns: Columns, begins: Sequence[int], sums: Sums) -> int:
    """Run the code, without the GIL, and return its result; see layout.py. ``sums`` has a row for each group."""
    starts = np.array(begins, dtype=np.int64)
    scratch = np.empty(8 * SCRATCH_WORDS + SCRATCH_ALIGNMENT, dtype=np.uint8)
    aligned = -(-scratch.ctypes.data // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
    results = np.zeros(2, dtype=np.int64)
    job = np.array(
        [
            *(columns.count, columns.offsets, columns.timestamps_us),
            *(starts.ctypes.data, len(starts), sums.ctypes.data, aligned),
            *_words(columns.keys),
            *_words(columns.bodies),
        ],
        dtype=np.uint64,
    )
    assert len(job) == JOB_WORDS
    failed = function(results.ctypes.data, results[1:].ctypes.data, job.ctypes.data)
    return int(results[0]) or failed


def _words(column: Binary) -> tuple[int, ...]:
    return (column.bounds, int(column.wide), column.values, column.values_bytes, column.valid, column.first_bit)
