"""The sensors that start collections: for plans that found garbage, and for garbage whose interval is over.

What makes garbage is recorded when it does. So the deletion sensor reads these events an interval later, in the order
in which they were recorded, and looks at no other log; but for a slow round, for what was pruned outside of Dagster.
"""

# Not `from __future__ import annotations`: Dagster reads the annotations of the functions below.
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from dagster import (
    AssetRecordsFilter,
    DagsterInstance,
    DagsterRunStatus,
    EventLogRecord,
    RunsFilter,
    SensorEvaluationContext,
    SensorResult,
)

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, DELETION, MARKED, PRUNED
from wal3_orchestration.defs.garbage_collection.checks import PLAN
from wal3_orchestration.defs.key_compaction.checks import INSTALLED
from wal3_orchestration.framework.assets import request_runs
from wal3_orchestration.framework.recorder import run_of, value_of
from wal3_orchestration.framework.scope import COLLECT_TAG, StoreScope
from wal3_orchestration.framework.store import map_logs, open_known
from wal3_orchestration.framework.triggers import (
    LOGS_AT_A_TIME,
    PERIOD_S_MAX,
    LogSensor,
    SensorCursor,
    TickBudget,
    attempt_s,
    is_quick,
    next_attempts,
)

# The assets whose events say that a log has new garbage.
MAKES_GARBAGE = (PRUNED.name, MARKED.name, INSTALLED)
EVENTS_PER_TICK_MAX = 500
# Logs with due garbage at which no more events are read: the cursor is stored with each tick.
WAITING_MAX = 1_000
# How wrong this machine's clock may be; the store's clock decides.
_CLOCK_SKEW_S_MAX = 60
_PERIOD_S_MIN = 60
_UNDER_WAY = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DueLog:
    """A log's due garbage documents: path, when the store last changed it, and for how many intervals it is due.

    ``soon`` says that another one is due by this machine's clock, and not yet by the store's.
    """

    log: str
    documents: tuple[tuple[str, int, int], ...]
    soon: bool = False


def find_due(store: ObjectStore, logs: Iterable[str], options: CollectorOptions) -> tuple[list[DueLog], dict[str, str]]:
    """Find the logs with garbage that is due, and those whose garbage cannot be read, with the reason.

    UnavailableError when the store does not answer.
    """
    due: list[DueLog] = []
    unreadable: dict[str, str] = {}
    for log, found in map_logs(lambda log: (log, try_log(partial(_due_log, store, options), log)), logs):
        if isinstance(found, LogError):
            unreadable[log] = str(found)
        elif found.documents or found.soon:
            due.append(found)
    return due, unreadable


