"""Decoding a fragment's bytes into records: read strictly and within bounds, then checked whether they are right.

Keeps INV-9 of docs/protocol.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.parquet.columns import (
    ARRANGED,
    KEY_INDEX,
    KEYED,
    PLAIN,
    TOMBSTONES,
    Flags,
    Offsets,
    key_index,
    records_of,
    table_setsum,
    tombstones_as_text,
    tombstones_from,
    tombstones_of,
)
from wal3_core.format.parquet.damage import changed, foreign, unreadable
from wal3_core.format.parquet.key_groups import (
    KEY_GROUPS,
    KeyGroup,
    check_groups,
    check_order,
    groups_from,
    in_log_order,
    span,
    sum_of,
)
from wal3_core.format.parquet.pages import FOOTER_BYTES_MAX, Footer, check_expansion, footer_start, measure, read_footer
from wal3_core.format.parquet.thrift import ITEMS_MAX
from wal3_core.format.paths import check_fragment_path
from wal3_core.format.record import Record

_GROUP_MEMORY_BYTES = 2**10
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
    what = what or pointer.named(pointer.path)
    data = memoryview(data)
    with refusing(data, what):
        file = opened(data, pointer, what)
        groups = groups_named(file, what)
        table = read_table(data, file, what, expanded_bytes_max)
    stored = table
    if groups:
        table = in_log_order(stored)
    if verify:
        # Positions first: the key index is computed from them.
        _check_positions(table, pointer, what)
        _check_bodies(table, what)
        _check_metadata(table, pointer, what)
        if groups:
            check_groups(stored, groups, what)
        # That of each group was checked.
        found = sum_of(groups) if groups else table_setsum(table)
        if found != pointer.setsum:
            # Changed, or written so: most pages have a checksum of their own, which held.
            detail = f"expected setsum {pointer.setsum}, found {found}"
            raise CorruptError(f"{what}: the file's records are not those that were appended: {detail}")
    return Fragment(pointer, _with_keys(table))


def _with_keys(table: pa.Table) -> pa.Table:
    """Return a table without metadata, and with a column of keys."""
    table = table.replace_schema_metadata(None)
    return table if "key" in table.column_names else table.add_column(2, "key", pa.nulls(len(table), pa.binary()))


def open_fragment(data: memoryview, pointer: FragmentPointer, *, what: str = "") -> Opened:
    """Read a file's footer, which is all that ``data`` need hold; CorruptError unless it is one of such a fragment."""
    what = what or pointer.named(pointer.path)
    with refusing(data, what):
        return opened(data, pointer, what)


def decode_keys(
    data: memoryview, pointer: FragmentPointer, *, expanded_bytes_max: int, what: str = "", file: Opened | None = None
) -> pa.Table:
    """Decode the columns offset, timestamp_us and key of a fragment, and which records are tombstone records.

    Of ``data`` only the footer and what ``key_ranges`` names need be the file's. Page checksums, positions, count
    and, where present, the file's own metadata are checked; the setsum is not, since that takes the bodies.
    ``file`` is what ``open_fragment`` has read of it.
    """
    what = what or pointer.named(pointer.path)
    with refusing(data, what):
        file = file or opened(data, pointer, what)
        groups = groups_named(file, what)
        table = read_table(data, file, what, expanded_bytes_max, _key_columns(file))
    stored = table
    if groups:
        table = in_log_order(stored)
    _check_positions(table, pointer, what)
    if groups:
        check_order(stored, groups, what)
    _check_names(table, pointer, what)
    tombstones = _tombstones(table, what)
    return _with_keys(table).select(KEYED[:-1]).append_column("tombstone", pa.array(tombstones))


def key_ranges(
    data: memoryview, pointer: FragmentPointer, *, what: str = "", file: Opened | None = None
) -> list[tuple[int, int]]:
    """Name the byte ranges that ``decode_keys`` needs beside the footer, which is all that ``data`` need hold.

    They are the bodies' as well in a file with keys that does not say which records are tombstone records.
    """
    what = what or pointer.named(pointer.path)
    file = file or open_fragment(data, pointer, what=what)
    chunks = chunks_of(file.footer, file.columns, _key_columns(file)).chunks
    ranges = sorted((chunk.start, chunk.limit) for chunk in chunks)
    if any(limit > len(data) for _, limit in ranges):
        raise unreadable(what, f"expected columns within {len(data)} bytes, found others")
    return ranges


@dataclass(frozen=True, slots=True)
class Arrangement:
    """What the footer of a fragment that is arranged by key says: its groups, and the bytes at which each lies.

    ``ending`` is the footer itself, and what follows it.
    """

    groups: tuple[KeyGroup, ...]
    places: tuple[tuple[int, int], ...]
    ending: bytes
    footer: Footer

    @property
    def num_bytes(self) -> int:
        """How much memory it takes, about: most of it for where each column of a group lies."""
        return len(self.ending) + len(self.groups) * _GROUP_MEMORY_BYTES

    def span(self, start: bytes, limit: bytes | None) -> range:
        """Return the numbers of the groups that may hold records of the keys from ``start`` to below ``limit``."""
        return span(self.groups, start, limit)

    def num_records(self, numbers: range) -> int:
        """Return how many records some groups hold."""
        return sum(self.groups[number].num_records for number in numbers)


