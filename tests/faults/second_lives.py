"""A name that is used again: several processes end logs and begin others under their name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.faults.collectors import COPY, check_copied, check_destroyed
from tests.faults.store import LATE_S_MAX, LOG, SimStore
from wal3_core import LogError, LogExistsError, LogWriter, SealedError
from wal3_core.format.manifest import Manifest
from wal3_core.format.vacancy import VacancyKind
from wal3_core.log.maintain.copy.copier import LogAt, copy
from wal3_core.log.maintain.destroyer import destroy, undo_destroy
from wal3_core.log.maintain.sealer import migrate, seal
from wal3_core.store.documents.pin_store import PinStore

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.lives import Name
    from tests.faults.simulator import SimProcess

OTHER = "other"
NAMES = (LOG, COPY, OTHER)

Step = Literal[
    "create",
    "destroy",
    "destroy with pins",
    "undo destroy",
    "back up",
    "restore",
    "destroy backup",
    "create successor",
    "seal",
    "pin",
    "unpin",
]
# Sequences of steps that people take.
HABITS: tuple[tuple[Step, ...], ...] = (
    ("destroy", "create"),
    ("destroy with pins", "create"),
    ("back up", "destroy", "restore"),
    ("back up", "destroy with pins", "restore"),
    ("restore", "destroy backup"),
    ("destroy", "create successor"),
    ("seal", "destroy", "restore"),
    ("pin", "destroy", "unpin", "destroy"),
    ("back up", "destroy backup"),
    ("create",),
    ("destroy",),
    ("restore",),
)


def drawn_steps(dice: Random, pace_s: float) -> tuple[tuple[float, Step], ...]:
    """Draw the steps of one process, and its wait before each."""
    habits = [habit for _ in range(dice.choice((1, 2, 3))) for habit in dice.choice(HABITS)]
    return tuple((dice.random() * pace_s, step) for step in habits)


@dataclass(frozen=True, slots=True)
class Reusing:
    """Takes its steps in order, whatever their outcome; other processes may take the same ones."""

    steps: tuple[tuple[float, Step], ...]
    with_cursors: bool

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.world.shared.copiers.add(process.name)
        hands = Hands(stage, SimStore(stage.world, process), with_cursors=self.with_cursors)
        for pause_s, step in self.steps:
            stage.simulation.pause(pause_s)
            try:
                hands.take(step)
            except LogError as error:
                stage.excuse(error)
                stage.world.fired[f"{step}: {type(error).__name__}"] += 1
            else:
                stage.world.fired[step] += 1


@dataclass(frozen=True, slots=True)
class Hands:
    """One process's operations on names, with checks of their outcomes."""

    stage: Stage
    store: SimStore
    with_cursors: bool = False

    def take(self, step: Step) -> None:
        """Take a step; AssertionError where its reported outcome is not true."""
        steps: dict[Step, Callable[[], None]] = {
            "create": self._create,
            "destroy": lambda: self._destroy(LOG),
            "destroy with pins": lambda: self._destroy(LOG, also_pinned=True),
            "undo destroy": self._undo_destroy,
            "back up": lambda: self._copy(LOG, COPY),
            "restore": lambda: self._copy(COPY, LOG),
            "destroy backup": lambda: self._destroy(COPY, also_pinned=True),
            "create successor": self._follow,
            "seal": self._seal,
            "pin": self._pin,
            "unpin": lambda: PinStore(self.store, LOG, runtime=self.store.process).delete("shared"),
        }
        steps[step]()

    def _create(self) -> None:
        name, since_s = self.stage.world.names[LOG], self.stage.simulation.now_s
        try:
            LogWriter.create(self.store, LOG, runtime=self.store.process)
        except LogExistsError as error:
            if not name.was_taken_since(since_s):
                self.stage.fail(f"the name was free all the time: {error}")
            raise
        self._check_begun(LOG, since_s)

    def _destroy(self, log: str, *, also_pinned: bool = False) -> None:
        name = self.stage.world.names[log]
        standing = name.entry
        name.pins_going += also_pinned
        try:
            destroy(self.store, log, also_pinned=also_pinned, runtime=self.store.process)
        except LogError:
            self._let_pins_be(name, also_pinned=also_pinned)
            raise
        self._let_pins_be(name, also_pinned=also_pinned)
        if standing is not None and name.entry is not None and name.held[-1][1] == standing.log_id:
            self.stage.fail(f"{log}: reported as destroyed, and it is there: {standing.log_id}")

    def _undo_destroy(self) -> None:
        life = self.stage.world.names[LOG].life
        found = undo_destroy(self.store, LOG, runtime=self.store.process)
        if found is not None and (life.manifest is None or life.manifest.seal != found):
            self.stage.fail(f"reported as sealed, and it is not: {life.manifest}")

    def _let_pins_be(self, name: Name, *, also_pinned: bool) -> None:
        if also_pinned:
            name.pins_going -= 1
            # One of its requests may still be under way.
            name.pins_go_until_s = self.stage.simulation.now_s + LATE_S_MAX

    def _copy(self, source: str, target: str) -> None:
        since_s = self.stage.simulation.now_s
        life = self.stage.world.names[source].life
        held = len(life.records)
        copied = copy(
            LogAt(self.store, source),
            LogAt(self.store, target),
            with_cursors=self.with_cursors,
            runtime=self.store.process,
        )
        self._check_begun(target, since_s)
        check_copied(self.stage, copied, life, held)

    def _check_begun(self, log: str, since_s: float) -> None:
        if not any(life.began_s >= since_s for life in self.stage.world.names[log].lives):
            self.stage.fail(f"{log}: reported as begun, and it is not")

    def _follow(self) -> None:
        """Make the log a successor of another one, which is begun again if it was followed before."""
        try:
            with LogWriter.open_or_create(self.store, OTHER, runtime=self.store.process) as writer:
                writer.append(b"to be followed")
        except SealedError:
            self._destroy(OTHER)
            return
        migrate(self.store, OTHER, LOG, reason="it moves", runtime=self.store.process)

    def _seal(self) -> None:
        life = self.stage.world.oracle
        found = seal(self.store, LOG, reason="the end", runtime=self.store.process)
        sealed = [life.manifest for life in self.stage.world.names[LOG].lives if life.manifest]
        if not any(manifest.seal == found for manifest in sealed):
            self.stage.fail(f"reported as sealed, and it is not: {life.manifest}")

    def _pin(self) -> None:
        pin = PinStore(self.store, LOG, runtime=self.store.process).create("shared", reason="a long read")
        life = self.stage.world.names.lives[pin.log_id]
        if life.over_s > self.stage.simulation.now_s:
            for path in life.paths(pin.manifest):
                if life.objects.head(path) is None:
                    self.stage.fail(f"pin shared was promised to hold, and {path} is gone")


def destroy_unfinished(stage: Stage, operator: SimProcess) -> None:
    """Destroy what was cut short: unfinished copies, kept names, announced destructions."""
    for log in NAMES:
        name = stage.world.names[log]
        entry = name.entry
        if entry.destroying if isinstance(entry, Manifest) else entry and entry.kind is not VacancyKind.DESTROYED:
            name.pins_going += 1
            destroy(SimStore(stage.world, operator), log, also_pinned=True, runtime=operator)
            stage.world.fired["destroyed unfinished"] += 1


def check_all_destroyed(stage: Stage, operator: SimProcess) -> None:
    """Destroying the names deletes the remains of all their lives."""
    for log in NAMES:
        name = stage.world.names[log]
        name.pins_going += 1
        newest = None if name.entry is None else name.entry.log_id
        inside = stage.world.objects.list_objects(f"{log}/")
        left = [meta.path for meta in inside if f"Life={newest}" not in meta.path]
        stage.world.fired["dead lives left something"] += len(left) > 1
        check_destroyed(stage, operator, log)
