"""The sensor on the dirty logs: asks for the maintenance of the logs that have grown, and of no others.

A round takes two ticks. The first one reads the dirty logs, keeps what it has decided in the instance, and asks for the
runs of the selected logs. The next one sees that Dagster has these runs, and only then advances the cursors of the
dirty logs. A tick may end anywhere, be repeated, and run beside those of other instances on the same store: no mark
is lost, and a round's runs are started once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Self

from dagster import SensorEvaluationContext, SensorResult

from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_orchestration.defs.dirty_logs.assets import JOB, asked_event, ended_event, judge, looked_event
from wal3_orchestration.defs.dirty_logs.probe import (
    Pressed,
    find_over,
    finish,
    look_in_time,
    marked,
    rolled_up,
    still_valid,
)
from wal3_orchestration.defs.dirty_logs.rounds import Round, RoundKind, Rounds, missing
from wal3_orchestration.defs.key_compaction.assets import JOB as COMPACTION
from wal3_orchestration.defs.maintenance import MAINTENANCE
from wal3_orchestration.framework.store import open_known, remember_first
from wal3_orchestration.framework.triggers import LogSensor

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from dagster import AssetMaterialization, AssetObservation, RunRequest

    from wal3_core.fleet.dirty.rollup_plan import RollUpPlan
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.defs.dirty_logs.probe import DirtyLogProbe
    from wal3_orchestration.framework.scope import Scope

    Event = AssetMaterialization | AssetObservation

# Dagster ends a tick after a minute.
TICK_S = 20.0
# The checks are evaluated by runs, whose failed checks are posted: so often at least while one fails, or all pass.
REPORT_S = 6 * 60 * 60
REPORT_PASSED_S = 24 * 60 * 60
# A quiet dirty log whose collection failed is collected again so much later.
AGAIN_S = 24 * 60 * 60
_HOUR_S = 60 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorState:
    """When the last look at the dirty logs began, the last one that it has read, and the checks that each fails.

    ``pressed`` are the logs that were over their limit of unprocessed records.
    """

    begun_us: int = 0
    after: str = ""
    reported_us: int = 0
    problems: Mapping[str, list[str]] = field(default_factory=dict)
    pressed: Sequence[str] = ()

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Self:
        """Read what the last tick wrote; an unknown form counts as nothing, so that the dirty logs are read."""
        try:
            found = json.loads(cursor or "{}")
            return cls(
                begun_us=int(found.get("begun_us", 0)),
                after=str(found.get("after", "")),
                reported_us=int(found.get("reported_us", 0)),
                problems={str(name): list(map(str, checks)) for name, checks in found.get("problems", {}).items()},
                pressed=list(map(str, found.get("pressed", ()))),
            )
        except (ValueError, TypeError, AttributeError):
            return cls()

    def to_cursor(self) -> str:
        """Format as the sensor's cursor."""
        return json.dumps(asdict(self))

    def rests(self, now_us: int, period_s: float) -> bool:
        """Return whether the next look is not due yet."""
        return not self.after and 0 <= now_us - self.begun_us < period_s * US_PER_S


def roll_up_dirty_logs(scope: Scope, context: SensorEvaluationContext) -> SensorResult:
    """Finish the round whose runs exist, then begin another one.

    Fails, and changes nothing, when the store is not the one that the instance looks after, or does not answer.
    """
    return _Tick(scope, context, open_known(scope, context)).result()


