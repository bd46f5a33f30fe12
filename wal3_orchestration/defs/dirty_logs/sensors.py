"""The sensor on the dirty logs: asks for the maintenance of the logs that have grown, and of no others.

A round takes two ticks. The first one reads the dirty logs, keeps what it has decided in the instance, and asks for the
runs of the selected logs. The next one sees that Dagster has these runs, and only then advances the cursors of the
dirty logs. A tick may end anywhere, be repeated, and run beside those of other instances on the same store: no mark
is lost, and a round's runs are started once.
"""

# Not `from __future__ import annotations`: pydantic reads the annotations of the sensor's cursor.
import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from dagster import (
    AssetMaterialization,
    AssetObservation,
    DagsterInstance,
    DagsterRunStatus,
    RunRequest,
    RunsFilter,
    SensorEvaluationContext,
    SensorResult,
)

from wal3_core.errors import LogError
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup_plan import RollUpPlan
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.reader import LogReader
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.dirty_logs.assets import (
    JOB,
    Round,
    RoundKind,
    Rounds,
    find_over_limit,
    finish,
    finished_metadata,
    judge,
    known_over_limit,
    marked_logs,
    marker_range,
    probe,
    probes_metadata,
    rollup_metadata,
    save_over_limit,
)
from wal3_orchestration.defs.dirty_logs.checks import DIRTY_LOG, ROLLUP, DirtyLogProbe
from wal3_orchestration.defs.key_compaction.assets import JOB as COMPACTION
from wal3_orchestration.defs.maintenance import MAINTENANCE
from wal3_orchestration.framework.scope import RUN_KEY_TAG, StoreScope
from wal3_orchestration.framework.store import open_known, remember_first
from wal3_orchestration.framework.triggers import TICK_S, LogSensor, SensorCursor

# Intervals at which runs judge the dirty logs at least, while a check fails and while all pass: runs post what fails.
REPORT_S = 6 * 60 * 60
REPORT_PASSED_S = 24 * 60 * 60
# Interval after which the failed collection of a quiet dirty log is tried again.
AGAIN_S = 24 * 60 * 60
_HOUR_S = 60 * 60
_PROBES_AT_ONCE = 8
_LAUNCHED = [status for status in DagsterRunStatus if status is not DagsterRunStatus.NOT_STARTED]


class DirtyLogsCursor(SensorCursor, frozen=True):
    """When a run was last asked to judge, the checks that each dirty log failed, the logs over their limit."""

    reported_us: int = 0
    problems: dict[str, list[str]] = {}  # noqa: RUF012 - pydantic copies it
    pressed: list[str] = []  # noqa: RUF012 - the same


def roll_up_dirty_logs(scope: StoreScope, context: SensorEvaluationContext) -> SensorResult:
    """Finish the round whose runs exist, then begin another one.

    Fails, and changes nothing, when the store is not the one that the instance looks after, or does not answer.
    """
    return _Tick(scope, context, open_known(scope, context)).result()


