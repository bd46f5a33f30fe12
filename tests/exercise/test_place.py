"""The removal of what an exercise wrote."""

from __future__ import annotations

from tests.stores import FaultyStore
from wal3_core import Fleet, FleetOptions, MemoryStore
from wal3_core.exercise.place import leftovers, log_name, remove, run_store

RUN = "run-20260101T120000Z-a1b2c3"


def test_removal_goes_on_after_any_request_that_was_not_answered(memory_store: MemoryStore) -> None:
    """Regression: one connection that broke ended it, and left the rest in the bucket."""
    store, failed = FaultyStore(memory_store), set[tuple[str, str]]()
    with Fleet.open(run_store(store, RUN), server="p00", options=FleetOptions(creates=True)) as fleet:
        for number in range(3):
            fleet.append(log_name(number), b"x")

    def fail_once(kind: str, path: str) -> None:
        if kind in {"list", "delete"} and (kind, path) not in failed:
            failed.add((kind, path))
            store.fail(kind, path, "unavailable")

    store.before = fail_once
    removed = remove(store, RUN, lambda _done, _total: None)

    assert removed == 4
    assert {kind for kind, _ in failed} == {"list", "delete"}
    assert leftovers(memory_store) == []
