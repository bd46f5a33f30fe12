"""Reads from any place to any limit, without gaps, and with damage always detected."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tests.stores import CountingStore, FaultyStore, damage, life_store
from wal3_core import (
    AtTime,
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    Limits,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Message,
    ReaderOptions,
    WriterOptions,
    records_across,
    scrub,
)
from wal3_core.format.manifest import Boundary
from wal3_core.format.parquet.encoding import file_of
from wal3_core.format.paths import fragment_path
from wal3_core.format.snapshot import sum_setsums
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

FRAGMENTS, EACH = 30, 4
TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)


def fill(store: ObjectStore, *, pause_s: float = 0.0) -> list[LogPosition]:
    """Thirty fragments of four records, most of them in snapshots of both depths."""
    positions = []
    with LogWriter.open_or_create(store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for number in range(FRAGMENTS):
            positions.append(writer.append_many([b"%d/%d" % (number, index) for index in range(EACH)]))
            time.sleep(pause_s)
    return positions


ALL = [b"%d/%d" % (number, index) for number in range(FRAGMENTS) for index in range(EACH)]


@pytest.fixture
def filled(memory_store: MemoryStore) -> Iterator[MemoryStore]:
    fill(memory_store)
    return memory_store


def read(store: ObjectStore, start: object = None, limits: Limits | None = None) -> list[bytes | None]:
    return [record.body for record in LogReader.open(store, "a").records(start, limits or Limits())]


def test_whole_log_reads_back_through_both_levels_of_snapshots(store: ObjectStore) -> None:
    fill(store)

    reader = LogReader.open(store, "a")

    deep = [snapshot for snapshot in reader.manifest().snapshots if snapshot.depth == 2]
    assert deep
    assert {type(pointer).__name__ for pointer in reader.load_snapshot(deep[0]).pointers} == {"SnapshotPointer"}
    assert read(store) == ALL


@pytest.mark.parametrize("start", range(1, FRAGMENTS * EACH + 2, 7))
def test_read_starts_at_any_offset(filled: MemoryStore, start: int) -> None:
    assert read(filled, start) == ALL[start - 1 :]
    assert read(filled, LogPosition(start, 0)) == ALL[start - 1 :]


@pytest.mark.parametrize("limit", [1, 2, 5, 50, 119, 120, 121, 500])
def test_read_ends_before_the_offset_limit_and_the_newest_record_is_not_hidden(filled: MemoryStore, limit: int) -> None:
    """Regression: a range comparison was off by one, so readers missed the newest records."""
    assert read(filled, None, Limits(offset=limit)) == ALL[: limit - 1]


@pytest.mark.parametrize("count", [1, 3, 4, 5, 119, 120, 500])
def test_read_ends_after_a_number_of_records(filled: MemoryStore, count: int) -> None:
    assert read(filled, None, Limits(records=count)) == ALL[:count]
    assert read(filled, 10, Limits(records=count)) == ALL[9 : 9 + count]


def test_limit_beyond_every_record_ends_nothing(filled: MemoryStore) -> None:
    assert read(filled, None, Limits(offset=2**64, timestamp_us=2**64)) == ALL


def test_read_ends_after_a_number_of_fragments_or_bytes(filled: MemoryStore) -> None:
    assert read(filled, None, Limits(fragments=3)) == ALL[: 3 * EACH]
    assert read(filled, None, Limits(num_bytes=1)) == ALL[:EACH]


@pytest.mark.parametrize("limits", [Limits(records=0), Limits(fragments=0), Limits(num_bytes=0)], ids=str)
def test_limit_of_zero_gives_nothing(filled: MemoryStore, limits: Limits) -> None:
    """Regression: a limit of no fragments, or of no bytes, gave one fragment."""
    reader = LogReader.open(filled, "a")

    assert list(reader.records(None, limits)) == []
    assert reader.scan(5, limits) == []
    assert list(reader.fragments(AtTime(0), limits)) == []
    assert list(records_across(filled, "a", None, limits)) == []
    assert scrub(filled, "a", 5, limits).next_offset == 5


@pytest.mark.slow
@pytest.mark.parametrize("most", [2**63 - 1, 2**63, 2**64])
def test_limit_beyond_a_machine_integer_ends_nothing(filled: MemoryStore, most: int) -> None:
    """Regression: Arrow's count of rows overflowed."""
    for limits in (Limits(records=most), Limits(fragments=most), Limits(num_bytes=most), Limits(offset=most)):
        assert read(filled, None, limits) == ALL
        assert [record.body for record in records_across(filled, "a", None, limits)] == ALL


