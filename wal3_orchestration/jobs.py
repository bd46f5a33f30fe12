"""Jobs of a store's assets: for logs that are chosen, and as a sweep over many; and the requests for their runs.

The job of an asset works on partitions. Dagster writes an event for each partition that such a run is about,
before it even begins. So what goes over many logs is a sweep: the same steps as operations, without partitions.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from dagster import (
    AssetSelection,
    Definitions,
    DependencyDefinition,
    GraphDefinition,
    MultiDependencyDefinition,
    RunRequest,
    define_asset_job,
    in_process_executor,
)

from wal3_orchestration.building import AFTER, DONE
from wal3_orchestration.partitions import LOG_TAG
from wal3_orchestration.work import LOGS_FIELD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from dagster import JobDefinition

    from wal3_orchestration.building import LogAsset
    from wal3_orchestration.scope import Scope

    # Dagster does not export the class of a job whose assets are not resolved yet.
    Job = object

# Why a run was asked for.
REASON_TAG = "wal3/reason"
# So few logs get runs of their own, which show each log's failure under its partition.
RUNS_OF_ONE_LOG_MAX = 4
LOGS_PER_RUN_MAX = 500


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogJob:
    """Steps that are done together: ``NAME_job`` for logs that are chosen, ``NAME_sweep`` for all or many.

    Each run is one process, with one Spark session at most. A step waits for those of the job's steps that its asset
    depends on, and for no others: where one fails, the steps beside it are done.
    """

    name: str
    assets: tuple[LogAsset, ...]
    description: str

    def job_name(self, scope: Scope) -> str:
        """Return the name of the job for chosen logs."""
        return scope.named(f"{self.name}_job")

    def sweep_name(self, scope: Scope) -> str:
        """Return the name of the job for many logs."""
        return scope.named(f"{self.name}_sweep")

    def build(self, scope: Scope) -> list[Job]:
        """Return both jobs of one store: the same objects each time, as sensors and jobs must share them."""
        return [_chosen(self, scope), _sweep(self, scope)]

    def request(self, scope: Scope, log: str, *, run_key: str, reason: str) -> RunRequest:
        """Ask for a run of one log, under its partition."""
        one = f"{scope.name}:{log}" if scope.name else log
        tags = {LOG_TAG: one, REASON_TAG: reason}
        return RunRequest(run_key=run_key, job_name=self.job_name(scope), partition_key=log, tags=tags)

    def request_sweep(
        self, scope: Scope, logs: Sequence[str] | None = None, *, run_key: str | None = None, reason: str = ""
    ) -> RunRequest:
        """Ask for a sweep over some logs, or over all that are known when it starts."""
        given = {} if logs is None else {"config": {LOGS_FIELD: list(logs)}}
        config = {"ops": {self.operation_name(scope, each): given for each in self.assets}} if given else {}
        tags = {REASON_TAG: reason} if reason else {}
        return RunRequest(run_key=run_key, job_name=self.sweep_name(scope), run_config=config, tags=tags)

    def operation_name(self, scope: Scope, asset: LogAsset) -> str:
        """Return the name of an asset's step in the sweep."""
        return f"{self.sweep_name(scope)}_{asset.name}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreJob:
    """A job of assets without partitions, which are about the store as a whole."""

    name: str
    assets: tuple[str, ...]
    description: str

    def build(self, scope: Scope) -> list[Job]:
        """Return the job of one store: the same object each time, as a sensor and the definitions must share it."""
        return [_whole(self, scope)]

    def request(self, scope: Scope, *, run_key: str, reason: str) -> RunRequest:
        """Ask for a run."""
        return RunRequest(run_key=run_key, job_name=scope.named(self.name), tags={REASON_TAG: reason})


def request_runs(
    scope: Scope, job: LogJob, keys: Mapping[str, str], reason: str, *, alone_max: int = RUNS_OF_ONE_LOG_MAX
) -> list[RunRequest]:
    """Ask for runs over logs: up to ``alone_max`` logs get one each, under their partitions; more share sweeps.

    ``keys`` says for each log what the run is for: the same logs with the same keys ask for the same runs,
    which Dagster starts once.
    """
    if len(keys) <= alone_max:
        return [job.request(scope, log, run_key=f"{job.name}/{key}", reason=reason) for log, key in keys.items()]
    logs = list(keys)
    batches = [logs[start : start + LOGS_PER_RUN_MAX] for start in range(0, len(logs), LOGS_PER_RUN_MAX)]
    return [
        job.request_sweep(scope, batch, run_key=f"{job.name}/{_digest(keys, batch)}", reason=reason)
        for batch in batches
    ]


def build_jobs(scope: Scope, jobs: Iterable[LogJob | StoreJob]) -> Definitions:
    """Return the jobs of one store."""
    return Definitions(jobs=[built for job in jobs for built in job.build(scope)])  # type: ignore[misc]  # see Job


def _digest(keys: Mapping[str, str], batch: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(f"{log} {keys[log]}" for log in batch).encode()).hexdigest()


@cache
def _chosen(job: LogJob, scope: Scope) -> Job:
    return define_asset_job(
        job.job_name(scope),
        selection=AssetSelection.assets(*scope.keys(each.name for each in job.assets)),
        description=job.description,
        tags=scope.tags,
        metadata=scope.metadata,
        # Steps pass no data to each other.
        executor_def=in_process_executor,
    )


@cache
def _whole(job: StoreJob, scope: Scope) -> Job:
    return define_asset_job(
        scope.named(job.name),
        selection=AssetSelection.assets(*scope.keys(job.assets)),
        description=job.description,
        tags=scope.tags,
        metadata=scope.metadata,
        executor_def=in_process_executor,
    )


@cache
def _sweep(job: LogJob, scope: Scope) -> JobDefinition:
    name, names = job.sweep_name(scope), {each.name: job.operation_name(scope, each) for each in job.assets}
    before = {each.name: [names[dep] for dep in each.deps if dep in names] for each in job.assets}
    awaited = {dep for each in job.assets for dep in each.deps}
    return GraphDefinition(
        name=name,
        node_defs=[
            each.build_operation(scope, names[each.name], first=not before[each.name], last=each.name not in awaited)
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
