"""A step is retried when the store does not answer for one log; a permanent error is not retried."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, RetryPolicy

from tests.orchestration.executed_again import deletion_sweep, execute_again
from tests.orchestration.run_requests import run_request
from tests.stores import FaultyStore, life_store
from wal3_core import CursorStore, LogPosition, LogReader, UnavailableError, scrub
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection import assets
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, DELETION, DueGarbage
from wal3_orchestration.framework.recorder import LogResult, latest, run_of, value_of
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from conftest import Run, Write


SCOPE = StoreScope()
DELETED = SCOPE.key("deleted_garbage")


class Flaky:
    """Fails the requests at some places of a run, whatever the attempt."""

    def __init__(self, places: set[int]) -> None:
        self._places = places
        self._lock = threading.Lock()
        self._count = 0
        self.failed = 0

    def __call__(self, kind: str, path: str) -> None:
        with self._lock:
            self._count += 1
            failing = self._count in self._places
            self.failed += failing
        if failing:
            message = f"{kind} {path}: expected an answer, found none"
            raise UnavailableError(message)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.repeat) for seed in (2, 3))])
def test_steps_retried_wherever_the_store_fails_reach_the_same_result(
    write: Write, fleet: ObjectStore, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    write("alpha", fragments=6)
    CursorStore(fleet, "alpha").create("reader", LogPosition(13, 0))
    instance.add_dynamic_partitions(LOGS_NAME, ["alpha"])
    monkeypatch.setattr(RetryPolicy, "calculate_delay", lambda _policy, _attempt: 0)
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    # One unanswered request fails its step: nothing below the step retries.
    monkeypatch.setattr("wal3_core.store.retrying.TIMEOUT_S", 0.0)
    faulty, places = FaultyStore(fleet), random.Random(seed)
    monkeypatch.setattr("wal3_orchestration.resources.open_store", lambda _url, session: faulty)  # noqa: ARG005 - as it is called

    attempts, failed = 0, 0
    for job in ("collection_job", "snapshot_compaction_job", "orphans_job", "deletion_job"):
        # At most three: a step has three retries.
        faulty.before = flaky = Flaky(set(places.sample(range(1, 16), 3)))
        result = run(job, run_request("alpha", "alpha"))
        assert result.success, job
        steps = {event.step_key for event in result.all_events if event.step_key is not None}
        attempts += sum(result.retry_attempts_for_node(step) for step in steps)
        failed += flaky.failed

    manifest = LogReader.open(fleet, "alpha").manifest()
    assert failed >= attempts > 0
    assert (manifest.first.position.offset, manifest.announced) == (13, None)
    assert len(list(life_store(fleet, "alpha").list_objects("log/"))) == 2
    assert list(Deleter(fleet, "alpha").documents()) == []
    assert scrub(fleet, "alpha").sound


class _Killed(BaseException):
    """The end of a process, of which nothing in it takes notice."""


@pytest.mark.slow
def test_deletion_that_dies_between_two_logs_has_recorded_the_first_and_continues(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: what had been deleted was recorded nowhere. Dagster's own retries execute a run again like this."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    for log in known:
        CursorStore(fleet, log).create("reader", LogPosition(4, 0))
    assert run("", COLLECTION.request_sweep(SCOPE)).success
    delete = assets.delete_log

    def dying(
        store: ObjectStore,
        log: str,
        options: CollectorOptions,
        *,
        objects_max: int,
        keep: Callable[[str], LogResult | None],
    ) -> DueGarbage:
        if log == known[1]:
            raise _Killed
        return delete(store, log, options, objects_max=objects_max, keep=keep)

    with monkeypatch.context() as patch:
        patch.setattr(assets, "delete_log", dying)
        died = run("", DELETION.request_sweep(SCOPE))
    again = execute_again(deletion_sweep, died.run_id, instance)

    assert (died.success, again.success) == (False, True)
    deleted = {
        log: [run_of(each) for each in latest(instance, DELETED, log, count=9) if value_of(each, "objects") == 1]
        for log in known
    }
    assert deleted == {log: [died.run_id if log == known[0] else again.run_id] for log in known}
    for log in known:
        assert len(list(life_store(fleet, log).list_objects("log/"))) == 1
        assert scrub(fleet, log).sound
