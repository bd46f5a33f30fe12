"""Sensors and schedules that fail are posted, and a killed run with what killed it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import (
    DagsterEventType,
    DagsterInstance,
    RunsFilter,
    SensorResult,
    build_run_status_sensor_context,
    build_sensor_context,
)
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._utils.error import SerializableErrorInfo

from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.alerts import SENSOR_TICKS, TICKS_AGAIN_S, alert, alert_ticks
from wal3_orchestration.framework.scope import StoreScope

if TYPE_CHECKING:
    from tests.orchestration.webhook import Webhook

FAILED, GOOD = TickStatus.FAILURE, TickStatus.SKIPPED
SENSOR, SCHEDULE = InstigatorType.SENSOR, InstigatorType.SCHEDULE


class Ticks:
    """Ticks as the daemon stores them, and the sensor that looks at them."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._time_s = 1_000.0

    def store(
        self, name: str, kind: InstigatorType, statuses: Sequence[TickStatus], *, location: str = "wal3"
    ) -> InstigatorState:
        """Store ticks of a sensor or schedule of a code location; return its state."""
        code = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="m"), location_name=location)
        origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(code, "__repository__"), name)
        data = SensorInstigatorData() if kind is SENSOR else ScheduleInstigatorData("0 4 * * *")
        state = InstigatorState(origin, kind, InstigatorStatus.DECLARED_IN_CODE, data)
        if self._instance.get_instigator_state(origin.get_id(), state.selector_id) is None:
            self._instance.add_instigator_state(state)
        for status in statuses:
            self._time_s += 30
            below = SerializableErrorInfo("store s3://b: no answer\n", [], "UnavailableError")
            error = SerializableErrorInfo("Error in the sensor", [], "SensorExecutionError", cause=below)
            self._instance.create_tick(
                TickData(
                    origin.get_id(),
                    name,
                    kind,
                    status,
                    self._time_s,
                    error=error if status is FAILED else None,
                    selector_id=state.selector_id,
                )
            )
        return state

    def look(self, before: SensorResult | None = None) -> SensorResult:
        repository = defs().get_repository_def()
        cursor = None if before is None else before.cursor
        with build_sensor_context(self._instance, cursor=cursor, repository_def=repository) as context:
            return alert_ticks(_scope(), context)


def _scope() -> StoreScope:
    return StoreScope(store_url=str(defs().get_sensor_def("discovery").metadata["store"].value))


@pytest.fixture
def ticks(dagster_home: Path, instance: DagsterInstance) -> Ticks:  # noqa: ARG001 - only a stored instance keeps ticks
    return Ticks(instance)


@pytest.mark.slow
def test_sensor_is_posted_when_its_last_ticks_failed_with_the_cause_and_once_a_day(
    ticks: Ticks, webhook: Webhook
) -> None:
    ticks.store("discovery", SENSOR, [GOOD] + [FAILED] * (SENSOR_TICKS - 1))
    early = ticks.look()
    ticks.store("discovery", SENSOR, [FAILED])
    first = ticks.look(early)
    again = ticks.look(first)
    day_ago = {name: posted_s - TICKS_AGAIN_S for name, posted_s in json.loads(again.cursor or "{}").items()}

    ticks.look(SensorResult(cursor=json.dumps(day_ago)))

    texts = [each["text"] for each in webhook.posted]
    assert len(texts) == 2
    assert "discovery: store s3://b: no answer" in texts[0].splitlines()
    assert "runbook: docs/operations.md" in texts[0]


@pytest.mark.slow
def test_sensor_whose_ticks_succeed_again_is_posted_again_when_they_fail(ticks: Ticks, webhook: Webhook) -> None:
    ticks.store("deletion", SENSOR, [FAILED] * SENSOR_TICKS)
    first = ticks.look()
    ticks.store("deletion", SENSOR, [GOOD])
    good = ticks.look(first)
    ticks.store("deletion", SENSOR, [FAILED] * SENSOR_TICKS)
    ticks.look(good)

    assert json.loads(good.cursor or "") == {}
    assert len(webhook.posted) == 2


@pytest.mark.slow
def test_one_failed_tick_of_a_schedule_is_posted(ticks: Ticks, webhook: Webhook) -> None:
    ticks.store("daily_collection", SCHEDULE, [FAILED])

    ticks.look()

    (posted,) = webhook.posted
    assert "daily_collection: store s3://b: no answer" in posted["text"]


@pytest.mark.slow
def test_ticks_of_stopped_sensors_and_of_others_are_not_posted(
    ticks: Ticks, webhook: Webhook, instance: DagsterInstance
) -> None:
    stopped = ticks.store("pruning", SENSOR, [FAILED] * SENSOR_TICKS)
    instance.update_instigator_state(stopped.with_status(InstigatorStatus.STOPPED))
    ticks.store("somebody_s", SENSOR, [FAILED] * SENSOR_TICKS)

    ticks.look()

    assert webhook.posted == []


@pytest.mark.slow
def test_killed_run_is_posted_with_what_killed_it(instance: DagsterInstance, webhook: Webhook) -> None:
    run = instance.create_run_for_job(defs().resolve_job_def("manifest_job"), tags=StoreScope().tags)
    instance.report_run_failed(run, "Run worker process 4711 was killed by signal 9")
    failed = instance.get_runs(RunsFilter(run_ids=[run.run_id]))[0]
    (entry,) = instance.all_logs(run.run_id, of_type=DagsterEventType.RUN_FAILURE)
    assert entry.dagster_event is not None

    alert(StoreScope(), build_run_status_sensor_context("alert", entry.dagster_event, instance, failed))

    (posted,) = webhook.posted
    assert posted["text"].splitlines()[1] == "Run worker process 4711 was killed by signal 9"
