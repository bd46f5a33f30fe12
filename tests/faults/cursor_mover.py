"""Move cursors from many processes at once, and record each answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.cursor_history import CursorHistory, Deletion, Load, Move, Outcome
from tests.faults.store import LOG, SimStore
from wal3_core import (
    CursorConflictError,
    CursorStore,
    GarbageCollectedError,
    LogError,
    LogNotFoundError,
    LogPosition,
    LogReplacedError,
    Witness,
)
from wal3_core.format.paths import cursor_path, life_folder
from wal3_core.options import RetryOptions
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import log_store

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess


@dataclass(frozen=True, slots=True)
class CursorMover:
    """Creates a cursor or takes it over, moves it both ways, sometimes from an old witness, or deletes it.

    Its name is used again at once, or by another mover.
    """

    name: str
    moves: int
    pause_s_max: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        _keep_moving(self, stage, process)

    def step(self, hand: Hand, dice: Random) -> bool:
        if hand.witness is None or dice.random() < 0.5:
            hand.load()
        if dice.random() < 0.2:
            hand.delete()
        hand.move(LogPosition(_place(hand.stage, dice), 0))
        # Otherwise it continues with a witness of a log that is gone.
        return not (hand.is_lost and dice.random() < 0.5)


@dataclass(frozen=True, slots=True)
class Consumer:
    """Follows the log and saves its place as fast as it can, always forward."""

    name: str
    moves: int
    pause_s_max: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        _keep_moving(self, stage, process)

    def step(self, hand: Hand, _dice: Random) -> bool:
        if hand.witness is None:
            hand.load()
        manifest = hand.life.manifest
        assert manifest is not None
        before = manifest.first_kept if hand.witness is None else hand.witness.cursor
        hand.move(LogPosition(min(before.position.offset + 1, manifest.next.position.offset), 0))
        return not hand.is_lost


def _keep_moving(mover: CursorMover | Consumer, stage: Stage, process: SimProcess) -> None:
    """Take the mover's steps, with a new hand whenever a step drops the old one."""
    store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/moves")
    hand: Hand | None = None
    for _ in range(mover.moves):
        stage.simulation.pause(dice.random() * mover.pause_s_max)
        hand = hand or Hand.reaching(stage, store, mover.name)
        if hand is not None and not mover.step(hand, dice):
            hand = None


def _place(stage: Stage, dice: Random) -> int:
    """Choose an offset that the log holds, or one just below."""
    manifest = stage.world.oracle.manifest
    if manifest is None:
        return 1
    return dice.randrange(max(1, manifest.first.position.offset - 2), manifest.next.position.offset + 1)


@dataclass
class Hand:
    """One mover's operations on a cursor of one life of the log, and their outcomes."""

    stage: Stage
    store: SimStore
    cursors: CursorStore
    name: str
    life: Oracle
    folder: str
    witness: Witness | None = None
    is_lost: bool = False

    @classmethod
    def reaching(cls, stage: Stage, store: SimStore, name: str) -> Hand | None:
        """Find out which log has the name, and return a hand on a cursor of that log."""
        try:
            log_id = ManifestStore(log_store(store, LOG), store.process).load().manifest.log_id
        except LogNotFoundError:
            return None
        except LogError as error:
            stage.excuse(error)
            return None
        retry = RetryOptions(attempts_max=3, pause_s_max=0.5)
        cursors = CursorStore(store, LOG, runtime=store.process, retry=retry, log_id=log_id)
        return cls(stage, store, cursors, name, stage.world.names.lives[log_id], f"{LOG}/{life_folder(log_id)}")

    @property
    def _history(self) -> CursorHistory:
        return self.life.cursors[self.name]

    def load(self) -> None:
        history, since = self._history, self._history.now
        try:
            self.witness = self.cursors.load(self.name)
        except LogError as error:
            self.stage.excuse(error)
            return
        seen = None if self.witness is None else self.witness.cursor
        history.loads.append(Load(seen, history.landed[since:]))

    def move(self, position: LogPosition) -> None:
        history, ambiguous, path = self._history, self.store.ambiguous, f"{self.folder}{cursor_path(self.name)}"
        self.store.sent[path] = sent = []
        move = Move(None if self.witness is None else self.witness.cursor, sent, since=history.now)
        # Recorded before it begins, because a killed process never returns.
        history.moves.append(move)
        move.outcome = self._try(position)
        move.until, move.ambiguous = history.now, self.store.ambiguous > ambiguous
        self.stage.world.fired[f"cursor {move.outcome}"] += 1

    def delete(self) -> None:
        history, path = self._history, f"{self.folder}{cursor_path(self.name)}"
        self.store.sent[path] = sent = []
        deletion = Deletion(sent, since=history.now)
        history.deletions.append(deletion)
        try:
            self.cursors.delete(self.name)
            deletion.outcome = "done"
        except (LogNotFoundError, LogReplacedError) as error:
            deletion.outcome = "unknown"
            self._lose(error)
        except LogError as error:
            deletion.outcome = "unknown"
            self.stage.excuse(error)
        deletion.until = history.now
        self.witness = None
        self.stage.world.fired[f"cursor deletion {deletion.outcome}"] += 1

    def _lose(self, error: LogError) -> None:
        self.is_lost = True
        if self.life.over_s > self.stage.simulation.now_s:
            self.stage.fail(f"reported as gone, and it is not: {error}")

    def _try(self, position: LogPosition) -> Outcome:
        before, began_s = self.witness, self.stage.simulation.now_s
        try:
            if self.witness is None:
                self.witness = self.cursors.create(self.name, position)
            else:
                self.witness = self.cursors.save(self.name, position, self.witness)
        except CursorConflictError:
            self.witness = None
            return "conflict"
        except GarbageCollectedError as error:
            self.stage.excuse(error)
            self.witness = None
            return "collected"
        except (LogNotFoundError, LogReplacedError) as error:
            self._lose(error)
            return "unknown"
        except LogError as error:
            self.stage.excuse(error)
            return "unknown"
        # A call that creates a cursor, or moves one back, reads the manifest afterwards.
        looked = before is None or position.offset < before.cursor.position.offset
        assert not looked or self.life.over_s >= began_s, (
            f"promised to hold in a log that was gone: {self.witness.cursor}"
        )
        if self.life.over_s > self.stage.simulation.now_s:
            self.life.relies_on(self.name, self.witness.cursor)
        return "done"
