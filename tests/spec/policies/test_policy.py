"""Policies: a log's owner states how it is collected; cursors hold records besides."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.stores import FaultyStore, damage, life_store
from tests.world import DAY_S, LATER, ClockStore, World
from wal3_core import (
    Cleanup,
    CollectionRefusedError,
    CursorStore,
    InvalidRequestError,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogReplacedError,
    LogWriter,
    MemoryStore,
    Policy,
    PolicyStore,
    UnavailableError,
    destroy,
)
from wal3_core.fleet.survey import survey_log
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.log.collect.collector import Collector, NotPruned, collect
from wal3_core.options import CollectorOptions
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

HOUR_S = 3600
ALL = CollectorOptions(fraction_max=1)


class Later(ThreadRuntime):
    """A process whose clock a test sets ahead by a number of hours."""

    def __init__(self) -> None:
        super().__init__()
        self.hours = 0

    def now_us(self) -> int:
        return 1_700_000_000_000_000 + self.hours * HOUR_S * 1_000_000


@pytest.fixture
def runtime() -> Iterator[Later]:
    with Later() as runtime:
        yield runtime


def hourly(store: ObjectStore, log: str, runtime: Later, count: int) -> None:
    """Append a fragment of one record per hour; the clock stays at the hour of the last."""
    with LogWriter.open_or_create(store, log, runtime=runtime) as writer:
        for hour in range(count):
            runtime.hours = hour
            writer.append(b"%d" % hour)


def kept(hours: int) -> Policy:
    return Policy(retention_s=hours * HOUR_S, without_cursors=True)


def test_policy_is_the_default_until_it_is_changed(store: ObjectStore) -> None:
    LogWriter.create(store, "a")
    policies = PolicyStore(store, "a")
    before = policies.load()

    first = policies.change(lambda policy: replace(policy, retention_s=60))
    second = policies.change(lambda policy: replace(policy, without_cursors=True))

    assert before == Policy()
    assert (first.retention_s, first.without_cursors, first.generation) == (60, False, 1)
    assert (second.retention_s, second.without_cursors, second.generation) == (60, True, 2)
    assert policies.load() == second


def test_log_whose_policy_requires_no_cursors_is_collected_by_age(store: ObjectStore, runtime: Later) -> None:
    hourly(store, "a", runtime, 10)
    PolicyStore(store, "a").change(lambda _: kept(4))

    plan = Collector(store, "a", options=ALL, runtime=runtime).plan()

    # The record of 4 hours ago is the first to stay.
    assert (plan.num_records, plan.first.position.offset) == (5, 6)
    assert plan.reason == f"the first record younger than {4 * HOUR_S} s is at offset 6"


def test_log_destroyed_while_its_retention_asks_for_the_time_is_said_to_be_gone(
    memory_store: MemoryStore, runtime: Later
) -> None:
    hourly(memory_store, "a", runtime, 10)
    PolicyStore(memory_store, "a").change(lambda _: kept(4))
    store = FaultyStore(memory_store)

    def destroy_before_head(kind: str, path: str) -> None:
        if kind == "head" and path.endswith("gc/CLOCK"):
            store.before = lambda _kind, _path: None
            destroy(memory_store, "a")

    store.before = destroy_before_head
    with pytest.raises(LogNotFoundError):
        Collector(store, "a", options=ALL, runtime=runtime).plan()


def test_without_the_policy_a_log_without_cursors_is_not_collected(memory_store: MemoryStore, runtime: Later) -> None:
    hourly(memory_store, "a", runtime, 10)
    PolicyStore(memory_store, "a").change(lambda policy: replace(policy, retention_s=HOUR_S))

    with pytest.raises(CollectionRefusedError, match="expected a cursor"):
        Collector(memory_store, "a", options=ALL, runtime=runtime).plan()


@pytest.mark.parametrize(("cursor", "first"), [(3, 3), (9, 6)])
def test_cursors_and_retention_each_hold_their_records(
    memory_store: MemoryStore, runtime: Later, cursor: int, first: int
) -> None:
    hourly(memory_store, "a", runtime, 10)
    PolicyStore(memory_store, "a").change(lambda _: kept(4))
    CursorStore(memory_store, "a").create("reader", LogPosition(cursor, 0))

    assert Collector(memory_store, "a", options=ALL, runtime=runtime).plan().first.position.offset == first


def test_old_records_are_all_collected_and_young_ones_all_kept(memory_store: MemoryStore, runtime: Later) -> None:
    hourly(memory_store, "a", runtime, 10)
    policies = PolicyStore(memory_store, "a")
    collector = Collector(memory_store, "a", options=ALL, runtime=runtime)

    policies.change(lambda _: kept(100))
    young = collector.plan()
    policies.change(lambda _: kept(1))
    runtime.hours = 100
    old = collector.plan()

    assert young.empty
    assert (old.num_records, old.first.position.offset) == (10, 11)


def test_policy_without_cursors_and_without_a_retention_is_refused(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")

    with pytest.raises(InvalidRequestError, match="expected a retention"):
        PolicyStore(memory_store, "a").change(lambda policy: replace(policy, without_cursors=True))

    assert PolicyStore(memory_store, "a").load() == Policy()


def test_damaged_policy_stops_collecting(memory_store: MemoryStore, runtime: Later) -> None:
    hourly(memory_store, "a", runtime, 3)
    PolicyStore(memory_store, "a").change(lambda _: kept(1))
    damage(life_store(memory_store, "a"), "policy.json", 40)

    with pytest.raises(CollectionRefusedError, match="while its policy cannot be read"):
        Collector(memory_store, "a", options=ALL).plan()


def test_two_changes_at_once_are_both_made(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    store, other = FaultyStore(memory_store), PolicyStore(memory_store, "a")

    def overtake(kind: str, path: str) -> None:
        if kind == "create" and path.endswith("/policy.json"):
            store.before = lambda _kind, _path: None
            other.change(lambda policy: replace(policy, retention_s=60))

    store.before = overtake
    changed = PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=(policy.retention_s or 0) + 1))

    assert (changed.retention_s, changed.generation) == (61, 2)


def test_change_gives_up_on_a_policy_that_others_keep_changing(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    other = PolicyStore(memory_store, "a")

    def overtaken(policy: Policy) -> Policy:
        other.change(lambda before: replace(before, retention_s=60))
        return policy

    with pytest.raises(UnavailableError, match="16 times over"):
        PolicyStore(memory_store, "a").change(overtaken)


def test_acknowledged_longer_retention_keeps_what_a_collector_was_about_to_prune(
    memory_store: MemoryStore, runtime: Later
) -> None:
    """The collector read the old policy after its announcement and sleeps before its CAS."""
    hourly(memory_store, "a", runtime, 10)
    PolicyStore(memory_store, "a").change(lambda _: kept(4))
    store, changed = FaultyStore(memory_store), list[Policy]()
    collector = Collector(store, "a", options=ALL, runtime=runtime)
    announced = collector.announce(collector.plan())

    def change(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith("/MANIFEST.json"):
            store.before = lambda _kind, _path: None
            changed.append(PolicyStore(memory_store, "a").change(lambda _: kept(1000)))

    store.before = change
    outcome = collector.prune(announced)

    assert isinstance(outcome, NotPruned)
    assert [policy.retention_s for policy in changed] == [1000 * HOUR_S]
    assert [record.offset for record in LogReader.open(memory_store, "a").records()] == list(range(1, 11))
    # The next plan uses the policy as it is now.
    assert collector.plan().empty


def test_change_of_the_policy_of_a_replaced_log_is_not_reported_as_made(
    memory_store: MemoryStore,
) -> None:
    LogWriter.create(memory_store, "a")
    store = FaultyStore(memory_store)

    def replaced(kind: str, path: str) -> None:
        if kind == "create" and path.endswith("/policy.json"):
            destroy(memory_store, "a")
            LogWriter.create(memory_store, "a")

    store.before = replaced
    with pytest.raises(LogReplacedError):
        PolicyStore(store, "a").change(lambda policy: replace(policy, retention_s=60))

    assert PolicyStore(memory_store, "a").load() == Policy()


# ------------------------------------------------------------------ compacted logs


def read_up_to(store: ObjectStore, offset: int) -> None:
    """Make a log of ten records whose only cursor is at an offset."""
    World(store).append(10)
    CursorStore(store, "a").create("c", LogPosition(offset, 0))


def clean_up(store: ObjectStore, cleanup: Cleanup) -> Policy:
    return PolicyStore(store, "a").change(lambda policy: replace(policy, cleanup=cleanup))


def test_log_that_is_only_compacted_is_not_collected_whatever_its_cursors_say(store: ObjectStore) -> None:
    read_up_to(store, 6)
    clean_up(store, Cleanup.COMPACT)
    before = LogReader.open(store, "a").manifest()

    reports = [collect(store, "a", options=ALL), collect(store, "a", limit_offset=4, options=ALL)]

    for report in reports:
        assert report.plan.empty
        assert report.plan.reason == "its policy compacts it, and does not let collections prune it"
    assert LogReader.open(store, "a").manifest() == before


def test_log_that_is_only_compacted_needs_no_cursor(memory_store: MemoryStore) -> None:
    World(memory_store).append(3)
    clean_up(memory_store, Cleanup.COMPACT)
    survey = survey_log(memory_store, "a", ALL)

    assert collect(memory_store, "a", options=ALL).plan.empty
    assert (survey.refusal, survey.due, survey.unclaimed) == (None, False, False)


def test_log_that_is_compacted_and_collected_is_collected_as_without_compaction(store: ObjectStore) -> None:
    read_up_to(store, 6)
    clean_up(store, Cleanup.BOTH)

    report = collect(store, "a", options=ALL)

    assert (report.plan.num_records, report.plan.reason) == (5, "cursor c is at offset 6")
    assert LogReader.open(store, "a").manifest().first.position.offset == 6


def test_garbage_and_orphans_of_a_log_that_is_only_compacted_are_deleted(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    read_up_to(store, 6)
    collect(store, "a", options=LATER)
    orphan = fragment_path(FragmentSeqNo(77), "0123456789abcdef")
    life_store(store, "a").create(orphan, b"left by a writer that died")
    clean_up(store, Cleanup.COMPACT)
    store.pass_s(2 * DAY_S)

    first = collect(store, "a", options=LATER)
    store.pass_s(2 * DAY_S)
    second = collect(store, "a", options=LATER)

    assert sum(deleted.num_deleted for deleted in first.deleted) == 5
    assert first.num_orphans == 1
    assert sum(deleted.num_deleted for deleted in second.deleted) == 1
    assert len(list(LogReader.open(store, "a").records())) == 5


def test_collection_that_was_announced_is_withdrawn_when_the_log_is_only_compacted(
    memory_store: MemoryStore,
) -> None:
    """The policy is changed before the collector reads it for the last time, and by a process that then dies."""
    read_up_to(memory_store, 6)
    collector = Collector(memory_store, "a", options=ALL)
    announced = collector.announce(collector.plan())
    faulty = FaultyStore(memory_store)
    faulty.fail("replace", "MANIFEST", "denied", times=10)
    with pytest.raises(UnavailableError):
        clean_up(faulty, Cleanup.COMPACT)

    outcome = collector.prune(announced)

    assert isinstance(outcome, NotPruned)
    assert LogReader.open(memory_store, "a").manifest().announced is None
    assert len(list(LogReader.open(memory_store, "a").records())) == 10


def test_log_that_keeps_everything_is_not_collected_and_needs_no_cursor(store: ObjectStore) -> None:
    World(store).append(10)
    clean_up(store, Cleanup.NOTHING)

    for begin in (lambda: read_up_to(store, 6), lambda: None):
        done = collect(store, "a", options=ALL)

        assert (done.plan.empty, done.plan.reason) == (True, "its policy keeps everything")
        begin()
    assert len(list(LogReader.open(store, "a").records())) == 20
