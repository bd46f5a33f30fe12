"""Collection: plan, verify, prune; an interval later, delete. Every step can be repeated, and run by two at once.

The schedule plans for all logs in one run. A sensor then requests a run for each log with garbage,
which plans again, verifies, announces and prunes. Another sensor requests the deletion when the
interval is over. Steps share only the store's content and the plan's metadata; the manifest's CAS
keeps them safe, not the order of runs.
"""

import json
from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    BackfillPolicy,
    DagsterInstance,
    MaterializeResult,
    MetadataValue,
    Output,
    asset,
    define_asset_job,
)
from dagster_pyspark import LazyPySparkResource

from wal3_core.fleet.survey import Survey, survey_log
from wal3_core.log.collect.planner import Plan
from wal3_core.model import strict_json
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.spark.collect import plan_collections
from wal3_orchestration.defs.garbage_collection.alarms import never_pruned, overdue, stuck_cursors, too_much_garbage
from wal3_orchestration.defs.garbage_collection.orphans import marked_orphans
from wal3_orchestration.defs.garbage_collection.work import delete_log, delete_logs, prune_log
from wal3_orchestration.defs.manifests import manifest
from wal3_orchestration.failures import raise_together, retried_only_when_unavailable
from wal3_orchestration.outcomes import Outcome, Value, Verdict, fail_for, latest, record, record_checks, value_of
from wal3_orchestration.partitions import COLLECT_TAG, GROUP, LOGS, schedule_for_all_logs
from wal3_orchestration.resources import CollectionResource, StoreResource, spark_session

_PLAN_BYTES_MAX = 2**20
_PLAN_KEY = AssetKey("garbage_plan")

SAFE = AssetCheckSpec(
    "safe_to_collect",
    asset="garbage_plan",
    blocking=True,
    partitions_def=LOGS,
    description="Setsums balance, no cursor is below the cutoff, and no more is pruned than is allowed.",
)
FRACTION = AssetCheckSpec(
    "little_garbage",
    asset="garbage_plan",
    partitions_def=LOGS,
    description="The garbage is not a large part of the log.",
)
IN_TIME = AssetCheckSpec(
    "collected_in_time",
    asset="garbage_plan",
    partitions_def=LOGS,
    description="Planned and announced garbage is pruned in time, and pruned garbage is deleted in time.",
)
CURSORS_MOVE = AssetCheckSpec(
    "cursors_move",
    asset="garbage_plan",
    partitions_def=LOGS,
    description="No cursor stands still while the log grows.",
)


@asset(
    deps=[manifest],
    check_specs=[SAFE, FRACTION, IN_TIME, CURSORS_MOVE],
    partitions_def=LOGS,
    group_name=GROUP,
    backfill_policy=BackfillPolicy.single_run(),
    output_required=False,
    kinds={"wal3", "pyspark"},
)
def garbage_plan(
    context: AssetExecutionContext, store: StoreResource, spark: LazyPySparkResource, collection: CollectionResource
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation]:
    """Plan what can be pruned from a log, up to which cursor, and why; changes nothing. The checks judge the plan."""
    logs = context.partition_keys
    with retried_only_when_unavailable(context):
        store.open_known(context.instance)
        surveys = _surveys(logs, store, spark, collection)
        lost = {each.log: each.refusal.message for each in surveys if each.refusal and each.refusal.transient}
        ages_s = {each.log: _unpruned_s(context.instance, each.log, collection) for each in surveys}
        yield from record(context, [_planned(each) for each in surveys if each.refusal is None or each.unclaimed])
        judged = [each for each in surveys if each.log not in lost]
        verdicts = [verdict for each in judged for verdict in _verdicts(each, collection, ages_s[each.log])]
        yield from record_checks(context.instance, verdicts)
        raise_together(lost, len(logs), transient=True)


def _surveys(
    logs: Sequence[str], store: StoreResource, spark: LazyPySparkResource, collection: CollectionResource
) -> list[Survey]:
    options = collection.options()
    if len(logs) < collection.spark_logs_min:
        opened = store.open()
        return [survey_log(opened, log, options) for log in logs]
    return plan_collections(spark_session(spark), store.url, logs, options)


def _planned(survey: Survey) -> Outcome:
    plan = survey.plan
    waiting: dict[str, Value] = {"garbage_documents": len(survey.documents), "due": survey.due}
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
            "fraction": plan.fraction,
            "setsum": plan.setsum.hexdigest(),
            "reason": plan.reason,
            "cutoff_cursor": next(named, ""),
            "cutoff_offset": plan.first.position.offset,
            "plan": MetadataValue.json(plan.to_json()),
        },
    )


