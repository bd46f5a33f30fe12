"""The time of a queue: never backwards, and never ahead of the wall clock because of how it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.queue.pair import START_US, StandingRuntime
from tests.stores import FaultyStore
from wal3_core.runtime import US_PER_S, ThreadRuntime
from wal3_core.views.queue.broker import QueueClock
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.loading import read_queue_stats
from wal3_core.views.queue.operations import NewItem

if TYPE_CHECKING:
    from wal3_core import MemoryStore


YEAR_S = 365 * 86_400


class SuspendedRuntime(StandingRuntime):
    """A process that is suspended after the next reading of a clock."""

    suspended_ms = 0

    def now_us(self) -> int:
        found = super().now_us()
        self.let_pass()
        return found

    def monotonic_s(self) -> float:
        found = super().monotonic_s()
        self.let_pass()
        return found

    def let_pass(self) -> None:
        passed_ms, self.suspended_ms = self.suspended_ms, 0
        self.wall_us += passed_ms * 1000
        self.monotonic_ms += passed_ms


@pytest.fixture
def runtime() -> Iterator[SuspendedRuntime]:
    runtime = SuspendedRuntime()
    yield runtime
    runtime.close()


def test_time_is_not_ahead_though_the_process_is_suspended_while_it_reads_its_clocks(runtime: SuspendedRuntime) -> None:
    clock = QueueClock(runtime)
    clock.confirm(START_US + US_PER_S * 3600)
    for suspended_ms in (5000, 0, 300, 0, 0):
        runtime.suspended_ms = suspended_ms
        assert clock.now_ms() <= runtime.wall_us // 1000
    assert clock.now_ms() == START_US // 1000 + 5300


def test_time_goes_on_from_where_the_log_is_and_not_from_before(runtime: SuspendedRuntime) -> None:
    clock = QueueClock(runtime)
    runtime.monotonic_ms += 10_000
    clock.begin_at(START_US // 1000 + 7000)

    assert clock.now_ms() == START_US // 1000 + 7000
    runtime.monotonic_ms += 50
    assert clock.now_ms() == START_US // 1000 + 7050


def test_time_follows_the_wall_clock_forward_only_as_far_as_the_store_confirms_it(runtime: SuspendedRuntime) -> None:
    clock = QueueClock(runtime)
    clock.confirm(START_US)
    clock.begin_at(0)
    runtime.wall_us += 10 * YEAR_S * US_PER_S
    assert clock.now_ms() == START_US // 1000
    assert clock.wants_confirmation()
    assert not clock.wants_confirmation(), "asked again at once"

    clock.confirm(START_US + 60 * US_PER_S)
    assert clock.now_ms() == START_US // 1000 + 60_000
    runtime.monotonic_ms += 1000
    assert clock.now_ms() == START_US // 1000 + 61_000

    runtime.wall_us = START_US - US_PER_S * 3600
    runtime.monotonic_ms += 1000
    assert clock.now_ms() == START_US // 1000 + 62_000, "a step back stops it"


def test_what_jumps_is_told_from_what_passes(runtime: SuspendedRuntime) -> None:
    clock = QueueClock(runtime)
    clock.confirm(START_US)
    clock.begin_at(0)
    begun_ms = clock.jumped_ms
    runtime.monotonic_ms += 5000
    runtime.wall_us += 305 * US_PER_S
    clock.confirm(runtime.wall_us)

    assert clock.now_ms() == START_US // 1000 + 305_000
    assert clock.jumped_ms - begun_ms == 300_000


class LaterRuntime(ThreadRuntime):
    """A process whose clocks can be put forward, both at once, as time does."""

    later_s = 0

    def now_us(self) -> int:
        return super().now_us() + self.later_s * US_PER_S

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.later_s


@pytest.mark.slow
def test_queue_that_takes_long_to_be_taken_is_not_ahead_of_the_wall_clock(memory_store: MemoryStore) -> None:
    runtime, other, store = LaterRuntime(), LaterRuntime(), FaultyStore(memory_store)
    older = DelayQueue.open_or_create(memory_store, "q", runtime=other)
    older.enqueue(b"x")

    def go_on(kind: str, path: str) -> None:
        """Let the older broker go on while the new one takes the queue, which lasts an hour."""
        if kind == "replace" and "manifest/" in path and not runtime.later_s:
            runtime.later_s = other.later_s = 3600
            older.enqueue(b"y")

    store.before = go_on
    with DelayQueue.open(store, "q", runtime=runtime) as newer:
        assert runtime.later_s
        assert newer.enqueue(b"z").deadline_us <= runtime.now_us()
    older.close()
    for each in (runtime, other):
        each.close()


def test_lease_that_ended_is_due_where_no_broker_takes_the_item_back(memory_store: MemoryStore) -> None:
    reader = LaterRuntime()
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue_many([NewItem(b"a"), NewItem(b"b"), NewItem(b"c")])
        first, other = queue.dequeue(lease_s=1000), queue.dequeue(lease_s=5000)
        until_us = queue.item(first[0].id).lease_until_us
    held = read_queue_stats(memory_store, "q", runtime=reader)

    reader.later_s = 1001
    ended = read_queue_stats(memory_store, "q", runtime=reader)
    reader.close()

    assert other
    assert (held.leased, held.ended, held.oldest_ended_us) == (2, 0, None)
    assert (ended.leased, ended.ended) == (2, 1)
    assert until_us is not None
    assert ended.oldest_ended_us is not None
    # A broker reckons by how much its clock has jumped.
    assert abs(ended.oldest_ended_us - until_us) < US_PER_S
