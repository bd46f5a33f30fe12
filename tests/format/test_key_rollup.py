"""A key roll-up never leaves out a fragment that holds a key, and damage to its bytes is an error. INV-39."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import some
from tests.format.key_rollups import Row, rolled_up, snapshot_of
from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.format.key_hashes import hash_keys
from wal3_core.format.key_rollup import FragmentKeys, KeyRollup
from wal3_core.format.parquet.key_rollup_file import bytes_max, decode_key_rollup, encode_key_rollup
from wal3_core.format.paths import LogId
from wal3_core.format.snapshot import SnapshotPointer

KEYS = st.sampled_from([None, b"", b"a", b"a\0", b"ab", b"b", b"\0"])
ROWS = st.lists(st.tuples(KEYS, st.booleans()).map(lambda row: (row[0], row[0] is not None and row[1])), min_size=1)
FRAGMENTS = st.lists(ROWS, min_size=1, max_size=6)
SOME: list[list[Row]] = [
    [(b"a", False), (b"b", True), (b"a", True)],
    [(None, False)],
    [(b"a", True), (b"a", False), (b"", False)],
]


def hashes_of(keys: Iterable[bytes]) -> np.ndarray:
    return np.sort(hash_keys(pa.array(list(keys), pa.binary())))


def last_of(rows: list[Row]) -> dict[bytes, bool]:
    """Each key's last record: whether it is a tombstone record."""
    return {key: gone for key, gone in rows if key is not None}


@given(FRAGMENTS, st.sets(KEYS.filter(lambda key: key is not None)))
def test_every_fragment_that_holds_a_key_is_named(fragments: list[list[Row]], wanted: set[bytes]) -> None:
    rollup, named = rolled_up(fragments)

    touched = rollup.touched(hashes_of(wanted))

    holding = [pointer.seq_no for pointer, rows in zip(named, fragments, strict=True) if wanted & last_of(rows).keys()]
    assert touched == holding
    assert rollup.covers(named)


@given(FRAGMENTS)
def test_every_fragment_in_which_a_key_was_last_deleted_is_named(fragments: list[list[Row]]) -> None:
    rollup, named = rolled_up(fragments)

    expected = [pointer.seq_no for pointer, rows in zip(named, fragments, strict=True) if any(last_of(rows).values())]
    assert rollup.with_tombstones() == expected


def test_one_of_two_keys_with_the_same_hash_is_enough_for_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal3_core.format.key_rollup.hash_keys", lambda keys: np.zeros(len(keys), dtype=np.uint64))

    rollup, named = rolled_up([[(b"deleted", True), (b"kept", False)]])

    assert rollup.with_tombstones() == [named[0].seq_no]
    assert rollup.num_hashes == 1


def test_keys_are_found_among_more_and_among_fewer_others() -> None:
    rollup, named = rolled_up([[(b"%d" % number, False) for number in range(100)]])

    assert rollup.touched(hashes_of([b"7"])) == [named[0].seq_no]
    assert rollup.touched(hashes_of(b"%d" % number for number in range(99, 1000))) == [named[0].seq_no]
    assert rollup.touched(hashes_of(b"%d" % number for number in range(100, 1000))) == []
    assert rollup.touched(hashes_of([b"100"])) == []
    assert rollup.touched(hashes_of([])) == []


@given(FRAGMENTS, st.data())
def test_parts_join_to_the_whole(fragments: list[list[Row]], data: st.DataObject) -> None:
    rollup, named = rolled_up(fragments)
    some = data.draw(st.lists(st.booleans(), min_size=len(named), max_size=len(named)))
    left = [pointer for pointer, taken in zip(named, some, strict=True) if taken]
    right = [pointer for pointer in named if pointer not in left]

    assert KeyRollup.join([rollup.part(right), rollup.part(left)]) == rollup
    assert rollup.part(left).covers(left)


