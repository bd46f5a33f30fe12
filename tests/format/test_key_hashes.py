"""Hashes of keys: the same for ever, and for a key wherever it lies in a column."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal3_core.format.key_hashes import hash_keys

# Stored key roll-ups hold such hashes. The first is also that of splitmix64's first number after the seed 0.
GOLDEN = {
    b"": 0xE220A8397B1DCDAF,
    b"a": 0xCFCBBC26A92EAE52,
    b"a\0": 0x8802092099F2D5C0,
    b"ab": 0x74B9B03DC6B40451,
    bytes(range(256)) * 4: 0x8119AEC5BEFCFFF9,
}
BLOCK = 2**14


def plain_hash(key: bytes) -> int:
    """As the module's docstring says it, a byte at a time."""
    value, power = (len(key) + 1) * 0x9E3779B97F4A7C15, 1
    for byte in key:
        value, power = value + byte * power, power * 0xD6E8FEB86659FD93 % 2**64
    value %= 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@pytest.mark.parametrize("width", [pa.binary(), pa.large_binary()], ids=str)
def test_hashes_are_what_earlier_versions_computed(width: pa.DataType) -> None:
    assert hash_keys(pa.array(list(GOLDEN), width)).tolist() == list(GOLDEN.values())
    assert [plain_hash(key) for key in GOLDEN] == list(GOLDEN.values())


@given(st.lists(st.binary(max_size=40)), st.data())
def test_hash_depends_on_the_key_alone(keys: list[bytes], data: st.DataObject) -> None:
    column = pa.array(keys, pa.binary())
    low = data.draw(st.integers(0, len(keys)))
    high = data.draw(st.integers(low, len(keys)))
    expected = [plain_hash(key) for key in keys]

    assert hash_keys(column).tolist() == expected
    assert hash_keys(column.slice(low, high - low)).tolist() == expected[low:high]
    assert hash_keys(pa.chunked_array([column[:low], column[low:]], pa.binary())).tolist() == expected
    assert hash_keys(column.cast(pa.large_binary())).dtype == np.uint64


@pytest.mark.parametrize("length", [BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
@pytest.mark.parametrize("before", [[], [b""], [b"x"]], ids=len)
def test_key_of_any_length_may_lie_across_blocks(length: int, before: list[bytes]) -> None:
    keys = [*before, bytes(range(256)) * (length // 256) + bytes(length % 256), b"", b"y", b""]

    assert hash_keys(pa.array(keys, pa.binary())).tolist() == [plain_hash(key) for key in keys]


def test_nulls_leave_the_other_keys_as_they_are() -> None:
    hashes = hash_keys(pa.array([None, b"a", None, b"ab"], pa.binary()))

    assert hashes[[1, 3]].tolist() == [GOLDEN[b"a"], GOLDEN[b"ab"]]


@pytest.mark.slow
def test_a_million_keys_and_a_huge_one_take_a_moment() -> None:
    keys = [b"%020d" % number for number in range(1_000_000)]
    column = pa.array([*keys, bytes(16 * 2**20)], pa.binary())

    began_s = time.monotonic()
    hashes = hash_keys(column)

    # As measured 0.2 s; a step of Python for each key would take longer.
    assert time.monotonic() - began_s < 5
    assert len(np.unique(hashes)) == len(column)
    assert int(hashes[7]) == plain_hash(keys[7])
