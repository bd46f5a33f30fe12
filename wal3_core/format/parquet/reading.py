"""Reads a fragment's columns from its bytes, strictly and within bounds; ``decoding`` checks whether they are right."""

from __future__ import annotations

from bisect import bisect_left
from contextlib import contextmanager
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal3_core.format.parquet.columns import ARRANGED, KEYED, PLAIN
from wal3_core.format.parquet.damage import changed, unreadable
from wal3_core.format.parquet.key_groups import KEY_GROUPS, KeyGroup, groups_from
from wal3_core.format.parquet.pages import FOOTER_BYTES_MAX, Footer, check_expansion, measure, read_footer
from wal3_core.format.parquet.thrift import ITEMS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.format.fragment import FragmentPointer

_COLUMN_TYPES = {
    "offset": (pa.uint64(),),
    "timestamp_us": (pa.uint64(),),
    "key": (pa.binary(), pa.large_binary()),
    "body": (pa.binary(), pa.large_binary()),
}
_BINARY = frozenset({"key", "body"})
_CHECKSUM_FAILED = "CRC checksum verification failed"


def named(pointer: FragmentPointer) -> str:
    """Name a fragment in errors."""
    return f"fragment {pointer.seq_no} ({pointer.path})"


@contextmanager
def refusing(data: memoryview, what: str) -> Iterator[None]:
    """Turn the decoder's errors into CorruptError."""
    try:
        yield
    except pa.ArrowMemoryError:
        # This process is out of memory; the file may be sound.
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # The decoder has no class of its own for it.
        damage = changed if _CHECKSUM_FAILED in str(error) else unreadable
        detail = f"expected a Parquet file, found {len(data)} bytes that fail to decode: {error}"
        raise damage(what, detail) from error


@dataclass(frozen=True, slots=True)
class Opened:
    """A fragment's file in memory: its footer, as it was read here and by the decoder, and its columns."""

    footer: Footer
    file: pq.ParquetFile
    columns: Sequence[str]

    def named(self, name: str) -> bytes | None:
        """Return what the file's own metadata has under a name."""
        found: bytes | None = (self.file.metadata.metadata or {}).get(name.encode())
        return found


def opened(data: memoryview, pointer: FragmentPointer, what: str, footer: Footer | None = None) -> Opened:
    """Read a file's footer, which is all that ``data`` need hold by then, unless it is known, and check its columns."""
    footer = footer or read_footer(data)
    check_count(footer.num_records, pointer, what)
    file = open_file(data, groups=len(footer.groups))
    schema = file.schema_arrow
    check_schema(schema, footer, what)
    return Opened(footer, file, schema.names)


def read_table(
    data: memoryview,
    file: Opened,
    what: str,
    expanded_bytes_max: int,
    wanted: Sequence[str] = KEYED,
    *,
    numbers: range | None = None,
) -> pa.Table:
    """Read a file's columns in its own order; only the row groups with some ``numbers``, if these are given."""
    part, columns = numbers is not None, file.columns
    numbers = range(len(file.footer.groups)) if numbers is None else numbers
    footer = _groups_of(chunks_of(file.footer, columns, wanted), numbers)
    num_bytes, dictionaries = measure(data, footer, columns, what=what, expanded_bytes_max=expanded_bytes_max)
    # Keep dictionaries: a value that a thousand records share is held once until its uses are counted.
    shared = [columns[index] for index in sorted(dictionaries) if columns[index] in _BINARY]
    metadata = file.file.metadata
    stored = open_file(data, shared, groups=len(file.footer.groups), metadata=metadata) if shared else file.file
    chosen = [name for name in columns if name in wanted]
    # Without row groups, only the first gives a table of no rows.
    table = (
        stored.read_row_groups(list(numbers), columns=chosen, use_threads=False)
        if part
        else stored.read(columns=chosen, use_threads=False)
    )
    if len(table) != footer.num_records:
        raise unreadable(what, f"expected {footer.num_records} records, found {len(table)}")
    table = _expand(table, num_bytes, what, expanded_bytes_max)
    return table.combine_chunks().replace_schema_metadata(metadata.metadata)


def chunks_of(footer: Footer, columns: Sequence[str], wanted: Sequence[str]) -> Footer:
    """Leave out the chunks of columns that are not wanted."""
    others = {number for number, name in enumerate(columns) if name not in wanted}
    if not others:
        return footer
    return replace(footer, chunks=tuple(chunk for chunk in footer.chunks if chunk.column not in others))


def _groups_of(footer: Footer, numbers: range) -> Footer:
    """Leave out the row groups that are not wanted."""
    counts = footer.groups[numbers.start : numbers.stop]
    # In the order of their groups.
    low, high = (bisect_left(footer.chunks, at, key=attrgetter("group")) for at in (numbers.start, numbers.stop))
    return Footer(num_records=sum(counts), groups=counts, chunks=footer.chunks[low:high])


def open_file(
    data: memoryview, shared: Sequence[str] = (), *, groups: int = 1, metadata: pq.FileMetaData | None = None
) -> pq.ParquetFile:
    """Open a file that is in memory, with bounds; ``shared`` columns are read as dictionaries.

    ``groups`` are as many row groups as its footer was found to have, ``metadata`` is what the decoder has read of it.
    """
    return pq.ParquetFile(
        pa.BufferReader(data),
        metadata=metadata,
        read_dictionary=shared,
        # The bytes are in memory already.
        pre_buffer=False,
        page_checksum_verification=True,
        thrift_string_size_limit=FOOTER_BYTES_MAX,
        thrift_container_size_limit=max(ITEMS_MAX, groups),
    )


def check_count(found: int, pointer: FragmentPointer, what: str) -> None:
    """Refuse a file of another number of records than its pointer says."""
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


def groups_named(file: Opened, what: str) -> tuple[KeyGroup, ...]:
    """Return the groups that a file names; none if it is not arranged by key."""
    if file.columns != ARRANGED:
        return ()
    found = file.named(KEY_GROUPS)
    if found is None:
        raise unreadable(what, f"expected {KEY_GROUPS} in a file that is arranged by key, found none")
    groups = groups_from(found)
    if tuple(each.num_records for each in groups) != file.footer.groups:
        raise unreadable(what, f"expected row groups of as many records as {KEY_GROUPS} says, found others")
    return groups


def check_schema(schema: pa.Schema, footer: Footer, what: str) -> None:
    """Refuse columns, or as many row groups, as no fragment has."""
    known = schema.names in (PLAIN, KEYED, ARRANGED)
    fitting = known and all(field.type in _COLUMN_TYPES[field.name] for field in schema)
    if not fitting:
        found = schema.to_string()[:200]
        raise unreadable(what, f"expected columns offset, timestamp_us, key?, body, found {found!r}")
    if len(footer.groups) > ITEMS_MAX and schema.names != ARRANGED:
        raise unreadable(what, f"expected at most {ITEMS_MAX} row groups, found {len(footer.groups)}")
