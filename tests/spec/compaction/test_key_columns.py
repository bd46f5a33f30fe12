"""Keys are read without the bodies, and say of each record what reading it whole says."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.format.test_parquet import fragment_of
from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import TEN_YEARS_S, World
from wal3_core import CorruptError, LogReader, LogWriter, Message, ReaderOptions, WriterOptions
from wal3_core.errors import MissingError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_hashes import hash_keys
from wal3_core.format.parquet import encoding
from wal3_core.format.parquet.columns import TOMBSTONES, tombstones_as_text, tombstones_from
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.log.write import appends
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import Done, ObjectStore, log_store

LOG = "a"
KIB = 2**10
MIXED = [
    Message(b"body", b"a"),
    Message(b"", b"b"),
    Message(b"without a key"),
    Message(None, b"a"),
    Message(b"last", b""),
    Message(None, b""),
]


def write(store: ObjectStore, fragments: Sequence[Sequence[Message]]) -> list[FragmentPointer]:
    """Append each list of records as one fragment."""
    writing = WriterOptions(batch_bytes_max=2**26)
    with LogWriter.open_or_create(store, LOG, options=writing) as writer:
        for messages in fragments:
            writer.append_many(messages)
    return LogReader.open(store, LOG).scan()


def columns_of(store: ObjectStore) -> KeyColumns:
    return KeyColumns(life_store(store, LOG), ReaderOptions())


def read(store: ObjectStore, pointer: FragmentPointer) -> pa.Table:
    return columns_of(store).read(pointer)


def expected(store: ObjectStore, pointer: FragmentPointer) -> list[tuple[object, ...]]:
    """What reading the whole fragment says."""
    records = LogReader.open(store, LOG).fetch(pointer).records()
    return [(record.offset, record.timestamp_us, record.key, record.body is None) for record in records]


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    assert table.column_names == ["offset", "timestamp_us", "key", "tombstone"]
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def large(count: int = 400) -> list[Message]:
    """Records of far more than a footer, every tenth a tombstone record."""
    noise = random.Random(7)
    return [
        Message(None if number % 10 == 3 else noise.randbytes(2 * KIB), b"key %d" % (number % 90))
        for number in range(count)
    ]


def replaced(store: ObjectStore, pointer: FragmentPointer, data: bytes) -> None:
    inside = life_store(store, LOG)
    inside.delete(pointer.path)
    assert isinstance(inside.create(pointer.path, data), Done)


@pytest.mark.parametrize("messages", [MIXED, MIXED[2:3], large()], ids=["mixed", "without keys", "large"])
def test_keys_are_those_of_the_whole_fragment(store: ObjectStore, messages: list[Message]) -> None:
    [pointer] = write(store, [messages])

    assert rows(read(store, pointer)) == expected(store, pointer)


def test_small_fragment_is_read_by_one_request_and_a_large_one_without_its_bodies(memory_store: ObjectStore) -> None:
    small, big = write(memory_store, [MIXED, large()])
    counting, lengths = CountingStore(memory_store), []
    columns = columns_of(FaultyStore(counting))
    plain_read = counting.read
    counting.read = lambda path, **range_: lengths.append(found := plain_read(path, **range_)) or found

    columns.read(small)
    counting.requests.clear()
    columns.read(small)
    assert counting.requests == {"read": 1}
    counting.requests.clear()
    lengths.clear()
    columns.read(big)

    assert counting.requests == {"read": 2}
    assert big.num_bytes > 500 * KIB
    assert sum(len(found or b"") for found in lengths) < 80 * KIB


def test_footer_longer_than_the_first_read_takes_one_more(
    memory_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Earlier versions wrote an index of the keys if there were two records of each.
    encode, written = parquet.encode, parquet.EARLIER_KEY_METADATA[0]
    monkeypatch.setattr(appends, "encode", lambda source: encode(replace(source, key_metadata=written)))
    messages = [Message(bytes(9), b"%060d" % (number // 2)) for number in range(10_000)]
    [pointer] = write(memory_store, [messages])
    counting = CountingStore(memory_store)
    columns = columns_of(counting)
    columns.read(pointer)
    counting.requests.clear()

    table = columns.read(pointer)

    assert counting.requests == {"read": 3}
    assert table["key"].to_pylist() == [message.key for message in messages]


def test_file_that_does_not_say_which_records_are_tombstones_is_read_whole(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "tombstones_as_text", lambda _: {})

    pointers = write(store, [MIXED, large()])

    for pointer in pointers:
        assert rows(read(store, pointer)) == expected(store, pointer)


@pytest.mark.parametrize("messages", [MIXED, large()], ids=["small", "large"])
@pytest.mark.parametrize("length", [0, 11, 300, -1], ids=str)
def test_file_cut_short_is_damage_and_names_the_fragment(
    memory_store: ObjectStore, messages: list[Message], length: int
) -> None:
    [pointer] = write(memory_store, [messages])
    data = life_store(memory_store, LOG).read(pointer.path) or b""
    replaced(memory_store, pointer, data[:length])

    with pytest.raises(CorruptError, match="fragment 1"):
        read(memory_store, pointer)


def test_longer_and_missing_files_are_damage(memory_store: ObjectStore) -> None:
    [pointer] = write(memory_store, [MIXED])
    data = life_store(memory_store, LOG).read(pointer.path) or b""
    replaced(memory_store, pointer, data + b"PAR1")

    with pytest.raises(CorruptError, match="or more"):
        read(memory_store, pointer)
    life_store(memory_store, LOG).delete(pointer.path)
    with pytest.raises(MissingError):
        read(memory_store, pointer)


@pytest.mark.slow
def test_every_flipped_byte_is_refused_or_changes_nothing_that_is_read(memory_store: ObjectStore) -> None:
    [pointer] = write(memory_store, [MIXED])
    data = life_store(memory_store, LOG).read(pointer.path) or b""
    sound = rows(read(memory_store, pointer))

    refused = 0
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << at % 8
        try:
            ranges = parquet.key_ranges(memoryview(damaged), pointer)
            table = parquet.decode_keys(memoryview(damaged), pointer, expanded_bytes_max=2**20)
        except CorruptError as error:
            assert "fragment 1" in str(error)  # noqa: PT017 - not every flip is an error
            refused += 1
        else:
            assert ranges
            assert rows(table) == sound

    assert refused > len(data) // 2


def test_metadata_that_contradicts_the_records_is_found_by_a_whole_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = tombstones_as_text(np.array([True, False]))
    monkeypatch.setattr(encoding, "tombstones_as_text", lambda _: wrong)
    data, pointer = fragment_of([(b"a", b"1"), (b"b", None)])

    with pytest.raises(CorruptError, match=TOMBSTONES):
        parquet.decode(data, pointer, expanded_bytes_max=2**20)


@pytest.mark.parametrize(
    "text", ["", "0:", "0:AQ==:0123456789abcdef", "-1:AQ==", "x:AQ==", "0:A", "2:AQ==", "9" * 30 + ":AQ==", "0:AQ==:"]
)
def test_tombstone_rows_that_no_writer_wrote_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if text.count(":") == 1:
        monkeypatch.setattr("wal3_core.format.parquet.columns._digest", lambda _: "d")
        text += ":d"
    # Only the first text of these is right otherwise.
    if text == "0::d":
        assert not tombstones_from(text.encode(), 2).any()
        return
    monkeypatch.setattr(encoding, "tombstones_as_text", lambda _: {TOMBSTONES: text})
    data, pointer = fragment_of([(b"a", b"1"), (b"b", None)])

    with pytest.raises(CorruptError, match=TOMBSTONES):
        parquet.decode_keys(memoryview(data), pointer, expanded_bytes_max=2**20)


def test_tombstone_record_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = tombstones_as_text(np.array([False, True]))
    monkeypatch.setattr(encoding, "tombstones_as_text", lambda _: wrong)
    data, pointer = fragment_of([(b"a", b"1"), (None, b"2")])

    with pytest.raises(CorruptError, match="expected a key on every tombstone record"):
        parquet.decode_keys(memoryview(data), pointer, expanded_bytes_max=2**20)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1000])
def test_tombstone_rows_are_read_as_they_were_written(count: int) -> None:
    flags = np.array([number % 3 == 1 for number in range(count)], dtype=np.bool_)

    text = tombstones_as_text(flags)[TOMBSTONES]

    assert tombstones_from(text.encode(), count).tolist() == flags.tolist()


def test_more_rows_than_a_footer_should_hold_are_left_out() -> None:
    flags = np.zeros(2**22 + 9, dtype=np.bool_)
    flags[[0, -1]] = True

    assert tombstones_as_text(flags) == {}


def snapshot_of(store: ObjectStore) -> Snapshot:
    """Load the log's only snapshot."""
    manifests = ManifestStore(log_store(store, LOG), shared_runtime())
    [pointer] = manifests.load().manifest.snapshots
    assert isinstance(pointer, SnapshotPointer)
    return SnapshotStore(manifests, shared_runtime(), loaded_max=0).load(pointer)


