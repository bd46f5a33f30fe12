"""When the manifest's pointers are rolled into snapshots, and which.

The newest fragments stay in the manifest, so that reading the tail needs no snapshot. Full runs of
older ones become snapshots of depth 1, and runs of snapshots that can grow no further become one of
the next depth. A run takes in the node before it while that node holds less than ``snapshots_per_roll``
times the run's pointers: so a pointer is rewritten only a few times on its way into a full node, and of
each depth the manifest holds a few nodes, each several times as large as the next. The number of bytes
that a commit rewrites hardly grows with the log (INV-8).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.format.snapshot import DEPTH_MAX, Pointer, Snapshot, SnapshotPointer
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.options import SnapshotOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewrite:
    """A run of the manifest's pointers, and those that replace it.

    ``written`` are the new snapshots that these lead to, each after those it holds.
    """

    replaced: tuple[Pointer, ...]
    pointers: tuple[Pointer, ...]
    written: tuple[Snapshot, ...]

    @property
    def fence(self) -> int:
        """The manifest's when they were made."""
        return self.written[0].fence

    @property
    def num_bytes(self) -> int:
        """Bytes of the new snapshots."""
        return sum(len(each.to_bytes()) for each in self.written)


def plan_roll(manifest: Manifest, options: SnapshotOptions, *, coming: int = 0) -> tuple[Pointer, ...] | None:
    """Choose the run of pointers for the next snapshot to replace, or None while the manifest is small enough.

    ``coming`` fragments are about to be appended, and count as present.
    """
    return _roll_fragments(manifest, options, coming) or _roll_snapshots(manifest.snapshots, options)


def _roll_fragments(manifest: Manifest, options: SnapshotOptions, coming: int) -> tuple[Pointer, ...] | None:
    full = options.fragments_per_snapshot
    run = manifest.fragments[:full]
    if len(run) < full or len(manifest.fragments) + coming < full + options.fragments_kept:
        return None
    # The last end of an interval in the run's second half counts, so that snapshots stay half full.
    return run[: interval_end(run, range(max(1, full // 2), full), options.gc_interval_s * US_PER_S) or full]


def interval_end(pointers: Sequence[Pointer], lengths: range, interval_us: int, start: int = 0) -> int | None:
    """Return the greatest of some lengths, from ``start``, at which a collection interval ends; None if none does."""
    for length in reversed(lengths):
        at = start + length
        before, after = pointers[at - 1].limit.timestamp_us, pointers[at].start.timestamp_us
        if before // interval_us != after // interval_us:
            return length
    return None


def _roll_snapshots(snapshots: Sequence[SnapshotPointer], options: SnapshotOptions) -> tuple[Pointer, ...] | None:
    full = options.snapshot_pointers_max
    # The deepest come first.
    deepest = snapshots[0].depth if snapshots else 0
    for depth in range(1, min(deepest + 1, DEPTH_MAX)):
        start, limit = waiting(snapshots, depth, options)
        limit = min(limit, start + full)
        if limit - start < _least(depth, options, begun=start > 0):
            continue
        size = limit - start
        while start and joins(snapshots[start - 1], depth + 1, size, options):
            start -= 1
            size += snapshots[start].num_pointers
        return tuple(snapshots[start:limit])
    return None


def _least(depth: int, options: SnapshotOptions, *, begun: bool) -> int:
    """Return how many snapshots of a depth at least roll together; ``begun`` when the manifest has deeper ones.

    Snapshots of fragments come often, and wait for each other. Deeper ones come seldom, and wait only
    before the tree grows by a level: a level costs every reader a request.
    """
    return 1 if depth > 1 and begun else factor(options)


def factor(options: SnapshotOptions) -> int:
    """Return how many times as large as the pointers after it a node must be to be left alone."""
    return min(options.snapshots_per_roll, options.snapshot_pointers_max)


def joins(before: SnapshotPointer, depth: int, size: int, options: SnapshotOptions) -> bool:
    """Return whether a node takes in the ``size`` pointers after it, into one node of this depth."""
    held = before.num_pointers
    fits = held + size <= options.snapshot_pointers_max
    return before.depth == depth and fits and held < factor(options) * size


def waiting(snapshots: Sequence[SnapshotPointer], depth: int, options: SnapshotOptions) -> tuple[int, int]:
    """Find the snapshots of a depth, [start, limit), that can grow no further, after all deeper ones.

    A snapshot of fragments never grows. A snapshot of snapshots grows while it fits together with the next.
    """
    start = limit = behind(snapshots, depth + 1)
    while limit < len(snapshots) and snapshots[limit].depth == depth:
        limit += 1
    sizes = [pointer.num_pointers for pointer in snapshots[start:limit]]
    if depth > 1:
        # The next node to come has at least one pointer.
        pairs = list(pairwise([*sizes, 1]))
        while pairs and sum(pairs[-1]) <= options.snapshot_pointers_max:
            pairs.pop()
        limit = start + len(pairs)
    return start, limit


def behind(snapshots: Sequence[SnapshotPointer], depth: int) -> int:
    """Return the end of the last snapshot of this depth or a greater one."""
    return next((at for at in range(len(snapshots), 0, -1) if snapshots[at - 1].depth >= depth), 0)


def build_snapshot(run: Sequence[Pointer], manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> Snapshot:
    """Build the snapshot that replaces a run; the run's snapshots of the same depth are loaded and extended."""
    depth = run[-1].depth + 1
    pointers: list[Pointer] = []
    for pointer in run:
        if isinstance(pointer, SnapshotPointer) and pointer.depth == depth:
            pointers += load(pointer).pointers
        else:
            pointers.append(pointer)
    return manifest.snapshot_of(pointers)


def roll_all(
    manifest: Manifest,
    options: SnapshotOptions,
    load: Callable[[SnapshotPointer], Snapshot],
    *,
    coming: int = 0,
    failed: Callable[[LogError], None] = lambda _: None,
) -> Rewrite | None:
    """Build the snapshots of all rolls that are due, at most ``rolls_ahead_max``; None when none is.

    A snapshot that a later roll takes in is not written. When a snapshot cannot be loaded, only the rolls
    before it are made, and ``failed`` gets the error.
    """
    made: dict[str, Snapshot] = {}

    def below(pointer: SnapshotPointer) -> Snapshot:
        return made[pointer.path] if pointer.path in made else load(pointer)

    rolled = manifest
    for _ in range(options.rolls_ahead_max):
        run = plan_roll(rolled, options, coming=coming)
        if run is None:
            break
        try:
            snapshot = build_snapshot(run, manifest, below)
        except LogError as error:
            failed(error)
            break
        pointer = snapshot.pointer
        made[pointer.path] = snapshot
        rolled = rolled.apply_snapshot(pointer, run)
    if not made:
        return None
    before, after = manifest.pointers, rolled.pointers
    same = next(at for at in range(len(after)) if after[at] != before[at])
    after_it = len(after) - 1 - max(at for at, pointer in enumerate(after) if pointer.path in made)
    pointers = after[same : len(after) - after_it]
    replaced = before[same : len(before) - after_it]
    return Rewrite(replaced=replaced, pointers=pointers, written=tuple(_reached(pointers, made)))


def _reached(pointers: Sequence[Pointer], made: dict[str, Snapshot]) -> list[Snapshot]:
    """Find the new snapshots that pointers lead to, each after those it holds."""
    found = []
    for pointer in pointers:
        if pointer.path in made:
            snapshot = made[pointer.path]
            found += [*_reached(snapshot.pointers, made), snapshot]
    return found
