"""The sensors that start collections: for plans that found garbage, and for garbage whose interval is over."""

import hashlib
from collections.abc import Sequence

from dagster import (
    AssetRecordsFilter,
    DagsterInstance,
    Definitions,
    EventLogRecord,
    SensorEvaluationContext,
    SensorResult,
)

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.attempts import next_attempts
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, DELETION, PLAN
from wal3_orchestration.defs.garbage_collection.due import DueLog, find_due
from wal3_orchestration.jobs import request_runs
from wal3_orchestration.outcomes import run_of, value_of
from wal3_orchestration.pace import Pace
from wal3_orchestration.partitions import COLLECT_TAG
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known
from wal3_orchestration.triggers import LogSensor, build_sensor

PLANS_PER_TICK_MAX = 500
PLANNED = "a plan found garbage"
DUE = "pruned garbage is due"
# Older plans are ignored: the schedule makes new ones.
PLAN_AGE_S_MAX = 24 * 60 * 60


def request_pruning(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the logs in which a planning run tagged for collection found garbage."""
    seen = int(context.cursor or "0")
    plans = context.instance.fetch_materializations(
        AssetRecordsFilter(
            scope.key(PLAN),
            after_storage_id=seen,
            after_timestamp=shared_runtime().now_us() / US_PER_S - PLAN_AGE_S_MAX,
        ),
        limit=PLANS_PER_TICK_MAX,
        ascending=True,
    ).records
    requests = request_runs(scope, COLLECTION, _collections(scope, context.instance, plans), PLANNED)
    num_plans = sum(plan.partition_key is not None for plan in plans)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{num_plans} new plans, none to carry out",
        cursor=str(max((plan.storage_id for plan in plans), default=seen)),
    )


def _collections(scope: Scope, instance: DagsterInstance, plans: Sequence[EventLogRecord]) -> dict[str, str]:
    """Return the logs to collect, each with the key of its run: one for each planning run, however often this ticks."""
    runs = {run_id: instance.get_run_by_id(run_id) for run_id in set(map(run_of, plans)) if run_id}
    known, keys = set(scope.known_logs(instance)), {}
    for plan in plans:
        run, log = runs.get(run_of(plan)), plan.partition_key
        if run is not None and COLLECT_TAG in run.tags and log in known and value_of(plan, "due"):
            keys[log] = f"{run.run_id}/{log}"
    return dict(sorted(keys.items()))


def request_deletion(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the logs with garbage whose interval is over by the store's clock; no run sleeps for it."""
    pace, known = Pace.from_cursor(context.cursor), scope.known_logs(context.instance)
    if pace.rests(len(known)):
        return SensorResult(skip_reason=pace.resting(len(known)), cursor=pace.to_cursor())
    logs, after = pace.step(sorted(known))
    due, unreadable = find_due(open_known(scope, context), logs, scope.collection(context).options())
    for log, message in unreadable.items():
        context.log.warning("%s: %s", log, message)
    asked = request_runs(scope, DELETION, {each.log: _run_key(each) for each in due}, DUE)
    requests = next_attempts(context.instance, asked)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(logs)} logs, no garbage is due",
        cursor=after.to_cursor(),
    )


def _run_key(due: DueLog) -> str:
    """Name the run by its garbage documents; the key changes in each interval that they are still there."""
    named = "\n".join(f"{path} {changed_us} {times}" for path, changed_us, times in due.documents)
    return f"{due.log}/{hashlib.sha256(named.encode()).hexdigest()}"


SENSORS = (
    LogSensor(
        name="pruning",
        tick=request_pruning,
        jobs=(COLLECTION,),
        period_s=30,
        description="Starts runs for the logs in which a planning run tagged for collection found garbage.",
        uses=(),
    ),
    LogSensor(
        name="deletion",
        tick=request_deletion,
        jobs=(DELETION,),
        period_s=60,
        description=(
            "Starts runs for the logs with garbage whose interval is over by the store's clock. No run sleeps for it."
        ),
        uses=("store", "collection"),
    ),
)


def workflow(scope: Scope) -> Definitions:
    """Return the sensors."""
    return Definitions(sensors=[build_sensor(scope, each) for each in SENSORS])
