"""The sensor that looks at each delay queue, and has a run judge it when a check begins or ceases to fail.

What a queue holds changes with every call, so that a run for each look would cost Dagster more than the looks: a look
is recorded as an observation. A check's failure is posted by the run that finds it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dagster import AssetObservation, SensorEvaluationContext, SensorResult

from wal3_core.model.paths import QUEUE_CURSOR
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.defs.delay_queues.assets import (
    DELAY_QUEUE,
    JOB,
    LOOKS_AT_ONCE,
    QueueProbe,
    queues_of,
    read_queues,
)
from wal3_orchestration.framework.assets import request_runs
from wal3_orchestration.framework.log_records import NOTHING, LogRecords
from wal3_orchestration.framework.recorder import PLOTTED_LOGS_MAX, fingerprint
from wal3_orchestration.framework.store import open_known, read_states
from wal3_orchestration.framework.triggers import LogSensor, SensorCursor, next_attempts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.framework.scope import Scope
    from wal3_orchestration.framework.store import LogState
    from wal3_orchestration.resources import CollectionResource

REASON = "a delay queue is to be judged"
TOO_LARGE = "a delay queue is too large for a tick"
# So often a run looks at a queue that is too large for a tick.
LARGE_S = 60 * 60
# Of the items in a checkpoint so many take as long to load as a record after it.
_INDEXED_PER_RECORD = 10
# Dagster ends a tick after a minute.
TICK_S = 20.0


@dataclass(slots=True)
class _Seen:
    """The queues that a tick has read, those that are too large for one, and the last log that it came to."""

    looks: list[QueueProbe] = field(default_factory=list)
    large: list[LogState] = field(default_factory=list)
    cut_after: str | None = None


def observe_queues(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Observe each queue, and request runs for those of which a check says something else than before.

    Fails, and changes nothing, when the store is not the one that the instance looks after, or does not answer.
    """
    pace, known = SensorCursor.from_cursor(context.cursor), scope.known_logs(context.instance)
    limits = scope.collection(context)
    if pace.rests(len(known), period_s=limits.queue_period_s):
        return SensorResult(skip_reason="the next look at the queues is not due yet", cursor=pace.to_cursor())
    logs, after = pace.step(sorted(known))
    store = open_known(scope, context)
    seen = _read(store, queues_of(read_states(store, logs)), limits)
    if seen.cut_after is not None:
        after = replace(after, after=seen.cut_after)
    for each in seen.looks:
        if each.refusal is not None:
            context.log.warning("%s: %s", each.log, each.refusal.message)
    keys = _keys(scope, context, {each.log: each.state(limits) for each in seen.looks})
    asked = [*request_runs(scope, JOB, keys, REASON), *request_runs(scope, JOB, _large(seen.large), TOO_LARGE)]
    requests = next_attempts(context.instance, asked)
    return SensorResult(
        run_requests=requests,
        skip_reason=None if requests else f"{len(logs)} logs, {len(seen.looks)} queues, nothing new to judge",
        cursor=after.to_cursor(),
        asset_events=list(_observations(scope, seen.looks)),
    )


def _read(store: ObjectStore, queues: Sequence[LogState], limits: CollectionResource) -> _Seen:
    """Read queues until the tick's time is over, at least the first ones."""
    seen, until_s = _Seen(), shared_runtime().monotonic_s() + TICK_S
    seen.large = [state for state in queues if _is_large(state, limits)]
    small = [state for state in queues if not _is_large(state, limits)]
    for start in range(0, len(small), LOOKS_AT_ONCE):
        if start and shared_runtime().monotonic_s() > until_s:
            seen.cut_after = small[start - 1].log
            break
        seen.looks += read_queues(store, small[start : start + LOOKS_AT_ONCE])
    # A log that is no queue has its cursor from someone else.
    seen.looks = [each for each in seen.looks if each.stats is not None or each.refusal is not None]
    return seen


def _is_large(state: LogState, limits: CollectionResource) -> bool:
    """Tell whether a look reads too much for a tick: the records after the checkpoint, and what is in it."""
    manifest = state.manifest
    after = manifest.next.position.offset - state.cursors[QUEUE_CURSOR].position.offset
    return after + manifest.num_records // _INDEXED_PER_RECORD > limits.queue_records_max


def _large(states: Sequence[LogState]) -> dict[str, str]:
    """Name the runs that read these."""
    slot = int(shared_runtime().now_us() // (LARGE_S * US_PER_S))
    return {state.log: f"{state.log}/{slot}" for state in states}


def _keys(scope: Scope, context: SensorEvaluationContext, wanted: Mapping[str, str]) -> dict[str, str]:
    """Name the run of each queue whose state is not the one recorded last, by both: each is judged once."""
    records = LogRecords(scope, context.instance, DELAY_QUEUE.name).load(wanted)
    return {
        log: f"{log}/{records.get(log, NOTHING).number}/{fingerprint(state)}"
        for log, state in wanted.items()
        if records.get(log, NOTHING).state != fingerprint(state)
    }


def _observations(scope: Scope, looks: Sequence[QueueProbe]) -> Iterator[AssetObservation]:
    """Put the log's name into the labels, as each recorded look does; and sum up all queues."""
    key, found = scope.key(DELAY_QUEUE.name), [each for each in looks if each.stats is not None]
    if not found:
        return
    if len(found) <= PLOTTED_LOGS_MAX:
        for each in found:
            numbers = {f"{each.log}: {label}": value for label, value in each.numbers().items()}
            yield AssetObservation(key, partition=each.log, metadata=numbers)
    stats = [each.stats for each in found if each.stats is not None]
    yield AssetObservation(
        key,
        metadata={
            "queues": len(stats),
            "total pending": sum(each.pending for each in stats),
            "total due": sum(each.due for each in stats),
            "total leased": sum(each.leased for each in stats),
            "total dead": sum(each.dead for each in stats),
            "total bytes": sum(each.bytes for each in stats),
            "longest due (s)": round(max(each.oldest_due_s for each in found), 3),
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
