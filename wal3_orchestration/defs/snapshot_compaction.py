"""Snapshot compaction: repacks the tree of a log's snapshots where its writers left it lopsided."""

import hashlib
from collections.abc import Iterator

from dagster import (
    AssetExecutionContext,
    AssetMaterialization,
    AssetObservation,
    BackfillPolicy,
    DefaultSensorStatus,
    MaterializeResult,
    SensorEvaluationContext,
    SensorResult,
    asset,
    define_asset_job,
    sensor,
)

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.model.shape import Shape, measure_shape
from wal3_core.options import SnapshotOptions
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.defs.manifests import manifest
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.log_state import LogState, read_states
from wal3_orchestration.outcomes import Outcome, Value, fail_for, record
from wal3_orchestration.partitions import GROUP, LOGS, LOGS_NAME, run_request, schedule_for_all_logs
from wal3_orchestration.resources import StoreResource

RUNS_PER_TICK_MAX = 16


@asset(
    deps=[manifest],
    partitions_def=LOGS,
    group_name=GROUP,
    backfill_policy=BackfillPolicy.single_run(),
    kinds={"wal3"},
)
def compacted_snapshots(
    context: AssetExecutionContext, store: StoreResource
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Repack a log's tree where it is lopsided; record its shape and what was written."""
    with retried_only_when_unavailable(context):
        opened = store.open_known(context.instance)
        outcomes = [_compact(opened, log) for log in context.partition_keys]
        yield from record(context, outcomes)
        fail_for(outcomes)


def _compact(store: ObjectStore, log: str) -> Outcome:
    try:
        done = SnapshotCompactor(store, log).compact()
    except LogError as error:
        return Outcome(log=log, refusal=Refusal.of(error))
    return Outcome(
        log=log,
        metadata={
            **_numbers(done.after),
            "manifest_bytes_before": done.before.manifest_bytes,
            "snapshots_before": done.before.num_snapshots,
            "steps": done.num_steps,
            "snapshots_written": done.num_written,
            "bytes_written": done.num_bytes,
            "pointers_packed": done.num_pointers,
            "overtaken": done.num_overtaken,
        },
    )


def _numbers(shape: Shape) -> dict[str, Value]:
    return {
        "manifest_bytes": shape.manifest_bytes,
        "fragments": shape.num_fragments,
        "root_pointers": shape.root_pointers,
        "snapshots": shape.num_snapshots,
        "snapshots_of_fragments": shape.levels[0].num_nodes,
        "snapshots_of_snapshots": shape.num_snapshots - shape.levels[0].num_nodes,
        "depth": len(shape.levels),
        "fill": shape.levels[0].fill,
        "wasted": shape.num_wasted,
        "needs_compaction": shape.needs_compaction,
    }


snapshot_compaction_job = define_asset_job(
    "snapshot_compaction_job",
    selection=[compacted_snapshots],
    description="Repacks the trees of logs' snapshots where they are lopsided.",
)


@sensor(job=snapshot_compaction_job, minimum_interval_seconds=300, default_status=DefaultSensorStatus.STOPPED)
def lopsided_snapshots(context: SensorEvaluationContext, store: StoreResource) -> SensorResult:
    """Request a run for each log whose tree is worth repacking. Off until turned on."""
    logs = context.instance.get_dynamic_partitions(LOGS_NAME)
    states = [state for state in read_states(store.open_known(context.instance), logs) if isinstance(state, LogState)]
    needs_compaction = [state for state in states if measure_shape(state.manifest, SnapshotOptions()).needs_compaction]
    requests = [
        run_request(each.log, each.log, run_key=_run_key(each)) for each in needs_compaction[:RUNS_PER_TICK_MAX]
    ]
    return SensorResult(
        run_requests=requests, skip_reason=None if requests else f"{len(logs)} logs, none with a lopsided tree"
    )


weekly_snapshot_compaction = schedule_for_all_logs(
    "weekly_snapshot_compaction",
    snapshot_compaction_job,
    "0 6 * * 0",
    "Repack all logs in one run, also deep in trees, which the manifest does not show. Off until turned on.",
)


def _run_key(state: LogState) -> str:
    """Name the run by the tree it is for: appends alone do not change the key."""
    rolls = len(state.manifest.fragments) // SnapshotOptions().fragments_per_snapshot
    named = "\n".join([str(rolls), *(pointer.path for pointer in state.manifest.snapshots)])
    return f"{state.log}/{hashlib.sha256(named.encode()).hexdigest()}"
