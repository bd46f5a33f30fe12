"""Moving cursors from many hands at once, and writing down what each was told."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.faults.linearizable import PENDING_S, Operation
from tests.faults.store import LOG, SimStore
from wal3_core import CursorConflictError, CursorStore, LogError, LogNotFoundError, LogPosition, Witness
from wal3_core.model.cursor import Cursor
from wal3_core.model.paths import cursor_path
from wal3_core.options import RetryOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.faults.actors import Stage
    from tests.faults.simulator import SimProcess


@dataclass(frozen=True, slots=True)
class CursorMover:
    """Creates a cursor or takes it over, and moves it both ways, sometimes from an old witness."""

    name: str
    moves: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/moves")
        cursors = CursorStore(store, LOG, runtime=process, retry=RetryOptions(attempts_max=3, pause_s_max=0.5))
        hand = Hand(stage, store, cursors, self.name)
        for _ in range(self.moves):
            stage.simulation.pause(dice.random() * 3)
            if hand.witness is None or dice.random() < 0.5:
                hand.load()
            end = stage.world.oracle.manifest
            offset = 1 if end is None else dice.randrange(1, end.next.position.offset + 1)
            hand.move(LogPosition(offset, 0))


@dataclass
class Hand:
    """One mover's operations on a cursor, written down for the search for an order."""

    stage: Stage
    store: SimStore
    cursors: CursorStore
    name: str
    witness: Witness | None = None

    def load(self) -> None:
        began_s = self.stage.simulation.now_s
        try:
            self.witness = self.cursors.load(self.name)
        except LogError as error:
            self.stage.excuse(error)
            return
        seen = None if self.witness is None else self.witness.cursor.writer
        operation = Operation(
            what=f"loaded {seen}",
            began_s=began_s,
            ended_s=self.stage.simulation.now_s,
            step=lambda state: (state,) if state == seen else (),
        )
        self._operations.append(operation)

    def move(self, position: LogPosition) -> None:
        ambiguous, path = self.store.ambiguous, f"{LOG}/{cursor_path(self.name)}"
        self.store.sent.pop(path, None)
        move = _Move(None if self.witness is None else self.witness.cursor.writer, self.store.sent, path)
        # Written down before it begins: a process that is killed does not come back to it.
        pending = Operation(what="move", began_s=self.stage.simulation.now_s, ended_s=PENDING_S, step=move.step)
        self._operations.append(pending)
        move.outcome = self._try(position)
        move.ambiguous = self.store.ambiguous > ambiguous
        move.settle()
        ended_s = PENDING_S if move.outcome == "unknown" else self.stage.simulation.now_s
        operations = self._operations
        operations[operations.index(pending)] = replace(pending, what=str(move), ended_s=ended_s)

    @property
    def _operations(self) -> list[Operation]:
        return self.stage.history.cursors.setdefault(self.name, [])

    def _try(self, position: LogPosition) -> str:
        try:
            if self.witness is None:
                self.witness = self.cursors.init(self.name, position)
            else:
                self.witness = self.cursors.save(self.name, position, self.witness)
        except CursorConflictError:
            self.witness = None
            return "conflict"
        except LogNotFoundError:
            return "unknown"
        except LogError as error:
            self.stage.excuse(error)
            return "unknown"
        return "done"


@dataclass
class _Move:
    """A CAS of the cursor; a version is known by the name its writer gave it."""

    expected: str | None
    sent: dict[str, bytes] = field(repr=False)
    path: str = field(repr=False)
    outcome: str = "unknown"
    ambiguous: bool = True
    mine: str | None = None

    def settle(self) -> None:
        """Keep what was sent, before something else is."""
        data = self.sent.get(self.path)
        self.mine = None if data is None else Cursor.from_bytes(data, what=self.path).writer

    def step(self, state: object) -> Sequence[object]:
        if self.mine is None:
            self.settle()
        if self.mine is None:
            # Nothing was sent, so nothing can have changed.
            return (state,)
        if self.outcome == "done":
            return (self.mine,) if state == self.expected else ()
        if self.outcome == "conflict" and not self.ambiguous:
            return () if state == self.expected else (state,)
        # It may have been applied: an unknown one also later, a conflict before somebody else went on from it.
        return (self.mine, state) if state == self.expected else (state,)
