"""Assets of every log, and the jobs that do their steps: for logs that are chosen, and as sweeps over many.

The job of an asset works on partitions. Dagster writes an event for each partition that such a run is about,
before it even begins. So what goes over many logs is a sweep: the same steps as operations, without partitions.
Names, owners, tags, descriptions and links are added here, so that no definition lacks them.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from dagster import (
    AssetExecutionContext,
    AssetsDefinition,
    AssetSelection,
    BackfillPolicy,
    DependencyDefinition,
    Field,
    FreshnessPolicy,
    GraphDefinition,
    In,
    JobDefinition,
    MultiDependencyDefinition,
    Nothing,
    OpDefinition,
    OpExecutionContext,
    Out,
    Output,
    RunRequest,
    asset,
    define_asset_job,
    in_process_executor,
    op,
)

from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.checks import checks_of
from wal3_orchestration.framework.recorder import Recorder
from wal3_orchestration.framework.runbook import Section, link
from wal3_orchestration.framework.scope import LOG_TAG, REASON_TAG, StoreScope
from wal3_orchestration.framework.step import LOGS_FIELD, Step, retried_only_when_unavailable

# Dagster does not export the class of a job whose assets are not resolved yet.
Job = object

# The output and the input that only order the operations of a sweep.
DONE, AFTER = "done", "after"
# Logs that get runs of their own, which show each log's failure under its partition; more share a sweep.
RUNS_OF_ONE_LOG_MAX = 4
LOGS_PER_RUN_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAsset:
    """An asset of every log: its name and group, the assets before it, its resources, its section of the runbook.

    ``do`` does the step for a slice of its logs, or for the ``whole``, and hands what it finds to the recorder.
    """

    name: str
    do: Callable[[Step, ObjectStore, Recorder], None]
    description: str
    section: Section
    group: str
    whole: bool = False
    deps: tuple[str, ...] = ()
    uses: tuple[str, ...] = ("store",)
    pool: str | None = None
    freshness: FreshnessPolicy | None = None

    def build(self, scope: StoreScope) -> AssetsDefinition:
        """Return the asset of one store."""
        checks = [check.build(scope) for check in checks_of(self.name)]

        @asset(
            key=scope.key(self.name),
            # What no other asset comes before reads the logs themselves.
            deps=scope.keys(self.deps) if self.deps else [scope.log_key(each.log) for each in scope.lineage],
            check_specs=checks,
            partitions_def=scope.logs,
            group_name=scope.named(self.group),
            backfill_policy=BackfillPolicy.single_run(),
            pool=None if self.pool is None else scope.named(self.pool),
            # A step with checks may end without a materialization of a log that failed one.
            output_required=not checks,
            kinds=scope.kinds(self.uses),
            description=self.description,
            owners=scope.owners,
            tags=scope.tags,
            metadata={**scope.metadata, "runbook": link(scope, self.section)},
            freshness_policy=self.freshness,
            required_resource_keys={scope.named(name) for name in self.uses},
        )
        def compute(context: AssetExecutionContext) -> Iterator[object]:
            yield from self._run(Step(scope=scope, context=context, asset=self.name, logs=context.partition_keys))

        return compute

    def build_operation(self, scope: StoreScope, name: str, *, waits: bool, last: bool) -> OpDefinition:
        """Return the operation that does the asset's step in a sweep, after others or not; none waits for ``last``."""
        logs = Field([str], is_required=False, description="The logs; all known ones without it.")

        @op(
            name=name,
            ins={AFTER: In(Nothing)} if waits else {},
            out={DONE: Out(Nothing)},
            config_schema={LOGS_FIELD: logs},
            pool=None if self.pool is None else scope.named(self.pool),
            description=self.description,
            tags=scope.tags,
            required_resource_keys={scope.named(name) for name in self.uses},
        )
        def compute(context: OpExecutionContext) -> Iterator[object]:
            yield from self._run(Step.of_sweep(scope, context, self.name, last=last))
            yield Output(None, output_name=DONE)

        return compute

    def _run(self, step: Step) -> Iterator[object]:
        recorder = Recorder(step)
        with retried_only_when_unavailable(step.context):
            store = step.open()
            for some in [step] if self.whole else step.slices():
                self.do(some, store, recorder)
            yield from recorder.finish()
            recorder.fail(self.section)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogJob:
    """Steps that are done together: ``NAME_job`` for logs that are chosen, ``NAME_sweep`` for all or many.

    Each run is one process, with one Spark session at most. A step waits for those of the job's steps that its asset
    depends on, and for no others: where one fails, the steps beside it are done.
    """

    name: str
    assets: tuple[LogAsset, ...]
    description: str

    def job_name(self, scope: StoreScope) -> str:
        """Return the name of the job for logs that are chosen."""
        return scope.named(f"{self.name}_job")

    def sweep_name(self, scope: StoreScope) -> str:
        """Return the name of the job for many logs."""
        return scope.named(f"{self.name}_sweep")

    def build(self, scope: StoreScope) -> list[Job]:
        """Return both jobs of one store: the same objects each time, as sensors and jobs must share them."""
        names = tuple(each.name for each in self.assets)
        return [_asset_job(scope, f"{self.name}_job", names, self.description), _sweep(self, scope)]

    def request(self, scope: StoreScope, log: str, *, run_key: str, reason: str) -> RunRequest:
        """Ask for a run of one log, under its partition."""
        tags = {LOG_TAG: scope.log_tag(log), REASON_TAG: reason}
        return RunRequest(run_key=run_key, job_name=self.job_name(scope), partition_key=log, tags=tags)

    def request_sweep(
        self, scope: StoreScope, logs: Sequence[str] | None = None, *, run_key: str | None = None, reason: str = ""
    ) -> RunRequest:
        """Ask for a sweep over some logs, or over all that are known when it starts."""
        given = {} if logs is None else {"config": {LOGS_FIELD: list(logs)}}
        config = {"ops": {self.operation_name(scope, each): given for each in self.assets}} if given else {}
        tags = {REASON_TAG: reason} if reason else {}
        return RunRequest(run_key=run_key, job_name=self.sweep_name(scope), run_config=config, tags=tags)

    def operation_name(self, scope: StoreScope, asset: LogAsset) -> str:
        """Return the name of an asset's step in the sweep."""
        return f"{self.sweep_name(scope)}_{asset.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreJob:
    """A job of assets without partitions, which are about the store as a whole."""

    name: str
    assets: tuple[str, ...]
    description: str

    def build(self, scope: StoreScope) -> list[Job]:
        """Return the job of one store: the same object each time, as a sensor and the definitions must share it."""
        return [_asset_job(scope, self.name, self.assets, self.description)]

    def request(self, scope: StoreScope, *, run_key: str, reason: str) -> RunRequest:
        """Ask for a run."""
        return RunRequest(run_key=run_key, job_name=scope.named(self.name), tags={REASON_TAG: reason})


