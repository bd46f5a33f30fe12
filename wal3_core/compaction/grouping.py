"""Which consecutive fragments become one: those that lose records, and small ones beside them. Pure.

A fragment that loses nothing is left as it is, unless it is small and others that are merged with it are about as
large together: so a record is merged some log2 times, and not once with each pass. Where fragments are to be arranged
by key, each is taken once that was not there when a pass arranged them last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from wal3_core.compaction.dropped import NO_LOSS, LossCount

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.position import FragmentSeqNo

# A fragment with more records than writers put into one is read slowly by key.
RECORDS_MAX = 65_536
# A task reads this many objects one after another.
FRAGMENTS_MAX = 1024
# The record of a pass names each member, and is one document.
MEMBERS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class Part:
    """A fragment, what it loses, and whether it is to be arranged by key."""

    pointer: FragmentPointer
    lost: LossCount
    arrange: bool = False

    @property
    def changes(self) -> bool:
        """Whether it is not left as it is, large or small."""
        return self.arrange or bool(self.lost.total)

    @property
    def kept(self) -> int:
        """How many of its records survive."""
        return self.pointer.num_records - self.lost.total

    @property
    def bytes_kept(self) -> int:
        """About how many of its bytes survive."""
        return self.pointer.num_bytes * self.kept // self.pointer.num_records


@dataclass(frozen=True, slots=True)
class Group:
    """Consecutive fragments that become one."""

    parts: tuple[Part, ...]

    @property
    def members(self) -> tuple[FragmentPointer, ...]:
        """The fragments."""
        return tuple(part.pointer for part in self.parts)


def group(
    fragments: Iterable[FragmentPointer],
    lost: Mapping[FragmentSeqNo, LossCount],
    *,
    bytes_target: int,
    arranged_limit: int | None = None,
) -> Iterator[Group]:
    """Choose the groups among consecutive fragments; each keeps at least one record.

    Those that end above ``arranged_limit`` are to be arranged by key; none if it is None. Of more than MEMBERS_MAX
    that keep nothing, one after another, the first ones are in no group.
    """
    waiting: deque[Part] = deque()
    kept = num_bytes = 0
    for pointer in fragments:
        arrange = arranged_limit is not None and pointer.limit.offset > arranged_limit
        part = Part(pointer, lost.get(pointer.seq_no, NO_LOSS), arrange)
        taken = part.changes or part.bytes_kept < bytes_target // 2
        fits = num_bytes + part.bytes_kept <= bytes_target and kept + part.kept <= RECORDS_MAX
        # What keeps nothing takes in what follows, whatever that is: a fragment has at least one record.
        if waiting and kept and not (taken and fits and len(waiting) < FRAGMENTS_MAX):
            yield from _closed(waiting)
            waiting, kept, num_bytes = deque(), 0, 0
        if taken or waiting:
            waiting.append(part)
            kept, num_bytes = kept + part.kept, num_bytes + part.bytes_kept
        if not kept and len(waiting) == MEMBERS_MAX:
            # With what follows, a record could not name all of them.
            waiting.popleft()
    yield from _closed(waiting)


def that_fit(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the first groups, as many as one pass can record, and at least one."""
    count = bisect_right(list(accumulate(len(each.parts) for each in groups)), MEMBERS_MAX)
    return groups[: max(1, count)]


def leaves_out(groups: Sequence[Group], lost: Mapping[FragmentSeqNo, LossCount]) -> bool:
    """Whether a fragment before the end of the last group loses records, and is in no group."""
    if not groups:
        return False
    last = groups[-1].members[-1].seq_no
    return sum(seq_no <= last for seq_no in lost) > sum(bool(part.lost.total) for each in groups for part in each.parts)


def _closed(waiting: Iterable[Part]) -> Iterator[Group]:
    """Leave out fragments at either end that lose nothing and are clearly larger than all others together."""
    parts = list(waiting)
    for end in (0, -1):
        while len(parts) > 1 and _outweighs(parts, end):
            del parts[end]
    # The last fragments of all may keep nothing, and have nothing behind them: they stay as they are.
    if any(part.kept for part in parts) and (len(parts) > 1 or parts[0].changes):
        yield Group(tuple(parts))


def _outweighs(parts: Sequence[Part], at: int) -> bool:
    others = [part for part in parts if part is not parts[at]]
    if parts[at].changes or not any(part.kept for part in others):
        return False
    # By a quarter: files of as many records differ by some bytes, which are to decide nothing.
    return 4 * parts[at].bytes_kept > 5 * sum(part.bytes_kept for part in others)
