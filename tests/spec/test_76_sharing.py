"""Writers in processes of their own that append to one log without a rest: they take turns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.faults.simulator import SimProcess, Simulation
from tests.stores import FaultyStore
from wal3_core import LogWriter
from wal3_core.storage.backends.memory import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from wal3_core import LogPosition

# As S3 answers, in simulated time: the machine's speed has no part in it.
ANSWER_S = {"create": 0.028, "replace": 0.058}
OTHER_ANSWER_S = 0.020
CALLERS = 4


class Shared:
    """One log, and a writer for each of some durations; each has callers that append again and again for so long."""

    def __init__(self, durations_s: Sequence[float]) -> None:
        self._durations_s = durations_s
        self._simulation = Simulation(seed=1, steps_max=10**9)
        self._processes = [SimProcess(self._simulation, f"{each}", steady=True) for each in range(len(durations_s))]
        self._memory = MemoryStore(self._processes[0], name=f"shared by {len(durations_s)}")
        self.appended = [0] * len(durations_s)
        self.refused = self.places_lost = 0
        self.looked_s = 0.0

    def run(self) -> Shared:
        main, *others = [
            self._simulation.spawn(process, "main", partial(self._write, number))
            for number, process in enumerate(self._processes)
        ]
        self._simulation.run(main)
        for other in others:
            self._simulation.run(other)
        return self

    def _write(self, number: int) -> None:
        process, callers = self._processes[number], CALLERS

        def answer(kind: str, _path: str) -> None:
            process.sleep(ANSWER_S.get(kind, OTHER_ANSWER_S))
            if kind == "get":
                self.looked_s = self._simulation.now_s

        store = FaultyStore(self._memory, before=answer)
        with LogWriter.open_or_initialize(store, "a", runtime=process) as writer:

            def again(future: Future[LogPosition] | None = None) -> None:
                nonlocal callers
                if future is not None:
                    self.appended[number] += future.exception() is None
                    self.refused += future.exception() is not None
                if self._simulation.now_s < self._durations_s[number]:
                    writer.submit(b"x").add_done_callback(again)
                else:
                    callers -= 1

            for _ in range(CALLERS):
                again()
            self._simulation.block(lambda: not callers, None)
            self.places_lost += writer.stats().places_lost


@pytest.fixture(autouse=True)
def _pauses_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers learn of each other when one of them pauses."""
    monkeypatch.setattr("wal3_core.log.write.breath._BUSY_S", 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("writers", [2, 4])
def test_writers_that_never_rest_share_a_log_in_turns(writers: int) -> None:
    """Regression: one of them appended, and the appends of the others were refused."""
    alone = Shared([20.0]).run()

    shared = Shared([20.0] * writers).run()

    assert shared.refused == 0
    assert min(shared.appended) * writers > 0.5 * sum(shared.appended)
    assert sum(shared.appended) > 0.5 * sum(alone.appended)
    # Those that wait upload nothing.
    assert shared.places_lost * 10 < sum(shared.appended)


def test_writer_whose_other_has_left_soon_appends_without_rests_and_looks() -> None:
    shared = Shared([20.0, 4.0]).run()

    assert all(shared.appended)
    assert 4 < shared.looked_s < 12
