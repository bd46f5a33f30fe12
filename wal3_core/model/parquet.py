"""A fragment's bytes: records as Parquet, and the checks that turn bytes back into trusted records.

Columns: offset UINT64, timestamp_us UINT64, key BINARY (left out when no record has one), body BINARY.
The file's metadata names the writer's token, the seq_no, the setsum and, for keyed fragments, a
key index. Keeps INV-9 (what is read is what was written) of docs/protocol.md.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError
from wal3_core.model.pages import FOOTER_BYTES_MAX, check_expansion, measure, read_footer
from wal3_core.model.paths import check_fragment_path
from wal3_core.model.record import Record, keyed_setsum, plain_setsum
from wal3_core.model.setsum import EMPTY
from wal3_core.model.thrift import ITEMS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.position import FragmentSeqNo, LogPosition
    from wal3_core.model.setsum import Setsum

Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]

FORMAT_VERSION = "1"
# A fragment with more keys than this carries no index: its readers read the fragment itself.
KEY_INDEX_KEYS_MAX = 16_384
KEY_INDEX_KEY_BYTES_MAX = 2**20
_COLUMN_TYPES = {
    "offset": (pa.uint64(),),
    "timestamp_us": (pa.uint64(),),
    "key": (pa.binary(), pa.large_binary()),
    "body": (pa.binary(), pa.large_binary()),
}
_BINARY = frozenset({"key", "body"})
_PLAIN, _KEYED = ["offset", "timestamp_us", "body"], ["offset", "timestamp_us", "key", "body"]
# Records shown or hashed as Python objects at a time: each takes hundreds of bytes.
_SLICE_RECORDS = 65_536
# Making a view costs as much as copying so many bytes.
_VIEW_BYTES_MIN = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFragment:
    """A fragment's bytes and checksum."""

    data: memoryview
    setsum: Setsum


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentSource:
    """Records about to become a fragment: where they start, and who writes them.

    ``keys`` is None when no record has one; then every record has a body. ``timestamps_us`` is None
    when all have that of the start.
    """

    start: LogPosition
    seq_no: FragmentSeqNo
    token: str
    keys: Sequence[bytes | None] | None
    bodies: Sequence[bytes | None]
    timestamps_us: Sequence[int] | None = None


def encode(source: FragmentSource) -> EncodedFragment:
    """Encode records at dense offsets from ``source.start``."""
    count = len(source.bodies)
    keys, bodies = source.keys, source.bodies
    offsets = range(source.start.offset, source.start.offset + count)
    timestamps_us = source.timestamps_us or [source.start.timestamp_us] * count
    columns = {
        "offset": pa.array(np.arange(offsets.start, offsets.stop, dtype=np.uint64)),
        "timestamp_us": pa.array(np.fromiter(timestamps_us, dtype=np.uint64, count=count)),
    }
    if keys is None:
        filled = cast("Sequence[bytes]", bodies)
        setsum = plain_setsum(offsets, timestamps_us, filled)
        columns["body"] = _filled_array(filled)
    else:
        setsum = keyed_setsum(offsets, timestamps_us, keys, bodies)
        columns["key"], columns["body"] = _binary_array(keys), _binary_array(bodies)
    metadata = {
        "wal3.format_version": FORMAT_VERSION,
        "wal3.writer": source.token,
        "wal3.fragment_seq_no": str(source.seq_no),
        "wal3.setsum": setsum.hexdigest(),
        **({} if keys is None else _key_index(columns["key"], columns["offset"].to_numpy())),
    }
    return EncodedFragment(data=_write(pa.table(columns), metadata), setsum=setsum)


def _write(table: pa.Table, metadata: dict[str, str]) -> memoryview:
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        write_statistics=["offset", "timestamp_us"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata(metadata)
    return memoryview(sink.getvalue()).cast("B")


def _filled_array(values: Sequence[bytes], validity: pa.Buffer | None = None) -> pa.Array:
    """Build a column from its buffers: several times as fast as ``pa.array`` of a list."""
    count = len(values)
    offsets = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int32, count=count), out=offsets[1:])
    data = pa.py_buffer(b"".join(values))
    return pa.Array.from_buffers(pa.binary(), count, [validity, pa.py_buffer(offsets), data])


