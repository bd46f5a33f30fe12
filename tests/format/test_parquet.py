"""A fragment's bytes decode to the same records, and damage is an error."""

from __future__ import annotations

import io
import json
import random
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from wal3_core.errors import CorruptError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.record import Record

TOKEN = "0123456789abcdef"
START = LogPosition(42, 1_700_000_000_000_000)
GIB = 2**30

Messages = list[tuple[bytes | None, bytes | None]]
MESSAGES = st.lists(
    st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=400)).filter(
        lambda m: m != (None, None)
    ),
    min_size=1,
    max_size=30,
)


EARLIER = parquet.EARLIER_KEY_METADATA


def fragment_of(messages: Messages, **changes: Sequence[str]) -> tuple[bytes, FragmentPointer]:
    keys, bodies = [key for key, _ in messages], [body for _, body in messages]
    seq_no = FragmentSeqNo(7)
    source = parquet.FragmentSource(
        start=START,
        seq_no=seq_no,
        token=TOKEN,
        keys=keys if any(key is not None for key in keys) else None,
        bodies=bodies,
    )
    encoded = parquet.encode(replace(source, **changes))
    pointer = FragmentPointer(
        path=fragment_path(seq_no, TOKEN),
        first_seq_no=seq_no,
        seq_no=seq_no,
        start=START,
        limit=LogPosition(START.offset + len(messages), START.timestamp_us),
        setsum=encoded.setsum,
        num_bytes=len(encoded.data),
        num_records=len(messages),
    )
    return bytes(encoded.data), pointer


@pytest.mark.slow
@given(MESSAGES)
def test_records_decode_as_they_were_encoded(messages: Messages) -> None:
    data, pointer = fragment_of(messages)

    fragment = parquet.decode(data, pointer, expanded_bytes_max=GIB)

    assert list(fragment.records()) == [
        Record(START.offset + index, START.timestamp_us, key, body) for index, (key, body) in enumerate(messages)
    ]


@pytest.mark.parametrize("keys", [None, [b"a", None, b"a"]])
def test_records_keep_the_offsets_and_times_that_they_are_given(keys: list[bytes | None] | None) -> None:
    offsets, times, bodies = [43, 45, 50], [START.timestamp_us, START.timestamp_us, START.timestamp_us + 9], [b"x"] * 3
    seq_no = FragmentSeqNo(9)
    source = parquet.FragmentSource(
        start=START, seq_no=seq_no, token=TOKEN, keys=keys, bodies=bodies, timestamps_us=times, offsets=offsets
    )
    encoded = parquet.encode(source)
    pointer = FragmentPointer(
        path=fragment_path(seq_no, TOKEN),
        first_seq_no=FragmentSeqNo(7),
        seq_no=seq_no,
        start=START,
        limit=LogPosition(52, START.timestamp_us + 9),
        setsum=encoded.setsum,
        num_bytes=len(encoded.data),
        num_records=3,
    )

    fragment = parquet.decode(encoded.data, pointer, expanded_bytes_max=GIB)

    assert list(fragment.records()) == list(map(Record, offsets, times, keys or [None] * 3, bodies))
    assert pointer.compacted