class _Tick:
    """One evaluation of the sensor: what it asks Dagster for, and what it says."""

    def __init__(self, scope: StoreScope, context: SensorEvaluationContext, store: ObjectStore) -> None:
        self._scope = scope
        self._context = context
        self._store = store
        self._limits = scope.rollup(context)
        self._rounds = Rounds(scope, context.instance)
        self._until_s = shared_runtime().monotonic_s() + TICK_S
        self._cursor = context.cursor
        self._requests: list[RunRequest] = []
        self._logs: list[str] = []
        self._events: list[AssetMaterialization | AssetObservation] = []

    def result(self) -> SensorResult:
        asked = self._rounds.load(RoundKind.ASKED)
        lacking = [] if asked is None else missing(self._context.instance, asked.requests(self._scope))
        if asked is not None and lacking:
            # Someone stopped the sensor while it asked for runs, or a tick was cut short.
            self._ask(asked, lacking)
            said = f"{asked.name}: {len(lacking)} runs are missing"
        else:
            if asked is not None:
                # Dagster has launched or queued a run for each selected log.
                key, metadata = self._scope.key(ROLLUP), self._finish(asked.plans)
                self._events.append(AssetObservation(key, description=asked.name, metadata=metadata))
                self._rounds.save(RoundKind.ASKED, None)
            said = self._next_round()
        known = set(self._scope.known_logs(self._context.instance)) if self._logs else set()
        new = [log for log in self._logs if log not in known]
        return SensorResult(
            run_requests=self._requests,
            skip_reason=None if self._requests else said,
            cursor=self._cursor,
            dynamic_partitions_requests=[self._scope.logs.build_add_request(new)] if new else [],
            asset_events=self._events,
        )

    # ------------------------------------------------------------------ rounds

    def _ask(self, found: Round, requests: Sequence[RunRequest]) -> None:
        self._requests += requests
        self._logs += found.logs
        metadata = {"logs": len(found.logs), **rollup_metadata(found.plans)}
        key = self._scope.key(ROLLUP)
        self._events.append(AssetMaterialization(key, description=found.name, metadata=metadata))

    def _begin(self, found: Round) -> None:
        """Keep a round before its runs are asked for: whatever happens then, the next tick asks for the same runs."""
        requests = found.requests(self._scope)
        # Runs for quiet dirty logs alone may have been asked for before.
        if requests and (found.plans or missing(self._context.instance, requests)):
            self._rounds.save(RoundKind.ASKED, found)
            self._ask(found, requests)

    def _finish(self, plans: Iterable[RollUpPlan]) -> dict[str, Any]:
        """Advance the cursors of dirty logs; say what was done."""
        done, refused = finish(self._store, plans, self._limits.options(self._limits.tick_markers_max))
        self._warn(refused)
        return finished_metadata(done, refused)

    def _next_round(self) -> str:
        """Begin a round with what a run has planned, or else with what this tick reads; return why there is none."""
        planned = self._rounds.load(RoundKind.PLANNED)
        if planned is not None:
            valid = [plan for plan in planned.plans if still_valid(self._store, plan)]
            self._begin(Round(plans=tuple(valid)))
            self._rounds.save(RoundKind.PLANNED, None)
            return "what a run has planned was done by another roll-up"
        before = DirtyLogsCursor.from_cursor(self._cursor)
        if before.rests(0, period_s=self._limits.period_s):
            return "the next look at the dirty logs is not due yet"
        names = dirty_logs(self._store)
        if not names:
            return "no dirty logs: no server marks what it appends"
        remember_first(self._scope, self._context.instance, self._store)
        return self._read(names, before)

    # ------------------------------------------------------------------ dirty logs

    def _read(self, names: Sequence[str], before: DirtyLogsCursor) -> str:
        now_us = shared_runtime().now_us()
        rest = [name for name in names if name > before.after]
        probes = self._probe(rest)
        self._warn({each.log: each.problem for each in probes if each.problem is not None})
        failed: dict[str, list[str]] = {}
        for each in probes:
            if found := [result.check.name for result in judge(each, self._limits) if result.problem is not None]:
                failed[each.log] = found
        changed = {each.log for each in probes if failed.get(each.log, []) != before.problems.get(each.log, [])}
        # A run reads these: it judges them before anything is dropped, or has more time than a tick.
        large = {each.log: each.generation for each in probes if each.plan is None and each.problem is None}
        left = (changed & failed.keys()) | large.keys()
        plans = [each.plan for each in probes if each.plan is not None and each.log not in left]
        self._finish(plan for plan in plans if plan.logs and not plan.selected)
        self._begin(self._round(probes, [plan for plan in plans if plan.selected]))
        if self._requests:
            self._events.insert(0, AssetMaterialization(self._scope.key(DIRTY_LOG), metadata=probes_metadata(probes)))
        report_s = REPORT_S if before.problems or before.pressed else REPORT_PASSED_S
        late = not 0 <= now_us - before.reported_us < report_s * US_PER_S
        pressed = self._over_limit(probes)
        judged = bool(late or changed or pressed != before.pressed)
        if judged or left:
            cause = [large, failed, pressed, before.reported_us, now_us // (_HOUR_S * US_PER_S)]
            self._requests.append(self._report(left, cause))
        kept = {name: found for name, found in before.problems.items() if name in names and name not in changed}
        self._cursor = DirtyLogsCursor(
            # A backlog is read on as soon as what was read of it is finished.
            begun_us=0 if large else before.begun_us if before.after else now_us,
            after=probes[-1].log if len(probes) < len(rest) else "",
            reported_us=now_us if judged else before.reported_us,
            problems=kept | failed,
            pressed=pressed,
        ).to_cursor()
        return f"{len(probes)} dirty logs, {sum(each.waiting for each in probes)} markers wait, no log is due"

    def _probe(self, names: Sequence[str]) -> list[DirtyLogProbe]:
        """Read dirty logs until the tick's time is over, at least the first ones."""
        probes: list[DirtyLogProbe] = []
        with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="dirty") as threads:
            for start in range(0, len(names), _PROBES_AT_ONCE):
                if probes and shared_runtime().monotonic_s() > self._until_s:
                    break
                some = names[start : start + _PROBES_AT_ONCE]
                probes += threads.map(partial(probe, self._store, self._limits), some)
        return probes

    def _over_limit(self, probes: Sequence[DirtyLogProbe]) -> list[str]:
        """Return the logs that are over their limit of unprocessed records; a run judges them, marked or not."""
        known = known_over_limit(self._scope, self._context.instance)
        found = find_over_limit(self._store, known, marked_logs(probes, grown=True), self._limits)
        if not found.keys() <= set(known):
            save_over_limit(self._scope, self._context.instance, {*known, *found})
        return sorted(found)

    def _round(self, probes: Sequence[DirtyLogProbe], plans: Sequence[RollUpPlan]) -> Round:
        """Maintain the selected logs; and with them their dirty logs, and those that have become quiet."""
        own = {plan.marker_range.dirty_log: plan.marker_range.start for plan in plans if plan.marker_range.generation}
        quiet = quiet_dirty_logs(self._store, probes, quiet_s=self._limits.quiet_due_s)
        attempt = int(shared_runtime().now_us() // (AGAIN_S * US_PER_S)) if quiet and not plans else 0
        return Round(plans=tuple(plans), collected={**own, **quiet}, attempt=attempt)

    def _report(self, left: Collection[str], cause: object) -> RunRequest:
        """Ask for a run that reads and judges all dirty logs; the same cause asks for the same run."""
        digest = hashlib.sha256(json.dumps([sorted(left), cause], sort_keys=True).encode()).hexdigest()
        reason = f"more markers than a tick reads, or problems: {', '.join(sorted(left))}" if left else "to be judged"
        return JOB.request(self._scope, run_key=f"{JOB.name}/{digest}", reason=f"dirty logs: {reason}")

    def _warn(self, problems: Mapping[str, str]) -> None:
        for name, problem in problems.items():
            self._context.log.warning("%s: %s", name, problem)


def missing(instance: DagsterInstance, requests: Iterable[RunRequest]) -> list[RunRequest]:
    """Return the requests of which Dagster has no run that was launched, or waits in the queue.

    A tick that ended may have asked in vain: someone may have stopped the sensor while it asked. And Dagster stores a
    run before it launches it: where that fails, such as while the code location is loaded again, the run stays as it
    is until it is asked for again.
    """

    def launched(request: RunRequest) -> RunsFilter:
        assert request.run_key is not None
        return RunsFilter(job_name=request.job_name, tags={RUN_KEY_TAG: request.run_key}, statuses=_LAUNCHED)

    return [each for each in requests if not instance.get_run_records(launched(each), limit=1)]


def still_valid(store: ObjectStore, plan: RollUpPlan) -> bool:
    """Return whether no roll-up has advanced the dirty log's cursor since a plan was made."""
    now = try_log(partial(marker_range, store), plan.marker_range.dirty_log)
    if isinstance(now, LogError):
        return False
    return (now.log_id, now.generation) == (plan.marker_range.log_id, plan.marker_range.generation)


def quiet_dirty_logs(store: ObjectStore, probes: Iterable[DirtyLogProbe], *, quiet_s: float) -> dict[str, int]:
    """Return the dirty logs that are quiet, rolled up, and large enough to collect, each with its cursor's offset.

    Those that were appended to less than ``quiet_s`` seconds ago are left to the next round that they ask for.
    """
    until_us = shared_runtime().now_us() - quiet_s * US_PER_S
    read = [each.plan.marker_range for each in probes if each.plan is not None and not each.waiting]
    quiet = {each.dirty_log: each.start for each in read if each.generation and each.limit.timestamp_us <= until_us}
    counts = {name: try_log(partial(_num_fragments, store), name) for name in quiet}
    # The newest fragment stays.
    more = {name for name, count in counts.items() if not isinstance(count, LogError) and count > 1}
    return {name: start for name, start in quiet.items() if name in more}


def _num_fragments(store: ObjectStore, log: str) -> int:
    manifest = LogReader.open(store, log).manifest()
    return manifest.next.seq_no - manifest.first.seq_no


DIRTY_LOGS = LogSensor(
    name="dirty_logs",
    tick=roll_up_dirty_logs,
    jobs=(MAINTENANCE, COMPACTION, JOB),
    period_s=30,
    description=(
        "Reads the dirty logs, in which servers mark the logs that they append to, and starts the compaction and"
        " collection of the logs that are due, and the key compaction of those whose policy asks for it, in few runs;"
        " what is marked stays so until Dagster has these runs."
        " Off until turned on: it collects."
    ),
    uses=("store", "rollup"),
    running=False,
)
