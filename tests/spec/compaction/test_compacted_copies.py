"""Copies of logs from which records were dropped, copies that are compacted themselves, and repairs from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compacted_logs import Timed, append_fragments, compact, delete_objects, fragments_of, write_log
from tests.spec.copying import records
from tests.stores import FaultyStore, damage, life_store
from tests.world import World
from wal3_core import (
    GarbageCollectedError,
    InvalidRequestError,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Origin,
    Record,
    RepairReport,
    SnapshotPointer,
    StoreDeniedError,
    WriterOptions,
    bootstrap,
    copy,
    repair_log,
    scrub,
    update_copy,
)
from wal3_core.runtime import shared_runtime

T0 = 1_000
DROPPED = {1, 2, 8, 9, 13, 14, 15, 20, 36}
GROUPS = [(2, 6), (9, 12)]


def fragments(count: int, at: int = 0) -> list[list[Timed]]:
    return [[(T0 + at + number, b"k%d" % index, b"v") for index in range(3)] for number in range(count)]


def grown(count: int = 12) -> tuple[MemoryStore, list[Record]]:
    """Make a log of fragments of three records, in snapshots."""
    store = MemoryStore(shared_runtime())
    return store, write_log(store, "a", fragments(count))


def update(store: MemoryStore) -> int:
    return update_copy(LogAt(store, "a"), LogAt(store, "b")).num_records


def repair(store: MemoryStore) -> RepairReport:
    return repair_log(LogAt(store, "a"), LogAt(store, "b"))


@pytest.mark.parametrize("from_offset", [None, 1, 3, 8, 13, 17, 18, 19, 35, 37])
def test_copy_holds_what_the_log_holds_whole_or_from_a_place_inside_a_run(from_offset: int | None) -> None:
    store, _ = grown()
    compact(store, "a", DROPPED, GROUPS)
    left = records(store, "a")

    copy(LogAt(store, "a"), LogAt(store, "b"), from_offset=from_offset)

    first = World(store, "b").manifest().first.position.offset
    assert records(store, "b") == [record for record in left if record.offset >= first]
    behind = next((record.offset for record in left if record.offset >= (from_offset or 1)), None)
    assert (from_offset or 1) <= first <= (behind or first)
    assert scrub(store, "b").balanced


def test_copy_that_was_cut_short_is_finished_though_the_log_was_compacted_since() -> None:
    store, _ = grown()
    compact(store, "a", {2}, [(0, 2)])
    left = records(store, "a")
    target = FaultyStore(MemoryStore(shared_runtime()))
    target.fail("create", "FragmentSeqNo=0000000000000006", "denied", times=10_000)
    with pytest.raises(StoreDeniedError):
        copy(LogAt(store, "a"), LogAt(target, "b"))
    target.heal()
    compact(store, "a", DROPPED - {1, 2}, GROUPS)

    assert copy(LogAt(store, "a"), LogAt(target, "b")).resumed
    assert list(LogReader.open(target, "b").records()) == left


def test_update_goes_on_when_the_source_was_compacted_below_the_copy_s_end_only() -> None:
    store, found = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    more = append_fragments(store, "a", fragments(4, 50))
    compact(store, "a", DROPPED, GROUPS)

    assert update(store) == len(more)
    assert records(store, "b") == [*found, *more]
    assert scrub(store, "b").balanced
    assert update(store) == 0


def test_update_copies_a_fragment_that_stands_for_several_without_gaps() -> None:
    store, found = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    more = append_fragments(store, "a", fragments(4, 50))
    compact(store, "a", DROPPED, [*GROUPS, (13, 16)])

    assert update(store) == len(more)
    assert records(store, "b") == [*found, *more]


@pytest.mark.parametrize(
    ("dropped", "groups"), [({38}, []), ({2, 47}, [(0, 3)]), ({37}, [(10, 14)]), ({36}, [(11, 13)])]
)
def test_update_is_refused_when_the_source_was_compacted_beyond_the_copy_s_end(
    dropped: set[int], groups: list[tuple[int, int]]
) -> None:
    store, found = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    append_fragments(store, "a", fragments(4, 50))
    compact(store, "a", dropped, groups)

    with pytest.raises(
        GarbageCollectedError, match="from its end on, offset 37, .* a compaction .*: copy to another name"
    ):
        update(store)
    assert records(store, "b") == found


@pytest.mark.parametrize("arrange", [False, True])
@pytest.mark.parametrize("groups", [[(10, 14)], [(0, 16)], [(2, 6), (11, 13)]])
def test_update_goes_on_inside_a_fragment_that_spans_the_copy_s_end(
    groups: list[tuple[int, int]], *, arrange: bool
) -> None:
    """A pass that arranges the source by key joins what the copy has with what it lacks."""
    store, found = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    more = append_fragments(store, "a", fragments(4, 50))
    compact(store, "a", (), groups, arrange=arrange)

    assert update(store) == len(more)

    assert records(store, "b") == [*found, *more]
    assert scrub(store, "b").balanced
    assert update(store) == 0
    again = append_fragments(store, "a", fragments(2, 60))
    compact(store, "a", (), [(0, len(LogReader.open(store, "a").scan()))], arrange=arrange)
    assert update(store) == len(again)
    assert records(store, "b") == [*found, *more, *again]
    for pointer in LogReader.open(store, "b").scan():
        # A part of a fragment begins where its first record does, in time as well.
        first = next(LogReader.open(store, "b").fetch(pointer).records())
        assert pointer.start == LogPosition(first.offset, first.timestamp_us)


def test_copy_with_other_records_is_refused_though_a_fragment_spans_its_end() -> None:
    store, _ = grown()
    write_log(store, "b", [[(T0, b"k", b"other")] * 36])
    append_fragments(store, "a", fragments(4, 50))
    compact(store, "a", (), [(10, 14)])

    with pytest.raises((InvalidRequestError, GarbageCollectedError)):
        update(store)
    assert len(records(store, "b")) == 36


@pytest.mark.parametrize("arrange", [False, True])
def test_fragment_that_was_arranged_is_repaired_from_an_updated_copy(*, arrange: bool) -> None:
    """The copy has the records in other fragments."""
    store, _ = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    compact(store, "a", (), [(2, 6)], arrange=arrange)
    (pointer,) = [each for each in LogReader.open(store, "a").scan() if each.compacted]
    before = life_store(store, "a").read(pointer.path)
    life_store(store, "a").delete(pointer.path)

    assert repair(store).repaired == (pointer.path,)

    assert life_store(store, "a").read(pointer.path) == before


def test_update_is_refused_when_the_source_is_compacted_beyond_the_copy_s_end() -> None:
    inner, found = grown()
    store = FaultyStore(inner)
    copy(LogAt(inner, "a"), LogAt(inner, "b"))
    more = append_fragments(inner, "a", fragments(4, 50))
    lost: list[int] = []

    def compacted(kind: str, path: str) -> None:
        if kind == "read" and path.endswith("00000000000f.parquet") and not lost:
            lost.append(1)
            delete_objects(inner, "a", compact(inner, "a", {41, 44}, [(13, 16)]))

    store.before = compacted
    with pytest.raises(GarbageCollectedError, match="copy to another name"):
        update_copy(LogAt(store, "a"), LogAt(inner, "b"))
    assert lost
    assert records(inner, "b") == [*found, *more][: len(records(inner, "b"))]


def test_copy_that_is_compacted_itself_is_updated_and_stays_balanced() -> None:
    store, found = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    compact(store, "b", DROPPED, GROUPS)
    more = append_fragments(store, "a", fragments(4, 50))

    assert update(store) == len(more)
    assert records(store, "b") == [record for record in (*found, *more) if record.offset not in DROPPED]
    assert scrub(store, "b").balanced


# ---------------------------------------------------------------------- repair


def test_log_with_gaps_is_repaired_from_a_full_copy_with_its_snapshots() -> None:
    store, _ = grown(20)
    compact(store, "a", DROPPED, GROUPS)
    copy(LogAt(store, "a"), LogAt(store, "b"))
    left, inside = records(store, "a"), life_store(store, "a")
    reached = [pointer.path for pointer in fragments_of(store, "a") if pointer.compacted]
    reached += [pointer.path for pointer in leaves(store)]
    for path in reached:
        inside.delete(path)

    report = repair(store)

    assert report.complete
    assert set(report.repaired) == set(reached)
    assert records(store, "a") == left
    assert scrub(store, "a").balanced


def leaves(store: MemoryStore) -> list[SnapshotPointer]:
    """The log's snapshots of fragments."""
    reader = LogReader.open(store, "a")
    waiting, found = list(reader.manifest().snapshots), []
    while waiting:
        pointer = waiting.pop()
        if pointer.depth == 1:
            found.append(pointer)
        else:
            below = reader.load_snapshot(pointer).pointers
            waiting += [each for each in below if isinstance(each, SnapshotPointer)]
    return found


