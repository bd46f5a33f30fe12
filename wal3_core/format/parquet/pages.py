"""The expanded size of a Parquet file, from its footer and page headers, before anything is decompressed.

The decoder does not enforce the sizes in a footer: 3 kB can expand to gigabytes. It does enforce the size
in a page's header: it allocates that much for the page and refuses one that turns out longer. So every
header is read here first. The footer is also read here first, because the decoder allocates as much as a
list declares, and some contradictions in a footer end the process when a column is read.
Source: the Parquet format, "Metadata" and "Data Pages".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wal3_core.errors import CorruptError
from wal3_core.format.parquet.damage import unreadable
from wal3_core.format.parquet.key_groups import GROUPS_MAX
from wal3_core.format.parquet.thrift import (
    BINARY,
    I32,
    I64,
    STRUCT,
    Layout,
    Struct,
    alike,
    number,
    read_struct,
    struct,
    structs,
)

# A footer holds little more than what it says of keys.
FOOTER_BYTES_MAX = 8 * 2**20
# The decoder's own memory per record: positions, ends of key and body, levels, and room to grow.
RECORD_BYTES = 64
# The same for a value in a dictionary: the decoder allocates for as many as the page's header declares.
_DICTIONARY_VALUE_BYTES = 32
# Sixty-four MiB in pages of a megabyte take a few hundred; a hostile file has millions of empty ones.
PAGES_MAX = 16_384
# Uncompressed, Snappy, gzip, zstd, LZ4 raw.
_CODECS = frozenset({0, 1, 2, 6, 7})
# PLAIN, and the dictionary encoding's two numbers. Delta encodings are refused: a value repeats parts of earlier
# ones, and the page has counts of its own, so that it expands without bound.
PLAIN_OR_DICTIONARY = frozenset({0, 2, 8})
# An encoding of as many bytes as PLAIN, in another order.
BYTE_STREAM_SPLIT = 9
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 0, 2, 3
# The header's field with the struct of a page type, and the field of the encoding in it, for each page type.
_PARTS = {_DATA_PAGE: (5, 2), _DICTIONARY_PAGE: (7, 2), _DATA_PAGE_V2: (8, 4)}
_HEADER_BYTES_MAX = 64 * 2**10
# All lists of the format's footer.
_COLUMN_METADATA = Layout(
    lists={2: I32, 3: BINARY, 8: STRUCT, 13: STRUCT},
    below={16: Layout(lists={2: I64, 3: I64}), 17: Layout(lists={2: I32})},
)
_COLUMN_KEY = Layout(below={2: Layout(lists={1: BINARY})})
_ROW_GROUP = Layout(lists={1: STRUCT, 4: STRUCT}, below={1: Layout(below={3: _COLUMN_METADATA, 8: _COLUMN_KEY})})
_FOOTER = Layout(lists={2: STRUCT, 4: STRUCT, 5: STRUCT, 7: STRUCT}, below={4: _ROW_GROUP}, longest={4: GROUPS_MAX})
# The numbers of a row group's column: where its pages begin, its codec, where its dictionary begins, size, values.
_COLUMN_NUMBERS = 5
_MAGIC = b"PAR1"
_ENDING_BYTES = 4 + len(_MAGIC)


class Chunk(NamedTuple):
    """A run of one column's pages in a row group: where it starts and ends in the file, and how many values it has."""

    group: int
    column: int
    start: int
    limit: int
    num_values: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """The records, of each row group also, and pages that a file's footer declares; not yet compared with the pages."""

    num_records: int
    groups: tuple[int, ...]
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    dictionary: bool
    num_values: int
    expanded_bytes: int
    limit: int


def read_footer(data: memoryview) -> Footer:
    """Read a file's footer; ValueError when it is missing, too large, or unlike any fragment's."""
    start = footer_start(data, len(data))
    fields, limit = read_struct(data[:-_ENDING_BYTES], start, _FOOTER)
    found = alike(fields, 4)
    groups = list(map(_numbers, structs(fields, 4))) if found is None else found.numbers(_numbers(found.form))
    counts = tuple(group[0] for group in groups)
    num_records = number(fields, 3, I64)
    if limit != len(data) - _ENDING_BYTES or num_records != sum(counts):
        raise ValueError(f"a footer that ends at {limit}, or row groups that do not hold its {num_records} records")
    return Footer(num_records=num_records, groups=counts, chunks=tuple(_chunks(groups)))


def footer_start(ending: memoryview, num_bytes: int) -> int:
    """Return where a file's footer begins, given the file's last bytes and its size; ValueError as ``read_footer``."""
    start = num_bytes - _ENDING_BYTES - int.from_bytes(ending[-_ENDING_BYTES : -len(_MAGIC)], "little")
    small = start >= 0 and num_bytes - start <= FOOTER_BYTES_MAX
    if len(ending) < _ENDING_BYTES or ending[-len(_MAGIC) :] != _MAGIC or not small:
        raise ValueError(f"no footer of at most {FOOTER_BYTES_MAX} bytes at its end")
    return start


