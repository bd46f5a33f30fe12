"""What a pass looks at: the records below its bound, the keys that it compares, and which fragments become one.

A pass reads the dirty fragments, and of those that earlier passes left clean the ones that the new keys may touch.
Keeps INV-44. Source: docs/protocol/compaction.md, "Key compaction".
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Generic

import numpy as np

from wal3_core.compaction.engine import NO_LOSS, LossCount, Losses, Rows, Work
from wal3_core.compaction.reports import KeyCompactionPlan
from wal3_core.errors import CorruptError, KeyCompactionRefusedError, LogError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_rollup import KeyRollup
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import is_dirty_log
from wal3_core.format.policy import Policy
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
from wal3_core.log.collect.collector import first_younger
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED, KeyCompactorOptions, ReaderOptions
from wal3_core.runtime import US_PER_S, map_ahead
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.object_store import share_of
from wal3_core.store.rate_limits import rate_limited

if TYPE_CHECKING:
    from wal3_core.compaction.engine import Hashes
    from wal3_core.log.log_stores import LogStores


# Dirty fragments of one pass, whose record names each that it replaces: more of them take several passes.
DIRTY_FRAGMENTS_MAX = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """Consecutive fragments that one snapshot holds, or the manifest itself: then ``snapshot`` is None."""

    snapshot: SnapshotPointer | None
    fragments: tuple[FragmentPointer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassScope:
    """The records of [first, limit) of one version of a log, whose policy is ``policy``.

    From ``clean_limit`` on no pass has looked at them: below it each key has one record, or, of a log whose passes drop
    nothing, all is arranged by key. Below ``arranged_limit`` all is, None if passes do not arrange. Tombstones below
    ``expired_below`` have been clean for the delete retention by the store's time ``now_us``; ``sweeps``: some of them
    may still be there. ``bound`` says what keeps the records from ``limit`` on, which is below the offset
    ``bound_offset``; ``after_us`` is the time of the record there, if any. ``pointers`` cover the scope: of a snapshot
    that is clean or dirty as a whole, the one that leads to it. ``leaves`` are read by ``with_leaves``.
    """

    manifest: Manifest
    policy: Policy
    now_us: int
    clean_limit: int
    arranged_limit: int | None
    pointers: tuple[Pointer, ...]
    after_us: int | None
    expired_below: int
    sweeps: bool
    bound: str
    bound_offset: int
    leaves: tuple[Leaf, ...] = ()

    @property
    def limit(self) -> int:
        """Where it ends."""
        return _limit(self.manifest, self.pointers)

    def with_leaves(self, load: Callable[[SnapshotPointer], Snapshot]) -> PassScope:
        """Return it with all of its fragments."""
        return replace(self, leaves=tuple(_leaves(self.manifest.pointers, self.bound_offset, load)))

    @property
    def fragments(self) -> Iterator[FragmentPointer]:
        """The fragments, in log order."""
        return (pointer for leaf in self.leaves for pointer in leaf.fragments)

    def is_dirty(self, pointer: Pointer) -> bool:
        """Whether no pass has looked at the newest records that a pointer leads to."""
        return pointer.limit.offset > self.clean_limit


def _check_has_passes(policy: Policy, url: str, log: str) -> None:
    """Refuse a log whose policy asks for no passes."""
    if not policy.has_passes:
        raise KeyCompactionRefusedError(
            f"log {url}: expected a policy that compacts, found one that does not: set its cleanup to compact or both"
            f" (`wal3 policy {log} --cleanup compact`), or arrange_by_key (`wal3 policy {log} --arrange-by-key`)"
        )
    if policy.compacts and is_dirty_log(log):
        # The policy may be that of a log that was copied here.
        message = f"log {url}: expected no dirty log, whose markers all count, found one: set its cleanup to collect"
        raise KeyCompactionRefusedError(message)


def read_scope(stores: LogStores, limit_offset: int | None) -> PassScope:
    """Read what a pass would look at now, without its leaves; changes only ``gc/CLOCK``.

    A few requests, whatever the log's size. KeyCompactionRefusedError when the log's policy does not compact, or a
    cursor cannot be read.
    """
    policy = stores.policies.load()
    _check_has_passes(policy, stores.url, stores.log)
    # Cursors before the manifest: they follow the log's end. One that moves back later is found before the install.
    cursors = cursor_offsets(stores, keeps_all=not policy.compacts)
    manifest = stores.manifests.load().manifest
    load = stores.snapshots.load
    limits = policy.compaction_limits
    now_us = stores.store_now_us()
    bounds = {"the end of the log": manifest.next.position.offset}
    bounds |= {f"cursor {name}": offset for name, offset in cursors.items()}
    if limits.min_compaction_lag_s:
        kept = f"the first record younger than {limits.min_compaction_lag_s} s"
        bounds[kept] = first_younger(manifest, limits.min_compaction_lag_s, stores)
    if limit_offset is not None:
        bounds["the limit given"] = limit_offset
    clean_limit = manifest.compaction.clean_limit if policy.compacts else manifest.compaction.arranged
    bounds |= _recordable(manifest, clean_limit, load)
    bound, offset = min(bounds.items(), key=lambda item: (item[1], item[0]))
    pointers = tuple(_below(manifest.pointers, offset, clean_limit, load))
    limit = _limit(manifest, pointers)
    after = next(select(manifest.pointers, limit, UNLIMITED, load), None)
    expired_below, swept = 0, manifest.compaction.swept
    if policy.compacts and manifest.follows is None:
        # A successor keeps its tombstones: the logs before it may hold older records of their keys.
        expired_below = min(limit, manifest.compaction.expired_below(now_us, limits.delete_retention_s))
    if expired_below > swept and _is_last(manifest, swept, limit, load):
        expired_below = swept
    return PassScope(
        manifest=manifest,
        policy=policy,
        now_us=now_us,
        clean_limit=clean_limit,
        arranged_limit=manifest.compaction.arranged if policy.arrange_by_key else None,
        pointers=pointers,
        after_us=None if after is None else after.start.timestamp_us,
        expired_below=expired_below,
        sweeps=expired_below > swept,
        bound=f"{bound} is at offset {offset}",
        bound_offset=offset,
    )


def _limit(manifest: Manifest, pointers: Sequence[Pointer]) -> int:
    return pointers[-1].limit.offset if pointers else manifest.first.position.offset


def _is_last(manifest: Manifest, swept: int, limit: int, load: Callable[[SnapshotPointer], Snapshot]) -> bool:
    """Whether one record lies at or above ``swept``: it has to stay, as nothing behind it takes its fragment in."""
    found = next(select(manifest.pointers, max(swept, 1), UNLIMITED, load), None)
    return found is not None and found.num_records == 1 and found.limit.offset >= limit


def _below(
    pointers: Sequence[Pointer], offset: int, clean_limit: int, load: Callable[[SnapshotPointer], Snapshot]
) -> Iterator[Pointer]:
    """Yield the pointers below an offset: of a snapshot those inside only where it ends, or where the log is clean."""
    for pointer in pointers:
        if pointer.start.offset >= offset:
            return
        split = pointer.start.offset < clean_limit < pointer.limit.offset or pointer.limit.offset > offset
        if split and isinstance(pointer, SnapshotPointer):
            yield from _below(load(pointer).pointers, offset, clean_limit, load)
        elif pointer.limit.offset <= offset:
            yield pointer


def _recordable(manifest: Manifest, clean_limit: int, load: Callable[[SnapshotPointer], Snapshot]) -> dict[str, int]:
    """Return where a pass ends that takes as many fragments as its record can name."""
    if manifest.next.seq_no - manifest.first.seq_no < DIRTY_FRAGMENTS_MAX:
        return {}
    dirty = select(manifest.pointers, max(clean_limit, 1), UNLIMITED, load)
    last = next(islice(dirty, DIRTY_FRAGMENTS_MAX - 1, None), None)
    return {} if last is None else {f"the {DIRTY_FRAGMENTS_MAX}th dirty fragment": last.limit.offset}


def cursor_offsets(stores: LogStores, *, keeps_all: bool) -> dict[str, int]:
    """Load the offsets of the cursors that bound a pass; KeyCompactionRefusedError if one cannot be read.

    A pass that ``keeps_all`` records still changes their paths.
    """
    try:
        return stores.cursors.offsets(writers_alone=keeps_all)
    except CorruptError as error:
        message = f"log {stores.url}: nothing is compacted while a cursor cannot be read: {error}"
        raise KeyCompactionRefusedError(message) from error


def _leaves(pointers: Sequence[Pointer], limit: int, load: Callable[[SnapshotPointer], Snapshot]) -> Iterator[Leaf]:
    """Yield the fragments that lie wholly below an offset, by the snapshot that holds them."""
    loose = tuple(each for each in pointers if isinstance(each, FragmentPointer) and each.limit.offset <= limit)
    for pointer in pointers:
        if isinstance(pointer, FragmentPointer) or pointer.start.offset >= limit:
            break
        below = load(pointer).pointers
        if pointer.depth > 1:
            yield from _leaves(below, limit, load)
            continue
        inside = tuple(each for each in below if isinstance(each, FragmentPointer) and each.limit.offset <= limit)
        if inside:
            yield Leaf(snapshot=pointer, fragments=inside)
    if loose:
        yield Leaf(snapshot=None, fragments=loose)


def outline(log: str, scope: PassScope) -> KeyCompactionPlan:
    """Return the plan of a pass over a scope, without what only its keys say."""
    policy = scope.policy
    lag_s = policy.compaction_limits.max_compaction_lag_s
    dirty = [pointer for pointer in scope.pointers if scope.is_dirty(pointer)]
    plan = KeyCompactionPlan(
        log=log,
        log_id=scope.manifest.log_id,
        first=scope.manifest.first.position.offset,
        limit=scope.limit,
        clean_limit=scope.clean_limit,
        expired_below=scope.expired_below,
        bound=scope.bound,
        due=None,
        dirty_bytes=sum(pointer.num_bytes for pointer in dirty),
        held_bytes=sum(pointer.num_bytes for pointer in scope.pointers),
        dirty_records=sum(pointer.num_records for pointer in dirty),
        held_records=sum(pointer.num_records for pointer in scope.pointers),
        overdue_s=_over_s(dirty[0].start.timestamp_us if dirty else None, scope.now_us, lag_s),
        held_back_s=_over_s(scope.after_us, scope.now_us, lag_s),
        expired=scope.sweeps,
    )
    return replace(plan, due=_due(plan, policy.compaction_limits.min_dirty_percent, drops=policy.compacts))


def _over_s(since_us: int | None, now_us: int, lag_s: int | None) -> int:
    """Return for how long a record has been older than the largest lag."""
    if since_us is None or lag_s is None:
        return 0
    return max(0, (now_us - since_us) // US_PER_S - lag_s)


def _due(plan: KeyCompactionPlan, min_dirty_percent: int, *, drops: bool) -> str | None:
    """Return why a pass should run now."""
    if plan.overdue_s:
        return f"its oldest dirty record is {plan.overdue_s} s over the largest lag"
    if plan.dirty_bytes and plan.dirty_percent >= min_dirty_percent:
        return f"{plan.dirty_percent} % of its bytes are dirty"
    # A tombstone has few bytes, whatever the record has that it supersedes: bytes alone never show a drained log.
    if drops and plan.dirty_bytes and plan.dirty_records_percent >= min_dirty_percent:
        return f"{plan.dirty_records_percent} % of its records are dirty"
    if plan.expired:
        return "tombstones have expired"
    return None


# ---------------------------------------------------------------------- keys


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


def select_rows(scope: PassScope, work: Work[Rows, Losses], rollups: KeyRollups) -> Selected[Rows]:
    """Read what a pass has to compare: nothing if it drops nothing."""
    if scope.policy.compacts:
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
    # Without a tombstone there is nothing to sweep when the time of this pass's clean prefix is over.
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
