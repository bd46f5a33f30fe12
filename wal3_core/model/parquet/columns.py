"""A fragment's columns: their order, their key index, their records, their setsum."""

from __future__ import annotations

import base64
import json
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from wal3_core.model.record import Record, keyed_setsum, plain_setsum
from wal3_core.model.setsum import EMPTY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.setsum import Setsum

Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]

PLAIN, KEYED = ["offset", "timestamp_us", "body"], ["offset", "timestamp_us", "key", "body"]
# A fragment with more keys than this has no index: readers by key read the whole fragment.
KEY_INDEX_KEYS_MAX = 16_384
KEY_INDEX_KEY_BYTES_MAX = 2**20
# Records converted to Python objects at a time: each takes hundreds of bytes.
_SLICE_RECORDS = 65_536
# Making a view costs as much as copying this many bytes.
_VIEW_BYTES_MIN = 512


def records_of(table: pa.Table | pa.RecordBatch) -> Iterator[Record]:
    """Iterate over the records of a table or batch with the columns offset, timestamp_us, key and body."""
    return chain.from_iterable(map(Record, *(some[name].to_pylist() for name in KEYED)) for some in _in_slices(table))


def _in_slices(table: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
    return (table.slice(at, _SLICE_RECORDS) for at in range(0, len(table), _SLICE_RECORDS))


def key_index(keys: pa.Array, offsets: Offsets) -> dict[str, str]:
    """Index key -> count, first offset, last offset, as JSON rows of base64 keys, in order of appearance."""
    encoded = keys.dictionary_encode()
    # Every reader of the file loads its footer, and refuses one that is too large.
    if len(encoded.dictionary) > KEY_INDEX_KEYS_MAX or encoded.dictionary.nbytes > KEY_INDEX_KEY_BYTES_MAX:
        return {}
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    present = np.flatnonzero(codes >= 0)
    codes = codes[present]
    counts = np.bincount(codes).tolist()
    first = present[np.unique(codes, return_index=True)[1]].tolist()
    last = present[::-1][np.unique(codes[::-1], return_index=True)[1]].tolist()
    rows = [
        [base64.b64encode(key.as_py()).decode(), counts[code], int(offsets[first[code]]), int(offsets[last[code]])]
        for code, key in enumerate(encoded.dictionary)
    ]
    return {"wal3.key_index": json.dumps(rows, separators=(",", ":"))}


def table_setsum(table: pa.Table) -> Setsum:
    """Checksum a table of records with the columns offset, timestamp_us, body and, optionally, key."""
    return sum(map(_slice_setsum, _in_slices(table)), start=EMPTY)


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
