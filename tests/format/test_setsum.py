"""Setsum equals the reference vectors, and behaves as a set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.errors import CorruptError
from wal3_core.format.record import Record, keyed_setsum, plain_setsum, record_setsum
from wal3_core.format.setsum import EMPTY, PRIMES, Setsum

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "setsum.json").read_text())
ITEMS = st.lists(st.binary(max_size=300), max_size=20)


def test_primes_are_the_references() -> None:
    assert list(PRIMES) == VECTORS["primes"]


def test_single_and_seven_item_digests_equal_the_references() -> None:
    empty_item = VECTORS["empty_item"]
    seven = VECTORS["seven_values"]

    assert Setsum.of([bytes.fromhex(empty_item["item_hex"])]).hexdigest() == empty_item["digest"]
    assert Setsum.of(text.encode() for text in seven["items_utf8"]).hexdigest() == seven["digest"]


def test_addition_equals_the_reference_and_subtraction_undoes_it() -> None:
    a, b, total = (Setsum.from_hexdigest(VECTORS["addition"][name]) for name in ("a", "b", "sum"))

    assert a + b == total
    assert total - b == a
    assert total - a == b


@pytest.mark.parametrize("vector", VECTORS["records"])
def test_record_digests_equal_the_references(vector: dict[str, str | int | None]) -> None:
    key, body = (None if vector[name] is None else bytes.fromhex(str(vector[name])) for name in ("key_hex", "body_hex"))
    record = Record(int(vector["offset"] or 0), int(vector["timestamp_us"] or 0), key, body)

    assert record_setsum(record).hexdigest() == vector["digest"]


@given(ITEMS, ITEMS)
def test_union_is_addition_whatever_the_order(left: list[bytes], right: list[bytes]) -> None:
    union = Setsum.of([*left, *right])

    assert Setsum.of(left) + Setsum.of(right) == union
    assert Setsum.of(reversed([*left, *right])) == union
    assert union - Setsum.of(right) == Setsum.of(left)
    assert union - union == EMPTY


@given(ITEMS)
def test_hexdigest_reads_back(items: list[bytes]) -> None:
    total = EMPTY
    for item in items:
        total = total.insert(item)

    assert total == Setsum.of(items)
    assert Setsum.from_hexdigest(total.hexdigest()) == total
    assert len(total.hexdigest()) == 64


@given(
    st.lists(
        st.tuples(st.integers(1, 2**64 - 2), st.integers(0, 2**64 - 1), st.binary(max_size=3000)),
        max_size=10,
    )
)
def test_columns_hash_as_their_records_do(rows: list[tuple[int, int, bytes]]) -> None:
    offsets, times, bodies = ([row[index] for row in rows] for index in range(3))
    one_by_one = EMPTY
    for offset, time, body in rows:
        one_by_one += record_setsum(Record(offset, time, None, body))

    assert plain_setsum(offsets, times, bodies) == one_by_one
    assert keyed_setsum(offsets, times, [None] * len(rows), bodies) == one_by_one


@given(st.integers(1, 2**64 - 2), st.integers(0, 2**64 - 1), st.binary(max_size=50), st.binary(max_size=50))
def test_key_tombstone_and_body_have_different_setsums(offset: int, time: int, key: bytes, body: bytes) -> None:
    variants = [
        Record(offset, time, None, body),
        Record(offset, time, key, body),
        Record(offset, time, key, None),
        Record(offset, time, key + b"x", body),
    ]

    assert len({record_setsum(record) for record in variants}) == len(variants)


@pytest.mark.parametrize("column", range(8))
def test_digest_with_a_column_at_its_prime_is_refused(column: int) -> None:
    words = [0] * 8
    words[column] = PRIMES[column]
    digest = b"".join(word.to_bytes(4, "little") for word in words)

    with pytest.raises(CorruptError, match=f"column {column}"):
        Setsum.from_digest(digest)


@pytest.mark.parametrize("text", ["", "ab", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 63 + " "])
def test_text_that_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(CorruptError, match="setsum"):
        Setsum.from_hexdigest(text)
