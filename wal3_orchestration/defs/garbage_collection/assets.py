"""Collection: plan, verify, prune; an interval later, delete. Every step can be repeated, and run by two at once.

The schedule plans for all logs in one run. A sensor then requests a run for each log with garbage,
which plans again, verifies, announces and prunes. Another sensor requests the deletion when the
interval is over. Steps share only the store's content and the plan's metadata; the manifest's CAS
keeps them safe, not the order of runs.
"""

import json
from collections.abc import Iterator

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    DagsterInstance,
    Definitions,
    MaterializeResult,
    MetadataValue,
    Output,
)

from wal3_core.fleet.survey import Survey, survey_log
from wal3_core.log.collect.planner import Plan
from wal3_core.model import strict_json
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.spark.collect import plan_collections
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.building import LogAsset, LogCheck, LogJob, LogSchedule, build_jobs, build_schedule
from wal3_orchestration.defs.garbage_collection.alarms import never_pruned, overdue, stuck_cursors, too_much_garbage
from wal3_orchestration.defs.garbage_collection.work import delete_log, delete_logs, prune_log
from wal3_orchestration.failures import raise_together, retried_only_when_unavailable
from wal3_orchestration.outcomes import (
    HERE,
    ON_SPARK,
    Outcome,
    Value,
    Verdict,
    fail_for,
    fail_for_blocked,
    latest,
    record,
    record_checks,
    value_of,
)
from wal3_orchestration.partitions import COLLECT_TAG
from wal3_orchestration.resources import CollectionResource, spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known

_PLAN_BYTES_MAX = 2**20
PLAN, PRUNED, DELETED = "garbage_plan", "pruned_manifest", "deleted_garbage"

SAFE = LogCheck(
    name="safe_to_collect",
    asset="garbage_plan",
    blocking=True,
    description="Setsums balance, no cursor is below the cutoff, and no more is pruned than is allowed.",
    section=Section.REFUSED,
    next_command=("gc", "LOG", "--dry-run"),
)
FRACTION = LogCheck(
    name="little_garbage",
    asset="garbage_plan",
    description="The garbage is not a large part of the log.",
    section=Section.GARBAGE,
    next_command=("gc", "LOG", "--dry-run"),
)
IN_TIME = LogCheck(
    name="collected_in_time",
    asset="garbage_plan",
    description="Planned and announced garbage is pruned in time, and pruned garbage is deleted in time.",
    section=Section.GARBAGE,
    next_command=("pin", "list", "LOG"),
)
CURSORS_MOVE = LogCheck(
    name="cursors_move",
    asset="garbage_plan",
    description="No cursor stands still while the log grows.",
    section=Section.CURSOR,
    next_command=("cursor", "list", "LOG"),
)


def plan_garbage(
    scope: Scope, context: AssetExecutionContext
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation]:
    """Plan for each log of the step, and judge the plans."""
    logs, limits = context.partition_keys, scope.collection(context)
    with retried_only_when_unavailable(context):
        way, surveys = _surveys(scope, context, open_known(scope, context))
        lost = {each.log: each.refusal.message for each in surveys if each.refusal and each.refusal.transient}
        ages_s = {each.log: _unpruned_s(scope, context.instance, each.log, limits) for each in surveys}
        yield from record(context, [_planned(each, way) for each in surveys if each.refusal is None or each.unclaimed])
        judged = [each for each in surveys if each.log not in lost]
        verdicts = [verdict for each in judged for verdict in _verdicts(each, limits, ages_s[each.log])]
        yield from record_checks(scope, context.instance, verdicts)
        raise_together(lost, len(logs), transient=True)
    fail_for_blocked(scope, verdicts, len(logs))


def _surveys(scope: Scope, context: AssetExecutionContext, store: ObjectStore) -> tuple[str, list[Survey]]:
    logs, limits = context.partition_keys, scope.collection(context)
    if len(logs) < limits.spark_logs_min:
        return HERE, [survey_log(store, log, limits.options()) for log in logs]
    spark = spark_session(scope.spark(context))
    return ON_SPARK, plan_collections(spark, scope.store(context).url, logs, limits.options())


def _planned(survey: Survey, way: str) -> Outcome:
    plan = survey.plan
    waiting: dict[str, Value] = {
        "garbage_documents": len(survey.documents),
        "due": survey.due,
        "done_by": way,
    }
    if plan is None:
        assert survey.refusal is not None
        return Outcome(log=survey.log, metadata={**waiting, "records": 0, "reason": survey.refusal.message})
    named = (age.name for age in survey.cursors if plan.reason.startswith(f"cursor {age.name} "))
    return Outcome(
        log=survey.log,
        metadata={
            **waiting,
            "records": plan.num_records,
            "bytes": plan.num_bytes,
            "fragments": plan.num_fragments,
            "fraction (of bytes)": plan.fraction,
            "setsum": plan.setsum.hexdigest(),
            "reason": plan.reason,
            "cutoff_cursor": next(named, ""),
            "cutoff_offset": plan.first.position.offset,
            "plan": MetadataValue.json(plan.to_json()),
        },
    )


