"""A bad name beside a good log: the sensors and steps serve the log, and report the name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from dagster import AssetCheckSeverity, AssetKey, DagsterInstance, RunRequest, SensorResult, build_sensor_context

from tests.bad_names import BAD, BADNESSES, GOOD, KINDS, VACANT, Badness, replace_log, spoil
from tests.orchestration.checked import check_of, found_bad, logs_of
from tests.orchestration.run_requests import run_request
from tests.stores import FaultyStore
from wal3_core import CursorStore, LogPosition, LogWriter, MemoryStore, list_logs
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.options import CollectorOptions
from wal3_core.spark.verify import plan_log
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.sensors import find_due, request_deletion, request_pruning
from wal3_orchestration.framework.recorder import latest
from wal3_orchestration.framework.scope import COLLECT_TAG, LOGS_NAME, StoreScope
from wal3_orchestration.framework.store import LogState, UnreadableLog, read_states
from wal3_orchestration.resources import CollectionResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run, Tick, Write

    from wal3_orchestration.framework import triggers

BOTH = run_request(BAD, GOOD, tags={COLLECT_TAG: "true"})
AT_ONCE = CollectorOptions(interval_s=0)
STEPS = {
    "manifest_job": "manifest",
    "collection_job": "pruned_manifest",
    "orphans_job": "marked_orphans",
    "deletion_job": "deleted_garbage",
    "snapshot_compaction_job": "repacked_snapshots",
}


def _prune(store: ObjectStore, log: str, offset: int) -> None:
    collector = Collector(store, log)
    assert isinstance(collector.prune(collector.announce(collector.plan(offset))), PrunedGarbage)


def _evaluate(instance: DagsterInstance, sensor: triggers.Evaluate, **resources: object) -> list[RunRequest]:
    with build_sensor_context(instance, resources=resources) as context:
        result = sensor(StoreScope(), context)
    assert isinstance(result, SensorResult)
    return list(result.run_requests or ())


@pytest.fixture(params=BADNESSES)
def badness(
    request: pytest.FixtureRequest,
    write: Write,
    fleet: ObjectStore,
    instance: DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
) -> Badness:
    """Two known logs, each with due garbage and more to collect; then one of them becomes bad."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    for log in (BAD, GOOD):
        write(log, fragments=4)
        CursorStore(fleet, log).create("reader", LogPosition(7, 0))
        _prune(fleet, log, 4)
    instance.add_dynamic_partitions(LOGS_NAME, [BAD, GOOD])
    badness = Badness(request.param)
    spoil(fleet, badness)
    return badness


@pytest.mark.slow
def test_garbage_of_the_good_log_is_due_and_the_bad_name_is_reported(
    badness: Badness, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    due, unreadable = find_due(fleet, [BAD, GOOD], CollectionResource().options())
    asked = _evaluate(
        instance, request_deletion, store=StoreResource.from_environment(), collection=CollectionResource()
    )

    assert [each.log for each in due] == [GOOD]
    assert [request.partition_key for request in asked] == [GOOD]
    assert list(unreadable) == ([] if KINDS[badness] is None else [BAD])
    assert all(BAD in message for message in unreadable.values())


@pytest.mark.slow
def test_good_log_is_planned_and_pruned_and_a_bad_name_fails_its_check(
    badness: Badness, instance: DagsterInstance, run: Run
) -> None:
    planned = run("garbage_plan_job", BOTH)
    asked = _evaluate(instance, request_pruning)

    assert [request.partition_key for request in asked] == [GOOD]
    severe = check_of(planned, "safe_to_collect").severity is AssetCheckSeverity.ERROR
    blocked = {log for log, check in found_bad(planned) if check == "safe_to_collect" and severe}
    assert blocked == (set() if KINDS[badness] is None else {BAD})
    assert planned.success == (KINDS[badness] is None)


@pytest.mark.slow
def test_good_log_stays_known_and_so_does_a_bad_name_that_needs_help(
    badness: Badness, fleet: ObjectStore, instance: DagsterInstance, tick: Tick
) -> None:
    states = {state.log: type(state) for state in read_states(fleet, [BAD, GOOD])}
    requests = tick().run_requests or ()

    assert states.pop(GOOD) is LogState
    if badness in VACANT:
        assert states == {}
        assert instance.get_dynamic_partitions(LOGS_NAME) == [GOOD]
        assert [request.partition_key for request in requests] == [GOOD]
    else:
        assert states == {BAD: LogState if KINDS[badness] is None else UnreadableLog}
        assert instance.get_dynamic_partitions(LOGS_NAME) == [BAD, GOOD]
        assert [logs_of(request) for request in requests] == [sorted((BAD, GOOD))]


@pytest.mark.slow
def test_steps_over_both_serve_the_good_log_and_fail_for_the_bad_name(
    badness: Badness, instance: DagsterInstance, run: Run
) -> None:
    for job, key in STEPS.items():
        done = run(job, BOTH, only=key)

        assert done.success == (KINDS[badness] is None), job
        assert latest(instance, AssetKey(key), GOOD, count=1), job
        assert bool(latest(instance, AssetKey(key), BAD, count=1)) == done.success, job
        assert done.success or BAD in str(done.failure_data_for_node(key)), job


def _find_due(store: ObjectStore) -> bool:
    due, _ = find_due(store, [BAD, GOOD], AT_ONCE)
    return GOOD in {each.log for each in due}


def _look(store: ObjectStore) -> bool:
    return GOOD in {state.log for state in read_states(store, list_logs(store)) if isinstance(state, LogState)}


def _plan(store: ObjectStore) -> bool:
    return {log: plan_log(store, log).manifest is not None for log in (BAD, GOOD)}[GOOD]


@pytest.mark.parametrize("serve", [_find_due, _look, _plan])
@pytest.mark.parametrize("go", [lambda store: destroy(store, BAD), replace_log], ids=["destroyed", "replaced"])
@pytest.mark.parametrize("place", range(1, 9))
def test_log_that_vanishes_during_a_look_hides_no_other(
    memory_store: MemoryStore, serve: Callable[[ObjectStore], bool], go: Callable[[ObjectStore], object], place: int
) -> None:
    """It vanishes at each of the requests for it."""
    for log in (BAD, GOOD):
        with LogWriter.open_or_create(memory_store, log) as writer:
            for _ in range(4):
                writer.append_many([b"a record", b"another", b"a third"])
        CursorStore(memory_store, log).create("reader", LogPosition(7, 0))
        _prune(memory_store, log, 4)
    store, asked = FaultyStore(memory_store), []

    def before(_kind: str, path: str) -> None:
        if path.startswith(f"{BAD}/"):
            asked.append(path)
            if len(asked) == place:
                go(memory_store)

    store.before = before

    assert serve(store)
