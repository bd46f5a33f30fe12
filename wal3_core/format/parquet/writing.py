"""Writes tables as a Parquet file in memory; ``reading`` reads them.

Both columns and files are made in memory of the right size: memory that grows is copied several times.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Sequence

# A row group's part of a file beside values and text (the headers of a few pages, a part of the footer) is less.
_FRAME_BYTES = 2**14
# Values are joined if they are this long on average, judged by some of them: the lengths of shorter ones cost more.
_JOINED_BYTES_MIN, _JUDGED = 512, 16
_BOUND_MAX = 2**31 - 1


def file_of(groups: Sequence[pa.Table], metadata: dict[str, str], *, statistics: Sequence[str]) -> memoryview:
    """Return the bytes of a file of some row groups, with statistics of some columns; the same for the same tables."""
    try:
        room = pa.allocate_buffer(_room_bytes(groups, metadata))
        sink = pa.FixedSizeBufferWriter(room)
        _write(sink, groups, metadata, statistics)
        return memoryview(room).cast("B")[: sink.tell()].toreadonly()
    except OSError:
        # There was not enough of it after all.
        growing = pa.BufferOutputStream()
        _write(growing, groups, metadata, statistics)
        return memoryview(growing.getvalue()).cast("B")


def _room_bytes(groups: Sequence[pa.Table], metadata: dict[str, str]) -> int:
    """Return more bytes than a file will have."""
    text_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    values_bytes: int = sum(table.nbytes for table in groups)
    # Values that cannot be compressed take a little more.
    return values_bytes + values_bytes // 32 + 2 * text_bytes + _FRAME_BYTES * len(groups)


def _write(
    sink: pa.NativeFile, groups: Sequence[pa.Table], metadata: dict[str, str], statistics: Sequence[str]
) -> None:
    with pq.ParquetWriter(
        sink,
        groups[0].schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=list(statistics) or False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata(metadata)


@cache
def import_what_arrow_uses() -> None:
    """Have Arrow import pandas, if it is installed, which it does at its first array of Python's values.

    A worker may be the first only while the interpreter ends, and then much cannot be imported.
    """
    pa.array(())


def binary_array(values: Sequence[bytes | None] | pa.BinaryArray) -> pa.BinaryArray:
    """Make an array of values, None for a null; an array stays as it is."""
    if isinstance(values, pa.Array):
        return values
    some = values[:: len(values) // _JUDGED + 1]
    if None not in some and sum(map(len, cast("Sequence[bytes]", some))) >= _JOINED_BYTES_MIN * max(1, len(some)):
        # A null may be among the others; more bytes than one array has room for are several.
        with suppress(TypeError, OverflowError):
            return _joined(cast("Sequence[bytes]", values))
    return pa.array(values, pa.binary())


def _joined(values: Sequence[bytes]) -> pa.BinaryArray:
    joined = b"".join(values)
    if len(joined) > _BOUND_MAX:
        raise OverflowError
    bounds = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int32, count=len(values)), out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(joined)])
