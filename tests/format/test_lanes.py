"""Records hashed side by side have the digests that hashlib gives, or are left to hashlib."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import logging
import mmap
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.lanes import lanes_decided
from wal3_core.format import parquet
from wal3_core.format.parquet import columns as parquet_columns
from wal3_core.format.parquet.columns import group_setsums, lanes_setsums, table_of, table_setsum
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.record import Record, keyed_setsum
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.hashing import code_cache, lanes
from wal3_core.hashing.lanes import LANES, Lanes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("numba") is None, reason="needs numba: pip install '.[fast]'"),
]
TYPES = (pa.binary(), pa.large_binary())
# PROT_NONE of mprotect.
_NO_ACCESS = 0
# FIPS 202's examples, as NIST publishes them: messages of 448, 896, 1,600 and 8,000,000 bits, and their digests.
NIST = {
    b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq": (
        "41c0dba2a9d6240849100376a8235e2c82e1b9998a999e21db32dd97496d3376"
    ),
    b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
    b"hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu": (
        "916f6061fe879741ca6469b43971dfdb28b1a32dc36cb3254e812be27aad1d18"
    ),
    b"\xa3" * 200: "79f38adec5c20307a98ef76e8324afbfd46cfd81b22e3973c65fa1bd9de31787",
    b"a" * 1_000_000: "5c8875ae474a3634ba4fd55ec85bffd661f32aca75c6d699d0cdcb6c115891c1",
}


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give lanes every table that they can take, and wait for their code."""
    monkeypatch.setattr(lanes, "_BLOCKS_MIN", 1)
    # Also in a run that is without them otherwise.
    ready = Lanes("1") if LANES.hashing().because == "WAL3_FAST is 0" else LANES
    assert lanes_decided(ready), ready.hashing()
    monkeypatch.setattr(parquet_columns, "LANES", ready)


def table(records: Sequence[Record], binary: pa.DataType = TYPES[0]) -> pa.Table:
    whole = table_of(records)
    types = [pa.uint64(), pa.uint64(), binary, binary]
    return whole.cast(pa.schema(list(zip(whole.column_names, types, strict=True))))


def by_hashlib(records: Sequence[Record]) -> Setsum:
    columns = ([getattr(each, name) for each in records] for name in ("offset", "timestamp_us", "key", "body"))
    return keyed_setsum(*columns) if records else EMPTY


def random_records(seed: int, lengths: Sequence[int], *, keyed: bool) -> list[Record]:
    made = random.Random(seed)
    records = []
    for length in lengths:
        key = made.randbytes(made.choice((0, 5, 300))) if keyed and made.random() < 0.7 else None
        body = None if key is not None and made.random() < 0.3 else made.randbytes(length)
        records.append(Record(made.getrandbits(64), made.getrandbits(64), key, body))
    return records


@pytest.mark.parametrize("message", NIST, ids=len)
def test_digests_of_nist_s_messages_are_nist_s(message: bytes) -> None:
    # What is hashed of a record without a key begins with two words, its offset and its timestamp.
    offset, timestamp_us = (int.from_bytes(message[at : at + 8], "big") for at in (0, 8))
    records = [Record(offset, timestamp_us, None, message[16:])] * 8

    found = lanes_setsums(table(records), range(8))

    assert found == [Setsum.of_digests(bytes.fromhex(NIST[message]))] * 8
    assert hashlib.sha3_256(message).hexdigest() == NIST[message]


def test_records_of_all_lengths_around_blocks_have_hashlib_s_digests() -> None:
    for keyed in (False, True):
        records = random_records(1, range(700), keyed=keyed)

        assert lanes_setsums(table(records), range(700)) == [by_hashlib([each]) for each in records]


