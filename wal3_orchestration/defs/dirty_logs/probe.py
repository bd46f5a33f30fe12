"""Reads dirty logs, finishes what needs no maintenance, finds logs whose consumers are too far behind.

An error of one dirty log hides no other.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import LogError, LogNotFoundError
from wal3_core.fleet.dirty.back_pressure import measure_logs, over_limit
from wal3_core.fleet.dirty.rollup import FinishedRollUp, RollUp
from wal3_core.fleet.dirty.rollup_plan import RollUpPlan
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.reader import LogReader
from wal3_core.model.policy import UNPROCESSED_MIN
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.spark.rollup import plan_rollups

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from dagster import DagsterInstance
    from pyspark.sql import SparkSession

    from wal3_core.compaction.retried import Retried
    from wal3_core.fleet.dirty.rollup_plan import MarkerRange, RollUpOptions
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.framework.scope import Scope
    from wal3_orchestration.resources import RollUpResource

_ALL = 2**31 - 1
_LOOKS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyLogProbe:
    """A dirty log at one look: how many markers wait, and what is decided about the first of them.

    Without a plan, ``problem`` says why it cannot be read; without both, too many markers wait for this look.
    ``generation`` is the version of its cursor.
    """

    log: str
    waiting: int = 0
    generation: int = 0
    plan: RollUpPlan | None = None
    problem: str | None = None

    @property
    def too_many(self) -> bool:
        """Whether a run has to read it."""
        return self.plan is None and self.problem is None


def look_in_time(
    store: ObjectStore, names: Sequence[str], limits: RollUpResource, *, until_s: float
) -> list[DirtyLogProbe]:
    """Read dirty logs, those that have no more markers than a tick reads; none after ``until_s`` but the first ones.

    UnavailableError when the store does not answer.
    """
    looks: list[DirtyLogProbe] = []
    with ThreadPoolExecutor(_LOOKS_AT_ONCE, thread_name_prefix="dirty") as threads:
        for start in range(0, len(names), _LOOKS_AT_ONCE):
            if looks and shared_runtime().monotonic_s() > until_s:
                break
            looks += threads.map(partial(_look, store, limits), names[start : start + _LOOKS_AT_ONCE])
    return looks


def _look(store: ObjectStore, limits: RollUpResource, name: str) -> DirtyLogProbe:
    found = try_log(partial(_look_here, store, limits), name)
    return DirtyLogProbe(log=name, problem=_said(found)) if isinstance(found, LogError) else found


def _look_here(store: ObjectStore, limits: RollUpResource, name: str) -> DirtyLogProbe:
    whole = _marker_range(store, limits, name)
    waiting = whole.num_markers
    if not waiting:
        return DirtyLogProbe(log=name, plan=RollUpPlan(marker_range=whole, now_us=0, logs=()))
    if waiting > limits.tick_markers_max:
        return DirtyLogProbe(log=name, waiting=waiting, generation=whole.generation)
    plan = RollUp(store, name, options=limits.options(limits.tick_markers_max)).read()
    return DirtyLogProbe(log=name, waiting=waiting, plan=plan)


def look_in_run(
    store: ObjectStore, names: Sequence[str], limits: RollUpResource, *, spark: SparkSession | None, url: str
) -> tuple[list[DirtyLogProbe], Retried | None]:
    """Read dirty logs in full, up to ``run_markers_max`` markers of each.

    On Spark if a session is given: then also return what Spark ran again.
    """
    waits = waiting_in(store, names, limits)
    options, retried = limits.options(limits.run_markers_max), None
    if spark is None:
        looks = [_read(name, try_log(lambda name: RollUp(store, name, options=options).read(), name)) for name in names]
    else:
        planned = plan_rollups(spark, url, names, options)
        retried = planned.retried
        looks = [
            DirtyLogProbe(
                log=each.dirty_log, plan=each.plan, problem=None if each.refusal is None else each.refusal.message
            )
            for each in planned
        ]
    return [replace(each, waiting=waits.get(each.log, 0)) for each in looks], retried


def waiting_in(store: ObjectStore, names: Iterable[str], limits: RollUpResource) -> dict[str, int]:
    """Count the markers that wait in each dirty log that can be read."""
    found = {name: try_log(partial(_marker_range, store, limits), name) for name in names}
    return {name: each.num_markers for name, each in found.items() if not isinstance(each, LogError)}


def _read(name: str, found: RollUpPlan | LogError) -> DirtyLogProbe:
    if isinstance(found, LogError):
        return DirtyLogProbe(log=name, problem=_said(found))
    return DirtyLogProbe(log=name, plan=found)


def _marker_range(store: ObjectStore, limits: RollUpResource, name: str) -> MarkerRange:
    return RollUp(store, name, options=limits.options(_ALL)).marker_range()


def finish(
    store: ObjectStore, plans: Iterable[RollUpPlan], options: RollUpOptions, *, hands_out: bool
) -> tuple[dict[str, FinishedRollUp], dict[str, str]]:
    """Finish plans that were read with these options; with ``hands_out`` their selected logs are handled.

    Return what was done, and what was refused. A plan that cannot be finished leaves everything marked: the dirty log
    is read again.
    """
    done: dict[str, FinishedRollUp] = {}
    refused: dict[str, str] = {}
    for plan in plans:
        name, handled = plan.marker_range.dirty_log, plan.selected if hands_out else ()
        found = try_log(partial(_finish, store, options, plan), handled)
        if isinstance(found, LogError):
            refused[name] = _said(found)
        else:
            done[name] = found
    return done, refused


def _finish(store: ObjectStore, options: RollUpOptions, plan: RollUpPlan, handled: Collection[str]) -> FinishedRollUp:
    return RollUp(store, plan.marker_range.dirty_log, options=options).finish(plan, handled)


def still_valid(store: ObjectStore, plan: RollUpPlan, limits: RollUpResource) -> bool:
    """Return whether no roll-up has advanced the dirty log's cursor since a plan was made."""
    now = try_log(partial(_marker_range, store, limits), plan.marker_range.dirty_log)
    if isinstance(now, LogError):
        return False
    return (now.log_id, now.generation) == (plan.marker_range.log_id, plan.marker_range.generation)