@pytest.mark.slow
def test_read_starts_and_ends_at_times(memory_store: MemoryStore) -> None:
    positions = fill(memory_store, pause_s=0.002)
    times = [position.timestamp_us for position in positions]
    assert len(set(times)) == FRAGMENTS

    for number in (0, 1, 7, 29):
        assert read(memory_store, AtTime(times[number])) == ALL[number * EACH :]
        assert read(memory_store, AtTime(times[number] - 1)) == ALL[number * EACH :]
        assert read(memory_store, AtTime(times[number] + 1)) == ALL[(number + 1) * EACH :]
        assert read(memory_store, None, Limits(timestamp_us=times[number])) == ALL[: number * EACH]
    assert read(memory_store, AtTime(0)) == ALL
    assert read(memory_store, AtTime(times[-1] + 1)) == []


def test_read_beyond_the_end_or_before_offset_one_is_refused(filled: MemoryStore) -> None:
    assert read(filled, FRAGMENTS * EACH + 1) == []
    for offset in (FRAGMENTS * EACH + 2, 0):
        with pytest.raises(InvalidRequestError, match="offset"):
            read(filled, offset)


def test_read_ends_where_the_log_ended_when_it_began(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"old"] * 3)
        records = LogReader.open(memory_store, "a").records()
        found = [next(records).body]
        writer.append(b"new")
        found += [record.body for record in records]

    assert found == [b"old"] * 3


def test_arrow_batches_hold_the_same_as_records(filled: MemoryStore) -> None:
    reader = LogReader.open(filled, "a")

    rows = [row for batch in reader.batches(50, Limits(records=20)) for row in batch.to_pylist()]

    expected = list(reader.records(50, Limits(records=20)))
    assert [(row["offset"], row["timestamp_us"], row["key"], row["body"]) for row in rows] == [
        (record.offset, record.timestamp_us, record.key, record.body) for record in expected
    ]


def test_scan_names_fragments_and_fetch_reads_one(filled: MemoryStore) -> None:
    reader = LogReader.open(filled, "a")

    found = reader.scan(9, Limits(offset=17))

    assert [(pointer.start.offset, pointer.limit.offset) for pointer in found] == [(9, 13), (13, 17)]
    assert [record.body for record in reader.fetch(found[0]).records()] == ALL[8:12]


def test_tail_of_a_large_log_is_read_without_its_snapshots(filled: MemoryStore) -> None:
    store = CountingStore(filled)
    reader = LogReader.open(store, "a")
    store.requests.clear()

    found = [record.body for record in reader.records(FRAGMENTS * EACH)]

    assert found == ALL[-1:]
    assert store.requests == {"get": 1, "read": 1}


