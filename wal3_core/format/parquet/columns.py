"""A fragment's columns: their order, their records, their setsum; and what the file's metadata says of them.

Which rows are tombstone records is said so, in text, that keys can be read without bodies:
``<the first such row>:<base64 of bits, one for each row from there to the last such row>:<16 hex of their SHA-256>``.
The format's footer has no checksum, so the text has one of its own; when a fragment is read whole, the text is compared
with the records.
"""

from __future__ import annotations

import base64
import hashlib
from binascii import b2a_base64
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise

import numpy as np
import pyarrow as pa

from wal3_core.format.record import Record, keyed_setsum, plain_setsum
from wal3_core.format.setsum import COLUMNS, EMPTY, Setsum
from wal3_core.hashing.calling import NO_COLUMN, Binary, RecordColumns
from wal3_core.hashing.lanes import LANES

Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]
Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

PLAIN, KEYED = ["offset", "timestamp_us", "body"], ["offset", "timestamp_us", "key", "body"]
# The columns of a file that is arranged by key: versions that know no such file refuse their order.
ARRANGED = ["key", "offset", "timestamp_us", "body"]
KEY_INDEX = "wal3.key_index"
# Earlier versions always indexed 16 keys or fewer, and never more than 16,384 keys or 1 MiB of them.
KEY_INDEX_ALWAYS_KEYS = 16
KEY_INDEX_KEYS_MAX = 16_384
KEY_INDEX_KEY_BYTES_MAX = 2**20
TOMBSTONES = "wal3.tombstones"
# Four million rows, more than any writer's options allow. Every reader of the file loads its footer.
_BITS_BYTES_MAX = 2**19
_TYPES = (pa.uint64(), pa.uint64(), pa.large_binary(), pa.large_binary())
# Records converted to Python objects at a time: each takes hundreds of bytes.
_SLICE_RECORDS = 65_536
# Making a view costs as much as copying this many bytes.
_VIEW_BYTES_MIN = 512
_WORD_BYTES = 8


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


def tombstones_of(bodies: pa.ChunkedArray) -> Flags:
    """Return a flag for each row of a column of bodies: the record of a null is a tombstone record."""
    # Most columns have no null: counting them takes a fraction of the time.
    if not bodies.null_count:
        return np.zeros(len(bodies), dtype=np.bool_)
    return np.asarray(bodies.is_null().to_numpy(), dtype=np.bool_)


def tombstones_as_text(tombstones: Flags) -> dict[str, str]:
    """Return the metadata for a flag for each row; none when it would be too long."""
    rows = np.flatnonzero(tombstones)
    first, limit = (int(rows[0]), int(rows[-1]) + 1) if len(rows) else (0, 0)
    bits = np.packbits(tombstones[first:limit], bitorder="little")
    if len(bits) > _BITS_BYTES_MAX:
        return {}
    text = f"{first}:{base64.b64encode(bits.tobytes()).decode()}"
    return {TOMBSTONES: f"{text}:{_digest(text)}"}


def tombstones_from(text: bytes, num_rows: int) -> Flags:
    """Return the flags of all rows; ValueError when they are not what was written."""
    first, bits, digest = text.decode("ascii").split(":")
    if digest != _digest(f"{first}:{bits}"):
        raise ValueError(f"text with another checksum, {text[:40]!r}")
    packed = np.frombuffer(base64.b64decode(bits, validate=True), dtype=np.uint8)
    rows = np.flatnonzero(np.unpackbits(packed, bitorder="little"))
    if not first.isdecimal() or int(first) + int(rows[-1] if len(rows) else 0) >= max(1, num_rows):
        raise ValueError(f"rows from {first[:40]!r} on, of {num_rows}")
    tombstones = np.zeros(num_rows, dtype=np.bool_)
    tombstones[int(first) + rows] = True
    return tombstones


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
