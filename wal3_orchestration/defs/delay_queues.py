"""Delay queues: what each holds, as numbers that plot over time, and checks that judge it.

What a queue holds changes with every call, so that a run for each reading would cost Dagster more than the readings:
the sensor records what it reads as an observation, and has a run judge a queue when a check begins or ceases to fail. A
check's failure is posted by the run that finds it. An error of one log hides no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from dagster import AssetObservation, MetadataValue, SensorEvaluationContext, SensorResult

from wal3_core import InvalidRequestError, LogError, LogNotFoundError, QueueStats, read_queue_stats
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.format.paths import QUEUE_CURSOR
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.assets import LogAsset, LogJob, request_runs
from wal3_orchestration.framework.checks import Value, judged, log_check
from wal3_orchestration.framework.log_records import LogRecords
from wal3_orchestration.framework.recorder import IDLE, PLOTTED_LOGS_MAX, LogResult, Recorder, fingerprint
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.step import Step
from wal3_orchestration.framework.store import LogState, UnreadableLog, map_logs, open_known, read_states
from wal3_orchestration.framework.triggers import (
    LogSensor,
    SensorCursor,
    TickBudget,
    Workflow,
    is_quick,
    next_attempts,
)
from wal3_orchestration.resources import CollectionResource

QUEUE = "delay_queue"
# Queues that are read at once; each takes memory for its index.
_READ_AT_ONCE = 4
_HOUR_S = 60 * 60
# Intervals at which runs judge a queue at least: all checks pass, one fails, the queue is too large for a tick.
JUDGED_S = 24 * _HOUR_S
FAILED_S = 6 * _HOUR_S
LARGE_S = _HOUR_S
# Items in a checkpoint that take as long to load as one record after it.
_INDEXED_PER_RECORD = 10
_STATS = ("queue", "stats", "LOG")
_SUMMED = ("pending", "due", "leased", "dead", "bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProbe:
    """What a queue held ``now_us``; without ``stats``, ``refusal`` says why it cannot be read, and else it is none."""

    log: str
    now_us: int
    stats: QueueStats | None = None
    refusal: Refusal | None = None
    reason: str = "expected a queue, found a log without the cursor `queue`"
    data_version: str | None = None

    @property
    def oldest_due_s(self) -> float:
        """For how long the oldest due item has been due, in seconds; 0 for none."""
        stats = self.stats
        times = () if stats is None else (stats.oldest_due_us, stats.oldest_ended_us)
        return max((max(0.0, (self.now_us - us) / US_PER_S) for us in times if us is not None), default=0.0)

    @property
    def num_due(self) -> int:
        """How many items are due, with those whose leases ended: where no broker runs, they stay leased for ever."""
        return 0 if self.stats is None else self.stats.due + self.stats.ended

    def numbers(self) -> dict[str, int | float]:
        """Return the numbers that Dagster plots."""
        stats = self.stats
        if stats is None:
            return {}
        return {
            "pending": stats.pending + stats.ended,
            "due": self.num_due,
            "scheduled": stats.scheduled,
            "leased": stats.leased - stats.ended,
            "dead": stats.dead,
            "bytes": stats.bytes,
            "oldest due (s)": round(self.oldest_due_s, 3),
            "last_id": stats.last_id,
        }

    def metadata(self) -> dict[str, Value]:
        """Return the numbers, and when the oldest item was enqueued and the next one is due; or why it is no queue."""
        stats = self.stats
        if stats is None:
            return {"reason": self.reason}
        times = {"oldest_enqueued": stats.oldest_enqueued_us, "next_deadline": stats.next_deadline_us}
        return {
            **self.numbers(),
            **{label: MetadataValue.timestamp(us / US_PER_S) for label, us in times.items() if us is not None},
        }

    def state(self, limits: CollectionResource) -> str:
        """Identify what a run is to say of the queue, and until when that is not said again."""
        failed = [each.check.name for each in judged(QUEUE, self.log, self, limits) if each.problem is not None]
        if self.refusal is not None:
            failed = ["unreadable"]
        period_s = FAILED_S if failed else JUDGED_S
        return f"{' '.join(failed)} {int(self.now_us // (period_s * US_PER_S))}"


# ---------------------------------------------------------------------- checks


def _readable(found: QueueProbe) -> bool:
    return found.refusal is None


@log_check(asset=QUEUE, section=Section.QUEUE_OLD, next_command=_STATS, applies=_readable, details=QueueProbe.numbers)
def oldest_due_within(found: QueueProbe, limits: CollectionResource) -> str | None:
    """No item of a queue has been due for long without being handed out."""
    if found.stats is None or found.oldest_due_s <= limits.queue_due_s_max:
        return None
    return (
        f"expected each item to be handed out within {limits.queue_due_s_max:,.0f} s of its deadline, found one that"
        f" has been due for {found.oldest_due_s:,.0f} s, of {found.num_due:,} due items"
    )


@log_check(
    asset=QUEUE, section=Section.DEAD_LETTERS, next_command=_STATS, applies=_readable, details=QueueProbe.numbers
)
def dead_letters_below(found: QueueProbe, limits: CollectionResource) -> str | None:
    """No queue has more dead letters than it may have."""
    dead = 0 if found.stats is None else found.stats.dead
    if dead <= limits.queue_dead_max:
        return None
    return f"expected at most {limits.queue_dead_max:,} dead letters, found {dead:,}"


@log_check(asset=QUEUE, section=Section.QUEUE_OLD, next_command=_STATS, applies=_readable, details=QueueProbe.numbers)
def depth_below(found: QueueProbe, limits: CollectionResource) -> str | None:
    """Not too many items wait in a queue, due or not."""
    pending = 0 if found.stats is None else found.stats.pending + found.stats.ended
    if pending <= limits.queue_pending_max:
        return None
    return f"expected at most {limits.queue_pending_max:,} pending items, found {pending:,}"


# ---------------------------------------------------------------------- asset


def read_queues(store: ObjectStore, states: Iterable[LogState | UnreadableLog]) -> Iterator[QueueProbe]:
    """Read what logs hold as queues, several at a time, in order. UnavailableError when the store does not answer."""
    return map_logs(partial(_read, store), states, count=_READ_AT_ONCE)


def _read(store: ObjectStore, state: LogState | UnreadableLog) -> QueueProbe:
    log = state.log
    if isinstance(state, UnreadableLog):
        return QueueProbe(log=log, now_us=shared_runtime().now_us(), refusal=Refusal(kind="", message=state.message))
    found = try_log(partial(read_queue_stats, store), log) if _is_queue(state) else None
    now_us = shared_runtime().now_us()
    if found is None:
        return QueueProbe(log=log, now_us=now_us)
    if isinstance(found, InvalidRequestError):
        # Someone else's cursor of that name.
        return QueueProbe(log=log, now_us=now_us, reason=str(found))
    if isinstance(found, LogError):
        return QueueProbe(log=log, now_us=now_us, refusal=Refusal.of(found))
    return QueueProbe(log=log, now_us=now_us, stats=found, data_version=state.data_version)


def _is_queue(state: LogState) -> bool:
    """Tell by a log's cursors whether it may be a queue; one that is being made has no record yet."""
    return QUEUE_CURSOR in state.cursors and state.manifest.next.position.offset > 1


