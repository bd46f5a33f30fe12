"""Builds what starts runs: the sensors and schedules of one store."""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dagster import (
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    schedule,
    sensor,
)

from wal3_orchestration.jobs import LogJob, StoreJob
from wal3_orchestration.scope import Scope

Tick = Callable[[Scope, SensorEvaluationContext], SensorResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSensor:
    """A sensor that starts jobs for few logs, or their sweeps for many; ``uses`` names its resources."""

    name: str
    tick: Tick
    jobs: tuple[LogJob | StoreJob, ...]
    period_s: int
    description: str
    uses: tuple[str, ...] = ("store",)
    running: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchedule:
    """A schedule of one sweep over every log; it is off until someone turns it on."""

    name: str
    job: LogJob
    cron: str
    description: str
    tags: Mapping[str, str] = field(default_factory=dict)


def build_sensor(scope: Scope, described: LogSensor) -> SensorDefinition:
    """Return a sensor of one store."""

    @sensor(
        name=scope.named(described.name),
        jobs=[built for job in described.jobs for built in job.build(scope)],  # type: ignore[misc]  # see jobs.Job
        minimum_interval_seconds=described.period_s,
        default_status=DefaultSensorStatus.RUNNING if described.running else DefaultSensorStatus.STOPPED,
        description=described.description,
        tags=scope.tags,
        metadata=scope.metadata,
        required_resource_keys={scope.named(name) for name in described.uses},
    )
    def evaluate(context: SensorEvaluationContext) -> SensorResult:
        return described.tick(scope, context)

    return evaluate


def build_schedule(scope: Scope, described: LogSchedule) -> ScheduleDefinition:
    """Return a schedule of one store."""

    @schedule(
        name=scope.named(described.name),
        job_name=described.job.sweep_name(scope),
        cron_schedule=described.cron,
        description=described.description,
        default_status=DefaultScheduleStatus.STOPPED,
        metadata=scope.metadata,
    )
    def request(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        if not scope.known_logs(context.instance):
            return SkipReason("no logs: the discovery sensor has found none yet")
        return RunRequest(tags=dict(described.tags))

    return request
