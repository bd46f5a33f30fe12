"""The sensor that chooses logs for key compaction, the most urgent first.

A slow sweep: it looks at each manifest, and outlines only those logs whose manifest shows that something may be due.
"""

from __future__ import annotations

from dagster import SensorEvaluationContext, SensorResult

from wal3_core.compaction.reports import choose, may_be_due
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.key_compaction.assets import JOB, outlines
from wal3_orchestration.defs.key_compaction.checks import INSTALLED
from wal3_orchestration.framework.log_records import NOTHING, LogRecords
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.store import read_manifests
from wal3_orchestration.framework.triggers import LogSensor, go_over_logs

REASON = "a key compaction is due"
# Interval after which a log whose run has failed is asked for again.
AGAIN_S = 24 * 60 * 60


def find_due(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the most urgent of the logs that are due; those that cannot be read are named, and skipped."""
    left = scope.collection(context).compactions_max

    def find(store: ObjectStore, logs: list[str]) -> dict[str, str]:
        found = outlines(store, [log for log, manifest in read_manifests(store, logs) if may_be_due(manifest)])
        for each in found:
            if each.problem is not None:
                context.log.warning("%s: %s", each.log, each.problem)
        plans = [each.plan for each in found if each.plan is not None]
        nonlocal left
        chosen = choose(plans, logs_max=left).chosen if left else ()
        left -= len(chosen)
        records = LogRecords(scope, context.instance, INSTALLED).load([plan.log for plan in chosen])
        day = int(shared_runtime().now_us() // (AGAIN_S * US_PER_S))
        keys = {}
        for plan in chosen:
            # How far it is compacted, and what became of it last. Appends alone do not change the key: a run that is
            # under way takes them in, or leaves them to the next pass.
            last = records.get(plan.log, NOTHING).number
            keys[plan.log] = f"{plan.log}/{plan.log_id}/{plan.clean_limit}-{plan.expired_below}/{last}-{day}"
        return keys

    return go_over_logs(scope, context, find, job=JOB, reason=REASON, nothing="no key compaction is due")


DUE = LogSensor(
    name="key_compaction",
    tick=find_due,
    jobs=(JOB,),
    period_s=300,
    description=(
        "Starts key compactions of the logs that are due: those over their largest lag first, then those with expired"
        " tombstones, then by the share of bytes or records that is dirty. Off until turned on: it drops records."
    ),
    uses=("store", "collection"),
    running=False,
)
