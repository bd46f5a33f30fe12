"""Builds Dagster's definitions for one store.

Names, owners, tags, descriptions and links are added here, so that no definition lacks them.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    AssetsDefinition,
    AssetSelection,
    BackfillPolicy,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    Definitions,
    FreshnessPolicy,
    MaterializeResult,
    Output,
    RunRequest,
    ScheduleDefinition,
    ScheduleEvaluationContext,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    asset,
    define_asset_job,
    in_process_executor,
    schedule,
    sensor,
)

from wal3_orchestration.partitions import run_request
from wal3_orchestration.runbook import Section, link
from wal3_orchestration.scope import Scope

Event = AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation
Step = Callable[[Scope, AssetExecutionContext], Iterator[Event]]
Tick = Callable[[Scope, SensorEvaluationContext], SensorResult]

_DAGSTER = Section.DAGSTER


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAsset:
    """An asset of every log: its name and step, the assets before it, its checks, and the resources it uses."""

    name: str
    step: Step
    description: str
    deps: tuple[str, ...] = ()
    uses: tuple[str, ...] = ("store",)
    checks: tuple["LogCheck", ...] = ()
    pool: str | None = None
    freshness: FreshnessPolicy | None = None
    section: Section = _DAGSTER

    def build(self, scope: Scope) -> AssetsDefinition:
        """Return the asset of one store."""

        @asset(
            key=scope.key(self.name),
            deps=scope.keys(self.deps),
            check_specs=[check.build(scope) for check in self.checks],
            partitions_def=scope.logs,
            group_name=scope.group,
            backfill_policy=BackfillPolicy.single_run(),
            pool=None if self.pool is None else scope.named(self.pool),
            # A step with checks may end without a materialization of a log that failed one.
            output_required=not self.checks,
            kinds={"wal3", "pyspark"} if "spark" in self.uses else {"wal3"},
            description=self.description,
            owners=scope.owners,
            tags=scope.tags,
            metadata={**scope.metadata, "runbook": link(scope, self.section)},
            freshness_policy=self.freshness,
            required_resource_keys={scope.named(name) for name in self.uses},
        )
        def compute(context: AssetExecutionContext) -> Iterator[Event]:
            yield from self.step(scope, context)

        return compute


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCheck:
    """A check of an asset, with a result for each log, or one for all; a failure names a section and a command."""

    name: str
    asset: str
    description: str
    section: Section
    # LOG stands for the log's name.
    next_command: tuple[str, ...]
    blocking: bool = False
    of_all_logs: bool = False

    def build(self, scope: Scope) -> AssetCheckSpec:
        """Return the check of one store."""
        return AssetCheckSpec(
            self.name,
            asset=scope.key(self.asset),
            blocking=self.blocking,
            # By partition: a sound log's result must not hide a damaged one's.
            partitions_def=None if self.of_all_logs else scope.logs,
            description=self.description,
            metadata={"runbook": link(scope, self.section)},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogJob:
    """A job over some assets; each of its runs is one process, with one Spark session at most."""

    name: str
    assets: tuple[str, ...]
    description: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSensor:
    """A sensor that starts a job; ``uses`` names its resources."""

    name: str
    tick: Tick
    job: str
    period_s: int
    description: str
    uses: tuple[str, ...] = ("store",)
    running: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSchedule:
    """A schedule of one run over every log; it is off until someone turns it on."""

    name: str
    job: str
    cron: str
    description: str
    tags: Mapping[str, str] = field(default_factory=dict)


def build_jobs(scope: Scope, jobs: Iterable[LogJob]) -> Definitions:
    """Return the jobs of one store."""
    return Definitions(
        jobs=[
            define_asset_job(
                scope.named(job.name),
                selection=AssetSelection.assets(*scope.keys(job.assets)),
                description=job.description,
                tags=scope.tags,
                metadata=scope.metadata,
                # Steps pass no data to each other.
                executor_def=in_process_executor,
            )
            for job in jobs
        ]
    )


def build_sensor(scope: Scope, described: LogSensor) -> SensorDefinition:
    """Return a sensor of one store."""

    @sensor(
        name=scope.named(described.name),
        job_name=scope.named(described.job),
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
        job_name=scope.named(described.job),
        cron_schedule=described.cron,
        description=described.description,
        default_status=DefaultScheduleStatus.STOPPED,
        metadata=scope.metadata,
    )
    def request(context: ScheduleEvaluationContext) -> RunRequest | SkipReason:
        logs = scope.known_logs(context.instance)
        if not logs:
            return SkipReason("no logs: the discovery sensor has found none yet")
        return run_request(logs[0], logs[-1], tags=described.tags, store_name=scope.name)

    return request