@pytest.mark.slow
@settings(max_examples=some(300))
@given(st.data())
def test_a_flipped_bit_is_an_error_or_changes_nothing(data: st.DataObject) -> None:
    stored, pointer = fragment_of([(b"k%d" % (i % 5), b"body %d" % i * 10) for i in range(50)])
    at = data.draw(st.integers(0, len(stored) * 8 - 1))
    flipped = bytearray(stored)
    flipped[at // 8] ^= 1 << at % 8
    good = list(parquet.decode(stored, pointer, expanded_bytes_max=GIB).records())

    try:
        found = list(parquet.decode(bytes(flipped), pointer, expanded_bytes_max=GIB).records())
    except CorruptError:
        return

    assert found == good


@given(st.integers(0, 2000))
def test_a_truncated_file_is_an_error(length: int) -> None:
    stored, pointer = fragment_of([(None, b"body %d" % i * 10) for i in range(50)])

    with pytest.raises(CorruptError, match="fragment 7"):
        parquet.decode(stored[: min(length, len(stored) - 1)], pointer, expanded_bytes_max=GIB)


def test_each_contradiction_with_the_pointer_is_named() -> None:
    stored, pointer = fragment_of([(None, b"a"), (None, b"b"), (None, b"c")])
    other = fragment_of([(None, b"x")])[1]
    wrong = {
        "setsum": replace(pointer, setsum=other.setsum),
        "3 records|4 records": replace(pointer, num_records=4, limit=LogPosition(46, START.timestamp_us)),
        "rising positions": replace(pointer, start=LogPosition(43, START.timestamp_us)),
        "fragment_seq_no": replace(
            pointer, seq_no=FragmentSeqNo(8), first_seq_no=FragmentSeqNo(8), path=fragment_path(FragmentSeqNo(8), TOKEN)
        ),
    }

    for match, pointed in wrong.items():
        with pytest.raises(CorruptError, match=match):
            parquet.decode(stored, pointed, expanded_bytes_max=GIB)
    with pytest.raises(CorruptError, match="expand to at most 10 bytes"):
        parquet.decode(stored, pointer, expanded_bytes_max=10)


def test_an_error_says_first_what_is_known_of_the_file() -> None:
    stored, pointer = fragment_of([(b"k", b"a body that is stored as it is")])
    other, of_other = fragment_of([(b"k", b"A body that is stored as it is")])
    body = stored.index(b"a body")
    header = stored.index(b"PAR1") + 4
    found = {
        "the file's bytes changed: .* CRC checksum": _damaged(stored, body),
        "the file cannot be read as it was written: column 0: expected a page at byte 4": _damaged(stored, header),
        "the file cannot be read as it was written: expected a Parquet file": _damaged(stored, -1),
        "the file's records are not those that were appended: expected setsum": other.replace(
            of_other.setsum.hexdigest().encode(), pointer.setsum.hexdigest().encode()
        ),
    }

    for said, data in found.items():
        with pytest.raises(CorruptError, match=rf"^fragment 7, offsets .* \(.*\): {said}"):
            parquet.decode(data, pointer, expanded_bytes_max=GIB)


def _damaged(data: bytes, index: int) -> bytes:
    damaged = bytearray(data)
    damaged[index] ^= 0xFF
    return bytes(damaged)


def test_file_whose_own_metadata_is_wrong_is_an_error() -> None:
    stored, pointer = fragment_of([(b"a", b"1"), (b"b", b"2")], key_metadata=EARLIER[0])
    for written, other in (
        (TOKEN.encode(), b"f" * 16),
        (pointer.setsum.hexdigest().encode(), b"0" * 64),
        (b'["YQ==",1,42,42]', b'["YQ==",1,42,43]'),
        (b'["YQ==",1,42,42]', b'["YX==",1,42,42]'),
    ):
        assert stored.count(written) == 1
        with pytest.raises(CorruptError, match="as the file's wal3"):
            parquet.decode(stored.replace(written, other), pointer, expanded_bytes_max=GIB)


def test_a_file_with_other_columns_is_an_error() -> None:
    _, pointer = fragment_of([(None, b"a")])
    sink = io.BytesIO()
    pq.write_table(pa.table({"offset": pa.array([42], pa.int64()), "body": pa.array([b"a"])}), sink)

    with pytest.raises(CorruptError, match="expected columns"):
        parquet.decode(sink.getvalue(), pointer, expanded_bytes_max=GIB)


def test_a_file_without_our_metadata_reads_as_chroma_writes_it() -> None:
    stored, pointer = fragment_of([(None, b"a"), (None, b"b")])
    table = pq.read_table(io.BytesIO(stored)).replace_schema_metadata(None)
    sink = io.BytesIO()
    pq.write_table(table, sink)

    fragment = parquet.decode(sink.getvalue(), pointer, expanded_bytes_max=GIB)

    assert [record.body for record in fragment.records()] == [b"a", b"b"]


def test_swapped_bodies_are_an_error_though_positions_and_counts_hold() -> None:
    _, pointer = fragment_of([(None, b"a"), (None, b"b")])
    swapped, _ = fragment_of([(None, b"b"), (None, b"a")])

    with pytest.raises(CorruptError, match="setsum"):
        parquet.decode(swapped, pointer, expanded_bytes_max=GIB)
    assert [r.body for r in parquet.decode(swapped, pointer, expanded_bytes_max=GIB, verify=False).records()] == [
        b"b",
        b"a",
    ]


SOME_KEYS: Messages = [(b"a", b"1"), (None, b"2"), (b"b", None), (b"a", b"3")]


def test_file_metadata_carries_token_seq_no_setsum_and_tombstones() -> None:
    stored, pointer = fragment_of(SOME_KEYS)

    metadata = pq.read_metadata(io.BytesIO(stored)).metadata

    assert metadata[b"wal3.writer"] == TOKEN.encode()
    assert metadata[b"wal3.fragment_seq_no"] == b"7"
    assert metadata[b"wal3.setsum"] == pointer.setsum.hexdigest().encode()
    assert metadata[b"wal3.tombstones"].startswith(b"2:")
    assert b"wal3.key_index" not in metadata


@pytest.mark.parametrize("written", EARLIER)
def test_files_of_earlier_versions_give_the_same_records(written: Sequence[str]) -> None:
    stored, pointer = fragment_of(SOME_KEYS, key_metadata=written)

    metadata = pq.read_metadata(io.BytesIO(stored)).metadata
    assert {name.encode() for name in written} == metadata.keys() & {b"wal3.key_index", b"wal3.tombstones"}
    records = list(parquet.decode(stored, pointer, expanded_bytes_max=GIB).records())
    assert [(record.key, record.body) for record in records] == SOME_KEYS
    assert json.loads(metadata[b"wal3.key_index"]) == [
        [b64encode(b"a").decode(), 2, 42, 45],
        [b64encode(b"b").decode(), 1, 44, 44],
    ]


def test_earlier_versions_left_the_key_index_out_where_many_keys_hardly_repeat() -> None:
    once = [(b"%d" % number, b"x") for number in range(17)]
    for records, described in ((once, False), (once[:16], True), (2 * once, True), (once + once[:16], False)):
        stored, pointer = fragment_of(records, key_metadata=EARLIER[0])
        assert (b"wal3.key_index" in pq.read_metadata(io.BytesIO(stored)).metadata) is described
        assert len(list(parquet.decode(stored, pointer, expanded_bytes_max=GIB).records())) == len(records)


def test_plain_fragments_have_no_key_column() -> None:
    stored, _ = fragment_of([(None, b"a")])

    assert pq.read_schema(io.BytesIO(stored)).names == ["offset", "timestamp_us", "body"]


@pytest.mark.parametrize(
    "messages",
    [
        [(None, b"a")],
        [(b"%d" % number, None) for number in range(16_384)],
        [(None, b"")] * 30_000,
        [(None, random.Random(number).randbytes(1000)) for number in range(3000)],
    ],
    ids=["one record", "tombstones with a key index", "empty bodies", "bytes that cannot be compressed"],
)
def test_a_file_fits_into_its_memory_and_is_the_same_where_it_does_not(
    messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as within:
        within.delattr(pa, "BufferOutputStream")
        stored, _ = fragment_of(messages)

    monkeypatch.setattr("wal3_core.format.parquet.encoding._room_bytes", lambda _, __: len(stored) // 2)

    assert fragment_of(messages)[0] == stored


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 1000])
@pytest.mark.parametrize("null", [None, 0, 1, -1])
@pytest.mark.parametrize("longest", [100, 3000])
def test_an_array_of_values_is_that_of_arrow(count: int, null: int | None, longest: int) -> None:
    lengths = random.Random(count)
    values: list[bytes | None] = [lengths.randbytes(lengths.randint(longest // 2, longest)) for _ in range(count)]
    values += [b"", b"a"] if count > 1 else []
    if null is not None and count > 1:
        values[null] = None

    found = parquet.binary_array(values)

    found.validate(full=True)
    assert found == pa.array(values, pa.binary())


def test_values_that_one_array_has_no_room_for_are_left_to_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [bytes(1000)] * 3
    monkeypatch.setattr("wal3_core.format.parquet.encoding._BOUND_MAX", 2999)

    assert parquet.binary_array(values) == pa.array(values, pa.binary())