def test_key_rollup_is_built_from_known_ones_and_the_keys_of_the_others(store: ObjectStore) -> None:
    rolling = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=1, gc_interval_s=TEN_YEARS_S)
    bodies = [[Message(b"%d" % number, b"k%d" % number), Message(None, b"gone")] for number in range(5)]
    write(store, bodies)
    World(store).roll(rolling)
    snapshot = snapshot_of(store)
    columns = columns_of(store)

    rollup = build_key_rollup(snapshot, columns, runtime=shared_runtime())

    assert rollup.covers(snapshot.pointers)
    assert rollup.touched(np.sort(hash_keys(pa.array([b"k1", b"k9"])))) == [2]
    assert rollup.with_tombstones() == [1, 2, 3, 4]
    # Of three fragments the keys are known: without the files, only the fourth is missed.
    known = [rollup.part(snapshot.pointers[:1]), rollup.part(snapshot.pointers[2:])]
    counting = CountingStore(life_store(store, LOG))
    again = build_key_rollup(snapshot, KeyColumns(counting, ReaderOptions()), runtime=shared_runtime(), known=known)
    assert again == rollup
    assert counting.requests == {"read": 1}


def test_compacted_fragment_s_keys_are_read_anew(store: ObjectStore) -> None:
    rolling = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1, gc_interval_s=TEN_YEARS_S)
    write(store, [[Message(b"1", b"a")], [Message(b"2", b"b")], [Message(b"3", b"c")]])
    World(store).roll(rolling)
    snapshot = snapshot_of(store)
    rollup = build_key_rollup(snapshot, columns_of(store), runtime=shared_runtime())
    token = snapshot.pointers[0].path.split("Writer=")[1][:16]
    other = replace(
        snapshot, pointers=(replace(snapshot.pointers[0], path=snapshot.pointers[0].path.replace(token, "f" * 16)),)
    )

    with pytest.raises(MissingError):
        build_key_rollup(other, columns_of(store), runtime=shared_runtime(), known=[rollup])