def _unpruned_s(instance: DagsterInstance, log: str, limits: CollectionResource) -> float | None:
    """Return the age of the newest old plan; None when it found nothing, or the log was pruned since."""
    now_s = shared_runtime().now_us() / US_PER_S
    before = AssetRecordsFilter(_PLAN_KEY, asset_partitions=[log], before_timestamp=now_s - limits.planned_s_max)
    pruned_s = max((each.timestamp for each in latest(instance, AssetKey("pruned_manifest"), log, count=1)), default=0)
    for planned in instance.fetch_materializations(before, limit=1).records:
        if value_of(planned, "due") and planned.timestamp > pruned_s:
            return now_s - planned.timestamp
    return None


def _verdicts(survey: Survey, limits: CollectionResource, unpruned_s: float | None) -> Iterator[Verdict]:
    refusal, log = survey.refusal, survey.log
    # A log without cursors keeps everything, as it should.
    blocking = refusal is not None and not survey.unclaimed
    yield Verdict(spec=SAFE, log=log, problem=None if refusal is None else refusal.message, blocking=blocking)
    yield Verdict(spec=FRACTION, log=log, problem=too_much_garbage(survey, limits))
    yield Verdict(spec=IN_TIME, log=log, problem=overdue(survey, limits) or never_pruned(survey, unpruned_s))
    yield Verdict(spec=CURSORS_MOVE, log=log, problem=stuck_cursors(survey, limits))


@asset(
    deps=[garbage_plan],
    partitions_def=LOGS,
    group_name=GROUP,
    backfill_policy=BackfillPolicy.single_run(),
    kinds={"wal3"},
)
def pruned_manifest(
    context: AssetExecutionContext, store: StoreResource, collection: CollectionResource
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Finish what other runs left half done, then announce the plan and advance the manifest's `first`."""
    with retried_only_when_unavailable(context):
        opened, options = store.open_known(context.instance), collection.options()
        outcomes = [prune_log(opened, log, _plan(context, log), options) for log in context.partition_keys]
        yield from record(context, outcomes)
        fail_for(outcomes)


def _plan(context: AssetExecutionContext, log: str) -> Plan | None:
    """Read the plan that was checked; None when nothing was planned."""
    for planned in latest(context.instance, _PLAN_KEY, log, count=1):
        value = value_of(planned, "plan")
        if value is not None:
            text = json.dumps(value).encode()
            return Plan.from_json(strict_json.load(text, what=f"log {log}: plan", bytes_max=_PLAN_BYTES_MAX))
    return None


@asset(
    deps=[pruned_manifest, marked_orphans],
    partitions_def=LOGS,
    group_name=GROUP,
    backfill_policy=BackfillPolicy.single_run(),
    kinds={"wal3", "pyspark"},
)
def deleted_garbage(
    context: AssetExecutionContext, store: StoreResource, spark: LazyPySparkResource, collection: CollectionResource
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Delete garbage and orphans marked an interval ago; younger garbage waits and is counted."""
    with retried_only_when_unavailable(context):
        opened, options, logs = store.open_known(context.instance), collection.options(), context.partition_keys
        due = [delete_log(opened, log, options, objects_max=collection.spark_objects_min) for log in logs]
        large = [each for each in due if each.on_spark]
        done = delete_logs(spark_session(spark), store.url, large, options) if large else {}
        outcomes = [done.get(each.log, each.outcome) for each in due]
        yield from record(context, outcomes)
        fail_for(outcomes)


garbage_plan_job = define_asset_job(
    "garbage_plan_job",
    selection=[garbage_plan],
    description="Plans what can be pruned from logs, and checks the plans.",
)
collection_job = define_asset_job(
    "collection_job",
    selection=[garbage_plan, pruned_manifest],
    description="Plans, verifies and prunes; the deletion sensor starts the deletion.",
)
deletion_job = define_asset_job(
    "deletion_job", selection=[deleted_garbage], description="Deletes garbage that was pruned an interval ago."
)


daily_collection = schedule_for_all_logs(
    "daily_collection",
    garbage_plan_job,
    "0 4 * * *",
    "Plan for every log in one run, and let the pruning sensor collect them. Off until turned on: it deletes.",
    tags={COLLECT_TAG: "true"},
)
