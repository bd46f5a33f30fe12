"""The answers to movers of a cursor, compared with the versions that the store took, in its order.

The simulated store takes one change at a time, so its order is the only possible one: a history is
linearizable when every answer agrees with it, and no search is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Literal

from wal3_core.format.cursor import BYTES_MAX, Cursor
from wal3_core.format.tombstone import Tombstone, or_tombstone

# pending: the process was killed before the answer. collected: the cursor came too late, and was withdrawn.
Outcome = Literal["pending", "done", "conflict", "collected", "unknown"]
# The content of a cursor's object; a tombstone is a version too.
Version = Cursor | Tombstone | None


def version_of(data: bytes, what: str) -> Cursor | Tombstone:
    """Decode the object of a cursor."""
    return or_tombstone(data, Cursor.from_fields, what=what, bytes_max=BYTES_MAX)


def _answer(version: Version) -> Cursor | None:
    """The answer to a caller that loads a version."""
    return version if isinstance(version, Cursor) else None


@dataclass(frozen=True, slots=True)
class Load:
    """An answer, and the versions that the cursor had at some time between question and answer."""

    seen: Cursor | None
    current: Sequence[Version]


@dataclass(slots=True)
class Move:
    """A CAS from one version to another: the bytes sent for it, and the versions that existed while it lasted.

    ``since`` and ``until`` are the numbers of the versions that were current when it began and ended;
    ``ambiguous`` says that one of its requests was left unanswered.
    """

    expected: Cursor | None
    sent: list[bytes]
    since: int
    until: int | None = None
    outcome: Outcome = "pending"
    ambiguous: bool = True

    def chain(self) -> list[Cursor | None]:
        """The versions it would take the cursor through: the move, and its withdrawal."""
        versions = dict.fromkeys(self.sent)
        return [self.expected, *(Cursor.from_bytes(data, what="sent") for data in versions)]


@dataclass(slots=True)
class Deletion:
    """A call that deletes the cursor whatever its version; the other fields are as in a move."""

    sent: list[bytes]
    since: int
    until: int | None = None
    outcome: Outcome = "pending"


@dataclass(slots=True)
class CursorHistory:
    """The history of one cursor: ``landed`` are its versions in the store's order, None first."""

    landed: list[Version] = field(default_factory=lambda: [None])
    loads: list[Load] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The number of the version that the store holds."""
        return len(self.landed) - 1

    def check(self) -> None:
        """Raise AssertionError for an answer that does not agree with the store's order."""
        for load in self.loads:
            assert load.seen in map(_answer, load.current), f"loaded a version that was not there: {load}"
        # After its log is gone, an object created late may be deleted, and then arrive a second time.
        came_back = len(set(pairwise(self.landed))) < self.now and None not in self.landed[1:]
        assert not came_back, f"a version came back: {self.landed}"
        steps = {(_answer(before), after) for before, after in pairwise(self.landed) if isinstance(after, Cursor)}
        # After the end of its log, a create that was sent twice may arrive again; nothing else may.
        allowed = set[tuple[Cursor | None, Cursor | None]]()
        if None in self.landed[1:]:
            allowed.update((None, version) for version in self._living() if isinstance(version, Cursor))
        for move in self.moves:
            allowed.update(pairwise(move.chain()))
            self._check_answer(move, steps)
        assert steps <= allowed, f"moved from another version than the mover saw: {steps - allowed}"
        self._check_deletions()

    def _living(self) -> list[Version]:
        """Return the versions until the object was deleted with its log; a later arrival belongs to no history."""
        return [self.landed[0], *takewhile(lambda version: version is not None, self.landed[1:])]

    def _check_deletions(self) -> None:
        """Each delete took one version, which existed before the delete ended."""
        ended = dict[Version, Deletion]()
        for deletion in self.deletions:
            ended |= {version_of(data, "sent"): deletion for data in deletion.sent}
            if deletion.outcome == "done" and deletion.until is not None:
                during = self.landed[deletion.since : deletion.until + 1]
                assert None in map(_answer, during), f"reported as deleted, and never was: {deletion}"
        taken = list[int]()
        for number, version in enumerate(self._living()[1:], 1):
            if isinstance(version, Tombstone):
                by = ended.get(version)
                assert by is not None, f"deleted by no call: {version}"
                assert by.until is None or number - 1 <= by.until, f"deleted a version created after the delete: {by}"
                taken.append(id(by))
        assert len(taken) == len(set(taken)), f"one delete took two versions: {self.landed}"

    def _check_answer(self, move: Move, steps: set[tuple[Cursor | None, Cursor]]) -> None:
        if move.until is None:
            return
        during = self.landed[move.since : move.until + 1]
        happened = {(_answer(before), after) for before, after in pairwise(during)}
        first = next(pairwise(move.chain()), None)
        match move.outcome:
            case "done":
                assert first in happened, f"reported as done, and was not: {move}"
            case "collected":
                assert first in happened, f"reported as too late, and never came: {move}"
                assert during[-1] != first[1], f"came too late, and was not withdrawn: {move}"
            case "conflict":
                # A tombstone in an otherwise empty place conflicts with a create too.
                others = any(_answer(version) != move.expected for version in during) or len(during) > 1
                assert others, f"nothing was in the way of {move}"
                assert move.ambiguous or first not in steps, f"reported as a conflict, and was done: {move}"
