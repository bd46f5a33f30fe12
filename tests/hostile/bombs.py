"""Small files that expand to hundreds of megabytes, each in another way, and large sound ones."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tests.hostile.forge import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Chunk,
    Forgery,
    Items,
    Page,
    Struct,
    dump,
    ending,
    varint,
    zigzag,
)
from tests.hostile.specimens import MIB, Message, arranged, fragment, pointer_to, refill, table_of, written, zeros
from wal3_core.format.fragment import FragmentPointer

if TYPE_CHECKING:
    Bomb = tuple[bytes, FragmentPointer]

GIB = 2**30
ONE: list[Message] = [(b"k", b"body")]
BODY = 3


def _body_bomb(*, count: int = GIB) -> Forgery:
    """One record whose body is a gigabyte of zeros."""
    forgery = Forgery.of(fragment(ONE)[0])
    chunk = forgery.groups[0][BODY]
    # A level for the one value (two bytes behind their length), then the value's length and bytes.
    head = struct.pack("<I", 2) + b"\x02\x01" + struct.pack("<I", count)
    refill(chunk.pages[0], zeros(count, head), len(head) + count)
    chunk.metadata.set(6, len(head) + count)
    forgery.group().set(2, len(head) + count, I64)
    return forgery


def _one(forgery: Forgery) -> Bomb:
    data = forgery.build()
    return data, pointer_to(data, 1)


def value_in_a_dictionary() -> Bomb:
    body = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([bytes(MIB)], pa.binary()))
    table = table_of([(None, b"")] * 1000).drop(["key", "body"]).append_column("body", body)
    data = written(table, compression="zstd", store_schema=False)
    return data, pointer_to(data, 1000)


def value_in_a_page() -> Bomb:
    return _one(_body_bomb())


def page_behind_a_lying_footer() -> Bomb:
    forgery = _body_bomb()
    forgery.groups[0][BODY].metadata.set(6, 100)
    forgery.group().set(2, 300, I64)
    return _one(forgery)


def page_behind_a_lying_header() -> Bomb:
    forgery = _body_bomb()
    page = forgery.groups[0][BODY].pages[0]
    page.header.set(2, 100)
    return _one(forgery)


def page_behind_a_second_header_field() -> Bomb:
    """The size appears twice; which one the decoder uses is up to the decoder."""
    forgery = _body_bomb()
    forgery.groups[0][BODY].pages[0].header.fields.insert(2, [2, I32, 100])
    return _one(forgery)


def page_of_the_second_kind() -> Bomb:
    table = table_of(ONE)
    forgery = Forgery.of(written(table, compression="zstd", data_page_version="2.0", use_dictionary=False))
    chunk = forgery.groups[0][BODY]
    count = GIB
    levels = chunk.pages[0].header.inner(8)[5]
    assert isinstance(levels, int)
    head = struct.pack("<I", count)
    payload = chunk.pages[0].payload[:levels] + zeros(count, head)
    refill(chunk.pages[0], payload, levels + len(head) + count)
    return _one(forgery)


def page_of_positions() -> Bomb:
    forgery = Forgery.of(fragment(ONE)[0])
    refill(forgery.groups[0][0].pages[0], zeros(GIB), GIB)
    return _one(forgery)


def dictionary_page() -> Bomb:
    forgery = Forgery.of(written(table_of(ONE), compression="zstd"))
    page = forgery.groups[0][BODY].pages[0]
    assert page.header[1] == 2
    head = struct.pack("<I", GIB)
    refill(page, zeros(GIB, head), len(head) + GIB)
    return _one(forgery)


def values_that_repeat_the_one_before() -> Bomb:
    table = table_of([(b"k", bytes(MIB))] * 128)
    data = written(
        table, compression="zstd", use_dictionary=False, column_encoding={"key": "PLAIN", "body": "DELTA_BYTE_ARRAY"}
    )
    return data, pointer_to(data, 128)


def dictionary_of_more_values_than_it_has() -> Bomb:
    forgery = Forgery.of(written(table_of(ONE), compression="zstd"))
    forgery.groups[0][BODY].pages[0].header.inner(7).set(1, 2**29)
    return _one(forgery)


def lengths_that_count_themselves() -> Bomb:
    """Length differences, all zero, of which a few bytes announce as many as there are numbers."""
    forgery = Forgery.of(
        written(
            table_of(ONE),
            compression="none",
            use_dictionary=False,
            column_encoding={"key": "PLAIN", "body": "DELTA_LENGTH_BYTE_ARRAY"},
        )
    )
    page = forgery.groups[0][BODY].pages[0]
    levels = struct.pack("<I", 2) + b"\x02\x01"
    refill(page, levels + varint(2**30) + varint(1) + varint(2**30) + zigzag(0) * 2 + b"\0" * 8, len(levels) + 21)
    page.header.set(2, len(page.payload))
    return _one(forgery)


def _codec(name: str) -> Callable[[], Bomb]:
    def build() -> Bomb:
        data = written(table_of([(b"k", bytes(96 * MIB))]), compression=name, use_dictionary=False)
        return data, pointer_to(data, 1)

    return build


def millions_of_records() -> Bomb:
    """A few bytes for each column: runs of one value."""
    count = 4_000_000
    nothing = pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), pa.array([b""], pa.binary()))
    columns = {name: np.zeros(count, np.uint64) for name in ("offset", "timestamp_us")}
    data = written(pa.table({**columns, "key": nothing, "body": nothing}), compression="zstd", store_schema=False)
    return data, pointer_to(data, count)


def thousands_of_pages() -> Bomb:
    forgery = Forgery.of(fragment(ONE)[0])
    chunk = forgery.groups[0][BODY]
    empty = deepcopy(chunk.pages[0])
    empty.header.inner(5).set(1, 0)
    refill(empty, b"", 0)
    chunk.pages = [Page(empty.header, empty.payload)] * 20_000 + chunk.pages
    return _one(forgery)


def one_page_in_many_row_groups() -> Bomb:
    forgery = _body_bomb(count=15 * MIB)
    forgery.build()
    data = forgery.build()
    group = forgery.group()
    forgery.footer.set(4, Items(STRUCT, [group] * 60))
    forgery.footer.set(3, 60)
    body = data[: data.rindex(dump(Forgery.of(data).footer))]
    forged = body + ending(dump(forgery.footer))
    return forged, pointer_to(forged, 60)


def _claimed(where: str) -> Callable[[], Bomb]:
    """A list in the footer that announces sixteen million items, and has as many as fit in half a megabyte."""

    def build() -> Bomb:
        forgery = Forgery.of(fragment(ONE)[0])
        group = forgery.group()
        entry: Chunk = forgery.groups[0][0]
        holder, field = {
            "schema": (forgery.footer, 2),
            "row groups": (forgery.footer, 4),
            "columns": (group, 1),
            "encodings": (entry.metadata, 2),
            "metadata": (forgery.footer, 5),
        }[where]
        found = holder[field]
        assert isinstance(found, Items)
        found.values = found.values * (500_000 // len(dump(found)) + 1)
        found.claimed = 2**24 - 1
        return _one(forgery)

    return build


def string_in_the_footer() -> Bomb:
    """A string that announces two gigabytes."""
    forgery = Forgery.of(fragment(ONE)[0])
    data = forgery.build()
    name = dump(b"offset", BINARY)
    footer = dump(forgery.footer)
    forged = data[: data.rindex(footer)] + ending(footer.replace(name, b"\xff\xff\xff\xff\x07offset", 1))
    return forged, pointer_to(forged, 1)


def columns_within_columns() -> Bomb:
    """A schema of fifty levels, each with missing children."""
    forgery = Forgery.of(fragment(ONE)[0])
    elements = forgery.footer.items(2)
    level = Struct([[3, I32, 0], [4, BINARY, b"level"], [5, I32, 2**31 - 1]])
    forgery.footer.set(2, Items(STRUCT, [elements[0], *[level] * 50, *elements[1:]]), LIST)
    return _one(forgery)


BOMBS: dict[str, Callable[[], Bomb]] = {
    each.__name__: each
    for each in (
        value_in_a_dictionary,
        value_in_a_page,
        page_behind_a_lying_footer,
        page_behind_a_lying_header,
        page_behind_a_second_header_field,
        page_of_the_second_kind,
        page_of_positions,
        dictionary_page,
        dictionary_of_more_values_than_it_has,
        lengths_that_count_themselves,
        values_that_repeat_the_one_before,
        millions_of_records,
        thousands_of_pages,
        one_page_in_many_row_groups,
        string_in_the_footer,
        columns_within_columns,
    )
}
BOMBS |= {f"{name} value": _codec(name) for name in ("gzip", "snappy", "lz4", "brotli")}
BOMBS |= {f"endless {where}": _claimed(where) for where in ("schema", "row groups", "columns", "encodings", "metadata")}


def _sound(messages: Sequence[Message]) -> Callable[[], Bomb]:
    return lambda: fragment(messages)


def _repeated() -> Bomb:
    """Sound records of which many share a value, in pages with a dictionary."""
    messages: list[Message] = [(b"k", bytes(MIB))] * 100
    data = written(table_of(messages), compression="zstd", row_group_size=30)
    return data, pointer_to(data, 100, fragment(messages)[1].setsum.hexdigest())


# Near the limit of 128 MiB that the tests set.
SOUND: dict[str, Callable[[], Bomb]] = {
    "one long value": _sound([(None, bytes(120 * MIB))]),
    "long values": _sound([(None, bytes(MIB))] * 120),
    "short values": _sound([(None, b"x" * 30)] * 1_000_000),
    "short keys": _sound([(b"%d" % index, b"") for index in range(1_000_000)]),
    "shared values": _repeated,
    "long values by key": lambda: arranged([(b"%d" % (index % 7), bytes(MIB)) for index in range(110)]),
    "short keys in order": lambda: arranged([(b"%d" % index, b"") for index in range(1_000_000)]),
    "one key of short values": lambda: arranged([(b"k", b"x" * 30)] * 800_000),
}
