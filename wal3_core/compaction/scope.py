"""What a pass looks at: the records below its bound, and which of them earlier passes left clean.

The bound is a boundary between fragments, at or below the youngest record that the minimum lag keeps, and at or below
every cursor: a consumer that has a cursor sees every record behind it. A pass that drops nothing is bound by the
cursors of writers alone, which find an append by the paths of its fragments.
Keeps INV-44. Source: docs/protocol.md, "Key compaction".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from wal3_core.compaction.reports import KeyCompactionPlan
from wal3_core.errors import CorruptError, KeyCompactionRefusedError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import is_dirty_log
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.collect.planner import first_younger
from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.policy import Policy
    from wal3_core.format.snapshot import Pointer, Snapshot
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
    """The records of [first, limit) of one version of a log.

    From ``clean_limit`` on no pass has looked at them: below it each key has one record, or, of a log whose passes drop
    nothing, all is arranged by key. Below ``arranged_limit`` all is, None if passes do not arrange. Tombstones below
    ``expired_below`` have been clean for the delete retention by the store's time ``now_us``; ``sweeps``: some of them
    may still be there. ``bound`` says what keeps the records from ``limit`` on, which is below the offset
    ``bound_offset``; ``after_us`` is the time of the record there, if any. ``pointers`` cover the scope: of a snapshot
    that is clean or dirty as a whole, the one that leads to it. ``leaves`` are read by ``with_leaves``.
    """

    manifest: Manifest
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


def check_has_passes(policy: Policy, url: str, log: str) -> None:
    """Refuse a log whose policy asks for no passes."""
    if not policy.has_passes:
        message = (
            f"log {url}: expected a policy that compacts, found one that does not: set its cleanup to compact or both"
            f" (`wal3 policy {log} --cleanup compact`), or arrange_by_key (`wal3 policy {log} --arrange-by-key`)"
        )
        raise KeyCompactionRefusedError(message)
    if policy.compacts and is_dirty_log(log):
        # The policy may be that of a log that was copied here.
        message = f"log {url}: expected no dirty log, whose markers all count, found one: set its cleanup to collect"
        raise KeyCompactionRefusedError(message)


def read_scope(stores: LogStores, policy: Policy, limit_offset: int | None) -> PassScope:
    """Read what a pass would look at now, without its leaves; changes only ``gc/CLOCK``.

    A few requests, whatever the log's size. KeyCompactionRefusedError while a cursor cannot be read.
    """
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


def outline(log: str, scope: PassScope, policy: Policy) -> KeyCompactionPlan:
    """Return the plan of a pass over a scope, without what only its keys say."""
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
