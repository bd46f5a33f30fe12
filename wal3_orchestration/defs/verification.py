"""Verification: reads every byte of a log back and compares it with its checksums, a fleet of logs in one Spark job."""

from collections.abc import Iterator

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetCheckSpec,
    AssetExecutionContext,
    AssetMaterialization,
    BackfillPolicy,
    MaterializeResult,
    Output,
    asset,
    define_asset_job,
)
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as _Target,
)
from dagster_pyspark import LazyPySparkResource

from wal3_core import ScrubReport
from wal3_core.spark.verify import verify_logs
from wal3_orchestration.defs.manifests import manifest
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.outcomes import latest_target
from wal3_orchestration.partitions import GROUP, LOGS, schedule_for_all_logs
from wal3_orchestration.resources import StoreResource, spark_session

PROBLEMS_SHOWN_MAX = 100


SOUND = AssetCheckSpec(
    "sound",
    asset="verification",
    blocking=True,
    # By partition: a sound log's result must not hide a damaged one's.
    partitions_def=LOGS,
    description="The log holds what was written: manifest, snapshots, fragments, balance of setsums, cursors.",
)


@asset(
    deps=[manifest],
    check_specs=[SOUND],
    partitions_def=LOGS,
    group_name=GROUP,
    backfill_policy=BackfillPolicy.single_run(),
    pool="wal3_verification",
    output_required=False,
    kinds={"wal3", "pyspark"},
)
def verification(
    context: AssetExecutionContext, store: StoreResource, spark: LazyPySparkResource
) -> Iterator[AssetCheckEvaluation | AssetMaterialization | MaterializeResult[None] | Output[None]]:
    """Read a whole log back: materialized when sound; when damaged, the check fails and names the bad objects."""
    with retried_only_when_unavailable(context):
        store.open_known(context.instance)
        reports = verify_logs(spark_session(spark), store.url, context.partition_keys)
    if all(report.sound for report in reports):
        for report in reports:
            context.add_asset_metadata(_metadata(report), partition_key=report.log)
        yield MaterializeResult()
    else:
        # The step is about to fail: record the sound logs one by one.
        for report in reports:
            if report.sound:
                yield AssetMaterialization(context.asset_key, partition=report.log, metadata=_metadata(report))
    yield Output(None, output_name=SOUND.get_python_identifier())
    for report in reports:
        yield evaluation(report, latest_target(context.instance, SOUND.asset_key, report.log))


def evaluation(report: ScrubReport, target: _Target | None = None) -> AssetCheckEvaluation:
    """Turn a report into the log's check result on a materialization; a failed one names the bad objects."""
    shown = report.problems[:PROBLEMS_SHOWN_MAX]
    return AssetCheckEvaluation(
        asset_key=SOUND.asset_key,
        check_name=SOUND.name,
        partition=report.log,
        passed=report.sound,
        severity=AssetCheckSeverity.ERROR,
        blocking=SOUND.blocking,
        target_materialization_data=target,
        description=None
        if report.sound
        else f"{report.log}: {len(report.problems)} problems: " + "; ".join(problem.message for problem in shown),
        metadata={
            "log": report.log,
            "num_problems": len(report.problems),
            "problems": [problem.to_json() for problem in shown],
        },
    )


def _metadata(report: ScrubReport) -> dict[str, int | str]:
    return {
        "records": report.num_records,
        "bytes": report.num_bytes,
        "fragments": report.num_fragments,
        "snapshots": report.num_snapshots,
        "setsum": report.setsum,
    }


verification_job = define_asset_job(
    "verification_job",
    selection=[verification],
    description="Reads whole logs back and reports whether each is sound.",
)


nightly_verification = schedule_for_all_logs(
    "nightly_verification",
    verification_job,
    "0 3 * * *",
    "Verify every log, all in one run. Off until turned on: it reads the whole store.",
)
