"""Orphans: lists objects that nothing refers to, and marks them for deletion an interval later."""

from collections.abc import Iterator, Sequence

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    BackfillPolicy,
    DagsterInstance,
    MaterializeResult,
    Output,
    asset,
    define_asset_job,
)
from dagster_pyspark import LazyPySparkResource

from wal3_core.fleet.outcomes import LogOrphans
from wal3_core.spark.collect import list_orphans
from wal3_orchestration.defs.garbage_collection.alarms import many_orphans
from wal3_orchestration.defs.garbage_collection.work import mark_orphans, orphans_of
from wal3_orchestration.defs.manifests import manifest
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.outcomes import Outcome, Verdict, fail_for, latest, record, record_checks, value_of
from wal3_orchestration.partitions import GROUP, LOGS, schedule_for_all_logs
from wal3_orchestration.resources import CollectionResource, StoreResource, spark_session

FEW = AssetCheckSpec(
    "few_orphans",
    asset="marked_orphans",
    partitions_def=LOGS,
    description="There are few uncommitted uploads, and their number does not keep rising.",
)


@asset(
    deps=[manifest],
    check_specs=[FEW],
    partitions_def=LOGS,
    group_name=GROUP,
    backfill_policy=BackfillPolicy.single_run(),
    pool="wal3_orphans",
    output_required=False,
    kinds={"wal3", "pyspark"},
)
def marked_orphans(
    context: AssetExecutionContext, store: StoreResource, spark: LazyPySparkResource, collection: CollectionResource
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None] | Output[None] | AssetCheckEvaluation]:
    """Mark objects that nothing refers to and that are older than the interval; deleted_garbage deletes them."""
    with retried_only_when_unavailable(context):
        opened, options = store.open_known(context.instance), collection.options()
        outcomes = [
            mark_orphans(opened, each, options) for each in _orphans(context.partition_keys, store, spark, collection)
        ]
        before = {each.log: _counts(context.instance, each.log) for each in outcomes}
        yield from record(context, outcomes)
        yield from record_checks(
            context.instance,
            [_verdict(each, before[each.log], collection) for each in outcomes if each.refusal is None],
        )
        fail_for(outcomes)


def _orphans(
    logs: Sequence[str], store: StoreResource, spark: LazyPySparkResource, collection: CollectionResource
) -> list[LogOrphans]:
    options = collection.options()
    if len(logs) < collection.spark_logs_min:
        opened = store.open()
        return [orphans_of(opened, log, options) for log in logs]
    return list_orphans(spark_session(spark), store.url, logs, options)


def _counts(instance: DagsterInstance, log: str) -> list[int]:
    """Return how many orphans the log's last listings found, newest first."""
    counts = (value_of(each, "orphans") for each in latest(instance, FEW.asset_key, log, count=2))
    return [count for count in counts if isinstance(count, int)]


def _verdict(outcome: Outcome, before: Sequence[int], limits: CollectionResource) -> Verdict:
    count = outcome.metadata["orphans"]
    assert isinstance(count, int)
    return Verdict(spec=FEW, log=outcome.log, problem=many_orphans([count, *before], limits))


orphans_job = define_asset_job(
    "orphans_job", selection=[marked_orphans], description="Lists whole logs and marks orphans for deletion."
)


weekly_orphans = schedule_for_all_logs(
    "weekly_orphans",
    orphans_job,
    "0 5 * * 0",
    "Look for orphans in every log, all in one run. Off until turned on: it lists the whole store.",
)