def _unpruned_s(scope: Scope, instance: DagsterInstance, log: str, limits: CollectionResource) -> float | None:
    """Return the age of the newest old plan; None when it found nothing, or the log was pruned since."""
    now_s = shared_runtime().now_us() / US_PER_S
    before = AssetRecordsFilter(scope.key(PLAN), asset_partitions=[log], before_timestamp=now_s - limits.planned_s_max)
    pruned = latest(instance, scope.key(PRUNED), log, count=1)
    pruned_s = max((each.timestamp for each in pruned), default=0)
    for planned in instance.fetch_materializations(before, limit=1).records:
        if value_of(planned, "due") and planned.timestamp > pruned_s:
            return now_s - planned.timestamp
    return None


def _verdicts(survey: Survey, limits: CollectionResource, unpruned_s: float | None) -> Iterator[Verdict]:
    refusal, log = survey.refusal, survey.log
    # A log without cursors keeps everything, as it should.
    blocking = refusal is not None and not survey.unclaimed
    plan = survey.plan
    cutoff: dict[str, Value] = {} if plan is None else {"cutoff_offset": plan.first.position.offset}
    refused = None if refusal is None else refusal.message
    yield Verdict(check=SAFE, log=log, problem=refused, blocking=blocking, details=cutoff)
    yield Verdict(check=FRACTION, log=log, problem=too_much_garbage(survey, limits), details=cutoff)
    yield Verdict(check=IN_TIME, log=log, problem=overdue(survey, limits) or never_pruned(survey, unpruned_s))
    yield Verdict(check=CURSORS_MOVE, log=log, problem=stuck_cursors(survey, limits))


def prune(
    scope: Scope, context: AssetExecutionContext
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Finish what other runs left half done, then announce each log's plan and advance the manifest's `first`."""
    with retried_only_when_unavailable(context):
        opened, options = open_known(scope, context), scope.collection(context).options()
        outcomes = [prune_log(opened, log, _plan(scope, context, log), options) for log in context.partition_keys]
        yield from record(context, outcomes)
        fail_for(scope, Section.REFUSED, outcomes)


def _plan(scope: Scope, context: AssetExecutionContext, log: str) -> Plan | None:
    """Read the plan that was checked; None when nothing was planned."""
    for planned in latest(context.instance, scope.key(PLAN), log, count=1):
        value = value_of(planned, "plan")
        if value is not None:
            text = json.dumps(value).encode()
            return Plan.from_json(strict_json.load(text, what=f"log {log}: plan", bytes_max=_PLAN_BYTES_MAX))
    return None


def delete(
    scope: Scope, context: AssetExecutionContext
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Delete what was marked an interval ago; younger garbage waits and is counted."""
    store, limits, logs = scope.store(context), scope.collection(context), context.partition_keys
    with retried_only_when_unavailable(context):
        opened, options = open_known(scope, context), limits.options()
        due = [delete_log(opened, log, options, objects_max=limits.spark_objects_min) for log in logs]
        large = [each for each in due if each.on_spark]
        done = delete_logs(spark_session(scope.spark(context)), store.url, large, options) if large else {}
        outcomes = [done.get(each.log, each.outcome) for each in due]
        yield from record(context, outcomes)
        fail_for(scope, Section.REFUSED, outcomes)


ASSETS = (
    LogAsset(
        name=PLAN,
        step=plan_garbage,
        description=(
            "What can be pruned from a log, up to which cursor, and why. Planning changes nothing; the checks judge"
            " the plan."
        ),
        deps=("manifest",),
        uses=("store", "spark", "collection"),
        section=Section.GARBAGE,
        checks=(SAFE, FRACTION, IN_TIME, CURSORS_MOVE),
    ),
    LogAsset(
        name=PRUNED,
        step=prune,
        description=(
            "A log's manifest after its garbage was pruned: collections that others left half done are finished, then"
            " the plan is announced and the manifest's `first` advanced."
        ),
        deps=(PLAN,),
        uses=("store", "collection"),
        section=Section.REFUSED,
    ),
    LogAsset(
        name=DELETED,
        step=delete,
        description="The garbage and orphans deleted: those marked an interval ago. Younger ones wait and are counted.",
        deps=(PRUNED, "marked_orphans"),
        uses=("store", "spark", "collection"),
        section=Section.REFUSED,
    ),
)
JOBS = (
    LogJob(
        name="garbage_plan_job",
        assets=(PLAN,),
        description="Plans what can be pruned from logs, and checks the plans.",
    ),
    LogJob(
        name="collection_job",
        assets=(PLAN, PRUNED),
        description="Plans, verifies and prunes; the deletion sensor starts the deletion.",
    ),
    LogJob(
        name="deletion_job",
        assets=(DELETED,),
        description="Deletes garbage that was pruned an interval ago.",
    ),
)
DAILY = LogSchedule(
    name="daily_collection",
    job="garbage_plan_job",
    cron="0 4 * * *",
    description=(
        "Plans for every log in one run, and lets the pruning sensor collect them. Off until turned on: it deletes."
    ),
    tags={COLLECT_TAG: "true"},
)


def workflow(scope: Scope) -> Definitions:
    """Return the assets with their checks, their jobs, and the schedule that begins a collection."""
    return Definitions.merge(
        build_jobs(scope, JOBS),
        Definitions(assets=[each.build(scope) for each in ASSETS], schedules=[build_schedule(scope, DAILY)]),
    )
