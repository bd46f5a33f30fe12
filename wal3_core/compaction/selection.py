"""Which fragments a pass reads the keys of, which records it drops, and which consecutive fragments become one.

It reads the dirty fragments, and of the clean ones those that the new keys may touch. Those that lose records become
one with small ones beside them. A fragment that loses nothing is left as it is, unless it is small and others that are
merged with it are about as large together: so a record is merged some log2 times, and not once with each pass. Where
fragments are to be arranged by key, each is taken once that was not there when a pass arranged them last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Generic

import numpy as np

from wal3_core.compaction.dropped import NO_LOSS, LossCount
from wal3_core.compaction.engine import Losses, Rows, Work
from wal3_core.errors import LogError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.object_store import share_of
from wal3_core.store.rate_limits import rate_limited

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from wal3_core.compaction.engine import Hashes
    from wal3_core.compaction.reports import KeyCompactorOptions
    from wal3_core.compaction.scope import Leaf, PassScope
    from wal3_core.format.key_rollup import KeyRollup
    from wal3_core.format.manifest import Manifest
    from wal3_core.format.policy import Policy
    from wal3_core.format.position import FragmentSeqNo
    from wal3_core.format.snapshot import Pointer, SnapshotPointer
    from wal3_core.log.log_stores import LogStores


class KeyRollups:
    """The key roll-ups of one pass."""

    def __init__(self, stores: LogStores, options: KeyCompactorOptions) -> None:
        self._stores = stores
        self._options = options
        reading = ReaderOptions(fragment_expanded_bytes_max=options.fragment_expanded_bytes_max)
        # After the merges, so that a pace of its own does not add to theirs.
        objects = rate_limited(stores.objects, options.bytes_per_s_max, stores.runtime)
        self.columns = KeyColumns(objects, reading)
        # Of snapshots of depth 1 as the pass found them: they cover different fragments.
        self._known: dict[str, tuple[SnapshotPointer, KeyRollup]] = {}

    def load(self, leaves: Sequence[SnapshotPointer]) -> list[KeyRollup | None]:
        """Load those of some snapshots, several at a time; None where there is none."""
        count, share = self._options.requests_ahead, share_of(self._stores.objects)
        loaded = map_ahead(self._stores.runtime, self._stores.key_rollups.load, leaves, count=count, share=share)
        found = list(zip(leaves, loaded, strict=True))
        self._known |= {leaf.path: (leaf, rollup) for leaf, rollup in found if rollup is not None}
        return [rollup for _, rollup in found]

    def load_beside_dirty(self, scope: PassScope) -> None:
        """Load those of snapshots that hold dirty fragments and others, which need not be read again then."""
        leaves = [leaf for leaf in scope.leaves if len(set(map(scope.is_dirty, leaf.fragments))) > 1]
        self.load([leaf.snapshot for leaf in leaves if leaf.snapshot is not None])

    def leave(self, manifest: Manifest, limit: int) -> None:
        """Write those that snapshots below an offset lack. Failures are logged."""
        try:
            lacking = [leaf for leaf in self._leaves(manifest.pointers, limit) if leaf.path not in self._known]
            for leaf in lacking:
                self._write(leaf)
        except LogError as error:
            text = "log %s: key roll-ups were not written, so the next pass reads more: %s"
            MAINTAIN.warning(text, self._stores.url, error)

    def _write(self, leaf: SnapshotPointer) -> None:
        if self._stores.key_rollups.load(leaf) is not None:
            return
        known = [
            rollup
            for before, rollup in self._known.values()
            if before.first_seq_no <= leaf.last_seq_no and leaf.first_seq_no <= before.last_seq_no
        ]
        snapshot = self._stores.snapshots.load(leaf)
        rollup = build_key_rollup(snapshot, self.columns, runtime=self._stores.runtime, known=known)
        self._stores.key_rollups.write(leaf, rollup)

    def _leaves(self, pointers: Sequence[Pointer], limit: int) -> Iterator[SnapshotPointer]:
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer) or pointer.start.offset >= limit:
                return
            if pointer.depth == 1:
                yield pointer
            else:
                yield from self._leaves(self._stores.snapshots.load(pointer).pointers, limit)


@dataclass(frozen=True, slots=True)
class Selected(Generic[Rows]):
    """The rows that were read, and of how many fragments; whether one of the dirty ones may hold a tombstone."""

    rows: tuple[Rows, ...]
    num_read: int
    has_tombstones: bool = True


def select_rows(scope: PassScope, policy: Policy, work: Work[Rows, Losses], rollups: KeyRollups) -> Selected[Rows]:
    """Read what a pass over a log of this policy has to compare: nothing if it drops nothing."""
    if policy.compacts:
        return Selection(scope, work, rollups).select()
    rollups.load_beside_dirty(scope)
    return Selected((), 0)


@dataclass(frozen=True, slots=True)
class PassLosses(Generic[Losses]):
    """The records to drop, how many of each fragment, and below which offset no expired tombstone is left then."""

    losses: Losses
    counts: Mapping[FragmentSeqNo, LossCount]
    swept: int


def find_all(
    scope: PassScope, selected: Selected[Rows], work: Work[Rows, Losses], columns: KeyColumns
) -> PassLosses[Losses]:
    """Find the records to drop. If the last fragment would lose all, its last record stays: nothing can take it in."""
    expired_below = scope.expired_below
    losses = work.losses(selected.rows, expired_below=expired_below)
    counts = work.counts(losses)
    last = next(reversed([*scope.fragments]), None)
    if last is not None and counts.get(last.seq_no, NO_LOSS).total == last.num_records:
        # The newest record of all: it is a tombstone.
        expired_below = columns.read(last)["offset"][-1].as_py()
        losses = work.losses(selected.rows, expired_below=expired_below)
        counts = work.counts(losses)
    # Without a tombstone there is nothing to sweep when the time of this pass's clean mark is over.
    none = not selected.has_tombstones and max(expired_below, scope.manifest.compaction.swept) >= scope.clean_limit
    return PassLosses(losses, counts, scope.limit if none else expired_below)


class Selection(Generic[Rows, Losses]):
    """Selects for one pass. All of a leaf without a key roll-up is read."""

    def __init__(self, scope: PassScope, work: Work[Rows, Losses], rollups: KeyRollups) -> None:
        self._work = work
        self._scope = scope
        self._rollups: list[tuple[Leaf, KeyRollup | None]] = []
        self._known = rollups
        self._rows: list[Rows] = []
        self._read: set[FragmentSeqNo] = set()

    def select(self) -> Selected[Rows]:
        """Read what may lose a record, and all that says so."""
        scope = self._scope
        dirty = [pointer for pointer in scope.fragments if scope.is_dirty(pointer)]
        found = self._add(dirty)
        tombstones = found is not None and bool(len(self._work.hashes(found, tombstones_below=scope.limit)))
        if len(dirty) == sum(len(leaf.fragments) for leaf in scope.leaves):
            return Selected(tuple(self._rows), len(self._read), tombstones)
        self._rollups = self._load_rollups()
        none = np.zeros(0, dtype=np.uint64)
        touched = self._add(self._clean(none if found is None else self._work.hashes(found), tombstones=scope.sweeps))
        # Of each tombstone that can be dropped, every record of its key: none may be older.
        for rows in (found, touched) if scope.expired_below else ():
            if rows is not None:
                self._add(self._clean(self._work.hashes(rows, tombstones_below=scope.expired_below)))
        return Selected(tuple(self._rows), len(self._read), tombstones)

    def _load_rollups(self) -> list[tuple[Leaf, KeyRollup | None]]:
        leaves = [leaf for leaf in self._scope.leaves if not all(map(self._scope.is_dirty, leaf.fragments))]
        held = [leaf.snapshot for leaf in leaves if leaf.snapshot is not None]
        found = dict(zip((snapshot.path for snapshot in held), self._known.load(held), strict=True))
        return [(leaf, None if leaf.snapshot is None else found[leaf.snapshot.path]) for leaf in leaves]

    def _add(self, fragments: Sequence[FragmentPointer]) -> Rows | None:
        if not fragments:
            return None
        self._read.update(pointer.seq_no for pointer in fragments)
        rows = self._work.rows(fragments)
        self._rows.append(rows)
        return rows

    def _clean(self, hashes: Hashes, *, tombstones: bool = False) -> list[FragmentPointer]:
        """Find clean fragments, not read yet, that may hold a key of these hashes, or a droppable tombstone."""
        found: list[FragmentPointer] = []
        for leaf, rollup in self._rollups:
            left = [pointer for pointer in leaf.fragments if pointer.seq_no not in self._read]
            if rollup is not None:
                left = self._touched(left, rollup.part(left), hashes, tombstones=tombstones)
            found += left
        return found

    def _touched(
        self, fragments: Sequence[FragmentPointer], rollup: KeyRollup, hashes: Hashes, *, tombstones: bool
    ) -> list[FragmentPointer]:
        """Leave out the fragments of which a roll-up says that no key, and no droppable tombstone, is in them."""
        known = {each.seq_no for each in rollup.fragments}
        held = set(rollup.touched(hashes))
        buried = set(rollup.with_tombstones() if tombstones else ())
        below = self._scope.expired_below
        return [
            pointer
            for pointer in fragments
            if pointer.seq_no not in known
            or pointer.seq_no in held
            or (pointer.seq_no in buried and pointer.start.offset < below)
        ]


# ---------------------------------------------------------------------- groups

# A fragment with more records than writers put into one is read slowly by key.
_RECORDS_MAX = 65_536
# A task reads this many objects one after another.
_FRAGMENTS_MAX = 1024
# The record of a pass names each member, and is one document.
MEMBERS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class GroupMember:
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

    parts: tuple[GroupMember, ...]

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
    waiting: deque[GroupMember] = deque()
    kept = num_bytes = 0
    for pointer in fragments:
        arrange = arranged_limit is not None and pointer.limit.offset > arranged_limit
        part = GroupMember(pointer, lost.get(pointer.seq_no, NO_LOSS), arrange)
        taken = part.changes or part.bytes_kept < bytes_target // 2
        fits = num_bytes + part.bytes_kept <= bytes_target and kept + part.kept <= _RECORDS_MAX
        # What keeps nothing takes in what follows, whatever that is: a fragment has at least one record.
        if waiting and kept and not (taken and fits and len(waiting) < _FRAGMENTS_MAX):
            yield from _closed(waiting)
            waiting, kept, num_bytes = deque(), 0, 0
        if taken or waiting:
            waiting.append(part)
            kept, num_bytes = kept + part.kept, num_bytes + part.bytes_kept
        if not kept and len(waiting) == MEMBERS_MAX:
            # With what follows, a record could not name all of them.
            waiting.popleft()
    yield from _closed(waiting)


def within_record(groups: Sequence[Group]) -> Sequence[Group]:
    """Return the first groups, as many as one pass can record, and at least one."""
    count = bisect_right(list(accumulate(len(each.parts) for each in groups)), MEMBERS_MAX)
    return groups[: max(1, count)]


def leaves_out(groups: Sequence[Group], lost: Mapping[FragmentSeqNo, LossCount]) -> bool:
    """Whether a fragment before the end of the last group loses records, and is in no group."""
    if not groups:
        return False
    last = groups[-1].members[-1].seq_no
    return sum(seq_no <= last for seq_no in lost) > sum(bool(part.lost.total) for each in groups for part in each.parts)


def _closed(waiting: Iterable[GroupMember]) -> Iterator[Group]:
    """Leave out fragments at either end that lose nothing and are clearly larger than all others together."""
    parts = list(waiting)
    for end in (0, -1):
        while len(parts) > 1 and _outweighs(parts, end):
            del parts[end]
    # The last fragments of all may keep nothing, and have nothing behind them: they stay as they are.
    if any(part.kept for part in parts) and (len(parts) > 1 or parts[0].changes):
        yield Group(tuple(parts))


def _outweighs(parts: Sequence[GroupMember], at: int) -> bool:
    others = [part for part in parts if part is not parts[at]]
    if parts[at].changes or not any(part.kept for part in others):
        return False
    # By a quarter: files of as many records differ by some bytes, which are to decide nothing.
    return 4 * parts[at].bytes_kept > 5 * sum(part.bytes_kept for part in others)
