"""The sensor that chooses logs for key compaction, the most urgent first.

A slow sweep: it looks at each manifest, and outlines only those logs whose manifest shows that something may be due.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import Definitions, SensorEvaluationContext, SensorResult

from wal3_core.compaction.reports import choose, may_be_due
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.attempts import next_attempts
from wal3_orchestration.defs.key_compaction.assets import JOB
from wal3_orchestration.defs.key_compaction.verified import INSTALLED
from wal3_orchestration.defs.key_compaction.work import outlines
from wal3_orchestration.jobs import request_runs
from wal3_orchestration.log_records import NOTHING, LogRecords
from wal3_orchestration.log_state import read_manifests
from wal3_orchestration.pace import Pace
from wal3_orchestration.store_guard import open_known
from wal3_orchestration.triggers import LogSensor, build_sensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.compaction.reports import KeyCompactionPlan
    from wal3_orchestration.scope import Scope

# Merging one log is work enough for a run.
RUNS_OF_ONE_LOG_MAX = 16
REASON = "a key compaction is due"
# A log whose run has failed is asked for again so much later.
AGAIN_S = 24 * 60 * 60


def find_due(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the most urgent of the logs that are due; those that cannot be read are named, and skipped."""
    pace, known = Pace.from_cursor(context.cursor), scope.known_logs(context.instance)
    if pace.rests(len(known)):
        return SensorResult(skip_reason=pace.resting(len(known)), cursor=pace.to_cursor())
    logs, after = pace.step(sorted(known))
    store = open_known(scope, context)
    found = outlines(store, [log for log, manifest in read_manifests(store, logs) if may_be_due(manifest)])
    for each in found:
        if each.refusal is not None and each.compacted:
            context.log.warning("%s: %s", each.log, each.refusal.message)
    plans = [each.plan for each in found if each.plan is not None]
    choice = choose(plans, logs_max=scope.collection(context).compactions_max)
    keys = _keys(scope, context, choice.chosen)
    asked = request_runs(scope, JOB, keys, REASON, alone_max=RUNS_OF_ONE_LOG_MAX)
    requests = next_attempts(context.instance, asked)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(logs)} logs, no key compaction is due",
        cursor=after.to_cursor(),
    )


def _keys(scope: Scope, context: SensorEvaluationContext, plans: Sequence[KeyCompactionPlan]) -> dict[str, str]:
    """Name the run of each log by how far it is compacted, and by what became of it last.

    Appends alone do not change the key: a run that is under way takes them in, or leaves them to the next pass.
    """
    records = LogRecords(scope, context.instance, INSTALLED).load([plan.log for plan in plans])
    day = int(shared_runtime().now_us() // (AGAIN_S * US_PER_S))
    return {
        plan.log: "/".join(
            [
                plan.log,
                plan.log_id,
                f"{plan.clean_limit}-{plan.expired_below}",
                f"{records.get(plan.log, NOTHING).number}-{day}",
            ]
        )
        for plan in plans
    }


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


def workflow(scope: Scope) -> Definitions:
    """Return the sensor."""
    return Definitions(sensors=[build_sensor(scope, DUE)])