def test_compacted_fragment_is_encoded_again_from_a_copy_with_the_same_records() -> None:
    store, _ = grown()
    compact(store, "a", {8, 13, 14})
    copy(LogAt(store, "a"), LogAt(store, "b"))
    # The copy's fragments are others now, with the same records.
    compact(store, "b", (), [(0, 6)])
    bad = [pointer.path for pointer in fragments_of(store, "a") if pointer.compacted]
    before = {path: life_store(store, "a").read(path) for path in bad}
    for path in bad:
        damage(life_store(store, "a"), path)
        life_store(store, "b").delete(path)

    assert repair(store).complete
    assert {path: life_store(store, "a").read(path) for path in bad} == before


def test_copy_from_before_the_compaction_repairs_only_what_was_not_compacted() -> None:
    store, _ = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    compact(store, "a", {8, 13, 14}, [(3, 4)])
    inside = life_store(store, "a")
    whole, gone = fragments_of(store, "a")[0], fragments_of(store, "a")[2]
    for pointer in (whole, gone):
        inside.delete(pointer.path)

    report = repair(store)

    assert report.repaired == (whole.path,)
    assert [problem.path for problem in report.problems] == [gone.path]
    assert "the log's compaction kept 2 of their 3 records, and which is lost" in report.problems[0].message


