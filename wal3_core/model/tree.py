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
from wal3_core.model.snapshot import DEPTH_MAX, Pointer, Snapshot, SnapshotPointer
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Manifest
    from wal3_core.options import SnapshotOptions


@dataclass(frozen=True, slots=True)
class Roll:
    """A run of the manifest's pointers for one snapshot to replace."""

    replaced: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """The result of several rolls: a run of the manifest's pointers, and those that replace it.

    ``written`` are the new snapshots that these lead to, each after those it holds; they carry the
    ``fence`` they were made under.
    """

    replaced: tuple[Pointer, ...]
    pointers: tuple[Pointer, ...]
    written: tuple[Snapshot, ...]
    fence: int


def plan_roll(manifest: Manifest, options: SnapshotOptions, *, coming: int = 0) -> Roll | None:
    """Choose the run to roll next, or None while the manifest is small enough.

    ``coming`` fragments are about to be appended, and count as present.
    """
    return _roll_fragments(manifest, options, coming) or _roll_snapshots(manifest.snapshots, options)


def _roll_fragments(manifest: Manifest, options: SnapshotOptions, coming: int) -> Roll | None:
    full = options.fragments_per_snapshot
    run = manifest.fragments[:full]
    if len(run) < full or len(manifest.fragments) + coming < full + options.fragments_kept:
        return None
    return Roll(run[: _cut_at_interval(run, options.gc_interval_s * US_PER_S)])


def _cut_at_interval(run: Sequence[FragmentPointer], interval_us: int) -> int:
    """Return the length of the run's part that ends with a garbage collection interval.

    The last boundary in the run's second half counts, so that snapshots stay half full. A run without one is
    taken whole.
    """
    for length in range(len(run) - 1, max(1, len(run) // 2) - 1, -1):
        before, after = run[length - 1].limit.timestamp_us, run[length].start.timestamp_us
        if before // interval_us != after // interval_us:
            return length
    return len(run)


def _roll_snapshots(snapshots: Sequence[SnapshotPointer], options: SnapshotOptions) -> Roll | None:
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
        return Roll(tuple(snapshots[start:limit]))
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
    start = next((at for at in range(len(snapshots), 0, -1) if snapshots[at - 1].depth > depth), 0)
    limit = start
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


def build_snapshot(roll: Roll, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> Snapshot:
    """Build the snapshot of a roll; the roll's snapshots of the same depth are loaded and extended."""
    last = roll.replaced[-1]
    depth = last.depth + 1 if isinstance(last, SnapshotPointer) else 1
    pointers: list[Pointer] = []
    for pointer in roll.replaced:
        if isinstance(pointer, SnapshotPointer) and pointer.depth == depth:
            pointers += load(pointer).pointers
        else:
            pointers.append(pointer)
    return Snapshot(tuple(pointers), manifest.fence, manifest.log_id)


def roll_all(
    manifest: Manifest,
    options: SnapshotOptions,
    load: Callable[[SnapshotPointer], Snapshot],
    *,
    coming: int = 0,
    failed: Callable[[LogError], None] = lambda _: None,
) -> Rolled | None:
    """Build the snapshots of all rolls that are due, at most ``rolls_ahead_max``; None when none is.

    A snapshot that a later roll takes in is not written. When a snapshot cannot be loaded, only the rolls
    before it are made, and ``failed`` gets the error.
    """
    made: dict[str, Snapshot] = {}

    def below(pointer: SnapshotPointer) -> Snapshot:
        return made[pointer.path] if pointer.path in made else load(pointer)

    rolled = manifest
    for _ in range(options.rolls_ahead_max):
        roll = plan_roll(rolled, options, coming=coming)
        if roll is None:
            break
        try:
            snapshot = build_snapshot(roll, manifest, below)
        except LogError as error:
            failed(error)
            break
        pointer = snapshot.pointer_to(snapshot.to_bytes())
        made[pointer.path] = snapshot
        rolled = rolled.apply_snapshot(pointer, roll.replaced)
    if not made:
        return None
    before, after = manifest.pointers, rolled.pointers
    same = next(at for at in range(len(after)) if after[at] != before[at])
    behind = len(after) - 1 - max(at for at, pointer in enumerate(after) if pointer.path in made)
    pointers = after[same : len(after) - behind]
    return Rolled(
        replaced=before[same : len(before) - behind],
        pointers=pointers,
        written=tuple(_reached(pointers, made)),
        fence=manifest.fence,
    )


def _reached(pointers: Sequence[Pointer], made: dict[str, Snapshot]) -> list[Snapshot]:
    """Find the new snapshots that pointers lead to, each after those it holds."""
    found = []
    for pointer in pointers:
        if pointer.path in made:
            snapshot = made[pointer.path]
            found += [*_reached(snapshot.pointers, made), snapshot]
    return found
