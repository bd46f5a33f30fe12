"""A scrub can check a range and continue from there later; the ranges' reports add up to that of one scrub."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import count

import pytest

from tests.stores import CountingStore, FaultyStore, damage, life_store
from wal3_core import (
    AtTime,
    CorruptError,
    CursorStore,
    InvalidRequestError,
    Limits,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    ScrubReport,
    Setsum,
    UnavailableError,
    WriterOptions,
    scrub,
)
from wal3_core.format.cursor import Cursor
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions, SnapshotOptions
from wal3_core.store.object_store import ObjectStore

TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)
NOW = CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1e9, without_cursors=True)
FRAGMENTS, EACH = 30, 4


def fill(store: ObjectStore, *, fragments: int = FRAGMENTS) -> None:
    with LogWriter.open_or_create(store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for number in range(fragments):
            writer.append_many([b"%d" % number] * EACH)


@pytest.fixture
def filled(memory_store: MemoryStore) -> MemoryStore:
    fill(memory_store)
    CursorStore(memory_store, "a").create("reader", LogPosition(50, 0))
    return memory_store


def stored(report: ScrubReport) -> ScrubReport:
    """Through JSON, as a caller keeps it between two ranges."""
    return ScrubReport.from_bytes(json.dumps(report.to_json()).encode())


def in_ranges(store: ObjectStore, limits: Limits) -> tuple[ScrubReport, int]:
    """Scrub range by range, each as if in a new process; return the sum and the number of ranges."""
    total = stored(scrub(store, "a", None, limits))
    for number in count(1):
        if total.finished:
            return total, number
        total = stored(total + scrub(store, "a", total.next_offset, limits))
    raise AssertionError


@pytest.mark.parametrize(
    ("limits", "ranges"),
    [(Limits(fragments=1), 30), (Limits(fragments=7), 5), (Limits(records=13), 8), (Limits(num_bytes=1), 30)],
    ids=str,
)
def test_ranges_add_up_to_the_report_of_one_scrub(filled: MemoryStore, limits: Limits, ranges: int) -> None:
    whole = scrub(filled, "a")

    total, number = in_ranges(filled, limits)

    assert whole.balanced
    # A snapshot that two ranges share counts twice.
    assert replace(total, num_snapshots=whole.num_snapshots) == whole
    assert number == ranges


def test_range_reads_the_fragments_it_touches_and_no_others(filled: MemoryStore) -> None:
    store = CountingStore(filled)

    report = scrub(store, "a", 50, Limits(offset=61))

    assert (report.first_offset, report.next_offset, report.end_offset) == (49, 61, 121)
    assert (report.num_fragments, report.num_records) == (3, 12)
    assert report.found == setsum_of(filled, 49, 61)
    assert (report.sound, report.finished, report.balanced, report.covered) == (True, False, False, None)
    # The snapshots on the way down, and the fragments.
    assert store.requests["read"] <= 3 + 4
    assert store.requests["list"] == 0


def setsum_of(store: ObjectStore, start: int, limit: int) -> str:
    pointers = LogReader.open(store, "a").scan(start, Limits(offset=limit))
    return sum((pointer.setsum for pointer in pointers), start=Setsum()).hexdigest()


def test_range_may_start_at_a_time_or_hold_nothing(filled: MemoryStore) -> None:
    times = [pointer.start.timestamp_us for pointer in LogReader.open(filled, "a").scan()]

    assert scrub(filled, "a", AtTime(times[-1])).next_offset == 121
    for start, limits, at in ((121, Limits(), 121), (9, Limits(offset=5), 9), (AtTime(2**60), Limits(), 121)):
        report = scrub(filled, "a", start, limits)
        assert (report.first_offset, report.next_offset, report.num_fragments) == (at, at, 0), start
    with pytest.raises(InvalidRequestError, match="from 1 to 121, found 122"):
        scrub(filled, "a", 122)


def test_every_damaged_object_is_named_once_by_the_ranges_together(filled: MemoryStore) -> None:
    fragments = LogReader.open(filled, "a").scan()
    damage(life_store(filled, "a"), fragments[3].path)
    life_store(filled, "a").delete(fragments[20].path)
    snapshot = LogReader.open(filled, "a").manifest().snapshots[1]
    life_store(filled, "a").delete(snapshot.path)
    log_id = LogReader.open(filled, "a").manifest().log_id
    cursor = Cursor(log_id=log_id, position=LogPosition(999, 0), epoch_us=0, writer="w", generation=1)
    life_store(filled, "a").create("cursor/lost.json", cursor.to_bytes())

    total, _ = in_ranges(filled, Limits(fragments=2))

    assert not total.balanced
    assert set(total.problems) == set(scrub(filled, "a").problems)
    assert len(total.problems) == len(set(total.problems)) >= 3


def test_snapshot_that_is_damaged_between_two_ranges_is_found_by_the_second(filled: MemoryStore) -> None:
    leaf = LogReader.open(filled, "a").manifest().snapshots[0]
    part = scrub(filled, "a", None, Limits(fragments=2))
    damage(life_store(filled, "a"), leaf.path)

    total = part + scrub(filled, "a", part.next_offset)

    assert [problem.path for problem in total.problems] == [leaf.path]
    assert total.num_fragments == FRAGMENTS - leaf.num_records // EACH + 2


def test_log_that_is_appended_to_between_the_ranges_is_balanced_at_its_new_end(filled: MemoryStore) -> None:
    part = scrub(filled, "a", None, Limits(fragments=20))
    fill(filled, fragments=5)

    total = part + scrub(filled, "a", part.next_offset)

    assert total.balanced
    assert total.num_records == (FRAGMENTS + 5) * EACH


@pytest.mark.parametrize("cut", [9, 41, 61])
def test_log_that_is_collected_between_the_ranges_is_balanced_all_the_same(filled: MemoryStore, cut: int) -> None:
    CursorStore(filled, "a").delete("reader")
    part = scrub(filled, "a", None, Limits(offset=41))
    collector = Collector(filled, "a", options=NOW)
    path = collector.announce(collector.plan(cut))
    collector.prune(path)
    Deleter(filled, "a", options=NOW).delete(path)

    total = part + scrub(filled, "a", part.next_offset)

    assert total.balanced
    assert total.sound
    # Objects that were read and then collected stay counted.
    assert total.num_records == 120 - max(0, cut - 41)


def test_record_lost_between_two_ranges_unbalances_their_sum(filled: MemoryStore) -> None:
    """Each range is sound; only the setsum reveals the loss."""
    part = scrub(filled, "a", None, Limits(fragments=10))
    rest = scrub(filled, "a", part.next_offset)

    total = replace(part, found=setsum_of(filled, 1, 37), covered=setsum_of(filled, 1, 37)) + rest

    assert (part.sound, rest.sound) == (True, True)
    assert [problem.path for problem in total.problems] == ["manifest/MANIFEST.json"]
    assert "expected setsum" in total.problems[0].message


def test_reports_that_do_not_adjoin_are_refused(filled: MemoryStore) -> None:
    part = scrub(filled, "a", None, Limits(fragments=10))

    after = scrub(filled, "a", 41)
    others = (replace(after, log="b"), replace(after, log_id="0" * 32))
    for behind in (part, scrub(filled, "a"), scrub(filled, "a", 45), *others):
        with pytest.raises(InvalidRequestError, match="expected a report that goes on at 41"):
            part + behind
    with pytest.raises(CorruptError, match="scrub report"):
        ScrubReport.from_bytes(b'{"log":"a"}')


@pytest.mark.slow
def test_range_that_failed_without_an_answer_is_scrubbed_again(
    filled: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.2)
    part = scrub(filled, "a", None, Limits(fragments=10))
    store = FaultyStore(filled)
    store.fail("read", "log/", "unavailable", times=999)

    with pytest.raises(UnavailableError):
        scrub(store, "a", part.next_offset)
    store.heal()

    assert (part + scrub(store, "a", part.next_offset)).balanced
