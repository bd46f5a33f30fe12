"""What movers of a cursor were told, compared with the versions that the store took, in its order.

The simulated store takes one change at a time, so its order is the only one there can be: a history is
linearizable when every answer agrees with it, and nothing has to be searched for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Literal

from wal3_core.model.cursor import BYTES_MAX, Cursor
from wal3_core.model.tombstone import Tombstone, or_tombstone

if TYPE_CHECKING:
    from collections.abc import Sequence

# pending: the process was killed before it heard. collected: it came too late, and was taken back.
Outcome = Literal["pending", "done", "conflict", "collected", "unknown"]
# What stands under a cursor's name: one that was deleted is a version, too.
Version = Cursor | Tombstone | None


def version_of(data: bytes, what: str) -> Cursor | Tombstone:
    """Decode what stands under a cursor's name."""
    return or_tombstone(data, Cursor.from_fields, what=what, bytes_max=BYTES_MAX)


def _told(version: Version) -> Cursor | None:
    """Say what somebody is told who looks at a version."""
    return version if isinstance(version, Cursor) else None


@dataclass(frozen=True, slots=True)
class Load:
    """An answer, and the versions that were the cursor's at some time between question and answer."""

    seen: Cursor | None
    current: Sequence[Version]


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
class Deletion:
    """A call that deletes the cursor, whatever its version; the rest is as a move's."""

    sent: list[bytes]
    since: int
    until: int | None = None
    outcome: Outcome = "pending"


@dataclass(slots=True)
class CursorHistory:
    """One cursor's: ``landed`` are its versions in the store's order, from none at all on."""

    landed: list[Version] = field(default_factory=lambda: [None])
    loads: list[Load] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    deletions: list[Deletion] = field(default_factory=list)

    @property
    def now(self) -> int:
        """The number of the version that the store holds."""
        return len(self.landed) - 1

    def check(self) -> None:
        """AssertionError for an answer that does not agree with the store's order."""
        for load in self.loads:
            assert load.seen in map(_told, load.current), f"loaded what was not there: {load}"
        # Of a log that is gone, what somebody creates may be deleted, and then arrive a second time.
        came_back = len(set(pairwise(self.landed))) < self.now and None not in self.landed[1:]
        assert not came_back, f"a version came back: {self.landed}"
        steps = {(_told(before), after) for before, after in pairwise(self.landed) if isinstance(after, Cursor)}
        # Behind the end of its log a create that was sent twice may arrive again, and nothing else.
        allowed: set[tuple[Cursor | None, Cursor | None]] = set()
        if None in self.landed[1:]:
            allowed.update((None, version) for version in self._living() if isinstance(version, Cursor))
        for move in self.moves:
            allowed.update(pairwise(move.chain()))
            self._check_answer(move, steps)
        assert steps <= allowed, f"moved from another version than the mover saw: {steps - allowed}"
        self._check_deletions()

    def _living(self) -> list[Version]:
        """Return the versions up to where the object went, with its log alone: what arrives behind is nobody's."""
        return [self.landed[0], *takewhile(lambda version: version is not None, self.landed[1:])]

    def _check_deletions(self) -> None:
        """Each took one version, which was there before it ended: none that was created behind it."""
        ended = dict[Version, Deletion]()
        for deletion in self.deletions:
            ended |= {version_of(data, "sent"): deletion for data in deletion.sent}
            if deletion.outcome == "done" and deletion.until is not None:
                during = self.landed[deletion.since : deletion.until + 1]
                assert None in map(_told, during), f"told to be deleted, and never was: {deletion}"
        taken = list[int]()
        for number, version in enumerate(self._living()[1:], 1):
            if isinstance(version, Tombstone):
                by = ended.get(version)
                assert by is not None, f"deleted by nobody: {version}"
                assert by.until is None or number - 1 <= by.until, f"deleted what came behind the delete: {by}"
                taken.append(id(by))
        assert len(taken) == len(set(taken)), f"one delete took two versions: {self.landed}"

    def _check_answer(self, move: Move, steps: set[tuple[Cursor | None, Cursor]]) -> None:
        if move.until is None:
            return
        during = self.landed[move.since : move.until + 1]
        happened = {(_told(before), after) for before, after in pairwise(during)}
        first = next(pairwise(move.chain()), None)
        match move.outcome:
            case "done":
                assert first in happened, f"told to be done, and was not: {move}"
            case "collected":
                assert first in happened, f"told to have come too late, and never came: {move}"
                assert during[-1] != first[1], f"came too late, and was not taken back: {move}"
            case "conflict":
                # A tombstone in the place of nothing is in the way of a create, too.
                others = any(_told(version) != move.expected for version in during) or len(during) > 1
                assert others, f"nobody was in the way of {move}"
                assert move.ambiguous or first not in steps, f"told to conflict, and was done: {move}"
