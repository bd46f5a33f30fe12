"""Snapshot compaction: repacks the tree of a log's snapshots where its writers left it lopsided."""

from __future__ import annotations

import hashlib

from dagster import SensorEvaluationContext, SensorResult

from wal3_core.errors import LogError, LogReplacedError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.tree.shape import Shape, measure_shape
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.assets import LogAsset, LogJob
from wal3_orchestration.framework.checks import Value
from wal3_orchestration.framework.recorder import IDLE, LogResult, Recorder
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.step import Step
from wal3_orchestration.framework.store import read_manifests
from wal3_orchestration.framework.triggers import LogSchedule, LogSensor, Workflow, go_over_logs

REASON = "the tree of snapshots is lopsided"


def compact(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Compact each log of the step that needs it."""
    recorder.add([_compact(store, log) for log in step.logs])


def _compact(store: ObjectStore, log: str) -> LogResult:
    try:
        done = SnapshotCompactor(store, log).compact()
    except LogReplacedError:
        # The name has another life since the first request: that one is repacked.
        return _compact(store, log)
    except LogError as error:
        return LogResult(log=log, refusal=Refusal.of(error))
    return LogResult(
        log=log,
        notable=done.num_steps > 0,
        state=None if done.num_overtaken or done.after.needs_compaction else IDLE,
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


def find_lopsided(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the logs whose tree is worth repacking."""

    def find(store: ObjectStore, logs: list[str]) -> dict[str, str]:
        keys, options = {}, SnapshotOptions()
        for log, manifest in read_manifests(store, logs):
            if measure_shape(manifest, options).needs_compaction:
                # The tree that the run is for: appends alone do not change the key.
                rolls = len(manifest.fragments) // options.fragments_per_snapshot
                named = "\n".join([manifest.log_id, str(rolls), *(pointer.path for pointer in manifest.snapshots)])
                keys[log] = f"{log}/{hashlib.sha256(named.encode()).hexdigest()}"
        return keys

    return go_over_logs(scope, context, find, job=JOB, reason=REASON, nothing="none with a lopsided tree")


COMPACTED = LogAsset(
    name="repacked_snapshots",
    group="snapshot_compaction",
    do=compact,
    description="The tree of a log's snapshots, repacked where it was lopsided: its shape, and what was written.",
    deps=("manifest", "rollup"),
    pool="wal3_snapshot_compaction",
    section=Section.SNAPSHOTS,
)
JOB = LogJob(
    name="snapshot_compaction",
    assets=(COMPACTED,),
    description="Repacks the trees of logs' snapshots where they are lopsided.",
)
LOPSIDED = LogSensor(
    name="lopsided_snapshots",
    tick=find_lopsided,
    jobs=(JOB,),
    period_s=300,
    description="Starts runs for the logs whose tree of snapshots is worth repacking. Off until turned on.",
    running=False,
)
WEEKLY = LogSchedule(
    name="weekly_snapshot_compaction",
    job=JOB,
    cron="0 6 * * 0",
    description=(
        "Repacks all logs in one run, also deep in trees, which the manifest does not show. Off until turned on."
    ),
)


workflow = Workflow(assets=(COMPACTED,), jobs=(JOB,), sensors=(LOPSIDED,), schedules=(WEEKLY,))
