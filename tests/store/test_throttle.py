"""Requests wait for their turn: in virtual time, any number of callers at once, whatever pattern they arrive in."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.faults.simulator import SimProcess, Simulation
from tests.stores import FaultyStore
from wal3_core import MemoryStore, UnavailableError
from wal3_core.store.object_store import Done, Etag
from wal3_core.store.rate_limits import Throttle, ThrottledStore, TokenBuckets

T = TypeVar("T")

LONG_S = 1e6


@dataclass
class World:
    """Callers of one throttle, and when each was let through."""

    rate_per_s: float
    seed: int = 0
    simulation: Simulation = field(init=False)
    process: SimProcess = field(init=False)
    throttle: Throttle = field(init=False)
    passed: list[tuple[float, str]] = field(default_factory=list)
    failed: list[tuple[float, str, BaseException]] = field(default_factory=list)
    _left: int = 0

    def __post_init__(self) -> None:
        self.simulation = Simulation(self.seed)
        self.process = SimProcess(self.simulation, "process", steady=True)
        self.throttle = self.made(self.process)

    def made(self, process: SimProcess) -> Throttle:
        return Throttle("s3://b", "writes", self.rate_per_s, process)

    def at(self, at_s: float, name: str, act: Callable[[], object]) -> None:
        """Let one more caller act at that time."""

        def run() -> None:
            self.simulation.pause(at_s)
            try:
                act()
                self.passed.append((self.simulation.now_s, name))
            except (UnavailableError, KeyboardInterrupt) as error:
                self.failed.append((self.simulation.now_s, name, error))
            self._left -= 1

        self._left += 1
        self.simulation.spawn(self.process, name, run)

    def ask(self, at_s: float, name: str = "", *, urgent: bool = False, timeout_s: float = LONG_S) -> None:
        self.at(at_s, name, lambda: self.throttle.enter(timeout_s, urgent=urgent))

    def run(self) -> None:
        """Run until all callers are done."""
        waiting = self.simulation.spawn(
            self.process, "main", lambda: self.simulation.block(lambda: not self._left, LONG_S)
        )
        self.simulation.run(waiting)
        assert not self._left
        assert self.throttle.stats().waiting == 0

    def waited_s(self, name: str, since_s: float) -> float:
        return next(at_s for at_s, passed in self.passed if passed == name) - since_s


ARRIVALS = st.lists(st.tuples(st.floats(0, 0.7), st.integers(1, 40), st.booleans()), min_size=1, max_size=8)


@pytest.mark.slow
@given(
    rate_per_s=st.sampled_from([1, 2, 7, 50, 60, 133]),
    arrivals=ARRIVALS,
    slowed_s=st.lists(st.floats(0, 10), max_size=3),
    seed=st.integers(0, 3),
)
@example(rate_per_s=133, arrivals=[(0, 200, True)], slowed_s=[], seed=0)
def test_no_second_has_more_requests_than_the_rate(
    rate_per_s: int, arrivals: list[tuple[float, int, bool]], slowed_s: list[float], seed: int
) -> None:
    world, at_s = World(rate_per_s, seed), 0.0
    for gap_s, count, urgent in arrivals:
        at_s += gap_s
        for _ in range(count if rate_per_s > 2 else 1):
            world.ask(at_s, urgent=urgent)
    asked = world._left
    for at_s in slowed_s:
        world.at(at_s, "slowed", lambda: world.throttle.slow_down(world.simulation.now_s))

    world.run()

    sent_s = [at_s for at_s, name in world.passed if name != "slowed"]
    assert len(sent_s) == asked == world.throttle.stats().requests
    for first, begun_s in enumerate(sent_s):
        assert sum(later_s < begun_s + 1 - 1e-6 for later_s in sent_s[first:]) <= rate_per_s


@pytest.mark.slow
def test_full_rate_is_used_but_for_a_fiftieth() -> None:
    world = World(100)
    for number in range(500):
        world.ask(0, urgent=bool(number % 3))

    world.run()

    assert 500 / 100 <= world.passed[-1][0] <= 500 / (100 * 0.98) * 1.02


@pytest.mark.slow
def test_urgent_requests_pass_a_backlog_of_first_tries() -> None:
    """A tenth of the rate is theirs: a CAS is not queued behind the uploads of everyone else."""
    world = World(100)
    for number in range(600):
        world.ask(0, f"first {number}")
    for number in range(40):
        world.ask(number / 8, f"urgent {number}", urgent=True)

    world.run()

    assert max(at_s for at_s, name in world.passed if name.startswith("first")) > 6
    assert max(world.waited_s(f"urgent {number}", number / 8) for number in range(40)) < 0.2


def test_first_tries_are_not_starved_by_urgent_requests() -> None:
    world = World(50)
    for number in range(400):
        world.ask(number / 200, f"urgent {number}", urgent=True)
    for number in range(10):
        world.ask(0.501 + number / 10, f"first {number}")

    world.run()

    order = [name for _, name in world.passed]
    for number in range(10):
        # Those urgent ones that came later come later.
        assert order.index(f"first {number}") < order.index(f"urgent {101 + 20 * number}")


def test_callers_pass_in_the_order_of_their_arrival() -> None:
    world = World(20)
    for number in range(100):
        world.ask(number / 1000, str(number))

    world.run()

    assert [name for _, name in world.passed] == list(map(str, range(100)))


def test_request_whose_turn_does_not_come_in_time_is_refused_and_takes_no_turn() -> None:
    world = World(10)
    for number in range(30):
        world.ask(0, f"patient {number}")
    world.ask(0.001, "hasty", timeout_s=0.5)

    world.run()

    [(at_s, name, error)] = world.failed
    assert name == "hasty"
    assert at_s == pytest.approx(0.501)
    assert "s3://b: throttled: writes are limited to 10 a second" in str(error)
    stats = world.throttle.stats()
    assert (stats.requests, stats.expired) == (30, 1)
    assert stats.throttled >= 29
    assert stats.throttled_s > 0.5


class InterruptedProcess(SimProcess):
    """Its caller of the given name is interrupted where it waits: before its wait, or after it was woken."""

    victim = ""
    after = False

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        current = self.simulation.current
        hit = current is not None and current.name == self.victim
        if hit and not self.after:
            raise KeyboardInterrupt
        try:
            return super().wait(future, timeout_s)
        finally:
            if hit:
                raise KeyboardInterrupt


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("victim", ["2", "5", "11"])
def test_interrupted_caller_leaves_its_turn_to_the_next(victim: str, *, after: bool) -> None:
    def play(names: list[str]) -> World:
        world = World(10)
        process = InterruptedProcess(world.simulation, "process", steady=True)
        process.victim, process.after = victim, after
        world.throttle = world.made(process)
        for name in names:
            world.ask(0, name)
        world.run()
        return world

    names = [str(number) for number in range(12)]
    interrupted, without = play(names), play([name for name in names if name != victim])

    assert [(name, type(error)) for _, name, error in interrupted.failed] == [(victim, KeyboardInterrupt)]
    assert interrupted.throttle.stats().requests == 11
    # Nothing waits longer than a turn more than it would without the interrupted one.
    last_s = interrupted.passed[-1][0]
    assert last_s <= without.passed[-1][0] + 0.25


def test_turn_of_a_caller_that_is_interrupted_when_it_got_it_is_the_next_one_s() -> None:
    world = World(1)
    process = InterruptedProcess(world.simulation, "process", steady=True)
    process.victim, process.after = "victim", True
    world.throttle = world.made(process)
    world.ask(0, "before", urgent=True)
    world.ask(0.001, "victim", urgent=True)
    # Comes when there is a token, before the victim looks, and so lets the victim pass.
    world.ask(1.0005, "next", urgent=True)

    world.run()

    assert [name for _, name, _ in world.failed] == ["victim"]
    assert world.waited_s("next", 1.0005) < 0.001


def test_burst_of_refusals_halves_the_rate_once_and_each_further_second_once_more() -> None:
    pace = TokenBuckets(3500, now_s=0)

    halved = [pace.slow_down(sent_s, now_s=sent_s + 0.03) for sent_s in (10, 10.01, 10.5, 11.02)]

    assert halved == [True, False, False, False]
    assert (pace.rate_per_s, pace.halvings) == (1750, 1)
    assert pace.slow_down(11.04, now_s=11.1)
    assert pace.rate_per_s == 875


def test_rate_never_falls_below_its_floor() -> None:
    for rate_per_s, floor in ((3500, 3500 / 64), (10, 1), (1, 1)):
        pace = TokenBuckets(rate_per_s, now_s=0)
        for second in range(100):
            pace.slow_down(2.0 * second, now_s=2.0 * second)

        assert pace.rate_per_s == floor


def test_success_restores_the_rate_step_by_step() -> None:
    pace = TokenBuckets(1000, now_s=0)
    pace.slow_down(5, now_s=5)
    rates = []

    for tenth in range(50, 200):
        pace.answered(tenth / 10, now_s=tenth / 10)
        rates.append(pace.rate_per_s)

    # One that was sent before the halving, or in the second after it, says nothing.
    assert rates[:10] == [500] * 10
    assert sorted(set(rates)) == [*range(500, 1001, 50)]
    assert max(rates.count(rate) for rate in rates if rate < 1000) <= 11
    assert rates[-1] == 1000


def test_lower_limit_holds_at_once_and_a_halved_rate_is_kept() -> None:
    pace = TokenBuckets(1000, now_s=0)
    pace.limit(100)
    assert pace.rate_per_s == pace.rate_per_s_max == 100
    pace.slow_down(5, now_s=5)
    pace.limit(2000)
    assert (pace.rate_per_s, pace.rate_per_s_max) == (50, 2000)


@pytest.mark.parametrize("ahead", ["replace", "retry", "read back", "create"])
def test_cas_and_retry_of_a_store_pass_its_backlog_of_new_objects(ahead: str) -> None:
    world = World(50)
    faulty = FaultyStore(MemoryStore(world.process))
    store = ThrottledStore(faulty, world.process, writes=world.throttle, reads=world.throttle, wait_s_max=LONG_S)
    done = faulty.create("swapped", b"1")
    assert isinstance(done, Done)
    faulty.fail("create", "unanswered", "unknown")
    world.at(0, "unanswered", lambda: store.create("unanswered", b"1"))
    acts: dict[str, Callable[[], object]] = {
        "replace": lambda: store.replace("swapped", b"2", Etag(done.etag)),
        "retry": lambda: store.create("unanswered", b"1"),
        "read back": lambda: store.read("unanswered"),
        "create": lambda: store.create("new", b"1"),
    }
    for number in range(200):
        world.at(0.001, str(number), lambda number=number: store.create(f"new/{number}", b""))
    world.at(1, "ahead", acts[ahead])

    world.run()

    assert (world.waited_s("ahead", 1) < 0.5) == (ahead != "create")
    assert math.isclose(world.throttle.stats().rate_per_s, 50)