def test_append_and_read_never_list(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    store = CountingStore(memory_store)

    fill(store)
    list(LogReader.open(store, "a").records())

    assert store.requests["list"] == 0
    assert store.requests["create"] > FRAGMENTS


def test_damaged_fragment_is_named_and_the_records_before_it_are_delivered(filled: MemoryStore) -> None:
    victim = LogReader.open(filled, "a").scan()[20]
    damage(life_store(filled, "a"), victim.path)
    found = []

    with pytest.raises(CorruptError, match=f"fragment {victim.seq_no}, offsets ") as raised:
        for record in LogReader.open(filled, "a").records():
            found.append(record.body)

    assert victim.path in str(raised.value)
    assert found == ALL[: 20 * EACH]


def test_error_about_a_file_that_was_cut_says_that_its_bytes_changed(filled: MemoryStore) -> None:
    inside, victim = life_store(filled, "a"), LogReader.open(filled, "a").scan()[20]
    data = inside.read(victim.path)
    assert data is not None
    inside.delete(victim.path)
    inside.create(victim.path, data[:-1])

    said = f"the file's bytes changed: expected {len(data)} bytes, found {len(data) - 1}$"
    with pytest.raises(CorruptError, match=rf"^fragment {victim.seq_no}, offsets .* \(.*\): {said}"):
        LogReader.open(filled, "a").fetch(victim)


def test_missing_fragment_is_corruption_and_never_a_short_list(filled: MemoryStore) -> None:
    victim = LogReader.open(filled, "a").scan()[20]
    life_store(filled, "a").delete(victim.path)

    with pytest.raises(CorruptError, match="expected a file, found none"):
        read(filled)
    assert read(filled, victim.limit.offset) == ALL[21 * EACH :]


def merge_last_two(store: MemoryStore) -> None:
    """Do as a compaction does: replace two fragments by one new fragment and delete their objects."""
    reader = LogReader.open(store, "a")
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    base = manifests.load()
    old = base.manifest.fragments[-2:]
    table = pa.concat_tables([reader.fetch(pointer).table.drop_columns(["key"]) for pointer in old])
    stored = bytes(file_of([table], {}, statistics=["offset", "timestamp_us"]))
    merged = replace(
        old[1],
        path=fragment_path(old[1].seq_no, "c" * 16),
        first_seq_no=old[0].seq_no,
        start=old[0].start,
        setsum=sum_setsums(old),
        num_bytes=len(stored),
        num_records=sum(pointer.num_records for pointer in old),
    )
    life_store(store, "a").create(merged.path, stored)
    changed = replace(
        base.manifest,
        fragments=(*base.manifest.fragments[:-2], merged),
        num_bytes=base.manifest.num_bytes - sum(pointer.num_bytes for pointer in old) + merged.num_bytes,
    )
    assert isinstance(manifests.install(changed, base), Installed)
    for pointer in old:
        life_store(store, "a").delete(pointer.path)


def test_read_continues_with_the_replacement_of_a_fragment(filled: MemoryStore) -> None:
    found = []

    for record in LogReader.open(filled, "a").records():
        if not found:
            merge_last_two(filled)
        found.append(record.body)

    assert found == ALL


def test_read_does_not_repeat_what_it_delivered_of_a_fragment_that_was_merged(filled: MemoryStore) -> None:
    """The merged fragment begins with records that the caller already has."""
    found = []
    options = ReaderOptions(prefetch_fragments=1)

    for record in LogReader.open(filled, "a", options=options).records(len(ALL) - 2 * EACH + 1):
        if not found:
            merge_last_two(filled)
        found.append(record.body)

    assert found == ALL[-2 * EACH :]


@pytest.mark.parametrize("start", ["9", 1.5, b"9"])
def test_invalid_start_is_refused_and_an_integer_of_any_type_is_valid(filled: MemoryStore, start: object) -> None:
    with pytest.raises(InvalidRequestError, match="start: expected an offset, a position or a time"):
        read(filled, start)
    assert read(filled, np.int64(9)) == ALL[8:]


@pytest.mark.parametrize("wrong", [{"records": -1}, {"timestamp_us": 2**64 + 1}, {"offset": -5}])
def test_invalid_limit_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidRequestError, match="limit"):
        Limits(**wrong)
    with pytest.raises(InvalidRequestError, match="time"):
        AtTime(-1)


@pytest.mark.parametrize("keys", [[b"k" * 13_000_000], [b"%d" % n + b"k" * 1_000_000 for n in range(20)]])
def test_every_record_an_append_accepts_is_returned_by_a_read(memory_store: MemoryStore, keys: list[bytes]) -> None:
    """Regression: long keys made an index that no reader would load."""
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([Message(b"x", key) for key in keys])

    assert [record.key for record in LogReader.open(memory_store, "a").records()] == keys


def test_read_continues_with_the_replacement_of_a_snapshot(filled: MemoryStore) -> None:
    store = FaultyStore(filled)
    repacked: list[str] = []

    def repack(kind: str, path: str) -> None:
        """When the first snapshot is read, put its pointers back into the manifest's tree and delete it."""
        if kind == "read" and "snapshot/" in path and not repacked:
            repacked.append(path)
            manifests = ManifestStore(log_store(filled, "a"), shared_runtime())
            base = manifests.load()
            first, *others = base.manifest.snapshots
            below = LogReader.open(filled, "a").load_snapshot(first).pointers
            changed = replace(base.manifest, snapshots=(*below, *others))
            assert isinstance(manifests.install(changed, base), Installed)
            life_store(filled, "a").delete(first.path)

    store.before = repack

    assert read(store) == ALL
    assert len(repacked) == 1


