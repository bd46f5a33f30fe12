"""The code location: what Dagster loads."""

from dagster import Definitions, definitions, in_process_executor

from wal3_orchestration.defs import snapshot_compaction as snapshots
from wal3_orchestration.defs.acceptance import accept_store_job
from wal3_orchestration.defs.discovery import discovery
from wal3_orchestration.defs.garbage_collection import assets as garbage
from wal3_orchestration.defs.garbage_collection.orphans import marked_orphans, orphans_job, weekly_orphans
from wal3_orchestration.defs.garbage_collection.sensors import deletion, pruning
from wal3_orchestration.defs.manifests import manifest, manifest_job
from wal3_orchestration.defs.verification import nightly_verification, verification, verification_job
from wal3_orchestration.resources import resources


@definitions
def defs() -> Definitions:
    """Return all definitions, for the store that the environment names at the time of the call."""
    return Definitions(
        assets=[
            *(manifest, verification, snapshots.compacted_snapshots),
            *(garbage.garbage_plan, garbage.pruned_manifest, marked_orphans, garbage.deleted_garbage),
        ],
        jobs=[
            *(manifest_job, verification_job, orphans_job, snapshots.snapshot_compaction_job),
            *(garbage.garbage_plan_job, garbage.collection_job, garbage.deletion_job, accept_store_job),
        ],
        sensors=[discovery, pruning, deletion, snapshots.lopsided_snapshots],
        schedules=[
            nightly_verification,
            garbage.daily_collection,
            weekly_orphans,
            snapshots.weekly_snapshot_compaction,
        ],
        resources=resources(),
        # One process and one Spark session per run; steps pass no data to each other.
        executor=in_process_executor,
    )