def record_queues(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Record and judge each queue of the step; other logs are left alone."""
    limits, gone = step.limits, Refusal(kind=LogNotFoundError.__name__, message="expected a log, found none")
    found = {each.log: each for each in read_queues(store, read_states(store, step.logs))}
    now_us = shared_runtime().now_us()
    probes = [found.get(log) or QueueProbe(log=log, now_us=now_us, refusal=gone) for log in step.logs]
    checked = [result for each in probes for result in judged(QUEUE, each.log, each, limits)]
    recorder.add([_result(each, limits) for each in probes], checked)


def _result(found: QueueProbe, limits: CollectionResource) -> LogResult:
    if found.refusal is not None:
        # Its state counts as recorded, so that the sensor asks for one run, not for one at each look.
        return LogResult(log=found.log, refusal=found.refusal, state=found.state(limits))
    is_queue = found.stats is not None
    return LogResult(
        log=found.log,
        metadata=found.metadata(),
        state=found.state(limits) if is_queue else IDLE,
        notable=is_queue,
        data_version=found.data_version,
    )


DELAY_QUEUE = LogAsset(
    name=QUEUE,
    group="delay_queues",
    do=record_queues,
    description=(
        "What a delay queue holds, read from its log without taking it from its broker: items that wait, are due,"
        " leased, or dead, their bytes, and for how long the oldest due item has been due. Of a log that is no queue,"
        " only that.\n\nThe sensor `delay_queues` observes each queue; plots by event follow it over time."
    ),
    deps=("manifest",),
    uses=("store", "collection"),
    pool="wal3_delay_queue",
    section=Section.QUEUE_OLD,
)
JOB = LogJob(name="delay_queue", assets=(DELAY_QUEUE,), description="Looks at delay queues, and judges them.")


# ---------------------------------------------------------------------- sensor


def observe_queues(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Observe each queue, and request runs for those of which a check says something else than before.

    Fails, and changes nothing, when the store is not the one that the instance looks after, or does not answer.
    """
    cursor, limits = SensorCursor.from_cursor(context.cursor), scope.collection(context)
    if cursor.rests(period_s=limits.queue_period_s):
        return SensorResult(skip_reason="the next look at the queues is not due yet", cursor=context.cursor)
    tick, known = TickBudget(scope, context, QUEUE, cursor), scope.known_logs(context.instance)
    # Of many logs, discovery knows which are queues.
    logs = known if is_quick(len(known)) else scope.known_queues(context.instance)
    store, large, probes = open_known(scope, context), list[LogState](), list[QueueProbe]()

    def look(some: list[str]) -> None:
        queues = [state for state in read_states(store, some) if isinstance(state, LogState) and _is_queue(state)]
        large.extend(state for state in queues if _is_large(state, limits))
        read = read_queues(store, [state for state in queues if not _is_large(state, limits)])
        # A log that is no queue has its cursor from someone else.
        probes.extend(each for each in read if each.stats is not None or each.refusal is not None)

    after = tick.go_over(cursor, sorted(logs), look, count=_READ_AT_ONCE)
    for each in probes:
        if each.refusal is not None:
            context.log.warning("%s: %s", each.log, each.refusal.message)
    states = {each.log: fingerprint(each.state(limits)) for each in probes}
    keys = LogRecords(scope, context.instance, QUEUE).changed(states)
    hour = int(shared_runtime().now_us() // (LARGE_S * US_PER_S))
    large_keys = {state.log: f"{state.log}/{hour}" for state in large}
    asked = request_runs(scope, JOB, keys, "a delay queue is to be judged")
    asked += request_runs(scope, JOB, large_keys, "a delay queue is too large for a tick")
    requests = next_attempts(context.instance, asked)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(logs)} logs, {len(probes)} queues, nothing new to judge",
        cursor=after.to_cursor(),
        asset_events=list(_observations(scope, probes)),
    )


