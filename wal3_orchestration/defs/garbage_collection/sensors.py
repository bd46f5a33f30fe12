"""The sensors that start collections: for plans that found garbage, and for garbage whose interval is over."""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from dagster import AssetRecordsFilter, DagsterInstance, EventLogRecord, SensorEvaluationContext, SensorResult

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, DELETION
from wal3_orchestration.defs.garbage_collection.checks import PLAN
from wal3_orchestration.framework.assets import request_runs
from wal3_orchestration.framework.recorder import run_of, value_of
from wal3_orchestration.framework.scope import COLLECT_TAG, StoreScope
from wal3_orchestration.framework.store import map_logs
from wal3_orchestration.framework.triggers import LogSensor, go_over_logs

# How wrong this machine's clock may be; the store's clock decides.
_CLOCK_SKEW_S_MAX = 60
_PERIOD_S_MIN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLog:
    """A log's due garbage documents: path, when the store last changed it, and for how many intervals it is due."""

    log: str
    documents: tuple[tuple[str, int, int], ...]


def find_due(store: ObjectStore, logs: Iterable[str], options: CollectorOptions) -> tuple[list[DueLog], dict[str, str]]:
    """Find the logs with garbage that is due, and those whose garbage cannot be read, with the reason.

    UnavailableError when the store does not answer.
    """
    due: list[DueLog] = []
    unreadable: dict[str, str] = {}
    for log, found in map_logs(lambda log: (log, try_log(partial(_due_log, store, options), log)), logs):
        if isinstance(found, LogError):
            unreadable[log] = str(found)
        elif found.documents:
            due.append(found)
    return due, unreadable


def _due_log(store: ObjectStore, options: CollectorOptions, log: str) -> DueLog:
    deleter, now_us = Deleter(store, log, options=options), shared_runtime().now_us()
    due, store_now_us = [], None
    for meta in deleter.documents():
        age_s = (now_us - meta.last_modified_us) / US_PER_S
        if age_s < options.interval_s - _CLOCK_SKEW_S_MAX:
            continue
        store_now_us = deleter.store_now_us() if store_now_us is None else store_now_us
        if deleter.wait_s(meta.path, now_us=store_now_us) == 0:
            times = int(max(0.0, age_s - options.interval_s) // max(options.interval_s, _PERIOD_S_MIN))
            due.append((meta.path, meta.last_modified_us, times))
    return DueLog(log=log, documents=tuple(due))


PLANS_PER_TICK_MAX = 500
PLANNED = "a plan found garbage"
DUE = "pruned garbage is due"
# Older plans are ignored: the schedule makes new ones.
PLAN_AGE_S_MAX = 24 * 60 * 60


def request_pruning(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
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


def _collections(scope: StoreScope, instance: DagsterInstance, plans: Sequence[EventLogRecord]) -> dict[str, str]:
    """Return the logs to collect, each with the key of its run: one for each planning run, however often this ticks."""
    runs = {run_id: instance.get_run_by_id(run_id) for run_id in set(map(run_of, plans)) if run_id}
    known, keys = set(scope.known_logs(instance)), {}
    for plan in plans:
        run, log = runs.get(run_of(plan)), plan.partition_key
        if run is not None and COLLECT_TAG in run.tags and log in known and value_of(plan, "due"):
            keys[log] = f"{run.run_id}/{log}"
    return dict(sorted(keys.items()))


def request_deletion(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the logs with garbage whose interval is over by the store's clock; no run sleeps for it."""

    def find(store: ObjectStore, logs: list[str]) -> dict[str, str]:
        due, unreadable = find_due(store, logs, scope.collection(context).options())
        for log, message in unreadable.items():
            context.log.warning("%s: %s", log, message)
        keys = {}
        for each in due:
            # The key changes in each interval that the garbage documents are still there.
            named = "\n".join(f"{path} {changed_us} {times}" for path, changed_us, times in each.documents)
            keys[each.log] = f"{each.log}/{hashlib.sha256(named.encode()).hexdigest()}"
        return keys

    return go_over_logs(scope, context, find, job=DELETION, reason=DUE, nothing="no garbage is due")


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
