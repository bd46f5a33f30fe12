"""Decoding a fragment's bytes into records, and the checks they pass first. Keeps INV-9 of docs/protocol.md."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from wal3_core.errors import CorruptError
from wal3_core.format.parquet.columns import ARRANGED, KEY_INDEX, KEYED, Offsets, key_index, records_of, table_setsum
from wal3_core.format.parquet.damage import foreign, unreadable
from wal3_core.format.parquet.key_groups import KeyGroup, check_groups, check_order, in_log_order, span, sum_of
from wal3_core.format.parquet.pages import Footer, footer_start
from wal3_core.format.parquet.reading import (
    Opened,
    chunks_of,
    groups_named,
    named,
    opened,
    read_table,
    refusing,
)
from wal3_core.format.parquet.tombstone_rows import (
    TOMBSTONES,
    Flags,
    tombstones_as_text,
    tombstones_from,
    tombstones_of,
)
from wal3_core.format.paths import check_fragment_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.record import Record

_GROUP_MEMORY_BYTES = 2**10


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
    what = what or named(pointer)
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
            message = f"{what}: the file's records are not those that were appended: {detail}"
            raise CorruptError(message)
    return Fragment(pointer, _with_keys(table))


def _with_keys(table: pa.Table) -> pa.Table:
    """Return a table without metadata, and with a column of keys."""
    table = table.replace_schema_metadata(None)
    return table if "key" in table.column_names else table.add_column(2, "key", pa.nulls(len(table), pa.binary()))


def open_fragment(data: memoryview, pointer: FragmentPointer, *, what: str = "") -> Opened:
    """Read a file's footer, which is all that ``data`` need hold; CorruptError unless it is one of such a fragment."""
    what = what or named(pointer)
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
    what = what or named(pointer)
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
    what = what or named(pointer)
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
    what = what or named(pointer)
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
    what = what or named(pointer)
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
    if table["body"].null_count and _has_bodiless_record(table):
        raise unreadable(what, "expected a key on every record without a body, found none")


def _has_bodiless_record(table: pa.Table) -> bool:
    if "key" not in table.column_names:
        return True
    return bool(np.any(tombstones_of(table["body"]) & ~table["key"].is_valid().to_numpy()))


def _u64_column(table: pa.Table, name: str, what: str) -> Offsets:
    column = table[name]
    if column.null_count:
        raise unreadable(what, f"column {name}: expected no nulls, found {column.null_count}")
    return np.asarray(column.to_numpy(), dtype=np.uint64)
