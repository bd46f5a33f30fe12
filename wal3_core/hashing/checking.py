"""Compiled code is used only after its digests were compared with those of hashlib."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from wal3_core.hashing.calling import Binary, Columns, call
from wal3_core.hashing.items import item_of
from wal3_core.hashing.layout import BLOCK_BYTES, DONE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.hashing.calling import Function

_COLUMNS = 8


class _Values:
    """A column of bytes, and the memory that it lies in."""

    def __init__(self, values: Sequence[bytes | None]) -> None:
        present = [value or b"" for value in values]
        self._bounds = np.zeros(len(values) + 1, dtype=np.int32)
        np.cumsum(np.array([len(value) for value in present], dtype=np.int32), out=self._bounds[1:])
        self._data = np.frombuffer(b"".join(present), dtype=np.uint8)
        self._valid = np.packbits([value is not None for value in values], bitorder="little")

    def column(self) -> Binary:
        return Binary(
            bounds=self._bounds.ctypes.data,
            wide=False,
            values=self._data.ctypes.data,
            values_bytes=len(self._data),
            valid=self._valid.ctypes.data,
            first_bit=0,
        )


def check(function: Function) -> None:
    """Compare digests of records that end anywhere in a block, with keys and without; RuntimeError if one differs."""
    rows = range(3 * BLOCK_BYTES)
    # A body of each length; of the keys, some are empty, and some longer than a block.
    keys = [None if row % 3 == 0 else bytes([row % 251]) * (row * 7 % 300) for row in rows]
    bodies = [None if row % 5 == 1 and keys[row] is not None else bytes([row % 241]) * row for row in rows]
    offsets = np.arange(len(rows), dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)
    timestamps_us = offsets[::-1].copy()
    sums = np.zeros((len(rows), _COLUMNS), dtype=np.uint64)
    key_values, body_values = _Values(keys), _Values(bodies)
    columns = Columns(
        len(rows), offsets.ctypes.data, timestamps_us.ctypes.data, key_values.column(), body_values.column()
    )
    result = call(function, columns, rows, sums)
    digests = [
        hashlib.sha3_256(item_of(*record)).digest()
        for record in zip(offsets.tolist(), timestamps_us.tolist(), keys, bodies, strict=True)
    ]
    expected = np.frombuffer(b"".join(digests), dtype="<u4").reshape(-1, _COLUMNS)
    if result != DONE or not np.array_equal(sums, expected):
        wrong = np.flatnonzero((sums != expected).any(axis=1)).tolist()
        raise RuntimeError(f"compiled code: expected the digests of hashlib, found others of records {wrong[:8]}")
