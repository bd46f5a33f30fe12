"""Maintenance of logs from which records were dropped: scrub, collection, copies, repair, seals, snapshots."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.compacted_logs import Timed, compact, delete_objects, fragments_of, write_log
from tests.spec.copying import NOW, collect, records
from tests.stores import FaultyStore, life_store
from tests.world import World
from wal3_core import (
    CursorStore,
    Limits,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    Record,
    UnknownDurabilityError,
    create_successor,
    open_pinned,
    over_limit,
    records_across,
    scrub,
    seal,
)
from wal3_core import collect as collect_all
from wal3_core.errors import OutdatedPlanError
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import References
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.read.scrub import ScrubReport
from wal3_core.options import RetryOptions, SnapshotOptions, WriterOptions
from wal3_core.runtime import shared_runtime

T0 = 1_000
NARROW = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2))


def fragments(count: int, at: int = 0) -> list[list[Timed]]:
    return [[(T0 + at + number, b"k%d" % index, b"v") for index in range(3)] for number in range(count)]


def grown(count: int = 12) -> tuple[MemoryStore, list[Record]]:
    """Make a log of fragments of three records, in snapshots."""
    store = MemoryStore(shared_runtime())
    return store, write_log(store, "a", fragments(count))


def without(found: list[Record], *dropped: int) -> list[Record]:
    return [record for record in found if record.offset not in dropped]


# ---------------------------------------------------------------------- scrub


@pytest.mark.parametrize("limits", [Limits(), Limits(fragments=1), Limits(fragments=3), Limits(offset=14)])
def test_scrub_of_a_log_with_gaps_is_balanced_whole_and_by_ranges(limits: Limits) -> None:
    store, _ = grown()
    compact(store, "a", {1, 9, 10, 11, 12, 20, 36}, [(2, 5), (5, 7)])
    report = scrub(store, "a", None, limits)
    while not report.finished:
        read = ScrubReport.from_bytes(json.dumps(report.to_json()).encode())
        assert read == report
        report = read + scrub(store, "a", report.next_offset, replace(limits, offset=None))

    assert report.sound
    assert report.balanced
    assert report.num_records == 36 - 7


@pytest.mark.parametrize("cut", [None, 5])
@pytest.mark.parametrize("dropped", [{1, 2}, {30, 31}, {2, 14}])
def test_scrub_in_ranges_of_a_log_that_is_compacted_between_them_reports_no_damage(
    dropped: set[int], cut: int | None
) -> None:
    store, _ = grown()
    part = scrub(store, "a", None, Limits(fragments=5))
    compact(store, "a", dropped, [(9, 11)])
    if cut is not None:
        collect(store, "a", cut)

    total = part + scrub(store, "a", part.next_offset)

    assert total.sound
    assert total.finished
    # What was dropped is known as one sum, whose part below the second range nothing shows while there are gaps.
    assert total.covered in {None, total.setsum}


def test_scrub_goes_on_inside_a_fragment_that_stands_for_both_sides_by_now() -> None:
    store, _ = grown()
    part = scrub(store, "a", None, Limits(fragments=5))
    compact(store, "a", (), [(3, 7)])

    total = part + scrub(store, "a", part.next_offset)

    assert (total.sound, total.finished, total.covered) == (True, True, None)


# ---------------------------------------------------------------------- collection


def test_collection_ends_at_a_fragment_and_keeps_a_run_that_a_cursor_lies_in() -> None:
    store, found = grown()
    left = without(found, 2, 3, 4, 5, 6, 8, 9, 14)
    replaced = compact(store, "a", {2, 3, 4, 5, 6, 8, 9, 14}, [(0, 3), (3, 6)])
    delete_objects(store, "a", replaced)
    CursorStore(store, "a").create("c", LogPosition(9, T0))
    collector = Collector(store, "a", options=NOW)
    assert collector.plan().empty
    CursorStore(store, "a").create("d", LogPosition(10, T0))
    CursorStore(store, "a").delete("c")
    plan = collector.plan()
    assert (plan.first.position.offset, plan.num_records) == (10, 2)

    collect(store, "a", 10)

    assert records(store, "a") == without(left, 1, 7)
    assert scrub(store, "a").balanced


def test_collection_that_was_announced_at_a_place_inside_a_run_by_now_is_withdrawn() -> None:
    store, found = grown()
    collector = Collector(store, "a", options=NOW)
    path = collector.announce(collector.plan(10))
    compact(store, "a", {5}, [(2, 5)])

    collector.prune(path)

    assert World(store).manifest().announced is None
    assert records(store, "a") == without(found, 5)
    collect(store, "a", 16)
    assert scrub(store, "a").balanced


def test_plan_from_before_a_compaction_below_the_cutoff_is_outdated() -> None:
    store, _ = grown()
    collector = Collector(store, "a", options=NOW)
    plan = collector.plan(16)
    compact(store, "a", {2, 4})

    with pytest.raises(OutdatedPlanError, match="collected meanwhile, or compacted"):
        collector.verify(plan)
    assert collector.plan(16).num_records == plan.num_records - 2


def test_replaced_fragments_are_orphans_and_the_compacted_ones_are_not() -> None:
    store, _ = grown()
    replaced = compact(store, "a", {8, 9, 14, 36}, [(2, 6), (7, 9)])
    reader = LogReader.open(store, "a")
    references = References([World(store).manifest().pointers], reader.load_snapshot)
    inside = life_store(store, "a")

    assert not any(references.retains(pointer.path) for pointer in replaced)
    assert all(references.retains(pointer.path) for pointer in fragments_of(store, "a"))
    gone = {pointer.path for pointer in replaced}
    assert gone < {meta.path for meta in (*inside.list_objects("log/"), *inside.list_objects("snapshot/"))}


def test_pin_keeps_what_a_compaction_replaced() -> None:
    store, found = grown()
    PinStore(store, "a").create("p", reason="before")
    compact(store, "a", {8, 9, 14, 36}, [(2, 6), (7, 9)])
    age_and_collect(store)

    assert list(open_pinned(store, "a", "p").records()) == found
    PinStore(store, "a").delete("p")
    age_and_collect(store)
    assert records(store, "a") == without(found, 8, 9, 14, 36)
    assert len(list(life_store(store, "a").list_objects("log/"))) == len(fragments_of(store, "a"))


def age_and_collect(store: MemoryStore) -> None:
    """Mark orphans at once, and delete them."""
    for _ in range(3):
        collect_all(store, "a", options=NOW, limit_offset=1)


# ---------------------------------------------------------------------- writers, snapshots, seals


def test_writers_and_snapshot_compaction_go_on_over_compacted_fragments() -> None:
    store, found = grown()
    with LogWriter.open(store, "a", options=NARROW) as writer:
        writer.append(b"before")
        compact(store, "a", {1, 2, 8, 35}, [(2, 6), (11, 13)])
        for number in range(20):
            writer.append(b"%d" % number)
    SnapshotCompactor(store, "a").compact()

    assert records(store, "a")[: len(found) - 4] == without(found, 1, 2, 8, 35)
    assert [record.offset for record in records(store, "a")][-22:] == list(range(36, 58))
    assert scrub(store, "a").balanced


def test_successor_goes_on_behind_a_log_with_gaps() -> None:
    store, found = grown()
    compact(store, "a", {1, 20, 36}, [(2, 6)])
    seal(store, "a", reason="r", sealed_by="s", successor="b")
    create_successor(store, "a")
    with LogWriter.open(store, "b") as writer:
        assert writer.append(b"next").offset == 37
    compact(store, "a", {2}, [(6, 8)])

    assert list(records_across(store, "a"))[:-1] == without(found, 1, 2, 20, 36)
    assert scrub(store, "a").balanced
    assert scrub(store, "b").balanced


def test_outcome_of_an_append_whose_fragment_was_compacted_is_unknown() -> None:
    """The compacted fragment has another path; that does not show that the append is not in the log."""
    faulty = FaultyStore(MemoryStore(shared_runtime()))
    LogWriter.create(faulty, "a")
    quick = WriterOptions(batch_records_max=1, retry=RetryOptions(attempts_max=2, pause_s_min=0.001))
    with LogWriter.open(faulty, "a", options=quick, ordered=True) as writer:
        faulty.fail("replace", "MANIFEST", "applied-unknown", times=1)
        faulty.fail("get", "MANIFEST", "unavailable", times=10_000)
        with pytest.raises(UnknownDurabilityError):
            writer.append(b"mine")
        faulty.heal()
        for number in range(17):
            with LogWriter.open(faulty.inner, "a") as other:
                other.append(b"other %d" % number)
        compact(faulty.inner, "a", {2}, [(0, 3)])

        with pytest.raises(UnknownDurabilityError, match="was compacted: unknown whether it was ours"):
            writer.resume()


# ---------------------------------------------------------------------- counts


def test_log_without_cursors_has_no_more_unprocessed_records_than_it_holds() -> None:
    store = MemoryStore(shared_runtime())
    write_log(store, "a", [[(T0 + number, b"k", b"v")] * 100 for number in range(12)])
    assert [each.unprocessed for each in over_limit(store, ["a"], unprocessed_max=1000)] == [1200]

    compact(store, "a", range(1, 300), [(0, 3)])

    assert over_limit(store, ["a"], unprocessed_max=1000) == []
    CursorStore(store, "a").create("c", LogPosition(301, T0))
    assert over_limit(store, ["a"], unprocessed_max=1000) == []


def test_collection_of_a_log_with_gaps_counts_what_it_holds() -> None:
    store, _ = grown()
    compact(store, "a", {2, 3, 4, 5, 6, 8, 9, 14}, [(0, 3), (3, 6)])
    plan = Collector(store, "a", options=NOW).plan(19)

    assert (plan.num_records, plan.held_records, plan.first.seq_no) == (10, 28, 7)
    # With these, an alarm tells whether the log still begins where it did.
    assert plan.first.seq_no - plan.num_fragments == 1
