"""A footer that a decoder would read differently than wal3 does is not read at all."""

from __future__ import annotations

import pytest

from wal3_core.model.parquet.thrift import I32, STRUCT, Layout, read_struct

LISTS = Layout(lists={1: STRUCT, 2: I32})


def zigzag(value: int) -> bytes:
    number, coded = value << 1, bytearray()
    while number > 0x7F:
        coded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*coded, number])


@pytest.mark.parametrize(
    ("document", "found"),
    [
        (b"\x15" + zigzag(100) + b"\x05" + zigzag(65_537) + zigzag(7) + b"\x00", "field 65537 behind field 1"),
        (b"\x15" + zigzag(100) + b"\x05" + zigzag(1) + zigzag(7) + b"\x00", "field 1 behind field 1"),
        (b"\x19\x28" + b"\x00\x00" + b"\x00", "a list of 2 of type 8"),
        (b"\x29\x1c" + b"\x00" + b"\x00", "a list of 1 of type 12"),
        (b"\x39\x15\x02\x00", "a list of 1 of type 5"),
        (b"\x19\xfc" + b"\xe9\x07" + b"\x00" * 1001, "a list of 1001"),
        (b"\x1c" * 5000 + b"\x00" * 5001, "at depth"),
        (b"\x19\x4c" + (b"\x11" * 30_000 + b"\x00") * 4 + b"\x00", "more than 100000 values"),
        (b"\x15" + zigzag(2**31) + b"\x00", "as a number of 32 bits"),
    ],
    ids=["overflow", "twice", "other items", "structs", "unknown list", "long list", "deep", "many", "wide"],
)
def test_struct_that_could_be_read_in_two_ways_is_refused(document: bytes, found: str) -> None:
    with pytest.raises(ValueError, match=found):
        read_struct(memoryview(document), 0, LISTS)


def test_struct_in_its_layout_is_read() -> None:
    document = b"\x19\x2c" + b"\x15\x04\x00" + b"\x00" + b"\x19\x25\x02\x04" + b"\x00"

    found, limit = read_struct(memoryview(document), 0, LISTS)

    assert limit == len(document)
    assert found == {1 << 4 | 9: [{1 << 4 | 5: 2}, {}], 2 << 4 | 9: [1, 2]}