def _numbers(group: Struct) -> list[int]:
    """Return a row group's number of records, and ``_COLUMN_NUMBERS`` for each of its columns."""
    found = [number(group, 3, I64)]
    for entry in structs(group, 1):
        column = struct(entry, 3)
        pages = number(column, 9, I64)
        # Without a dictionary its place is that of the pages.
        dictionary = number(column, 11, I64) if 11 << 4 | I64 in column else pages
        found += [pages, number(column, 4, I32), dictionary, number(column, 7, I64), number(column, 5, I64)]
    return found


def _chunks(groups: Sequence[Sequence[int]]) -> Iterator[Chunk]:
    for at, numbers in enumerate(groups):
        for column, first in enumerate(range(1, len(numbers), _COLUMN_NUMBERS)):
            pages, codec, dictionary, num_bytes, num_values = numbers[first : first + _COLUMN_NUMBERS]
            # The decoder starts at the dictionary.
            start = dictionary if 0 < dictionary < pages else pages
            if codec not in _CODECS or num_values != numbers[0]:
                raise ValueError(f"column {column}: {num_values} values in a row group of others, or codec {codec}")
            if num_values:
                # Without values the decoder reads no page, and some writers record no place for one.
                yield Chunk(at, column, start, start + num_bytes, num_values)


def measure(
    data: memoryview,
    footer: Footer,
    columns: Sequence[str],
    *,
    what: str,
    expanded_bytes_max: int,
    encodings: frozenset[int] = PLAIN_OR_DICTIONARY,
) -> tuple[int, set[int]]:
    """Read every page's header; CorruptError when the pages expand beyond the limit, or contradict the footer.

    Reads no more than ``PAGES_MAX`` headers, and nothing else of the file. Returns the expanded size of the pages and
    records, and the numbers of the columns with a dictionary; each value in one is counted once.
    """
    num_bytes, num_pages = footer.num_records * RECORD_BYTES, 0
    check_expansion(num_bytes, what=what, expanded_bytes_max=expanded_bytes_max)
    dictionaries: set[int] = set()
    for chunk in footer.chunks:
        num_values = 0
        for page in _pages(data, chunk, what, encodings):
            num_bytes += page.expanded_bytes
            check_expansion(num_bytes, what=what, expanded_bytes_max=expanded_bytes_max)
            num_pages += 1
            if num_pages > PAGES_MAX:
                raise unreadable(what, f"expected at most {PAGES_MAX} pages, found more")
            num_values += page.num_values
            if page.dictionary:
                dictionaries.add(chunk.column)
        if num_values != chunk.num_values or chunk.column >= len(columns):
            detail = (
                f"expected {chunk.num_values} values in the pages of one of {len(columns)} columns,"
                f" found {num_values} in those of column {chunk.column}"
            )
            raise unreadable(what, detail)
    return num_bytes, dictionaries


def check_expansion(num_bytes: int, *, what: str, expanded_bytes_max: int) -> None:
    """Refuse an expanded size beyond the limit."""
    if num_bytes > expanded_bytes_max:
        raise CorruptError(
            f"{what}: expected to expand to at most {expanded_bytes_max} bytes, found {num_bytes} or more;"
            f" if it is sound, raise ReaderOptions.fragment_expanded_bytes_max"
        )


def _pages(data: memoryview, chunk: Chunk, what: str, encodings: frozenset[int]) -> Iterator[_Page]:
    """Iterate over the pages of one chunk in the decoder's order."""
    at = chunk.start
    while at < chunk.limit:
        try:
            page = _page(data[: min(chunk.limit, at + _HEADER_BYTES_MAX)], at, encodings, leading=at == chunk.start)
        except ValueError as error:
            raise unreadable(what, f"column {chunk.column}: expected a page at byte {at}, found {error}") from error
        if page.limit > min(chunk.limit, len(data)):
            raise unreadable(what, f"column {chunk.column}: expected a page, found one that ends at byte {page.limit}")
        at = page.limit
        yield page


def _page(data: memoryview, at: int, encodings: frozenset[int], *, leading: bool) -> _Page:
    fields, following = read_struct(data, at)
    limit = following + number(fields, 3, I32)
    kind = number(fields, 1, I32)
    if kind not in _PARTS or (kind == _DICTIONARY_PAGE and not leading):
        raise ValueError(f"one of type {kind} that ends at byte {limit}")
    field, encoding_field = _PARTS[kind]
    part = struct(fields, field)
    encoding, num_values = number(part, encoding_field, I32), number(part, 1, I32)
    if encoding not in encodings:
        raise ValueError(f"encoding {encoding}, where {sorted(encodings)} are known")
    dictionary = kind == _DICTIONARY_PAGE
    return _Page(
        dictionary=dictionary,
        num_values=0 if dictionary else num_values,
        expanded_bytes=number(fields, 2, I32) + (num_values * _DICTIONARY_VALUE_BYTES if dictionary else 0),
        limit=limit,
    )