def read_arrangement(
    data: memoryview, pointer: FragmentPointer, *, what: str = "", file: Opened | None = None
) -> Arrangement | None:
    """Read how a fragment is arranged by key, None if it is not; of ``data`` only the footer need be the file's.

    The groups hold as many records as the file's row groups, and add up to the pointer's setsum.
    """
    what = what or pointer.named(pointer.path)
    with refusing(data, what):
        file = file or opened(data, pointer, what)
        if file.columns != ARRANGED:
            return None
        groups, footer = groups_named(file, what), file.footer
        chunks = {number: list(each) for number, each in groupby(footer.chunks, key=attrgetter("group"))}
        if len(chunks) != len(groups):
            raise unreadable(what, "expected a place in the file for each row group, found none")
        if sum_of(groups) != pointer.setsum:
            raise unreadable(what, f"expected groups with the setsum {pointer.setsum}, found {sum_of(groups)}")
        places = tuple((min(c.start for c in each), max(c.limit for c in each)) for each in chunks.values())
        if any(not 0 <= start <= limit <= len(data) for start, limit in places):
            raise unreadable(what, f"expected columns within {len(data)} bytes, found others")
        return Arrangement(groups, places, bytes(data[footer_start(data, len(data)) :]), footer)


def decode_groups(
    data: memoryview,
    pointer: FragmentPointer,
    arrangement: Arrangement,
    numbers: range,
    *,
    expanded_bytes_max: int,
    what: str = "",
) -> pa.Table:
    """Decode some groups of a fragment that is arranged by key; a table as that of ``Fragment``, with their records.

    Of ``data`` only these groups, at their places, and the footer need be the file's. Page checksums, positions, the
    order of the keys, and each group's count and setsum are checked.
    """
    what = what or pointer.named(pointer.path)
    with refusing(data, what):
        file = opened(data, pointer, what, arrangement.footer)
        stored = read_table(data, file, what, expanded_bytes_max, numbers=numbers)
    table = in_log_order(stored)
    _check_positions(table, pointer, what)
    _check_bodies(table, what)
    check_groups(stored, [arrangement.groups[number] for number in numbers], what)
    return table.replace_schema_metadata(None)


def _key_columns(file: Opened) -> Sequence[str]:
    return KEYED[:-1] if "key" not in file.columns or file.named(TOMBSTONES) is not None else KEYED


def _tombstones(table: pa.Table, what: str) -> Flags:
    if "body" in table.column_names:
        _check_bodies(table, what)
        return tombstones_of(table["body"])
    if "key" not in table.column_names:
        return np.zeros(len(table), dtype=np.bool_)
    try:
        tombstones = tombstones_from(table.schema.metadata[TOMBSTONES.encode()], len(table))
    except ValueError as error:
        raise unreadable(what, f"expected the rows of its tombstone records as {TOMBSTONES}, found {error}") from error
    if np.any(tombstones & ~table["key"].is_valid().to_numpy()):
        raise unreadable(what, "expected a key on every tombstone record, found none")
    return tombstones


def _check_metadata(table: pa.Table, pointer: FragmentPointer, what: str) -> None:
    """Check the file's own metadata, where present: readers of keys alone, and other programs, trust it."""
    metadata = table.schema.metadata or {}
    expected: dict[str, str] = {}
    if KEY_INDEX.encode() in metadata and "key" in table.column_names:
        expected |= key_index(table["key"].combine_chunks(), table["offset"].to_numpy())
    if TOMBSTONES.encode() in metadata:
        expected |= tombstones_as_text(tombstones_of(table["body"]))
    _check_names(table, pointer, what, expected)


def _check_names(
    table: pa.Table, pointer: FragmentPointer, what: str, further: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Check the metadata that repeats the pointer, and ``further`` ones, where present."""
    metadata = table.schema.metadata or {}
    expected = {
        "wal3.writer": check_fragment_path(pointer.path, pointer.seq_no),
        "wal3.fragment_seq_no": str(pointer.seq_no),
        "wal3.setsum": pointer.setsum.hexdigest(),
        **further,
    }
    for name, value in expected.items():
        found = metadata.get(name.encode())
        if found is not None and found != value.encode():
            wrong = foreign if name == "wal3.writer" else unreadable
            raise wrong(what, f"expected {value[:80]!r} as the file's {name}, found {found[:80]!r}")


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


def _check_bodies(table: pa.Table, what: str) -> None:
    if not table["body"].null_count:
        return
    if "key" not in table.column_names or np.any(tombstones_of(table["body"]) & ~table["key"].is_valid().to_numpy()):
        raise unreadable(what, "expected a key on every record without a body, found none")


def _u64_column(table: pa.Table, name: str, what: str) -> Offsets:
    column = table[name]
    if column.null_count:
        raise unreadable(what, f"column {name}: expected no nulls, found {column.null_count}")
    return np.asarray(column.to_numpy(), dtype=np.uint64)


@contextmanager
def refusing(
    data: bytes | memoryview, what: str, by_checksum: Callable[[str, str], CorruptError] = changed
) -> Iterator[None]:
    """Turn the decoder's errors into CorruptError; a page whose checksum fails into that of ``by_checksum``."""
    try:
        yield
    except pa.ArrowMemoryError:
        # This process is out of memory; the file may be sound.
        raise
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        # The decoder has no class of its own for it.
        damage = by_checksum if _CHECKSUM_FAILED in str(error) else unreadable
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
