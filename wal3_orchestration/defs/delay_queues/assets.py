"""Delay queues: what each holds, as numbers that plot over time. An error of one log hides no other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dagster import MetadataValue

from wal3_core import InvalidRequestError, LogError, LogNotFoundError, read_queue_stats
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.model.paths import QUEUE_CURSOR
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.defs.delay_queues.checks import QUEUE
from wal3_orchestration.framework.assets import LogAsset, LogJob
from wal3_orchestration.framework.checks import judged
from wal3_orchestration.framework.recorder import IDLE, LogResult, Recorder
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.store import LogState, UnreadableLog, map_logs, read_states

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core import QueueStats
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.framework.checks import Value
    from wal3_orchestration.framework.step import Step
    from wal3_orchestration.resources import CollectionResource

# Each takes memory for the index of its queue.
LOOKS_AT_ONCE = 4
_HOUR_S = 60 * 60
# Runs judge a queue so often at least: while a check fails, and while all pass.
JUDGED_S = 24 * _HOUR_S
FAILED_S = 6 * _HOUR_S
_NO_QUEUE = "expected a queue, found a log without the cursor `queue`"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProbe:
    """What a queue held ``now_us``; without ``stats``, ``refusal`` says why it cannot be read, and else it is none."""

    log: str
    now_us: int
    stats: QueueStats | None = None
    refusal: Refusal | None = None
    reason: str = _NO_QUEUE
    data_version: str | None = None

    @property
    def oldest_due_s(self) -> float:
        """For how long the oldest due item has been due, in seconds; 0 for none."""
        if self.stats is None or self.stats.oldest_due_us is None:
            return 0.0
        return max(0.0, (self.now_us - self.stats.oldest_due_us) / US_PER_S)

    def numbers(self) -> dict[str, Value]:
        """Return the numbers that Dagster plots."""
        stats = self.stats
        if stats is None:
            return {}
        return {
            "pending": stats.pending,
            "due": stats.due,
            "scheduled": stats.scheduled,
            "leased": stats.leased,
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


def look_at(store: ObjectStore, logs: Sequence[str]) -> list[QueueProbe]:
    """Look at logs, in order, whether or not they are queues. UnavailableError when the store does not answer."""
    gone = Refusal(kind=LogNotFoundError.__name__, message="expected a log, found none")
    looks = {each.log: each for each in read_queues(store, read_states(store, logs))}
    return [looks.get(log) or QueueProbe(log=log, now_us=shared_runtime().now_us(), refusal=gone) for log in logs]


def read_queues(store: ObjectStore, states: Iterable[LogState | UnreadableLog]) -> Iterator[QueueProbe]:
    """Read what logs hold as queues, several at a time, in order. UnavailableError when the store does not answer."""
    return map_logs(partial(_read, store), states, count=LOOKS_AT_ONCE)


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


def queues_of(states: Iterable[LogState | UnreadableLog]) -> list[LogState]:
    """Return the logs that may be queues."""
    return [state for state in states if isinstance(state, LogState) and _is_queue(state)]


def _is_queue(state: LogState) -> bool:
    """Tell by a log's cursors whether it may be a queue; one that is being made has no record yet."""
    return QUEUE_CURSOR in state.cursors and state.manifest.next.position.offset > 1


def look_at_queues(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Record and judge each queue of the step; other logs are left alone."""
    limits = step.limits
    for some in step.slices():
        probes = look_at(store, some.logs)
        results = [_result(each, limits) for each in probes]
        recorder.add(results, [checked for each in probes for checked in judged(QUEUE, each.log, each, limits)])


def _result(found: QueueProbe, limits: CollectionResource) -> LogResult:
    if found.refusal is not None:
        # Its state counts as recorded, so that the sensor asks for one run, not for one at each look.
        return LogResult(log=found.log, refusal=found.refusal, state=found.state(limits))
    if found.stats is None:
        return LogResult(log=found.log, state=IDLE, metadata=found.metadata())
    return LogResult(
        log=found.log,
        metadata=found.metadata(),
        state=found.state(limits),
        notable=True,
        data_version=found.data_version,
    )


DELAY_QUEUE = LogAsset(
    name=QUEUE,
    do=look_at_queues,
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
