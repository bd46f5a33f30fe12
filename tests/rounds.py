"""How many round trips something takes: every request lasts one second of virtual time, whatever else is under way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tests.faults.simulator import SimProcess, Simulation
from tests.stores import FaultyStore
from wal3_core.runtime import Runtime
from wal3_core.store.object_store import ObjectStore

T = TypeVar("T")


def round_trips(store: ObjectStore, work: Callable[[ObjectStore, Runtime], T]) -> tuple[T, int]:
    """Do some work in a simulated process on a store; return what it returns, and how many seconds it took."""
    simulation = Simulation(0)
    process = SimProcess(simulation, "measured")
    slow = FaultyStore(store, before=lambda _kind, _path: simulation.pause(1.0))
    found: list[T] = []
    simulation.run(simulation.spawn(process, "main", lambda: found.append(work(slow, process))))
    return found[0], round(simulation.now_s)