def _due_log(store: ObjectStore, options: CollectorOptions, log: str) -> DueLog:
    deleter, now_us = Deleter(store, log, options=options), shared_runtime().now_us()
    due, soon, store_now_us = [], False, None
    for meta in deleter.documents():
        age_s = (now_us - meta.last_modified_us) / US_PER_S
        if age_s < options.interval_s - _CLOCK_SKEW_S_MAX:
            continue
        store_now_us = deleter.store_now_us() if store_now_us is None else store_now_us
        if deleter.wait_s(meta.path, now_us=store_now_us) == 0:
            times = int(max(0.0, age_s - options.interval_s) // max(options.interval_s, _PERIOD_S_MIN))
            due.append((meta.path, meta.last_modified_us, times))
        else:
            soon = True
    return DueLog(log=log, documents=tuple(due), soon=soon)


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


class DeletionCursor(SensorCursor, frozen=True):
    """The last event that was read of each asset that makes garbage, by its storage id.

    ``waiting`` are logs with garbage that is due: how often it was looked at, and when to look again, in seconds.
    """

    seen: dict[str, int] = {}  # noqa: RUF012 - pydantic copies it
    waiting: dict[str, tuple[int, float]] = {}  # noqa: RUF012 - the same


def request_deletion(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Request runs for the logs with garbage whose interval is over by the store's clock; no run sleeps for it."""
    return _DueDeletions(scope, context).result()


class _DueDeletions:
    """One evaluation of the sensor: what became due, what is due and still there, and a part of the round."""

    def __init__(self, scope: StoreScope, context: SensorEvaluationContext) -> None:
        self._scope = scope
        self._context = context
        self._cursor = DeletionCursor.from_cursor(context.cursor)
        self._options = scope.collection(context).options()
        self._now_s = shared_runtime().now_us() / US_PER_S
        self._waiting = dict(self._cursor.waiting)
        self._keys: dict[str, str] = {}

    def result(self) -> SensorResult:
        cursor, instance = self._cursor, self._context.instance
        seen, became_due = self._became_due()
        reported = {*became_due, *(log for log, (_, next_s) in self._waiting.items() if next_s <= self._now_s)}
        rests = cursor.rests()
        if rests and not reported:
            said = f"{cursor.num_logs} logs, no garbage is due"
            return SensorResult(skip_reason=said, cursor=cursor.model_copy(update={"seen": seen}).to_cursor())
        if _is_under_way(instance, DELETION.sweep_name(self._scope)):
            # It may have these logs. Another one would wait for it, and find nothing left.
            said = "a sweep that deletes garbage is under way"
            return SensorResult(skip_reason=said, cursor=self._context.cursor)
        tick, known = (
            TickBudget(self._scope, self._context, "deletion", cursor),
            sorted(self._scope.known_logs(instance)),
        )
        store, num_read = open_known(self._scope, self._context), 0

        def look(logs: list[str]) -> None:
            nonlocal num_read
            self._look(store, logs)
            num_read += len(logs)

        left = sorted(reported & set(known))
        while left and not tick.over:
            look(left[:LOGS_AT_A_TIME])
            tick.take(LOGS_AT_A_TIME)
            left = left[LOGS_AT_A_TIME:]
        # The next tick looks at these.
        self._waiting.update(dict.fromkeys(left, (0, 0.0)))
        gone_over = cursor.model_copy(update={"ticks": tick.number}) if rests else tick.go_over(cursor, known, look)
        waiting = {log: self._waiting[log] for log in sorted(self._waiting.keys() & set(known))}
        asked = request_runs(self._scope, DELETION, dict(sorted(self._keys.items())), DUE)
        requests = next_attempts(instance, asked)
        return SensorResult(
            run_requests=requests,
            skip_reason=None if requests else f"{num_read} logs, no garbage is due",
            cursor=gone_over.model_copy(update={"seen": seen, "waiting": waiting}).to_cursor(),
        )

    def _became_due(self) -> tuple[dict[str, int], set[str]]:
        """Return up to which events the garbage that they made is due, and of which logs that is."""
        if is_quick(self._cursor.num_logs) or len(self._waiting) > WAITING_MAX:
            # Each tick looks at all, or has enough to look at.
            return self._cursor.seen, set()
        seen, logs, until_s = dict(self._cursor.seen), set(), self._now_s - self._options.interval_s
        for asset in MAKES_GARBAGE:
            events = self._context.instance.fetch_materializations(
                AssetRecordsFilter(
                    self._scope.key(asset),
                    after_storage_id=seen.get(asset, 0),
                    # What is older is found by the round.
                    after_timestamp=until_s - PERIOD_S_MAX,
                    before_timestamp=until_s,
                ),
                limit=EVENTS_PER_TICK_MAX,
                ascending=True,
            ).records
            logs |= {event.partition_key for event in events if event.partition_key is not None}
            seen[asset] = max((event.storage_id for event in events), default=seen.get(asset, 0))
        return seen, logs

    def _look(self, store: ObjectStore, logs: Sequence[str]) -> None:
        due, unreadable = find_due(store, logs, self._options)
        for log, message in unreadable.items():
            self._context.log.warning("%s: %s", log, message)
        for log in logs:
            number, _ = self._waiting.pop(log, (0, 0.0))
            if log in unreadable:
                self._waiting[log] = number + 1, self._now_s + attempt_s(number + 1)
        for each in due:
            number, _ = self._cursor.waiting.get(each.log, (0, 0.0))
            # Until nothing is left: its run may fail, or be killed.
            self._waiting[each.log] = number + 1, self._now_s + (attempt_s(number + 1) if each.documents else 0.0)
            if each.documents:
                # The key changes in each interval that the garbage documents are still there.
                named = "\n".join(f"{path} {changed_us} {times}" for path, changed_us, times in each.documents)
                self._keys[each.log] = f"{each.log}/{hashlib.sha256(named.encode()).hexdigest()}"


def _is_under_way(instance: DagsterInstance, job_name: str) -> bool:
    """Return whether a run of a job waits or has begun."""
    return bool(instance.get_run_records(RunsFilter(job_name=job_name, statuses=_UNDER_WAY), limit=1))


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
