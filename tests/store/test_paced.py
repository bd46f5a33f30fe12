"""Reads and creates through one pace never exceed its bytes a second, however many threads make them."""

from __future__ import annotations

import pytest

from tests.faults.simulator import SimProcess, Simulation
from wal3_core import MemoryStore
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import Done, share_of
from wal3_core.store.rate_limits import RateLimitedStore, rate_limited

RATE = 1000
BYTES = 250


@pytest.mark.parametrize("seed", range(5))
def test_tasks_of_one_pace_move_no_more_bytes_than_its_rate_and_no_less(seed: int) -> None:
    simulation = Simulation(seed)
    process = SimProcess(simulation, "a")
    memory = MemoryStore(shared_runtime(), name=f"rate_limited-{seed}")
    store = rate_limited(memory, RATE, process)
    moved: list[float] = []

    def work(number: int) -> None:
        for turn in range(4):
            path = f"{number}/{turn}"
            assert isinstance(store.create(path, b"x" * BYTES), Done)
            moved.append(simulation.now_s)
            assert store.read(path, start=50, length=1000) == b"x" * (BYTES - 50)
            moved.append(simulation.now_s)

    tasks = [simulation.spawn(process, f"task {number}", lambda number=number: work(number)) for number in range(3)]
    main = simulation.spawn(process, "main", lambda: simulation.block(lambda: all(t.body.dead for t in tasks), None))
    simulation.run(main)

    assert len(moved) == 24
    for count, at_s in enumerate(sorted(moved), start=1):
        # The calls that have returned had all been paid for.
        assert at_s >= count * (BYTES - 50) / RATE - 1e-6
    assert max(moved) <= 12 * (2 * BYTES - 50) / RATE + 0.1


def test_pause_earns_no_burst_and_requests_without_bytes_are_free() -> None:
    simulation = Simulation(1)
    process = SimProcess(simulation, "a")
    store = rate_limited(MemoryStore(shared_runtime(), name="rate_limited-burst"), RATE, process)
    took: list[float] = []

    def work() -> None:
        for request in (
            lambda: store.create("a", b"x" * RATE),
            lambda: simulation.pause(60),
            lambda: store.read("a"),
            lambda: store.create("a", b"refused"),
            lambda: store.read("missing"),
            lambda: store.head("a"),
        ):
            before_s = simulation.now_s
            request()
            took.append(simulation.now_s - before_s)

    simulation.run(simulation.spawn(process, "main", work))

    assert took == pytest.approx([1, 60, 1, 0, 0, 0], abs=0.01)


def test_no_limit_leaves_the_store_as_it_is_and_a_limit_keeps_whose_work_it_is() -> None:
    store = MemoryStore(shared_runtime(), name="rate_limited-share")

    limited = rate_limited(store, 1024, shared_runtime())

    assert rate_limited(store, None, shared_runtime()) is store
    assert isinstance(limited, RateLimitedStore)
    assert (limited.url, share_of(limited)) == (store.url, share_of(store))
