"""Writers in processes of their own that append to one log without a rest: they take turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain, pairwise

import pytest

from tests.faults.simulator import SimProcess, Simulation
from tests.stores import FaultyStore
from wal3_core import LogPosition, LogWriter, MemoryStore

# As S3 answers, in simulated time: the machine's speed has no part in it.
ANSWER_S = {"create": 0.028, "replace": 0.058}
OTHER_ANSWER_S = 0.020
CALLERS = 4


class Shared:
    """One log, and a writer for each pair of times; each has callers that append again and again between the two.

    The first upload of the first writer after ``frozen_s`` takes a minute.
    """

    def __init__(self, times_s: Sequence[tuple[float, float]], *, frozen_s: float = math.inf) -> None:
        self._times_s, self._frozen_s = times_s, frozen_s
        self._simulation = Simulation(seed=1, steps_max=10**9)
        self._processes = [SimProcess(self._simulation, f"{each}", steady=True) for each in range(len(times_s))]
        self._memory = MemoryStore(self._processes[0], name=f"shared by {len(times_s)}")
        # When each append of each writer became durable.
        self.appended_s: list[list[float]] = [[] for _ in times_s]
        self.refused = self.contentions = 0
        self.looked_s = 0.0

    @property
    def num_appended(self) -> int:
        return sum(map(len, self.appended_s))

    def run(self) -> Shared:
        tasks = [
            self._simulation.spawn(process, "main", partial(self._write, number))
            for number, process in enumerate(self._processes)
        ]
        self._simulation.run(*tasks)
        return self

    def counts(self, start_s: float, limit_s: float) -> list[int]:
        return [sum(start_s <= at_s < limit_s for at_s in appended) for appended in self.appended_s]

    def _answer(self, number: int, kind: str, _path: str) -> None:
        if kind == "create" and number == 0 and self._simulation.now_s > self._frozen_s:
            self._frozen_s = math.inf
            self._processes[number].sleep(60)
        self._processes[number].sleep(ANSWER_S.get(kind, OTHER_ANSWER_S))
        if kind == "get":
            self.looked_s = self._simulation.now_s

    def _done(self, number: int, future: Future[LogPosition]) -> None:
        if future.exception() is None:
            self.appended_s[number].append(self._simulation.now_s)
        else:
            self.refused += 1

    def _write(self, number: int) -> None:
        process, callers, (begins_s, limit_s) = self._processes[number], CALLERS, self._times_s[number]

        process.sleep(begins_s)
        store = FaultyStore(self._memory, before=partial(self._answer, number))
        with LogWriter.open_or_create(store, "a", runtime=process) as writer:

            def again(future: Future[LogPosition] | None = None) -> None:
                nonlocal callers
                if future is not None:
                    self._done(number, future)
                if self._simulation.now_s < limit_s:
                    writer.submit(b"x").add_done_callback(again)
                else:
                    callers -= 1

            for _ in range(CALLERS):
                again()
            self._simulation.block(lambda: not callers, None)
            self.contentions += writer.stats().contentions


@pytest.mark.slow
@pytest.mark.parametrize("writers", [2, 8])
def test_writers_that_never_rest_share_a_log_in_turns(writers: int) -> None:
    """Regression: one of them appended, and the appends of the others were refused, or waited for a minute."""
    alone = Shared([(0, 30)]).run()

    shared = Shared([(0, 30)] * writers).run()

    assert shared.refused == 0
    counts = shared.counts(10, 30)
    assert min(counts) * writers > 0.5 * sum(counts)
    assert sum(counts) > 0.5 * sum(alone.counts(10, 30))
    # Those that wait upload nothing.
    assert shared.contentions * 10 < shared.num_appended


@pytest.mark.slow
def test_new_writer_gets_its_first_turn_before_those_that_had_one() -> None:
    """Regression: it waited for as long as 40 s, while each of the others had several turns."""
    begins_s = [10.0, 13.0, 16.1]

    shared = Shared([*[(0.0, 20.0)] * 6, *((begin_s, 20.0) for begin_s in begins_s)]).run()

    # Two turns, in which it learns of the others and waits.
    assert all(appended[0] < begin_s + 2 for appended, begin_s in zip(shared.appended_s[6:], begins_s, strict=True))


@pytest.mark.slow
def test_writer_that_freezes_in_its_turn_costs_the_others_one_pause() -> None:
    shared = Shared([(0.0, 20.0)] * 4, frozen_s=10.0).run()

    times_s = sorted(chain.from_iterable(shared.appended_s))
    pauses_s = [later_s - at_s for at_s, later_s in pairwise(times_s) if 9 < at_s < 19]
    assert max(pauses_s) < 1.5
    counts = shared.counts(11, 20)[1:]
    assert min(counts) * 3 > 0.5 * sum(counts)
    assert shared.refused == 0


@pytest.mark.slow
def test_writer_whose_other_has_left_soon_appends_without_rests_and_looks() -> None:
    shared = Shared([(0, 20), (0, 4)]).run()

    assert all(shared.appended_s)
    assert 4 < shared.looked_s < 12


@pytest.mark.slow
def test_writer_that_is_alone_never_looks() -> None:
    shared = Shared([(0, 20)]).run()

    # But once, to open the log.
    assert shared.looked_s < 0.2
