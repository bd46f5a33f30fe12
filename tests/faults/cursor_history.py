"""What movers of a cursor were told, compared with the versions that the store took, in its order.

The simulated store takes one change at a time, so its order is the only one there can be: a history is
linearizable when every answer agrees with it, and nothing has to be searched for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from wal3_core.model.cursor import Cursor

if TYPE_CHECKING:
    from collections.abc import Sequence

# pending: the process was killed before it heard. collected: it came too late, and was taken back.
Outcome = Literal["pending", "done", "conflict", "collected", "unknown"]


@dataclass(frozen=True, slots=True)
class Load:
    """An answer, and the versions that were the cursor's at some time between question and answer."""

    seen: Cursor | None
    current: Sequence[Cursor | None]


@dataclass(slots=True)
class Move:
    """A CAS from one version to another: what was sent for it, and which versions there were while it lasted.

    ``since`` and ``until`` are the numbers of the versions that were current when it began and ended;
    ``ambiguous`` tells that a request of it was left unanswered.
    """

    expected: Cursor | None
    sent: list[bytes]
    since: int
    until: int | None = None
    outcome: Outcome = "pending"
    ambiguous: bool = True

    def chain(self) -> list[Cursor | None]:
        """Name the versions it would have the cursor go through: the move, and what it is taken back by."""
        versions = dict.fromkeys(self.sent)
        return [self.expected, *(Cursor.from_bytes(data, what="sent") for data in versions)]


@dataclass(slots=True)
class CursorHistory:
    """One cursor's: ``landed`` are its versions in the store's order, from none at all on."""

    landed: list[Cursor | None] = field(default_factory=lambda: [None])
    loads: list[Load] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The number of the version that the store holds."""
        return len(self.landed) - 1

    def check(self) -> None:
        """AssertionError for an answer that does not agree with the store's order."""
        for load in self.loads:
            assert load.seen in load.current, f"loaded what was not there: {load}"
        steps = set(pairwise(self.landed))
        # Of a log that is gone, what somebody creates may be deleted, and then arrive a second time.
        assert len(steps) == self.now or None in self.landed[1:], f"a version came back: {self.landed}"
        allowed = set[tuple[Cursor | None, Cursor | None]]()
        for move in self.moves:
            allowed.update(pairwise(move.chain()))
            self._check_answer(move, steps)
        # It goes only with its log.
        moved = {(before, after) for before, after in steps if after is not None}
        assert moved <= allowed, f"moved from another version than the mover saw: {moved - allowed}"

    def _check_answer(self, move: Move, steps: set[tuple[Cursor | None, Cursor | None]]) -> None:
        if move.until is None:
            return
        during = self.landed[move.since : move.until + 1]
        happened = set(pairwise(during))
        first = next(pairwise(move.chain()), None)
        match move.outcome:
            case "done":
                assert first in happened, f"told to be done, and was not: {move}"
            case "collected":
                assert first in happened, f"told to have come too late, and never came: {move}"
                assert during[-1] != first[1], f"came too late, and was not taken back: {move}"
            case "conflict":
                assert any(version != move.expected for version in during), f"nobody was in the way of {move}"
                assert move.ambiguous or first not in steps, f"told to conflict, and was done: {move}"