def test_damaged_snapshot_is_named(filled: MemoryStore) -> None:
    victim = LogReader.open(filled, "a").manifest().snapshots[0]
    damage(life_store(filled, "a"), victim.path)

    with pytest.raises(CorruptError, match="SNAPSHOT"):
        read(filled)


def test_missing_snapshot_is_corruption(filled: MemoryStore) -> None:
    victim = LogReader.open(filled, "a").manifest().snapshots[0]
    life_store(filled, "a").delete(victim.path)

    with pytest.raises(CorruptError, match="SNAPSHOT"):
        read(filled)


def test_damaged_manifest_is_never_overwritten(filled: MemoryStore) -> None:
    damage(filled, "a/manifest/MANIFEST.json")
    before = filled.read("a/manifest/MANIFEST.json")

    with pytest.raises(CorruptError, match="MANIFEST"):
        LogWriter.open(filled, "a")
    with pytest.raises(CorruptError, match="MANIFEST"):
        LogReader.open(filled, "a")
    assert filled.read("a/manifest/MANIFEST.json") == before


def test_unverified_read_gives_the_same_records(filled: MemoryStore) -> None:
    reader = LogReader.open(filled, "a", options=ReaderOptions(verify=False))

    assert [record.body for record in reader.records()] == ALL


@pytest.mark.slow
def test_follower_sees_appends_of_this_process_at_once(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    options = ReaderOptions(poll_s_min=30.0, poll_s_max=30.0)
    seen: list[tuple[bytes | None, float]] = []

    def follow() -> None:
        for record in LogReader.open(memory_store, "a", options=options).follow(idle_s=60):
            seen.append((record.body, time.monotonic()))
            if len(seen) == 5:
                return

    thread = threading.Thread(target=follow)
    thread.start()
    with LogWriter.open(memory_store, "a") as writer:
        appended = []
        for index in range(5):
            time.sleep(0.05)
            writer.append(b"%d" % index)
            appended.append(time.monotonic())
    thread.join(20)

    assert [body for body, _ in seen] == [b"%d" % index for index in range(5)]
    # Polling alone would take thirty seconds.
    assert all(late - early < 5 for (_, late), early in zip(seen, appended, strict=True))


@pytest.mark.slow
def test_follower_polls_for_appends_of_other_processes_with_one_cheap_request(memory_store: MemoryStore) -> None:
    """The writer has a runtime of its own, so only the follower's polling wakes it."""
    LogWriter.create(memory_store, "a")
    store = CountingStore(memory_store)
    reader = LogReader.open(store, "a", options=ReaderOptions(poll_s_min=0.01, poll_s_max=0.02))

    assert list(reader.follow(idle_s=0.3)) == []

    assert set(store.requests) == {"get"}
    assert 5 < store.requests["get"] < 40


def test_follower_ends_when_idle_and_resumes_from_an_offset(filled: MemoryStore) -> None:
    reader = LogReader.open(filled, "a")

    assert [record.body for record in reader.follow(100, idle_s=0.05)] == ALL[99:]


def test_follower_starts_at_a_time(memory_store: MemoryStore) -> None:
    times = [position.timestamp_us for position in fill(memory_store, pause_s=0.002)]

    found = [record.body for record in LogReader.open(memory_store, "a").follow(AtTime(times[-2]), idle_s=0.05)]

    assert found == ALL[-2 * EACH :]


def test_position_below_the_first_is_garbage_collected(filled: MemoryStore) -> None:
    manifests = ManifestStore(log_store(filled, "a"), shared_runtime())
    base = manifests.load()
    gone, kept = base.manifest.snapshots[:1], base.manifest.snapshots[1:]
    pruned = replace(
        base.manifest,
        snapshots=kept,
        pruned=sum_setsums(gone),
        first=Boundary(kept[0].first_seq_no, kept[0].start),
        num_bytes=base.manifest.num_bytes - gone[0].num_bytes,
        num_records=base.manifest.num_records - gone[0].num_records,
    )
    manifests.install(pruned, base)

    with pytest.raises(GarbageCollectedError, match=f"from {kept[0].start.offset}"):
        read(filled, 1)
    assert read(filled) == ALL[kept[0].start.offset - 1 :]