def test_fragment_that_another_writer_wrote_under_the_same_number_is_not_covered() -> None:
    rollup, named = rolled_up(SOME)
    compacted = replace(named[2], path=named[2].path.replace("0123456789abcdef", "fedcba9876543210"))

    assert not rollup.covers([*named[:2], compacted])
    assert [each.seq_no for each in rollup.part([named[0], compacted]).fragments] == [named[0].seq_no]


@settings(max_examples=some(50))
@given(FRAGMENTS)
def test_bytes_decode_to_what_was_encoded(fragments: list[list[Row]]) -> None:
    rollup, named = rolled_up(fragments)
    pointer = snapshot_of(named)

    data = encode_key_rollup(rollup, pointer, LOG_ID)

    assert decode_key_rollup(data, pointer, LOG_ID) == rollup
    assert len(data) <= bytes_max(pointer)


def test_hash_takes_less_than_eight_bytes() -> None:
    rollup, named = rolled_up(
        [[(b"%d/%d" % (each, number), number % 9 == 0) for number in range(2000)] for each in range(8)]
    )

    data = encode_key_rollup(rollup, snapshot_of(named), LOG_ID)

    assert len(data) / rollup.num_hashes < 8


def written(rollup: KeyRollup, pointer: SnapshotPointer, **changes: object) -> bytes:
    """Encode as the library does, but change the metadata."""
    made = pq.ParquetFile(pa.BufferReader(encode_key_rollup(rollup, pointer, LOG_ID)))
    described = {**json.loads(made.metadata.metadata[b"wal3.key_rollup"]), **changes}
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, made.schema_arrow, use_dictionary=False, store_schema=False) as writer:
        writer.write_table(made.read())
        writer.add_key_value_metadata({"wal3.key_rollup": json.dumps(described)})
    return sink.getvalue().to_pybytes()


def test_every_flipped_byte_is_refused_or_changes_nothing() -> None:
    rollup, named = rolled_up(SOME)
    pointer = snapshot_of(named)
    sound = bytes(encode_key_rollup(rollup, pointer, LOG_ID))
    refused = 0

    for at in range(len(sound)):
        damaged = sound[:at] + bytes([sound[at] ^ 1 << at % 8]) + sound[at + 1 :]
        try:
            assert decode_key_rollup(damaged, pointer, LOG_ID) == rollup
        except CorruptError as error:
            assert "keys/SNAPSHOT." in str(error)  # noqa: PT017 - not every flip is an error
            refused += 1

    # The rest is the name of the program that wrote it, and the like.
    assert refused > len(sound) // 2


def test_bytes_cut_short_anywhere_are_refused() -> None:
    rollup, named = rolled_up(SOME)
    pointer = snapshot_of(named)
    sound = bytes(encode_key_rollup(rollup, pointer, LOG_ID))

    for length in range(len(sound)):
        with pytest.raises(CorruptError, match="keys/SNAPSHOT"):
            decode_key_rollup(sound[:length], pointer, LOG_ID)


def _fewer(rollup: KeyRollup) -> KeyRollup:
    return KeyRollup(rollup.fragments[1:])


def _falling(rollup: KeyRollup) -> KeyRollup:
    first = rollup.fragments[0]
    fallen = replace(first, hashes=first.hashes[::-1].copy())
    return KeyRollup((fallen, *rollup.fragments[1:]))


def _out_of_order(rollup: KeyRollup) -> KeyRollup:
    return KeyRollup((rollup.fragments[1], rollup.fragments[0], rollup.fragments[2]))


def _repeated(rollup: KeyRollup) -> KeyRollup:
    return KeyRollup((rollup.fragments[0], rollup.fragments[0], rollup.fragments[2]))


