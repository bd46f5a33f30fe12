"""Orphans: lists objects that nothing refers to, and marks them for deletion an interval later."""

from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    Definitions,
    MaterializeResult,
    Output,
)

from wal3_core.fleet.outcomes import LogOrphans
from wal3_core.spark.collect import list_orphans
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.building import LogAsset, LogCheck, LogJob, LogSchedule, build_jobs, build_schedule
from wal3_orchestration.defs.garbage_collection.alarms import many_orphans
from wal3_orchestration.defs.garbage_collection.work import mark_orphans, orphans_of
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.outcomes import Outcome, Verdict, fail_for, latest, record, record_checks, value_of
from wal3_orchestration.resources import CollectionResource, spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known

FEW = LogCheck(
    name="few_orphans",
    asset="marked_orphans",
    description="There are few uncommitted uploads, and their number does not keep rising.",
    section=Section.GARBAGE,
    next_command=("inspect", "LOG"),
)


def mark(
    scope: Scope, context: AssetExecutionContext
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation]:
    """Mark objects of each log of the step that nothing refers to, so that they are deleted an interval later."""
    limits = scope.collection(context)
    with retried_only_when_unavailable(context):
        opened, options = open_known(scope, context), limits.options()
        outcomes = [mark_orphans(opened, each, options) for each in _orphans(scope, context, opened)]
        before = {each.log: _counts(scope, context.instance, each.log) for each in outcomes}
        yield from record(context, outcomes)
        verdicts = [_verdict(each, before[each.log], limits) for each in outcomes if each.refusal is None]
        yield from record_checks(scope, context.instance, verdicts)
        fail_for(scope, Section.REFUSED, outcomes)


def _orphans(scope: Scope, context: AssetExecutionContext, store: ObjectStore) -> list[LogOrphans]:
    logs, limits = context.partition_keys, scope.collection(context)
    if len(logs) < limits.spark_logs_min:
        return [orphans_of(store, log, limits.options()) for log in logs]
    return list_orphans(spark_session(scope.spark(context)), scope.store(context).url, logs, limits.options())


def _counts(scope: Scope, instance: DagsterInstance, log: str) -> list[int]:
    """Return how many orphans the log's last listings found, newest first."""
    counts = (value_of(each, "orphans") for each in latest(instance, scope.key(FEW.asset), log, count=2))
    return [count for count in counts if isinstance(count, int)]


def _verdict(outcome: Outcome, before: Sequence[int], limits: CollectionResource) -> Verdict:
    count = outcome.metadata["orphans"]
    assert isinstance(count, int)
    return Verdict(check=FEW, log=outcome.log, problem=many_orphans([count, *before], limits))


MARKED = LogAsset(
    name="marked_orphans",
    step=mark,
    description="Objects of a log that nothing refers to, marked so that they are deleted an interval later.",
    deps=("manifest",),
    uses=("store", "spark", "collection"),
    pool="wal3_orphans",
    section=Section.GARBAGE,
    checks=(FEW,),
)
JOBS = (
    LogJob(
        name="orphans_job",
        assets=("marked_orphans",),
        description="Lists whole logs and marks orphans for deletion.",
    ),
)
WEEKLY = LogSchedule(
    name="weekly_orphans",
    job="orphans_job",
    cron="0 5 * * 0",
    description="Looks for orphans in every log, all in one run. Off until turned on: it lists the whole store.",
)


def workflow(scope: Scope) -> Definitions:
    """Return the asset with its check, its job and its schedule."""
    return Definitions.merge(
        build_jobs(scope, JOBS),
        Definitions(assets=[MARKED.build(scope)], schedules=[build_schedule(scope, WEEKLY)]),
    )
