"""A footer that a decoder would read differently than wal3 does is not read at all."""

from __future__ import annotations

import pytest

from wal3_core.format.parquet.thrift import I32, STRUCT, Layout, alike, read_struct, structs

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


MANY = Layout(lists={1: STRUCT}, longest={1: 200})


def list_of(numbers: list[tuple[int, int]], *, further: bytes = b"") -> bytes:
    """Write a list of structs of an i32 and, in a struct, an i64; ``further`` is a field of the last of them."""
    items = [b"\x15" + zigzag(low) + b"\x1c\x16" + zigzag(high) + b"\x00" for low, high in numbers]
    items[-1] += further
    return b"\x19\xfc" + bytes([len(items) | 0x80, 1]) + b"".join(each + b"\x00" for each in items) + b"\x00"


@pytest.mark.parametrize("most", [0, 63, 64, 2**20, 2**30, 2**31 - 1])
def test_structs_that_differ_in_their_numbers_alone_are_read_by_a_pattern_as_without(most: int) -> None:
    numbers = [(most * each // 150, (most * each) % 2**40) for each in range(150)]
    document = list_of(numbers)

    found, limit = read_struct(memoryview(document), 0, MANY)

    assert limit == len(document)
    read = alike(found, 1)
    if most < 2**27:
        assert read is not None
        low, inner = read.form[1 << 4 | 5], read.form[2 << 4 | STRUCT]
        assert (low, inner) == (0, {1 << 4 | 6: 1})
        assert read.numbers([1, 0]) == [[high, low] for low, high in numbers]
    else:
        assert read is None
        assert structs(found, 1) == [{1 << 4 | 5: low, 2 << 4 | STRUCT: {1 << 4 | 6: high}} for low, high in numbers]


def test_structs_of_another_form_at_the_end_are_read_one_by_one() -> None:
    document = list_of([(1, 2)] * 150, further=b"\x15" + zigzag(7))

    found = read_struct(memoryview(document), 0, MANY)[0]

    assert alike(found, 1) is None
    assert structs(found, 1)[-1] == {1 << 4 | 5: 1, 2 << 4 | STRUCT: {1 << 4 | 6: 2}, 3 << 4 | 5: 7}


def test_number_below_zero_in_a_pattern_is_refused() -> None:
    # An odd number is below 0.
    document = list_of([(1, 2)] * 150).replace(b"\x16\x04", b"\x16\x05")
    read = alike(read_struct(memoryview(document), 0, MANY)[0], 1)

    assert read is not None
    assert read.numbers([0]) == [[1]] * 150
    with pytest.raises(ValueError, match="no size or count"):
        read.numbers([1])


@pytest.mark.parametrize("length", [0, 1, 7, 700])
def test_list_that_ends_early_is_refused_as_without_a_pattern(length: int) -> None:
    document = list_of([(1, 2)] * 150)[: 5 + length]

    with pytest.raises(ValueError, match="its end within a value"):
        read_struct(memoryview(document), 0, MANY)