def _is_large(state: LogState, limits: CollectionResource) -> bool:
    """Tell whether a tick would read too much of it: the records after the checkpoint, and what is in that."""
    manifest = state.manifest
    after = manifest.next.position.offset - state.cursors[QUEUE_CURSOR].position.offset
    return after + manifest.num_records // _INDEXED_PER_RECORD > limits.queue_records_max


def _observations(scope: StoreScope, probes: Sequence[QueueProbe]) -> Iterator[AssetObservation]:
    """Put the log's name into the labels, as each recorded one does; and sum up all queues."""
    key, found = scope.key(QUEUE), [(each, each.stats) for each in probes if each.stats is not None]
    if not found:
        return
    if len(found) <= PLOTTED_LOGS_MAX:
        for each, _ in found:
            numbers = {f"{each.log}: {label}": value for label, value in each.numbers().items()}
            yield AssetObservation(key, partition=each.log, metadata=numbers)
    yield AssetObservation(
        key,
        metadata={
            "queues": len(found),
            **{f"total {label}": sum(each.numbers()[label] for each, _ in found) for label in _SUMMED},
            "longest due (s)": round(max(each.oldest_due_s for each, _ in found), 3),
        },
    )


DELAY_QUEUES = LogSensor(
    name="delay_queues",
    tick=observe_queues,
    jobs=(JOB,),
    period_s=30,
    description=(
        "Reads what each delay queue holds, every quarter of an hour, and records it as an observation. Has a run judge"
        " a queue when a check begins or ceases to fail, every six hours while one fails, and once a day."
    ),
    uses=("store", "collection"),
)
workflow = Workflow(assets=(DELAY_QUEUE,), jobs=(JOB,), sensors=(DELAY_QUEUES,))
