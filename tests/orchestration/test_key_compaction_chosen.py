"""The sensors ask for the key compaction of the logs that are due, in their order, and of no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, SensorResult, build_sensor_context

from tests.orchestration.checked import asked, keys, logs_of
from tests.orchestration.dirty import Sensor
from tests.orchestration.run_requests import run_request
from tests.orchestration.test_key_compaction import append, compact_by_key, keys_of
from wal3_core import CursorStore, Fleet, FleetOptions, LogPosition, LogReader, Message, Policy
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.key_compaction.sensors import find_due
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.resources import CollectionResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run


def tick(instance: DagsterInstance) -> SensorResult:
    resources = {"store": StoreResource.from_environment(), "collection": CollectionResource()}
    with build_sensor_context(instance, resources=resources) as context:
        return find_due(StoreScope(), context)


@pytest.fixture
def logs(fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    """A dirty log, one that was compacted a moment ago, one that is not compacted, and another dirty one."""
    names = ["clean", "dirty", "other", "plain"]
    for log in names:
        append(fleet, log, "kl", "km", "ln")
    for log in ("clean", "other", "dirty"):
        compact_by_key(fleet, log)
    KeyCompactor(fleet, "clean").compact()
    instance.add_dynamic_partitions(LOGS_NAME, names)
    return names


@pytest.mark.slow
def test_only_due_logs_are_asked_for_once_each(
    logs: list[str], fleet: ObjectStore, instance: DagsterInstance, run: Run
) -> None:

    assert logs
    # Of two equal shares, the larger log comes first; files of the same records may differ by a byte.
    append(fleet, "dirty", "kl", "km", "ln")
    first, second = tick(instance), tick(instance)
    assert asked(first) == [["dirty"], ["other"]]
    assert keys(first) == keys(second)
    for request in first.run_requests or ():
        assert run("", request).success

    assert asked(tick(instance)) == []
    append(fleet, "dirty", "k" * 2000)
    assert asked(tick(instance)) == [["dirty"]]
    assert set(keys(tick(instance))).isdisjoint(keys(first))


@pytest.mark.slow
def test_log_that_is_arranged_and_keeps_all_is_asked_for_until_it_is(
    fleet: ObjectStore, instance: DagsterInstance, run: Run
) -> None:
    append(fleet, "arranged", "kl", "km", "ln")
    PolicyStore(fleet, "arranged").change(lambda _: Policy(arrange_by_key=True))
    instance.add_dynamic_partitions(LOGS_NAME, ["arranged"])
    before = list(LogReader.open(fleet, "arranged").records())
    first = tick(instance)

    assert asked(first) == [["arranged"]]
    for request in first.run_requests or ():
        assert run("", request).success

    assert list(LogReader.open(fleet, "arranged").records()) == before
    assert LogReader.open(fleet, "arranged").manifest().compaction.arranged == len(before) + 1
    assert asked(tick(instance)) == []
    append(fleet, "arranged", "k" * 2000)
    assert asked(tick(instance)) == [["arranged"]]


@pytest.mark.slow
def test_overtaken_log_is_asked_for_again(
    logs: list[str], fleet: ObjectStore, instance: DagsterInstance, run: Run
) -> None:
    (before,) = [key for key in keys(tick(instance)) if key is not None and "dirty" in key]
    for step in ("compaction_plan", "merged_fragments"):
        run("compaction_job", run_request("dirty", "dirty"), only=step)
    CursorStore(fleet, "dirty").create("late", LogPosition(5, 0))
    run("compaction_job", run_request("dirty", "dirty"), only="installed_manifest")

    (after,) = [key for key in keys(tick(instance)) if key is not None and "dirty" in key]

    assert after != before
    assert len(keys_of(fleet, "dirty")) == 6
    assert logs


@pytest.mark.slow
def test_dirty_logs_ask_for_exactly_the_marked_logs_that_are_compacted(
    instance: DagsterInstance, fleet: ObjectStore
) -> None:
    for log in ("keyed", "quiet", "plain"):
        append(fleet, log, "kk")
    for log in ("keyed", "quiet"):
        compact_by_key(fleet, log)
    sensor = Sensor(instance)
    with Fleet.open(fleet, server="server-1", options=FleetOptions(creates=True)) as opened:
        for log in ("keyed", "plain"):
            opened.append_many(log, [Message(b"x", b"k")])

    sensor.tick()

    started = [each for each in sensor.maintained if "dirty/" not in each]
    assert started == ["maintenance_job: keyed", "maintenance_job: plain", "compaction_job: keyed"]
    assert keys_of(fleet, "keyed") == [(3, b"k")]
    assert len(keys_of(fleet, "quiet")) == 2


@pytest.mark.slow
def test_many_due_logs_share_a_sweep(fleet: ObjectStore, instance: DagsterInstance, run: Run) -> None:
    names = [f"log-{number:02}" for number in range(17)]
    for log in names:
        append(fleet, log, "kk")
        compact_by_key(fleet, log)
    instance.add_dynamic_partitions(LOGS_NAME, names)

    (request,) = tick(instance).run_requests or ()
    assert request.job_name == "compaction_sweep"
    assert sorted(logs_of(request)) == names
    assert run("", request).success
    assert all(keys_of(fleet, log) == [(2, b"k")] for log in names)
