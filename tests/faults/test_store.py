"""The simulated store keeps the contract of real stores, and breaks it only where its plan says so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import pytest

from tests.faults.plans import FAULTS, Kind, Script
from tests.faults.simulator import SimProcess, Simulation
from tests.faults.store import SimStore, World
from tests.store.test_object_store import *  # noqa: F403 - every store's tests, with the fixture below for theirs
from wal3_core import MemoryStore
from wal3_core.errors import LogError
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import Done, ObjectStore


def sim_store(faults: dict[int, str]) -> SimStore:
    simulation = Simulation(0)
    # With real locks: the suite's threads are real.
    world = World(simulation, objects=MemoryStore(shared_runtime()))
    world.begin(Script(faults))
    return SimStore(world, SimProcess(simulation, "p"))


@pytest.fixture
def store() -> ObjectStore:
    return sim_store({})


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_happens_once_and_then_the_store_works_again(kind: Kind) -> None:
    for fault in FAULTS[kind]:
        store = sim_store({1: fault})
        assert isinstance(store.create("a/log/x", b"1"), Done)
        calls: dict[Kind, Callable[[], object]] = {
            "put": partial(store.create, "a/log/y", b"2"),
            "read": partial(store.read, "a/log/x"),
            "list": lambda store=store: list(store.list_objects("a/log/")),
            "delete": partial(store.delete, "a/log/x"),
        }

        with contextlib.suppress(LogError):
            calls[kind]()

        store.world.heal()
        assert store.world.fired == {fault: 1}
        found = {meta.path for meta in store.list_objects("a/log/")}
        assert found == {meta.path for meta in store.world.objects.list_objects("a/log/")}


def test_each_fault_leaves_behind_what_its_name_says() -> None:
    left = {}
    for fault in ("before", "after", "conflict", "conflict-after", "conflict-late", "denied", "full", "burst", "slow"):
        store = sim_store({0: fault})
        try:
            outcome: object = store.create("x", b"1")
        except LogError as error:
            outcome = error
        left[fault] = type(outcome).__name__, store.world.objects.read("x")

    assert left == {
        "before": ("Unknown", None),
        "after": ("Unknown", b"1"),
        "conflict": ("Refused", None),
        "conflict-after": ("Refused", b"1"),
        "conflict-late": ("Refused", None),
        "denied": ("StoreDeniedError", None),
        "full": ("StoreDeniedError", None),
        "burst": ("Unknown", None),
        "slow": ("Done", b"1"),
    }
