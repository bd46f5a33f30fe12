"""Decoding a fragment's bytes into records, and the checks they pass first. Keeps INV-9 of docs/protocol.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError
from wal3_core.model.parquet.columns import KEYED, PLAIN, Offsets, key_index, records_of, table_setsum
from wal3_core.model.parquet.damage import changed, foreign, unreadable
from wal3_core.model.parquet.pages import FOOTER_BYTES_MAX, check_expansion, measure, read_footer
from wal3_core.model.parquet.thrift import ITEMS_MAX
from wal3_core.model.paths import check_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.record import Record

_COLUMN_TYPES = {
    "offset": (pa.uint64(),),
    "timestamp_us": (pa.uint64(),),
    "key": (pa.binary(), pa.large_binary()),
    "body": (pa.binary(), pa.large_binary()),
}
_BINARY = frozenset({"key", "body"})
_CHECKSUM_FAILED = "CRC checksum verification failed"


@dataclass(frozen=True, slots=True)
class Fragment:
    """A fragment's records, checked. ``table`` has the columns offset, timestamp_us, key and body."""

    pointer: FragmentPointer
    table: pa.Table

    def records(self) -> Iterator[Record]:
        """Iterate over the records in order."""
        return records_of(self.table)


def decode(
    data: bytes | memoryview, pointer: FragmentPointer, *, expanded_bytes_max: int, verify: bool = True, what: str = ""
) -> Fragment:
    """Decode a fragment's bytes and check them against its pointer.

    Always checked: the schema, the count, and the expanded size of the pages, before any is expanded. With
    ``verify`` also every position, the setsum, and the file's own metadata. Raises CorruptError naming
    the fragment, by ``what`` if given. Whatever the bytes, memory grows by at most three times
    ``expanded_bytes_max`` plus 64 MiB; a file that declares a larger size is refused before memory is
    allocated for it.
    """
    what = what or f"fragment {pointer.seq_no} ({pointer.path})"
    try:
        table = _read(memoryview(data), pointer, what, expanded_bytes_max)
    except pa.ArrowMemoryError:
        # This process is out of memory; the file may be sound.
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # The decoder has no class of its own for it.
        damage = changed if _CHECKSUM_FAILED in str(error) else unreadable
        detail = f"expected a Parquet file, found {len(data)} bytes that fail to decode: {error}"
        raise damage(what, detail) from error
    if verify:
        # Positions first: the key index is computed from them.
        _check_positions(table, pointer, what)
        _check_metadata(table, pointer, what)
        found = table_setsum(table)
        if found != pointer.setsum:
            # Changed, or written so: most pages have a checksum of their own, which held.
            detail = f"expected setsum {pointer.setsum}, found {found}"
            message = f"{what}: the file's records are not those that were appended: {detail}"
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
    # Keep dictionaries: a value that a thousand records share is held once until its uses are counted.
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
        # The bytes are in memory already.
        pre_buffer=False,
        page_checksum_verification=True,
        thrift_string_size_limit=FOOTER_BYTES_MAX,
        thrift_container_size_limit=ITEMS_MAX,
    )


def _check_count(found: int, pointer: FragmentPointer, what: str) -> None:
    if found != pointer.num_records:
        raise unreadable(what, f"expected {pointer.num_records} records, found {found}")


def _expand(table: pa.Table, num_bytes: int, what: str, expanded_bytes_max: int) -> pa.Table:
    """Replace dictionary columns by their values, after checking the expanded size."""
    for index, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        column = table.column(index)
        # The decoder does not check that an index lies within the dictionary.
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
    """Check the file's own metadata, where present: readers by key trust its index."""
    metadata = table.schema.metadata or {}
    expected = {
        "wal3.writer": check_fragment_path(pointer.path, pointer.seq_no),
        "wal3.fragment_seq_no": str(pointer.seq_no),
        "wal3.setsum": pointer.setsum.hexdigest(),
    }
    if b"wal3.key_index" in metadata and "key" in table.column_names:
        expected |= key_index(table["key"].combine_chunks(), table["offset"].to_numpy())
    for name, value in expected.items():
        found = metadata.get(name.encode())
        if found is not None and found != value.encode():
            wrong = foreign if name == "wal3.writer" else unreadable
            raise wrong(what, f"expected {value[:80]!r} as the file's {name}, found {found[:80]!r}")


def _check_schema(schema: pa.Schema, what: str) -> None:
    fitting = schema.names in (PLAIN, KEYED) and all(field.type in _COLUMN_TYPES[field.name] for field in schema)
    if not fitting:
        found = schema.to_string()[:200]
        raise unreadable(what, f"expected columns offset, timestamp_us, key?, body, found {found!r}")


def _check_positions(table: pa.Table, pointer: FragmentPointer, what: str) -> None:
    start, limit = pointer.start, pointer.limit
    offsets, timestamps_us = _u64_column(table, "offset", what), _u64_column(table, "timestamp_us", what)
    if len(offsets) == 0:
        return
    rising = bool(np.all(offsets[1:] > offsets[:-1])) and bool(np.all(timestamps_us[1:] >= timestamps_us[:-1]))
    inside = start.offset <= int(offsets[0]) and int(offsets[-1]) < limit.offset
    in_time = start.timestamp_us <= int(timestamps_us[0]) and int(timestamps_us[-1]) <= limit.timestamp_us
    if not (rising and inside and in_time):
        found = f"{offsets[0]}@{timestamps_us[0]} to {offsets[-1]}@{timestamps_us[-1]}"
        raise unreadable(what, f"expected rising positions from {start} to {limit}, found {found}")
    bodies = table["body"]
    if bodies.null_count and _has_bodiless_record(table):
        raise unreadable(what, "expected a key on every record without a body, found none")


def _has_bodiless_record(table: pa.Table) -> bool:
    if "key" not in table.column_names:
        return True
    return bool(np.any(~table["body"].is_valid().to_numpy() & ~table["key"].is_valid().to_numpy()))


def _u64_column(table: pa.Table, name: str, what: str) -> Offsets:
    column = table[name]
    if column.null_count:
        raise unreadable(what, f"column {name}: expected no nulls, found {column.null_count}")
    return np.asarray(column.to_numpy(), dtype=np.uint64)
