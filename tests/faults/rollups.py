"""Roll-ups of dirty logs, several at once, and collections of what they have rolled up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Server, Stage, submit_once
from tests.faults.collectors import collector_options
from tests.faults.fleets import FleetWriter
from tests.faults.history import Append
from tests.faults.store import LOG, SimStore
from wal3_core import LogError, LogNotFoundError, LogWriter, Message, WriterOptions, collect
from wal3_core.errors import CollectionRefusedError, GarbageCollectedError, MissingError
from wal3_core.fleet.dirty.dirty_log import DirtyLog, assigned
from wal3_core.fleet.dirty.rollup import ROLLUP, RollUp
from wal3_core.fleet.dirty.rollup_plan import RollUpOptions, RollUpPlan
from wal3_core.options import FleetOptions, RetryOptions

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess

# The chance that a compactor has learned of the next change by its next round.
LEARNS = 0.3
RETRY = RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5)
EVERY_LOG = RollUpOptions(take_all=True, undecided_s=0.02, retry=RETRY)
# Much longer than a request takes: what is undecided stays so.
PATIENT = replace(EVERY_LOG, undecided_s=900.0)


def drawn_roll_up(dice: Random) -> RollUpOptions:
    """Small limits, so that a few appends reach them."""
    return RollUpOptions(
        cursor=dice.choice((None, None, "c")),
        age_s_max=dice.choice((0.0, 1.0, 3600.0)),
        records_max=dice.choice((1, 3, 1000)),
        reinsertions_max=dice.choice((1, 3, 100)),
        undecided_s=dice.choice((0.0, 0.05, 2.0, 900.0)),
        markers_max=dice.choice((1, 2, 5, 1000)),
        logs_ahead=dice.choice((1, 3)),
        take_all=dice.random() < 0.5,
        retry=RETRY,
    )


@dataclass(frozen=True, slots=True)
class Member:
    """One of the compactors that divide the dirty logs, while they change: it learns of each change some time later."""

    name: str
    teams: tuple[tuple[str, ...], ...]

    def pulls(self, stage: Stage, dice: Random, known: int) -> tuple[list[str], int]:
        """Return the dirty logs that it takes for its own, and which team it knows by now."""
        known = min(len(self.teams) - 1, known + (dice.random() < LEARNS))
        logs = assigned(stage.world.marks.logs, self.teams[known]).get(self.name, [])
        for log in logs:
            pulled_by = stage.world.marks.pulled_by[log]
            pulled_by.add(self.name)
            stage.world.fired["pulled by several compactors"] += len(pulled_by) > 1
        return logs, known


@dataclass(frozen=True, slots=True)
class RollingUp:
    """Rolls dirty logs up, repeatedly, and hands out some of what it selects, or never anything.

    A member of a changing team takes those that it takes for its own; anything else takes all.
    """

    options: RollUpOptions
    rounds: int
    pause_s_max: float = 0.2
    hands_out: float = 0.5
    member: Member | None = None

    def play(self, stage: Stage, process: SimProcess) -> None:
        known = 0
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pause_s_max)
            logs = stage.world.marks.logs
            if self.member is not None:
                logs, known = self.member.pulls(stage, process.random, known)
            for log in logs:
                rolling = Rolling(stage, process, log, self.options)
                try:
                    rolling.roll_up(self.hands_out)
                except LogNotFoundError:
                    continue
                except (MissingError, GarbageCollectedError) as error:
                    # Another roll-up and a collection have overtaken it.
                    if not rolling.overtaken:
                        stage.fail(f"markers are gone, and the cursor is where it was: {error}")
                except LogError as error:
                    stage.excuse(error)


class Rolling:
    """One roll-up of a dirty log, with checks of what it reports."""

    def __init__(self, stage: Stage, process: SimProcess, log: str, options: RollUpOptions) -> None:
        self._stage = stage
        self._process = process
        self._log = log
        self._options = options
        self._began = self._moves

    @property
    def _moves(self) -> int:
        return self._stage.world.names[self._log].life.cursors[ROLLUP].now

    @property
    def overtaken(self) -> bool:
        """Whether the cursor was moved since it began."""
        return self._moves > self._began

    def roll_up(self, hands_out: float) -> None:
        """Roll up, handing out each selected log with this chance."""
        world, dice, cursor = self._stage.world, self._process.random, self._options.cursor
        rollup = RollUp(SimStore(world, self._process), self._log, options=self._options, runtime=self._process)
        since = world.marks.reading(cursor)
        plan = rollup.read()
        assert not plan.marker_range.skipped, f"markers were collected before they were rolled up: {plan.marker_range}"
        decided = world.marks.read(plan, cursor, since)
        handled = [log for log in self._dirty(plan) if dice.random() < hands_out]
        # So long that others append, commit and roll up.
        self._stage.simulation.pause(dice.random() * dice.choice((0.0, 0.0, 0.2, 2.0)))
        # Recorded before it begins, because a killed process never returns.
        world.marks.finishes(self._process.name, decided, handled)
        done = rollup.finish(plan, handled)
        world.fired["fenced by a roll-up"] += done.num_fenced
        world.fired["markers reinserted"] += done.num_reinserted
        world.fired["handed out"] += len(handled)
        world.fired[f"rolled up: {done.outcome.value}"] += 1

    def _dirty(self, plan: RollUpPlan) -> Sequence[str]:
        # Some hand out what is not due yet, too.
        return plan.selected if self._options.take_all else tuple(dict.fromkeys(each.log for each in plan.dirty))


@dataclass(frozen=True, slots=True)
class CollectingMarkers:
    """Collects the dirty logs repeatedly."""

    rounds: int
    pause_s_max: float = 0.3

    def play(self, stage: Stage, process: SimProcess) -> None:
        options = collector_options(stage.world.shared.interval_s)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pause_s_max)
            for log in stage.world.marks.logs:
                try:
                    collect(SimStore(stage.world, process), log, options=options, runtime=process)
                except (LogNotFoundError, CollectionRefusedError, MissingError):
                    continue
                except LogError as error:
                    stage.excuse(error)
                else:
                    stage.world.fired["markers collected"] += 1


def check_marked(stage: Stage, operator: SimProcess) -> None:
    """Every acknowledged record is marked; roll-ups that hand out nothing lose nothing; others leave nothing behind."""
    marks, store = stage.world.marks, SimStore(stage.world, operator)
    marks.check(stage.simulation.now_s)
    if not marks.logs:
        return
    with (
        DirtyLog.open_or_create(store, "x", runtime=operator) as dirty,
        LogWriter.open_or_create(store, LOG, runtime=operator, marks=dirty) as writer,
    ):
        last = Append((Message(b"last marked"),), stage.simulation.now_s, marked=True)
        submit_once(stage, store, writer, last)
    assert last.outcome in {"acked", "sealed"}, f"after healing: {last}"
    for hands_out in (0.0, 1.0, 1.0, 1.0):
        # A marker under way for long is decided by the fence.
        stage.simulation.pause(100.0)
        for log in filter(marks.ahead, marks.logs):
            Rolling(stage, operator, log, EVERY_LOG).roll_up(hands_out)
    left = {log: marks.ahead(log) for log in marks.logs if marks.ahead(log)}
    assert not left, f"rolled up again and again, and left: {left}"


@dataclass(frozen=True, slots=True)
class Marking:
    """Appends one record after another, each marked."""

    options: WriterOptions
    count: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        try:
            marks = Server("x", self.options, 1).open(store)
            writer = LogWriter.open(store, LOG, options=self.options, runtime=process, marks=marks)
        except LogError as error:
            stage.excuse(error)
            return
        for number in range(self.count):
            append = Append((Message(f"{process.name}/{number}".encode()),), stage.simulation.now_s, marked=True)
            submit_once(stage, store, writer, append)
        writer.close()
        marks.close()


def rolling_casts(options: WriterOptions) -> Mapping[str, dict[str, Actor]]:
    """The casts of the scenarios with a server that marks its appends."""
    marking = Marking(options, 3)
    fleet = FleetWriter((LOG, "b"), "x", FleetOptions(logs_open_max=1, creates=True, writer=options), 2, 2)
    rolling, patient = RollingUp(EVERY_LOG, 3), RollingUp(PATIENT, 6, hands_out=0.2)
    return {
        "roll up while appending": {"victim": rolling, "marking": marking},
        "roll up patiently while appending": {"victim": patient, "marking": marking},
        "two roll-ups at once": {"victim": rolling, "other": rolling, "marking": marking},
        "roll up and collect": {"victim": rolling, "collector": CollectingMarkers(3), "marking": marking},
        "roll up while a fleet appends": {"victim": rolling, "marking": fleet},
    }
