"""The sensors request runs for plans to carry out, and for garbage whose interval is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest
from dagster import DagsterInstance, RunRequest, SensorResult, build_sensor_context

from tests.orchestration.run_requests import run_request
from tests.stores import FaultyStore, age_out, damage, life_store
from wal3_core import CursorStore, LogPosition
from wal3_core.format.paths import GARBAGE_FOLDER
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import Done, ObjectStore
from wal3_orchestration.defs.garbage_collection.sensors import find_due, request_deletion, request_pruning
from wal3_orchestration.framework.scope import COLLECT_TAG, LOG_TAG, LOGS_NAME, StoreScope
from wal3_orchestration.resources import CollectionResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run


COLLECT = {COLLECT_TAG: "true"}


class Tick(Protocol):
    def __call__(self, after: SensorResult | None = None) -> SensorResult: ...


@pytest.fixture
def prune_tick(instance: DagsterInstance) -> Tick:
    def evaluate(after: SensorResult | None = None) -> SensorResult:
        with build_sensor_context(instance, cursor=None if after is None else after.cursor) as context:
            result = request_pruning(StoreScope(), context)
        assert isinstance(result, SensorResult)
        return result

    return evaluate


@pytest.fixture
def delete_tick(instance: DagsterInstance) -> Tick:
    def evaluate(after: SensorResult | None = None) -> SensorResult:
        resources = {"store": StoreResource.from_environment(), "collection": CollectionResource()}
        cursor = None if after is None else after.cursor
        with build_sensor_context(instance, cursor=cursor, resources=resources) as context:
            result = request_deletion(StoreScope(), context)
        assert isinstance(result, SensorResult)
        return result

    return evaluate


def _asked(result: SensorResult) -> list[str | None]:
    return [request.partition_key for request in result.run_requests or ()]


def _keys(result: SensorResult) -> list[str | None]:
    return [request.run_key for request in result.run_requests or ()]


def _whole(known: list[str], tags: dict[str, str] | None = None) -> RunRequest:
    return run_request(known[0], known[-1], tags=tags)


def _claim(store: ObjectStore, *logs: str) -> None:
    for log in logs:
        CursorStore(store, log).create("reader", LogPosition(4, 0))


def _prune(store: ObjectStore, log: str) -> str:
    _claim(store, log)
    collector = Collector(store, log)
    outcome = collector.prune(collector.announce(collector.plan()))
    assert isinstance(outcome, PrunedGarbage)
    return outcome.path


@pytest.mark.slow
def test_each_log_with_something_to_collect_gets_a_run_of_its_own(
    known: list[str], fleet: ObjectStore, run: Run, prune_tick: Tick
) -> None:
    _claim(fleet, "alpha", "gamma")
    run("garbage_plan_job", _whole(known, COLLECT))

    result = prune_tick()

    assert _asked(result) == ["alpha", "gamma"]
    assert [request.tags[LOG_TAG] for request in result.run_requests or ()] == ["alpha", "gamma"]
    assert _asked(prune_tick(result)) == []


@pytest.mark.slow
def test_repeated_tick_requests_the_same_collections(
    known: list[str], fleet: ObjectStore, run: Run, prune_tick: Tick
) -> None:
    _claim(fleet, *known)
    run("garbage_plan_job", _whole(known, COLLECT))

    first, second = prune_tick(), prune_tick()

    assert len(set(_keys(first))) == 3
    assert _keys(first) == _keys(second)


@pytest.mark.slow
def test_plans_without_the_collect_tag_are_not_carried_out(
    known: list[str], fleet: ObjectStore, run: Run, prune_tick: Tick
) -> None:
    _claim(fleet, *known)
    run("garbage_plan_job", _whole(known))
    run("collection_job", run_request("alpha", "alpha"))

    result = prune_tick()

    assert _asked(result) == []
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == "4 new plans, none to carry out"


@pytest.mark.slow
def test_refused_log_is_left_alone_and_the_others_are_collected(
    known: list[str], fleet: ObjectStore, run: Run, prune_tick: Tick
) -> None:
    _claim(fleet, "alpha", "gamma")
    age_out(fleet, "beta/one")
    planned = run("garbage_plan_job", _whole(known, COLLECT))

    assert not planned.success
    assert _asked(prune_tick()) == ["alpha", "gamma"]


@pytest.mark.slow
def test_deletion_is_requested_when_the_interval_is_over_and_not_before(
    known: list[str], fleet: ObjectStore, delete_tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prune(fleet, "alpha")
    _prune(fleet, "gamma")
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "3600")
    early = delete_tick()

    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    result = delete_tick()

    assert known == ["alpha", "beta/one", "gamma"]
    assert _asked(early) == []
    assert early.skip_reason is not None
    assert early.skip_reason.skip_message == "3 logs, no garbage is due"
    assert _asked(result) == ["alpha", "gamma"]


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_running_deletion_is_not_requested_again_but_new_garbage_is(
    fleet: ObjectStore, delete_tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    path = _prune(fleet, "alpha")

    first, second = delete_tick(), delete_tick()
    Deleter(fleet, "alpha", options=CollectionResource().options()).delete(path)
    done = delete_tick()
    marked = Collector(fleet, "alpha").prune_orphans([], "a test")
    later = delete_tick()

    assert isinstance(marked, PrunedGarbage)
    assert _keys(first) == _keys(second)
    assert _asked(done) == []
    assert _asked(later) == ["alpha"]
    assert _keys(later) != _keys(first)


@pytest.mark.slow
def test_remaining_garbage_is_requested_again_an_interval_later(
    known: list[str], fleet: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    _prune(fleet, known[0])
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    options = CollectionResource().options()

    (now,), _ = find_due(fleet, known, options)
    # A clock that is an hour ahead.
    monkeypatch.setattr("wal3_orchestration.defs.garbage_collection.sensors.US_PER_S", 1)
    (later,), _ = find_due(fleet, known, options)

    assert now.documents[0][:2] == later.documents[0][:2]
    assert now.documents[0][2] < later.documents[0][2]


@pytest.mark.slow
def test_foreign_file_among_the_garbage_of_one_log_hides_no_other(
    known: list[str], fleet: ObjectStore, delete_tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    _prune(fleet, "gamma")
    assert isinstance(life_store(fleet, "alpha").create(f"{GARBAGE_FOLDER}notes", b"mine"), Done)

    due, unreadable = find_due(fleet, known, CollectionResource().options())

    assert [each.log for each in due] == ["gamma"]
    assert list(unreadable) == ["alpha"]
    assert _asked(delete_tick()) == ["gamma"]


@pytest.mark.slow
def test_denied_log_hides_no_garbage_of_another(known: list[str], fleet: ObjectStore) -> None:
    store = FaultyStore(fleet)
    store.fail("get", "alpha/", "denied", times=1_000_000)

    _, unreadable = find_due(store, known, CollectionResource().options())

    assert list(unreadable) == ["alpha"]


@pytest.mark.slow
@pytest.mark.usefixtures("known")
def test_damaged_garbage_document_is_requested_and_fails_its_run_by_name(
    fleet: ObjectStore, run: Run, delete_tick: Tick, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    path = _prune(fleet, "alpha")
    damage(life_store(fleet, "alpha"), path)

    (request,) = delete_tick().run_requests or ()
    result = run("deletion_job", request)

    assert not result.success
    assert path in str(result.failure_data_for_node("deleted_garbage"))
    assert result.retry_attempts_for_node("deleted_garbage") == 0


@pytest.mark.slow
def test_vanished_log_is_no_longer_requested(
    known: list[str], fleet: ObjectStore, run: Run, prune_tick: Tick, instance: DagsterInstance
) -> None:
    _claim(fleet, *known)
    run("garbage_plan_job", _whole(known, COLLECT))

    instance.delete_dynamic_partition(LOGS_NAME, "alpha")

    assert _asked(prune_tick()) == ["beta/one", "gamma"]
