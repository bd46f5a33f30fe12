"""The sensors that start collections: for plans that found garbage, and for garbage whose interval is over."""

import hashlib
from collections.abc import Iterator, Sequence

from dagster import (
    AssetRecordsFilter,
    DagsterInstance,
    Definitions,
    EventLogRecord,
    RunRequest,
    SensorEvaluationContext,
    SensorResult,
)

from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.building import LogSensor, build_sensor
from wal3_orchestration.defs.garbage_collection.assets import PLAN
from wal3_orchestration.defs.garbage_collection.due import DueLog, find_due
from wal3_orchestration.outcomes import value_of
from wal3_orchestration.partitions import COLLECT_TAG, run_request
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known

PLANS_PER_TICK_MAX = 100
# Older plans are ignored: the schedule makes new ones.
PLAN_AGE_S_MAX = 24 * 60 * 60


def request_pruning(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Request a run for each log in which a planning run tagged for collection found garbage."""
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
    requests = sorted(_collections(scope, context.instance, plans), key=lambda request: request.partition_key or "")
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(plans)} new plans, none to carry out",
        cursor=str(max((plan.storage_id for plan in plans), default=seen)),
    )


def _collections(scope: Scope, instance: DagsterInstance, plans: Sequence[EventLogRecord]) -> Iterator[RunRequest]:
    """Request one run for each log and planning run, however often the sensor ticks."""
    runs = {run_id: instance.get_run_by_id(run_id) for run_id in {plan.run_id for plan in plans}}
    known = set(scope.known_logs(instance))
    for plan in plans:
        run, log = runs[plan.run_id], plan.partition_key
        if run is None or COLLECT_TAG not in run.tags or log not in known or not value_of(plan, "due"):
            continue
        yield run_request(log, log, run_key=f"{plan.run_id}/{log}", store_name=scope.name)


def request_deletion(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Request a run for each log with garbage whose interval is over by the store's clock; no run sleeps for it."""
    logs = scope.known_logs(context.instance)
    due, unreadable = find_due(open_known(scope, context), logs, scope.collection(context).options())
    for log, message in unreadable.items():
        context.log.warning("%s: %s", log, message)
    requests = [run_request(each.log, each.log, run_key=_run_key(each), store_name=scope.name) for each in due]
    return SensorResult(run_requests=requests, skip_reason=None if requests else f"{len(logs)} logs, no garbage is due")


def _run_key(due: DueLog) -> str:
    """Name the run by its garbage documents; the key changes in each interval that they are still there."""
    named = "\n".join(f"{path} {changed_us} {times}" for path, changed_us, times in due.documents)
    return f"{due.log}/{hashlib.sha256(named.encode()).hexdigest()}"


SENSORS = (
    LogSensor(
        name="pruning",
        tick=request_pruning,
        job="collection_job",
        period_s=30,
        description="Starts a run for each log in which a planning run tagged for collection found garbage.",
        uses=(),
    ),
    LogSensor(
        name="deletion",
        tick=request_deletion,
        job="deletion_job",
        period_s=60,
        description=(
            "Starts a run for each log with garbage whose interval is over by the store's clock. No run sleeps for it."
        ),
        uses=("store", "collection"),
    ),
)


def workflow(scope: Scope) -> Definitions:
    """Return the sensors."""
    return Definitions(sensors=[build_sensor(scope, each) for each in SENSORS])
