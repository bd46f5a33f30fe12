"""A run that failed, executed again from its failed steps, as Dagster's own retries do."""

from __future__ import annotations

from collections.abc import Callable

from dagster import DagsterInstance, JobDefinition, JobExecutionResult, ReexecutionOptions, execute_job, reconstructable
from dagster._core.definitions.reconstruct import ReconstructableJob

from wal3_orchestration.definitions import defs


def compaction_sweep() -> JobDefinition:
    return defs().resolve_job_def("compaction_sweep")


def deletion_sweep() -> JobDefinition:
    return defs().resolve_job_def("deletion_sweep")


def execute_again(job: Callable[[], JobDefinition], run_id: str, instance: DagsterInstance) -> JobExecutionResult:
    """Execute a failed run of one of the jobs above again, in this process."""
    # Dagster keeps the job that it made last, whose store is that of the test before.
    ReconstructableJob.get_definition.cache_clear()
    ReconstructableJob.get_repository_definition.cache_clear()
    options = ReexecutionOptions.from_failure(run_id, instance)
    return execute_job(reconstructable(job), instance, reexecution_options=options, raise_on_error=False)
