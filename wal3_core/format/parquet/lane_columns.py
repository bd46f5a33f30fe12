"""The columns of a table of records, as the code takes them that hashes several records side by side."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from wal3_core.format.setsum import COLUMNS, Setsum
from wal3_core.hashing.calling import NO_COLUMN, Binary, RecordColumns
from wal3_core.hashing.lanes import LANES

if TYPE_CHECKING:
    from collections.abc import Sequence

_WORD_BYTES = 8


def lanes_setsums(table: pa.Table, begins: Sequence[int]) -> list[Setsum] | None:
    """Checksum each group of a table's records, which begin at the given rows; None where ``hashlib`` has to do it."""
    # A table's size takes longer to tell than the digest of one record.
    if not LANES.may_fill(len(table)) or not LANES.may_sum(len(table), table.nbytes):
        return None
    sums = np.zeros((len(begins), COLUMNS), dtype=np.uint64)
    row = 0
    for batch in table.to_batches():
        # The groups of which the batch has records.
        first, last = bisect_right(begins, row) - 1, bisect_left(begins, row + len(batch))
        columns = _columns_of(batch)
        if columns is None or not LANES.add(columns, [max(0, b - row) for b in begins[first:last]], sums[first:last]):
            return None
        row += len(batch)
    return [Setsum.of_column_sums(each) for each in sums.tolist()]


def _columns_of(batch: pa.RecordBatch) -> RecordColumns | None:
    """Return the columns of records; None if one is of a type, or has a null, that no fragment's has."""
    named = dict(zip(batch.schema.names, batch.columns, strict=True))
    offsets, timestamps_us = _numbers(named["offset"]), _numbers(named["timestamp_us"])
    keys, bodies = _binary(named.get("key")), _binary(named["body"])
    if offsets is None or timestamps_us is None or keys is None or bodies is None:
        return None
    return RecordColumns(len(batch), offsets, timestamps_us, keys, bodies)


def _numbers(column: pa.Array) -> int | None:
    """Return the address of the first of a column's 64-bit words."""
    if column.type != pa.uint64() or column.null_count:
        return None
    return int(column.buffers()[1].address + _WORD_BYTES * column.offset)


def _binary(column: pa.Array | None) -> Binary | None:
    # A column of nulls may be of any type.
    if column is None or column.null_count == len(column):
        return NO_COLUMN
    wide = column.type == pa.large_binary()
    if not wide and column.type != pa.binary():
        return None
    valid, bounds, values = column.buffers()
    width = 8 if wide else 4
    return Binary(
        bounds=bounds.address + width * column.offset,
        wide=wide,
        values=values.address if values is not None else 0,
        values_bytes=values.size if values is not None else 0,
        valid=valid.address if valid is not None else 0,
        first_bit=column.offset,
    )
