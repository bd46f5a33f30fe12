"""The clock of Dagster's machine jumps by an hour or a day, forth and back: nothing wedges, and nothing is early.

The store's clock, by which garbage waits, does not jump with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, RunRequest, SensorResult, build_sensor_context

from tests.orchestration.checked import keys
from tests.orchestration.dirty import AT_ONCE, Sensor, waiting
from wal3_core import CursorStore, Fleet, FleetOptions, LogPosition
from wal3_core.log.collect.deleter import Deleter
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.sensors import request_deletion
from wal3_orchestration.framework import triggers
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.resources import CollectionResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run, Tick, Write


HOUR_S, DAY_S = 3_600, 24 * 3_600
JUMPS = [HOUR_S, -HOUR_S, 2 * DAY_S, -2 * DAY_S]


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set this machine's clock ahead, or back."""
    real = ThreadRuntime.now_us

    def set_ahead(by_s: float) -> None:
        monkeypatch.setattr(ThreadRuntime, "now_us", lambda runtime: real(runtime) + int(by_s * 10**6))

    return set_ahead


@pytest.mark.parametrize("by_s", JUMPS)
def test_changed_log_is_looked_at_once_whatever_the_clock_says(
    write: Write, look: Tick, tick: Tick, jump: Callable[[float], None], by_s: float
) -> None:
    write("alpha")
    first = look()

    jump(by_s)
    write("alpha")
    second = look(first)
    again = tick(second)
    jump(0)
    back = tick(second)

    assert len(keys(second)) == 1
    assert (keys(again), keys(back)) == ([], [])


@pytest.mark.parametrize("by_s", JUMPS)
def test_round_over_many_logs_does_not_wait_for_a_time_that_the_clock_has_left(
    write: Write, tick: Tick, jump: Callable[[float], None], monkeypatch: pytest.MonkeyPatch, by_s: float
) -> None:
    """A round that began when the clock was ahead is no reason to wait until that time has come."""
    monkeypatch.setattr(triggers, "QUICK_LOGS_MAX", 0)
    monkeypatch.setattr(triggers, "PERIOD_S_PER_LOG", HOUR_S)
    write("alpha")
    before = tick()
    assert "not due yet" in str(tick(before).skip_reason)
    jump(by_s)
    begun = tick() if by_s > 0 else tick(before)
    jump(0)

    after = tick(begun)

    assert "not due yet" not in str(after.skip_reason)


@pytest.mark.parametrize("by_s", JUMPS)
def test_garbage_is_deleted_when_its_interval_is_over_by_the_store_s_clock(
    known: list[str],
    fleet: ObjectStore,
    run: Run,
    instance: DagsterInstance,
    jump: Callable[[float], None],
    by_s: float,
) -> None:
    def deletions() -> list[str | None]:
        resources = {"store": StoreResource.from_environment(), "collection": CollectionResource(interval_s=DAY_S)}
        with build_sensor_context(instance, resources=resources) as context:
            result = request_deletion(StoreScope(), context)
        assert isinstance(result, SensorResult)
        return keys(result)

    day = {"resources": {"collection": {"config": {"interval_s": float(DAY_S)}}}}
    CursorStore(fleet, "alpha").create("reader", LogPosition(4, 0))
    jump(by_s)

    pruned = run("", RunRequest(job_name="collection_sweep"))
    deleted = run("", RunRequest(job_name="deletion_sweep"), day)

    assert (pruned.success, deleted.success) == (True, True)
    assert deletions() == []
    jump(0)
    assert deletions() == []
    assert len(list(Deleter(fleet, "alpha").documents())) == 1
    assert known


@pytest.mark.parametrize("by_s", JUMPS[2:])
def test_marked_log_is_maintained_once_although_the_clock_jumps_between_two_ticks(
    fleet: ObjectStore, instance: DagsterInstance, jump: Callable[[float], None], by_s: float
) -> None:
    sensor = Sensor(instance, settings={**AT_ONCE, "period_s": 900.0})
    with Fleet.open(fleet, server="server-1", options=FleetOptions(creates=True)) as opened:
        opened.append("alpha", b"a record")
    sensor.tick()
    jump(by_s)
    for _ in range(3):
        sensor.tick()
    jump(0)
    for _ in range(3):
        sensor.tick()

    assert waiting(fleet) == {}
    assert sensor.maintained.count("maintenance_job: alpha") == 1
    assert "alpha" in instance.get_dynamic_partitions(LOGS_NAME)