def rolled_up(store: ObjectStore, looks: Iterable[DirtyLogProbe], *, quiet_s: float) -> dict[str, int]:
    """Return the quiet dirty logs of which a collection can take something, each with its cursor's offset.

    Those that were appended to less than ``quiet_s`` seconds ago are left to the next round that they ask for.
    """
    until_us = shared_runtime().now_us() - quiet_s * US_PER_S
    read = [each.plan.marker_range for each in looks if each.plan is not None and not each.waiting]
    quiet = [marker_range for marker_range in read if marker_range.limit.timestamp_us <= until_us]
    found = {
        marker_range.dirty_log: try_log(partial(_num_fragments, store), marker_range.dirty_log)
        for marker_range in quiet
    }
    # The newest fragment stays.
    more = {name for name, count in found.items() if not isinstance(count, LogError) and count > 1}
    return {
        marker_range.dirty_log: marker_range.start
        for marker_range in quiet
        if marker_range.dirty_log in more and marker_range.generation
    }


def _num_fragments(store: ObjectStore, log: str) -> int:
    manifest = LogReader.open(store, log).manifest()
    return manifest.next.seq_no - manifest.first.seq_no


def _said(error: LogError) -> str:
    return f"{type(error).__name__}: {error}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A log that is over its limit, and why; or that was, and cannot be measured now."""

    log: str
    reason: str


class Pressed:
    """The logs of a scope that ticks have found over their limit, or the last run did: the next one looks at them."""

    def __init__(self, scope: Scope, instance: DagsterInstance) -> None:
        self._storage = instance.daemon_cursor_storage
        self._key = f"wal3/pressed/{scope.name}"

    def load(self) -> list[str]:
        """Return their names."""
        text = self._storage.get_cursor_values({self._key}).get(self._key)
        return list(map(str, json.loads(text))) if text else []

    def save(self, logs: Iterable[str]) -> None:
        """Keep these names in place of those before."""
        self._storage.set_cursor_values({self._key: json.dumps(sorted(logs))})


def find_over(
    store: ObjectStore, known: Collection[str], marked: Collection[str], limits: RollUpResource
) -> list[Behind]:
    """Return those of these logs that are over their limit; two small requests for each.

    With them those of the ``known`` ones that cannot be measured now: nothing else would look at them again.
    """
    limit = limits.unprocessed_max or None
    again = measure_logs(store, known, limit, whole=False)
    over = over_limit(store, set(marked) - again.keys(), unprocessed_max=limit)
    over += [each for each in again.values() if not isinstance(each, LogError) and each.over]
    over.sort(key=lambda each: (-each.unprocessed, each.log))
    found = [Behind(log=each.log, reason=each.reason) for each in over]
    text = "log {}: over its limit when it was looked at last; it cannot be measured now: {}"
    return found + [
        Behind(log=log, reason=text.format(log, error))
        for log, error in again.items()
        if isinstance(error, LogError) and not isinstance(error, LogNotFoundError)
    ]


def marked(looks: Iterable[DirtyLogProbe], *, grown: bool = False) -> set[str]:
    """Return the logs that are marked; with ``grown``, only by as many records as the least limit."""
    plans = [look.plan for look in looks if look.plan is not None]
    least = UNPROCESSED_MIN if grown else 0
    return {each.log for plan in plans for each in plan.dirty if each.num_records >= least}