def _binary_array(values: Sequence[bytes | None]) -> pa.Array:
    """Build a column some of whose values may be null."""
    present = np.fromiter((value is not None for value in values), dtype=np.bool_, count=len(values))
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return _filled_array([value or b"" for value in values], validity)


def _key_index(keys: pa.Array, offsets: Offsets) -> dict[str, str]:
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


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment's records, checked. ``table`` has the columns offset, timestamp_us, key and body."""

    pointer: FragmentPointer
    table: pa.Table

    def records(self) -> Iterator[Record]:
        """Go through the records in order."""
        return records_of(self.table)


def records_of(table: pa.Table | pa.RecordBatch) -> Iterator[Record]:
    """Go through the records of a table or batch with the columns offset, timestamp_us, key and body."""
    return chain.from_iterable(map(Record, *(some[name].to_pylist() for name in _KEYED)) for some in _in_slices(table))


def _in_slices(table: pa.Table | pa.RecordBatch) -> Iterator[pa.Table | pa.RecordBatch]:
    return (table.slice(at, _SLICE_RECORDS) for at in range(0, len(table), _SLICE_RECORDS))


def decode(
    data: bytes | memoryview, pointer: FragmentPointer, *, expanded_bytes_max: int, verify: bool = True
) -> Fragment:
    """Decode a fragment's bytes and check them against its pointer.

    Always checked: the schema, the count, and what its pages expand to, before any is. With
    ``verify`` also every position, the setsum, and what the file says of itself. Raises CorruptError
    naming the fragment. Whatever the bytes, memory grows by no more than three times
    ``expanded_bytes_max`` and 64 MiB; a file that says it is larger is refused before it takes any.
    """
    what = f"fragment {pointer.seq_no} ({pointer.path})"
    try:
        table = _read(memoryview(data), pointer, what, expanded_bytes_max)
    except pa.ArrowMemoryError:
        # What is missing is this process's memory: the file may be sound.
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        message = f"{what}: expected a Parquet file, found {len(data)} bytes that fail to decode: {error}"
        raise CorruptError(message) from error
    if verify:
        # Positions first: the key index is made of them.
        _check_positions(table, pointer, what)
        _check_metadata(table, pointer, what)
        found = table_setsum(table)
        if found != pointer.setsum:
            message = f"{what}: expected setsum {pointer.setsum}, found {found}"
            raise CorruptError(message)
    table = table.replace_schema_metadata(None)
    if "key" not in table.column_names:
        table = table.add_column(2, "key", pa.nulls(len(table), pa.binary()))
    return Fragment(pointer, table)


def _read(data: memoryview, pointer: FragmentPointer, what: str, expanded_bytes_max: int) -> pa.Table:
    footer = read_footer(data)
    _check_count(footer.num_records, pointer, what)
    file = _open(data)
    columns = file.schema_arrow.names
    _check_schema(file.schema_arrow, what)
    expansion = measure(data, footer, columns, what=what, expanded_bytes_max=expanded_bytes_max)
    # As the file has them: a value that a thousand records share is held once, until it was counted.
    shared = [columns[index] for index in sorted(expansion.dictionaries) if columns[index] in _BINARY]
    if shared:
        file = _open(data, shared)
    table = file.read(use_threads=False)
    _check_count(len(table), pointer, what)
    table = _expand(table, expansion.num_bytes, what, expanded_bytes_max)
    return table.combine_chunks().replace_schema_metadata(file.metadata.metadata)


def _open(data: memoryview, shared: Sequence[str] = ()) -> pq.ParquetFile:
    return pq.ParquetFile(
        pa.BufferReader(data),
        read_dictionary=shared,
        # Its threads would fetch what lies in memory already.
        pre_buffer=False,
        page_checksum_verification=True,
        thrift_string_size_limit=FOOTER_BYTES_MAX,
        thrift_container_size_limit=ITEMS_MAX,
    )


