"""A collection deletes exactly what its plan lists, at the rate and after the interval that its options say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.world import (
    LATER,
    LOG,
    NOW,
    ClockStore,
    World,
    beside_the_clock,
)
from wal3_core import MemoryStore, scrub
from wal3_core.log.collect.collector import Collector
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

# ---------------------------------------------------------------------- exactly those objects


@pytest.mark.parametrize("cursor", range(2, 22))
def test_objects_of_a_plan_are_exactly_what_is_deleted_wherever_it_cuts(memory_store: MemoryStore, cursor: int) -> None:
    check_dry_run(memory_store, cursor)


def test_objects_of_a_plan_are_exactly_what_a_later_collection_deletes(store: ObjectStore) -> None:
    check_dry_run(store, 12)


def check_dry_run(store: ObjectStore, cursor: int) -> None:
    world = World(store)
    world.plant(cursor=cursor)
    collector = Collector(store, LOG, options=NOW)
    before = world.stored()

    named = list(collector.objects(collector.plan()))
    done = world.collect()

    assert len(named) == len(set(named)) == sum(each.num_deleted for each in done.deleted)
    assert before - world.stored() == set(named)
    assert world.stored() == world.reachable()
    assert world.offsets() == list(range(cursor, 21))


def test_objects_of_a_plan_come_in_log_order_and_snapshots_after_what_they_hold(store: ObjectStore) -> None:
    World(store).plant(cursor=8)
    collector = Collector(store, LOG, options=NOW)

    named = list(collector.objects(collector.plan()))

    fragments = [path for path in named if path.startswith("log/")]
    assert [int(path[-24:-8], 16) for path in fragments] == list(range(1, 8))
    kinds = "".join(path[0] for path in named[:7])
    assert kinds == "llsllss"


@pytest.mark.slow
def test_stored_objects_are_the_reachable_ones_after_every_round_of_cursors(store: ObjectStore) -> None:
    """INV-16: compared before and after, through appends, rolls, and cursors that move at their own pace."""
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=1)
    world.move_cursor(1, "slow")
    for fast, slow in ((4, 1), (11, 6), (14, 6), (25, 13), (27, 27), (41, 41)):
        world.append(4)
        world.roll()
        world.move_cursor(fast)
        world.move_cursor(slow, "slow")
        before, should = world.stored(), world.reachable()

        gone = set(Collector(clock, LOG, options=NOW).objects(world.plan()))
        clock.pass_s(1)
        done = world.collect()

        # The same run collects what the rolls left over; the plan includes the snapshots that the cut replaced.
        assert sum(each.num_deleted for each in done.deleted) == len(before - should) + len(gone)
        assert world.stored() == world.reachable()
        assert world.documents() == []
        assert world.offsets() == list(range(min(fast, slow), world.manifest().next.position.offset))
        assert scrub(clock, LOG).sound
    assert world.stored() <= world.reachable()


def test_collection_that_is_repeated_finds_nothing(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    world.collect()
    before = beside_the_clock(store)

    again = world.collect()

    assert again.plan.empty
    assert again.deleted == ()
    assert beside_the_clock(store) == before


def test_collection_prunes_now_and_deletes_an_interval_later(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    before = world.stored()

    first = world.collect(LATER)
    assert first.wait_s == LATER.interval_s
    assert world.stored() >= before
    assert world.offsets() == list(range(12, 21))
    clock.pass_s(LATER.interval_s)
    second = world.collect(LATER)

    assert second.wait_s == 0
    assert [each.num_deleted for each in second.deleted] == [len(before) - len(before & world.reachable())]
    assert world.stored() == world.reachable()


def test_progress_reports_every_deleted_object(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    heard: list[int] = []

    done = world.collect(progress=heard.append)

    assert heard == list(range(1, sum(each.num_deleted for each in done.deleted) + 1))
    assert len(heard) > 11


class SlowRuntime(ThreadRuntime):
    """Sleeps in no time, and counts the sleeps."""

    passed_s = 0.0

    def monotonic_s(self) -> float:
        return self.passed_s

    def sleep(self, seconds: float) -> None:
        self.passed_s += seconds


def test_deletes_are_sent_at_the_configured_rate(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    world.prune(LATER)

    with SlowRuntime() as runtime:
        done = world.collect(replace(NOW, deletes_per_s=4), runtime=runtime)

    num_deleted = sum(each.num_deleted for each in done.deleted)
    assert num_deleted > 11
    assert runtime.passed_s == pytest.approx(num_deleted / 4)