def test_fragment_is_not_repaired_from_a_copy_that_was_compacted() -> None:
    store, _ = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    compact(store, "b", {8, 13, 14}, [(3, 4)])
    for pointer in fragments_of(store, "a")[2:5]:
        life_store(store, "a").delete(pointer.path)
        life_store(store, "b").delete(pointer.path)

    report = repair(store)

    assert len(report.problems) == 2
    assert "it has 2 of their 3 records" in report.problems[0].message


def test_lost_snapshot_of_compacted_fragments_is_not_made_from_an_uncompacted_copy() -> None:
    store, _ = grown()
    copy(LogAt(store, "a"), LogAt(store, "b"))
    compact(store, "a", DROPPED, GROUPS)
    lost = next(each for each in leaves(store) if each.num_records < each.limit.offset - each.start.offset)
    life_store(store, "a").delete(lost.path)
    before = {meta.path for meta in life_store(store, "a").list_objects("")}

    report = repair(store)

    assert [problem.path for problem in report.problems] == [lost.path]
    assert {meta.path for meta in life_store(store, "a").list_objects("")} == before


def test_target_that_is_no_copy_is_still_named_so() -> None:
    store, _ = grown()
    compact(store, "a", DROPPED, GROUPS)
    LogWriter.create(store, "b")
    append_fragments(store, "b", fragments(12, 3))

    with pytest.raises(InvalidRequestError, match="expected a copy of log"):
        update(store)
    assert replace(World(store, "b").manifest(), generation=0).num_records == 36


@pytest.mark.parametrize("first", [1, 2**60, 2**64 - 40])
def test_update_goes_on_inside_a_joined_fragment_however_large_the_offsets_are(first: int) -> None:
    store = MemoryStore(shared_runtime())
    options = WriterOptions(batch_records_max=3)
    bootstrap(
        store, "a", [Record(first + n, T0, b"k", b"v") for n in range(9)], Origin(first_offset=first), options=options
    )
    copy(LogAt(store, "a"), LogAt(store, "b"))
    append_fragments(store, "a", fragments(3, 50))
    compact(store, "a", (), [(2, 4)])

    assert update(store) == 9
    assert records(store, "b") == records(store, "a")
