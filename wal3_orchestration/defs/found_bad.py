"""Logs that a sweep found bad: each gets a run of its own, so that its partition is red, and says what to do.

A sweep has no partitions, so that what it finds of a log is shown by its checks alone, and the page of the log would go
on showing what was found when it was sound. Only what changes nothing is run again: plans and verifications.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
from collections.abc import Iterator

from dagster import (
    AssetCheckSeverity,
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    Definitions,
    RunRequest,
    RunsFilter,
    RunStatusSensorContext,
    SensorDefinition,
    SkipReason,
    run_status_sensor,
)

from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, PLANNING
from wal3_orchestration.defs.garbage_collection.checks import PLAN
from wal3_orchestration.defs.maintenance import MAINTENANCE
from wal3_orchestration.defs.verification import JOB as VERIFYING
from wal3_orchestration.defs.verification import VERIFICATION
from wal3_orchestration.framework.assets import LogJob
from wal3_orchestration.framework.checks import FOUND, found_by_run
from wal3_orchestration.framework.readable import shortened
from wal3_orchestration.framework.recorder import latest
from wal3_orchestration.framework.scope import FOUND_BAD, PARTITION_TAG, REASON_TAG, StoreScope
from wal3_orchestration.framework.triggers import Workflow

# Which job shows what a check of an asset has found, and the jobs whose sweeps find it.
SHOWN_BY = {VERIFICATION.name: VERIFYING, PLAN: PLANNING}
SWEEPS = (VERIFYING, PLANNING, COLLECTION, MAINTENANCE)
PERIOD_S = 30
_REASON_CHARS_MAX = 500


def requests_of(scope: StoreScope, instance: DagsterInstance, run_id: str) -> Iterator[RunRequest]:
    """Ask for a run of each log that a sweep found so bad that it failed, unless its partition shows that already.

    A check names the first of them: the rest are as many as a sweep would be for.
    """
    known = set(scope.known_logs(instance))
    for check in found_by_run(instance, run_id):
        asset, found = check.asset_key.path[-1], check.metadata[FOUND].value
        job = SHOWN_BY.get(asset)
        if job is None or check.passed or check.severity is not AssetCheckSeverity.ERROR or not isinstance(found, list):
            continue
        for each in found:
            log, problem = str(each["log"]), str(each["problem"])
            reason = f"{FOUND_BAD} {check.check_name}: {shortened(problem)}"[:_REASON_CHARS_MAX]
            if log in known and not _is_shown(scope, instance, job, asset, log, reason):
                yield job.request(scope, log, run_key=f"{run_id}/{asset}/{log}", reason=reason)


def _is_shown(scope: StoreScope, instance: DagsterInstance, job: LogJob, asset: str, log: str, reason: str) -> bool:
    """Return whether the newest run of a log was for the same, and has not ended well, nor the log been sound since."""
    wanted = RunsFilter(job_name=job.job_name(scope), tags={PARTITION_TAG: log})
    for record in instance.get_run_records(wanted, limit=1):
        run = record.dagster_run
        if run.tags.get(REASON_TAG) != reason or run.status in (DagsterRunStatus.SUCCESS, DagsterRunStatus.CANCELED):
            return False
        begun_s = record.create_timestamp.timestamp()
        return not any(found.timestamp > begun_s for found in latest(instance, scope.key(asset), log, count=1))
    return False


def _sensor(scope: StoreScope) -> SensorDefinition:
    @run_status_sensor(
        run_status=DagsterRunStatus.FAILURE,
        name=scope.named("logs_found_bad"),
        description=(
            "Starts a run for each log that a sweep found damaged, or not safe to collect: its partition is red then,"
            " and shows the problem and the next command. For the first 20 logs of a sweep."
        ),
        minimum_interval_seconds=PERIOD_S,
        default_status=DefaultSensorStatus.RUNNING,
        monitored_jobs=[job.build(scope)[1] for job in SWEEPS],  # type: ignore[misc]  # see assets.Job
        request_jobs=[job.build(scope)[0] for job in SHOWN_BY.values()],  # type: ignore[misc]  # see assets.Job
        tags=scope.tags,
        metadata=scope.metadata,
    )
    def evaluate(context: RunStatusSensorContext) -> list[RunRequest] | SkipReason:
        run = context.dagster_run
        requests = list(requests_of(scope, context.instance, run.run_id))
        return requests or SkipReason(f"run {run.run_id} found no log bad that is not shown already")

    return evaluate


workflow = Workflow(further=lambda scope: Definitions(sensors=[_sensor(scope)]))
