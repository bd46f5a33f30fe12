"""One look at a log that may be a delay queue, and what the checks say of it. An error of one log hides no other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dagster import MetadataValue

from wal3_core import InvalidRequestError, LogError, LogNotFoundError, read_queue_stats
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.model.paths import QUEUE_CURSOR
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.at_once import at_once
from wal3_orchestration.building import LogCheck
from wal3_orchestration.log_state import LogState, UnreadableLog, read_states
from wal3_orchestration.outcomes import Verdict
from wal3_orchestration.runbook import Section

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core import QueueStats
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.outcomes import Value
    from wal3_orchestration.resources import CollectionResource

QUEUE = "delay_queue"
# Each takes memory for the index of its queue.
LOOKS_AT_ONCE = 4
_HOUR_S = 60 * 60
# Runs judge a queue so often at least: while a check fails, and while all pass.
JUDGED_S = 24 * _HOUR_S
FAILED_S = 6 * _HOUR_S
_NO_QUEUE = "expected a queue, found a log without the cursor `queue`"

OLDEST = LogCheck(
    name="oldest_due_within",
    asset=QUEUE,
    description="No item of a queue has been due for long without being handed out.",
    section=Section.QUEUE_OLD,
    next_command=("queue", "stats", "LOG"),
)
DEAD = LogCheck(
    name="dead_letters_below",
    asset=QUEUE,
    description="No queue has more dead letters than it may have.",
    section=Section.DEAD_LETTERS,
    next_command=("queue", "stats", "LOG"),
)
DEPTH = LogCheck(
    name="depth_below",
    asset=QUEUE,
    description="Not too many items wait in a queue, due or not.",
    section=Section.QUEUE_OLD,
    next_command=("queue", "stats", "LOG"),
)
CHECKS = (OLDEST, DEAD, DEPTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLook:
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
        failed = [verdict.check.name for verdict in verdicts(self, limits) if verdict.problem is not None]
        if self.refusal is not None:
            failed = ["unreadable"]
        period_s = FAILED_S if failed else JUDGED_S
        return f"{' '.join(failed)} {int(self.now_us // (period_s * US_PER_S))}"


def verdicts(found: QueueLook, limits: CollectionResource) -> Iterator[Verdict]:
    """Judge a queue by each check; a log that is none passes, one that cannot be read is not judged."""
    if found.refusal is not None:
        return
    details = found.numbers()
    for check, problem in _judged(found, limits):
        yield Verdict(check=check, log=found.log, problem=problem, details=details)


def _judged(found: QueueLook, limits: CollectionResource) -> Iterator[tuple[LogCheck, str | None]]:
    stats, age_s = found.stats, found.oldest_due_s
    late = stats is not None and age_s > limits.queue_due_s_max
    yield OLDEST, _late(found, limits) if late else None
    dead = 0 if stats is None else stats.dead
    yield (
        DEAD,
        f"expected at most {limits.queue_dead_max:,} dead letters, found {dead:,}"
        if dead > limits.queue_dead_max
        else None,
    )
    pending = 0 if stats is None else stats.pending
    deep = pending > limits.queue_pending_max
    yield DEPTH, f"expected at most {limits.queue_pending_max:,} pending items, found {pending:,}" if deep else None


def _late(found: QueueLook, limits: CollectionResource) -> str:
    assert found.stats is not None
    return (
        f"expected each item to be handed out within {limits.queue_due_s_max:,.0f} s of its deadline, found one that"
        f" has been due for {found.oldest_due_s:,.0f} s, of {found.stats.due:,} due items"
    )


def look_at(store: ObjectStore, logs: Sequence[str]) -> list[QueueLook]:
    """Look at logs, in order, whether or not they are queues. UnavailableError when the store does not answer."""
    gone = Refusal(kind=LogNotFoundError.__name__, message="expected a log, found none")
    looks = {each.log: each for each in read_queues(store, read_states(store, logs))}
    return [looks.get(log) or QueueLook(log=log, now_us=shared_runtime().now_us(), refusal=gone) for log in logs]


def read_queues(store: ObjectStore, states: Iterable[LogState | UnreadableLog]) -> Iterator[QueueLook]:
    """Read what logs hold as queues, several at a time, in order. UnavailableError when the store does not answer."""
    return at_once(partial(_read, store), states, count=LOOKS_AT_ONCE)


def _read(store: ObjectStore, state: LogState | UnreadableLog) -> QueueLook:
    log = state.log
    if isinstance(state, UnreadableLog):
        return QueueLook(log=log, now_us=shared_runtime().now_us(), refusal=Refusal(kind="", message=state.message))
    found = try_log(partial(read_queue_stats, store), log) if _is_queue(state) else None
    now_us = shared_runtime().now_us()
    if found is None:
        return QueueLook(log=log, now_us=now_us)
    if isinstance(found, InvalidRequestError):
        # Someone else's cursor of that name.
        return QueueLook(log=log, now_us=now_us, reason=str(found))
    if isinstance(found, LogError):
        return QueueLook(log=log, now_us=now_us, refusal=Refusal.of(found))
    return QueueLook(log=log, now_us=now_us, stats=found, data_version=state.data_version)


def queues_of(states: Iterable[LogState | UnreadableLog]) -> list[LogState]:
    """Return the logs that may be queues."""
    return [state for state in states if isinstance(state, LogState) and _is_queue(state)]


def _is_queue(state: LogState) -> bool:
    """Tell by a log's cursors whether it may be a queue; one that is being made has no record yet."""
    return QUEUE_CURSOR in state.cursors and state.manifest.next.position.offset > 1