class _Tick:
    """One evaluation of the sensor: what it asks Dagster for, and what it says."""

    def __init__(self, scope: Scope, context: SensorEvaluationContext, store: ObjectStore) -> None:
        self._scope = scope
        self._context = context
        self._store = store
        self._limits = scope.rollup(context)
        self._options = self._limits.options(self._limits.tick_markers_max)
        self._rounds = Rounds(scope, context.instance)
        self._until_s = shared_runtime().monotonic_s() + TICK_S
        self._cursor = context.cursor
        self._requests: list[RunRequest] = []
        self._logs: list[str] = []
        self._events: list[Event] = []

    def result(self) -> SensorResult:
        asked = self._rounds.load(RoundKind.ASKED)
        lacking = [] if asked is None else missing(self._context.instance, asked.requests(self._scope))
        if asked is not None and lacking:
            # Someone stopped the sensor while it asked for runs, or a tick was cut short.
            self._ask(asked, lacking)
            said = f"{asked.name}: {len(lacking)} runs are missing"
        else:
            if asked is not None:
                self._finish(asked)
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
        self._events.append(asked_event(self._scope, found))

    def _begin(self, found: Round) -> None:
        """Keep a round before its runs are asked for: whatever happens then, the next tick asks for the same runs."""
        if not found.logs:
            return
        if not found.plans and not missing(self._context.instance, found.requests(self._scope)):
            # Quiet dirty logs that were asked for before.
            return
        self._rounds.save(RoundKind.ASKED, found)
        self._ask(found, found.requests(self._scope))

    def _finish(self, asked: Round) -> None:
        """Advance the cursors of dirty logs: Dagster has launched or queued a run for each selected log."""
        done, refused = finish(self._store, asked.plans, self._options, hands_out=True)
        self._warn(refused)
        self._events.append(ended_event(self._scope, asked, done, refused))
        self._rounds.save(RoundKind.ASKED, None)

    def _next_round(self) -> str:
        """Begin a round with what a run has planned, or else with a look; return why there is none."""
        planned = self._rounds.load(RoundKind.PLANNED)
        if planned is not None:
            valid = [plan for plan in planned.plans if still_valid(self._store, plan, self._limits)]
            self._begin(Round(plans=tuple(valid)))
            self._rounds.save(RoundKind.PLANNED, None)
            return "what a run has planned was done by another roll-up"
        place, now_us = SensorState.from_cursor(self._cursor), shared_runtime().now_us()
        if place.rests(now_us, self._limits.period_s):
            return "the next look at the dirty logs is not due yet"
        names = dirty_logs(self._store)
        if not names:
            return "no dirty logs: no server marks what it appends"
        remember_first(self._scope, self._context.instance, self._store)
        return self._look(names, place, now_us)

    # ------------------------------------------------------------------ looks

    def _look(self, names: Sequence[str], place: SensorState, now_us: int) -> str:
        rest = [name for name in names if name > place.after]
        looks = look_in_time(self._store, rest, self._limits, until_s=self._until_s)
        self._warn({each.log: each.problem for each in looks if each.problem is not None})
        failed: dict[str, list[str]] = {}
        for each in looks:
            if found := [checked.check.name for checked in judge(each, self._limits) if checked.problem is not None]:
                failed[each.log] = found
        changed = [
            name for name in (each.log for each in looks) if failed.get(name, []) != place.problems.get(name, [])
        ]
        # A run reads these: it judges them before anything is dropped, or has more time than a tick.
        large = {each.log: each.generation for each in looks if each.too_many}
        left = {name for name in changed if name in failed} | large.keys()
        plans = [each.plan for each in looks if each.plan is not None and each.log not in left]
        _, refused = finish(
            self._store, [plan for plan in plans if plan.logs and not plan.selected], self._options, hands_out=False
        )
        self._warn(refused)
        self._begin(self._round(looks, [plan for plan in plans if plan.selected]))
        if self._requests:
            self._events.insert(0, looked_event(self._scope, looks))
        report_s = REPORT_S if place.problems or place.pressed else REPORT_PASSED_S
        late = not 0 <= now_us - place.reported_us < report_s * US_PER_S
        pressed = self._pressed(looks)
        judged = bool(late or changed or pressed != place.pressed)
        if judged or left:
            cause = [large, failed, pressed, place.reported_us, now_us // (_HOUR_S * US_PER_S)]
            self._requests.append(self._report(left, cause))
        kept = {name: found for name, found in place.problems.items() if name in names and name not in changed}
        self._cursor = SensorState(
            # A backlog is read on as soon as what was read of it is finished.
            begun_us=0 if large else place.begun_us if place.after else now_us,
            after=looks[-1].log if len(looks) < len(rest) else "",
            reported_us=now_us if judged else place.reported_us,
            problems=kept | failed,
            pressed=pressed,
        ).to_cursor()
        return f"{len(looks)} dirty logs, {sum(each.waiting for each in looks)} markers wait, no log is due"

    def _pressed(self, looks: Sequence[DirtyLogProbe]) -> list[str]:
        """Return the logs that are over their limit of unprocessed records; a run judges them, marked or not."""
        kept = Pressed(self._scope, self._context.instance)
        known = kept.load()
        found = [each.log for each in find_over(self._store, known, marked(looks, grown=True), self._limits)]
        if not set(found) <= set(known):
            kept.save({*known, *found})
        return sorted(found)

    def _round(self, looks: Sequence[DirtyLogProbe], plans: Sequence[RollUpPlan]) -> Round:
        """Maintain the selected logs; and with them their dirty logs, and those that have become quiet."""
        own = {plan.marker_range.dirty_log: plan.marker_range.start for plan in plans if plan.marker_range.generation}
        quiet = rolled_up(self._store, looks, quiet_s=self._limits.quiet_due_s)
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