def request_runs(
    scope: StoreScope, job: LogJob, keys: Mapping[str, str], reason: str, *, alone_max: int = RUNS_OF_ONE_LOG_MAX
) -> list[RunRequest]:
    """Ask for runs over logs: up to ``alone_max`` logs get one each, under their partitions; more share sweeps.

    ``keys`` says for each log what the run is for: the same logs with the same keys ask for the same runs,
    which Dagster starts once.
    """
    if len(keys) <= alone_max:
        return [job.request(scope, log, run_key=f"{job.name}/{key}", reason=reason) for log, key in keys.items()]
    logs = list(keys)
    requests = []
    for start in range(0, len(logs), LOGS_PER_RUN_MAX):
        batch = logs[start : start + LOGS_PER_RUN_MAX]
        digest = hashlib.sha256("\n".join(f"{log} {keys[log]}" for log in batch).encode()).hexdigest()
        requests.append(job.request_sweep(scope, batch, run_key=f"{job.name}/{digest}", reason=reason))
    return requests


@cache
def _asset_job(scope: StoreScope, name: str, assets: tuple[str, ...], description: str) -> Job:
    return define_asset_job(
        scope.named(name),
        selection=AssetSelection.assets(*scope.keys(assets)),
        description=description,
        tags=scope.tags,
        metadata=scope.metadata,
        # Steps pass no data to each other.
        executor_def=in_process_executor,
    )


@cache
def _sweep(job: LogJob, scope: StoreScope) -> JobDefinition:
    name, names = job.sweep_name(scope), {each.name: job.operation_name(scope, each) for each in job.assets}
    before = {each.name: [names[dep] for dep in each.deps if dep in names] for each in job.assets}
    awaited = {dep for each in job.assets for dep in each.deps}
    return GraphDefinition(
        name=name,
        node_defs=[
            each.build_operation(scope, names[each.name], waits=bool(before[each.name]), last=each.name not in awaited)
            for each in job.assets
        ],
        dependencies={
            names[asset]: {
                AFTER: MultiDependencyDefinition([DependencyDefinition(earlier, DONE) for earlier in earliest])
            }
            for asset, earliest in before.items()
            if earliest
        },
    ).to_job(
        name=name,
        description=(
            f"{job.description} For all known logs, or those that the configuration names. Records the whole, and the"
            " logs that changed."
        ),
        tags=scope.tags,
        metadata=scope.metadata,
        executor_def=in_process_executor,
    )