@given(
    st.integers(0, 2**32),
    st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**13), st.integers(0, 2**20)), min_size=4, max_size=24),
    st.booleans(),
    st.sampled_from(TYPES),
    st.lists(st.integers(1, 23), max_size=4),
)
@settings(max_examples=some(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mixed_lengths_are_summed_by_group_as_hashlib_does(
    seed: int,
    lengths: list[int],
    keyed: bool,  # noqa: FBT001 - hypothesis passes it
    binary: pa.DataType,
    cuts: list[int],
) -> None:
    records = random_records(seed, lengths, keyed=keyed)
    begins = sorted({0, *(cut for cut in cuts if cut < len(records))})
    expected = [by_hashlib(records[begin:limit]) for begin, limit in pairwise([*begins, len(records)])]

    assert group_setsums(table(records, binary), begins) == expected
    assert table_setsum(table(records, binary)) == by_hashlib(records)


def test_slices_and_chunks_are_summed_as_hashlib_does() -> None:
    records = random_records(2, [100] * 200, keyed=True)
    whole = table(records)
    chunked = pa.concat_tables([whole.slice(3, 50), whole.slice(60, 7), whole.slice(100)])
    expected = [*records[3:53], *records[60:67], *records[100:]]

    found = lanes_setsums(chunked, [0, 20, 55, 60])

    assert found == [by_hashlib(expected[begin:limit]) for begin, limit in pairwise([0, 20, 55, 60, len(expected)])]


def test_tombstone_records_alone_are_summed_as_hashlib_does() -> None:
    records = [Record(number, number, b"key", None) for number in range(100)]

    assert lanes_setsums(table(records), [0]) == [by_hashlib(records)]


def test_fragment_is_the_same_with_lanes_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    records = random_records(3, [200] * 300, keyed=True)
    source = parquet.FragmentSource(
        start=LogPosition(1, 1),
        seq_no=FragmentSeqNo(1),
        token="0" * 16,
        keys=[each.key for each in records],
        bodies=[each.body for each in records],
        timestamps_us=range(1, 301),
    )
    with_lanes = parquet.encode(source)
    monkeypatch.setattr(parquet_columns, "LANES", Lanes("0"))

    assert parquet.encode(source) == with_lanes


def test_one_long_record_among_short_ones_is_left_to_hashlib() -> None:
    records = random_records(4, [10, 10, 2**20, 10], keyed=False)

    assert lanes_setsums(table(records), [0]) is None
    assert table_setsum(table(records)) == by_hashlib(records)


@pytest.mark.parametrize("bounds", [[0, 4, 2, 6, 8], [0, 2, 4, 6, 9_000_000], [-4, 0, 2, 4, 8]])
def test_bounds_that_lie_outside_the_values_are_not_read(bounds: list[int]) -> None:
    found = parquet_columns._columns_of(table(random_records(5, [2] * 4, keyed=False)).to_batches()[0])
    assert found is not None
    damaged = np.array(bounds, dtype=np.int32)
    columns = replace(found, bodies=replace(found.bodies, bounds=damaged.ctypes.data))
    sums = np.zeros((1, 8), dtype=np.uint64)

    assert not parquet_columns.LANES.add(columns, [0], sums)
    assert not sums.any()


def test_code_with_other_digests_is_refused_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = parquet_columns.LANES._name
    assert name is not None
    code = code_cache.read(name)
    assert code is not None
    constant = (0x8082).to_bytes(8, "little")
    assert code.count(constant) == 1
    monkeypatch.setenv("WAL3_CACHE_DIR", str(tmp_path))
    code_cache.write(name, code.replace(constant, (0x8083).to_bytes(8, "little")))
    misled = Lanes("1")

    with caplog.at_level(logging.WARNING, "wal3.hashing"):
        assert not misled.load()

    assert "expected the digests of hashlib, found others" in misled.hashing().because
    assert "records are hashed by hashlib" in caplog.text
    assert not misled.may_sum(1000, 100_000)


def _guarded(data: bytes, *, at_end: bool) -> pa.Buffer:
    """Put bytes beside a page that cannot be read: the one after them, or the one before them."""
    page = mmap.PAGESIZE
    inner = -(-max(len(data), 1) // page) * page
    whole = mmap.mmap(-1, inner + 2 * page)
    start = np.frombuffer(whole, dtype=np.uint8).ctypes.data
    for guard in (start, start + page + inner):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(guard), page, _NO_ACCESS) == 0
    place = page + (inner - len(data) if at_end else 0)
    whole[place : place + len(data)] = data
    return pa.foreign_buffer(start + place, len(data), whole)


def _guarded_column(column: pa.Array, *, at_end: bool) -> pa.Array:
    found = [None if each is None else each.to_pybytes() for each in column.buffers()]
    # Arrow's own buffers are longer than they need to be.
    needed = [-(-len(column) // 8), 8 * len(column)]
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        needed[1:] = [(len(column) + 1) * (4 if column.type == pa.binary() else 8), len(found[2] or b"")]
    buffers = [
        None if each is None else _guarded(each[:size], at_end=at_end) for each, size in zip(found, needed, strict=True)
    ]
    return pa.Array.from_buffers(column.type, len(column), buffers)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("binary", TYPES)
def test_nothing_is_read_beside_the_columns(binary: pa.DataType, *, at_end: bool) -> None:
    for seed in range(8):
        lengths = [random.Random(seed + row).choice((0, 1, 7, 8, 100, 135, 136, 137, 400)) for row in range(37)]
        records = random_records(seed, lengths, keyed=seed % 2 == 1)
        [batch] = table(records, binary).combine_chunks().to_batches()
        columns = [_guarded_column(column, at_end=at_end) for column in batch.columns]

        found = lanes_setsums(pa.Table.from_arrays(columns, names=batch.schema.names), [0])

        assert found == [by_hashlib(records)]