@pytest.mark.parametrize("change", [_fewer, _falling, _out_of_order, _repeated])
def test_content_that_no_snapshot_has_is_refused(change: Callable[[KeyRollup], KeyRollup]) -> None:
    rollup, named = rolled_up(SOME)
    pointer = snapshot_of(named)

    with pytest.raises(CorruptError, match="of its snapshot"):
        decode_key_rollup(encode_key_rollup(change(rollup), pointer, LOG_ID), pointer, LOG_ID)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": 2}, "a newer wal3 may read it"),
        ({"log_id": "2e" * 16}, "expected the keys of"),
        ({"snapshot": "snapshot/SNAPSHOT.x"}, "expected the keys of"),
        ({"fragments": []}, "expected 0 hashes"),
        ({"sha256": "0" * 64}, "SHA-256"),
        ({"more": 1}, "no further fields"),
    ],
)
def test_metadata_of_another_file_is_refused(changes: dict[str, object], message: str) -> None:
    rollup, named = rolled_up(SOME)
    pointer = snapshot_of(named)
    assert decode_key_rollup(written(rollup, pointer), pointer, LOG_ID) == rollup

    with pytest.raises(CorruptError, match=message):
        decode_key_rollup(written(rollup, pointer, **changes), pointer, LOG_ID)


def test_another_log_s_and_another_snapshot_s_are_refused() -> None:
    rollup, named = rolled_up(SOME)
    pointer = snapshot_of(named)
    data = encode_key_rollup(rollup, pointer, LOG_ID)
    other = snapshot_of(named[:2])

    with pytest.raises(CorruptError, match="expected the keys of"):
        decode_key_rollup(data, pointer, LogId("2e" * 16))
    with pytest.raises(CorruptError, match="keys/SNAPSHOT"):
        decode_key_rollup(data, other, LOG_ID)


def _table(**columns: pa.Array) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink, store_schema=False, use_dictionary=False)
    return sink.getvalue().to_pybytes()


def test_foreign_files_are_refused() -> None:
    pointer = snapshot_of(rolled_up(SOME)[1])
    hashes, flags = pa.array([1], pa.uint64()), pa.array([True])
    files = [
        b"",
        b"PAR1" * 4,
        _table(hash=hashes),
        _table(hash=pa.array([1], pa.int64()), tombstone=flags),
        _table(hash=hashes, tombstone=pa.array([b"x"])),
        _table(hash=pa.array([None], pa.uint64()), tombstone=flags),
        _table(hash=hashes, tombstone=flags),
        _table(hash=pa.array(range(9), pa.uint64()), tombstone=pa.array([True] * 9)),
    ]

    for file in files:
        with pytest.raises(CorruptError, match="keys/SNAPSHOT"):
            decode_key_rollup(file, pointer, LOG_ID)


def test_more_bytes_than_the_snapshot_s_records_can_have_are_not_decoded() -> None:
    rollup, named = rolled_up(SOME)
    pointer = snapshot_of(named)
    data = bytes(encode_key_rollup(rollup, pointer, LOG_ID))

    with pytest.raises(CorruptError, match="expected at most"):
        decode_key_rollup(data + bytes(bytes_max(pointer)), pointer, LOG_ID)


def test_delta_encoding_is_refused() -> None:
    pointer = snapshot_of(rolled_up(SOME)[1])
    sink = pa.BufferOutputStream()
    table = pa.table({"hash": pa.array([1], pa.uint64()), "tombstone": pa.array([True])})
    encodings = {"hash": "DELTA_BINARY_PACKED", "tombstone": "PLAIN"}
    pq.write_table(table, sink, store_schema=False, use_dictionary=False, column_encoding=encodings)

    with pytest.raises(CorruptError, match="encoding 5"):
        decode_key_rollup(sink.getvalue().to_pybytes(), pointer, LOG_ID)


def test_equal_values_are_equal_and_others_are_not() -> None:
    rollup, _ = rolled_up(SOME)
    first = rollup.fragments[0]

    assert {first, replace(first, hashes=first.hashes.copy())} == {first}
    assert first != replace(first, tombstones=~first.tombstones)
    assert first != replace(first, hashes=first.hashes + np.uint64(1))
    assert first != replace(first, token="f" * 16)
    assert first != FragmentKeys
