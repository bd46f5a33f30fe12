"""A fragment's columns: their order, their key index, their records, their setsum."""

from __future__ import annotations

from binascii import b2a_base64
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from wal3_core.format.parquet.lane_columns import lanes_setsums
from wal3_core.format.record import Record, keyed_setsum, plain_setsum
from wal3_core.format.setsum import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.format.setsum import Setsum

Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]

PLAIN, KEYED = ["offset", "timestamp_us", "body"], ["offset", "timestamp_us", "key", "body"]
# The columns of a file that is arranged by key: versions that know no such file refuse their order.
ARRANGED = ["key", "offset", "timestamp_us", "body"]
KEY_INDEX = "wal3.key_index"
# Earlier versions always indexed 16 keys or fewer, and never more than 16,384 keys or 1 MiB of them.
KEY_INDEX_ALWAYS_KEYS = 16
KEY_INDEX_KEYS_MAX = 16_384
KEY_INDEX_KEY_BYTES_MAX = 2**20
_TYPES = (pa.uint64(), pa.uint64(), pa.large_binary(), pa.large_binary())
# Records converted to Python objects at a time: each takes hundreds of bytes.
_SLICE_RECORDS = 65_536
# Making a view costs as much as copying this many bytes.
_VIEW_BYTES_MIN = 512


def records_of(table: pa.Table | pa.RecordBatch) -> Iterator[Record]:
    """Iterate over the records of a table or batch with the columns offset, timestamp_us, key and body."""
    return chain.from_iterable(map(Record, *(some[name].to_pylist() for name in KEYED)) for some in _in_slices(table))


def table_of(records: Sequence[Record]) -> pa.Table:
    """Make a table of records, with the columns offset, timestamp_us, key and body."""
    columns = zip(*((each.offset, each.timestamp_us, each.key, each.body) for each in records), strict=True)
    return pa.table(dict(zip(KEYED, map(pa.array, columns, _TYPES), strict=True)))


def _in_slices(table: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
    return (table.slice(at, _SLICE_RECORDS) for at in range(0, len(table), _SLICE_RECORDS))


def key_index(keys: pa.Array, offsets: Offsets, *, if_shorter: bool = False) -> dict[str, str]:
    """Index key -> count, first offset, last offset, as JSON rows of base64 keys, in order of appearance.

    Only earlier versions wrote one. With ``if_shorter``, none of many keys that hardly repeat: the key column says the
    same in fewer bytes.
    """
    encoded = keys.dictionary_encode()
    if if_shorter and len(encoded.dictionary) > max(KEY_INDEX_ALWAYS_KEYS, len(keys) // 2):
        return {}
    # Every reader of the file loads its footer, and refuses one that is too large.
    if len(encoded.dictionary) > KEY_INDEX_KEYS_MAX or encoded.dictionary.nbytes > KEY_INDEX_KEY_BYTES_MAX:
        return {}
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(codes >= 0)
    codes = codes[rows]
    first, last = np.empty((2, len(encoded.dictionary)), dtype=np.int64)
    # Of several rows with one key, the one that is written last stays.
    first[codes[::-1]] = rows[::-1]
    last[codes] = rows
    keys = [b2a_base64(key, newline=False).decode() for key in encoded.dictionary.to_pylist()]
    columns = keys, np.bincount(codes).tolist(), offsets[first].tolist(), offsets[last].tolist()
    # Base64 needs no escapes.
    text = ",".join([f'["{key}",{count},{low},{high}]' for key, count, low, high in zip(*columns, strict=True)])
    return {KEY_INDEX: f"[{text}]"}


def table_setsum(table: pa.Table) -> Setsum:
    """Checksum a table of records with the columns offset, timestamp_us, body and, optionally, key."""
    found = lanes_setsums(table, [0])
    return found[0] if found is not None else sum(map(_slice_setsum, _in_slices(table)), start=EMPTY)


def group_setsums(table: pa.Table, begins: Sequence[int]) -> list[Setsum]:
    """Checksum each group of records of such a table; they begin at the given rows, the first at 0."""
    found = lanes_setsums(table, begins)
    if found is not None:
        return found
    return [table_setsum(table.slice(begin, limit - begin)) for begin, limit in pairwise([*begins, len(table)])]


def _slice_setsum(table: pa.Table) -> Setsum:
    offsets, timestamps_us = table["offset"].to_pylist(), table["timestamp_us"].to_pylist()
    bodies = _slices(table["body"])
    if "key" not in table.column_names or table["key"].null_count == len(table):
        return plain_setsum(offsets, timestamps_us, [body if body is not None else b"" for body in bodies])
    return keyed_setsum(offsets, timestamps_us, _slices(table["key"]), bodies)


def _slices(column: pa.ChunkedArray) -> list[bytes | memoryview | None]:
    """Take a binary column's values from its buffer: views of long ones, copies of short ones, which are cheaper."""
    values: list[bytes | memoryview | None] = []
    for chunk in column.chunks:
        width = np.int64 if pa.types.is_large_binary(chunk.type) else np.int32
        _, offset_buffer, data = chunk.buffers()
        offsets = np.frombuffer(offset_buffer, dtype=width)[chunk.offset : chunk.offset + len(chunk) + 1]
        start, limit = int(offsets[0]), int(offsets[-1])
        view: bytes | memoryview = memoryview(data if data is not None else b"")[start:limit]
        if len(view) < _VIEW_BYTES_MIN * len(chunk):
            view = bytes(view)
        bounds = (offsets - start).tolist()
        slices: list[bytes | memoryview | None] = [view[low:high] for low, high in pairwise(bounds)]
        if chunk.null_count:
            valid = chunk.is_valid().to_pylist()
            slices = [value if there else None for value, there in zip(slices, valid, strict=True)]
        values += slices
    return values