def _check_count(found: int, pointer: FragmentPointer, what: str) -> None:
    if found != pointer.num_records:
        message = f"{what}: expected {pointer.num_records} records, found {found}"
        raise CorruptError(message)


def _expand(table: pa.Table, num_bytes: int, what: str, expanded_bytes_max: int) -> pa.Table:
    """Put its values in the place of a column's dictionary, having counted what they come to."""
    for index, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column = table.column(index)
        # The decoder does not look whether an index lies within the dictionary.
        column.validate(full=True)
        num_bytes += sum(_repeated_bytes(chunk) for chunk in column.chunks)
        check_expansion(num_bytes, what=what, expanded_bytes_max=expanded_bytes_max)
        table = table.set_column(index, field.name, column.cast(field.type.value_type))
    return table


def _repeated_bytes(chunk: pa.DictionaryArray) -> int:
    lengths = pc.fill_null(pc.binary_length(chunk.dictionary), 0).to_numpy().astype(np.int64)
    uses = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(lengths))
    return int(np.dot(lengths, uses))


def _check_metadata(table: pa.Table, pointer: FragmentPointer, what: str) -> None:
    """Compare what the file says of itself, if it does: readers by key trust its index."""
    metadata = table.schema.metadata or {}
    expected = {
        "wal3.writer": check_fragment_path(pointer.path, pointer.seq_no),
        "wal3.fragment_seq_no": str(pointer.seq_no),
        "wal3.setsum": pointer.setsum.hexdigest(),
    }
    if b"wal3.key_index" in metadata and "key" in table.column_names:
        expected |= _key_index(table["key"].combine_chunks(), table["offset"].to_numpy())
    for name, value in expected.items():
        found = metadata.get(name.encode())
        if found is not None and found != value.encode():
            message = f"{what}: expected {value[:80]!r} as the file's {name}, found {found[:80]!r}"
            raise CorruptError(message)


def _check_schema(schema: pa.Schema, what: str) -> None:
    fitting = schema.names in (_PLAIN, _KEYED) and all(field.type in _COLUMN_TYPES[field.name] for field in schema)
    if not fitting:
        message = f"{what}: expected columns offset, timestamp_us, key?, body, found {schema.to_string()[:200]!r}"
        raise CorruptError(message)


def _check_positions(table: pa.Table, pointer: FragmentPointer, what: str) -> None:
    start, limit = pointer.start, pointer.limit
    offsets, timestamps_us = _u64_column(table, "offset", what), _u64_column(table, "timestamp_us", what)
    if len(offsets) == 0:
        return
    rising = bool(np.all(offsets[1:] > offsets[:-1])) and bool(np.all(timestamps_us[1:] >= timestamps_us[:-1]))
    inside = start.offset <= int(offsets[0]) and int(offsets[-1]) < limit.offset
    in_time = start.timestamp_us <= int(timestamps_us[0]) and int(timestamps_us[-1]) <= limit.timestamp_us
    if not (rising and inside and in_time):
        message = (
            f"{what}: expected rising positions from {start} to {limit}, found"
            f" {offsets[0]}@{timestamps_us[0]} to {offsets[-1]}@{timestamps_us[-1]}"
        )
        raise CorruptError(message)
    bodies = table["body"]
    if bodies.null_count and _has_bodiless_record(table):
        message = f"{what}: expected a key on every record without a body, found none"
        raise CorruptError(message)


def _has_bodiless_record(table: pa.Table) -> bool:
    if "key" not in table.column_names:
        return True
    return bool(np.any(~table["body"].is_valid().to_numpy() & ~table["key"].is_valid().to_numpy()))


def _u64_column(table: pa.Table, name: str, what: str) -> Offsets:
    column = table[name]
    if column.null_count:
        message = f"{what}: column {name}: expected no nulls, found {column.null_count}"
        raise CorruptError(message)
    return np.asarray(column.to_numpy(), dtype=np.uint64)


def table_setsum(table: pa.Table) -> Setsum:
    """Checksum a table of records with the columns offset, timestamp_us, body and perhaps key."""
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
