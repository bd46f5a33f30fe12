"""When the manifest's pointers are rolled into snapshots, and which.

The newest fragments stay in the manifest, so that reading the tail needs no snapshot. Full runs of
older ones become snapshots of depth 1, and runs of snapshots that are as full as they get go into one
of the next depth. A run takes in the node before it while that one holds less than
``snapshots_per_roll`` times what joins it: a pointer is so rewritten a few times only on its way into
a full node, and what the manifest holds of a depth are a few nodes, each several times as large as
the one behind it. What a commit rewrites hardly grows with the log (INV-8).
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
    """A run of the manifest's pointers that one snapshot shall stand for."""

    replaced: tuple[Pointer, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rolled:
    """What several rolls come to: a run of the manifest's pointers, and those that take its place.

    ``written`` are the new snapshots that these lead to, each behind what it holds; they carry the
    ``fence`` they were made under.
    """

    replaced: tuple[Pointer, ...]
    pointers: tuple[Pointer, ...]
    written: tuple[Snapshot, ...]
    fence: int


def plan_roll(manifest: Manifest, options: SnapshotOptions, *, coming: int = 0) -> Roll | None:
    """Choose the run to roll next, or None while the manifest is small enough.

    ``coming`` fragments are about to be appended, and count as if they were there.
    """
    return _roll_fragments(manifest, options, coming) or _roll_snapshots(manifest.snapshots, options)


def _roll_fragments(manifest: Manifest, options: SnapshotOptions, coming: int) -> Roll | None:
    full = options.fragments_per_snapshot
    run = manifest.fragments[:full]
    if len(run) < full or len(manifest.fragments) + coming < full + options.fragments_kept:
        return None
    return Roll(run[: _cut_at_interval(run, options.gc_interval_s * US_PER_S)])


def _cut_at_interval(run: Sequence[FragmentPointer], interval_us: int) -> int:
    """Length of the run's part that ends with a garbage collection interval.

    The last boundary in the run's second half counts. A run without one is taken whole: a log that
    writes one fragment an interval would otherwise get a snapshot for each.
    """
    for length in range(len(run) - 1, max(1, len(run) // 2) - 1, -1):
        before, after = run[length - 1].limit.timestamp_us, run[length].start.timestamp_us
        if before // interval_us != after // interval_us:
            return length
    return len(run)


def _roll_snapshots(snapshots: Sequence[SnapshotPointer], options: SnapshotOptions) -> Roll | None:
    full = options.snapshot_pointers_max
    for depth in range(1, DEPTH_MAX):
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
    """Say how many snapshots of a depth roll together; ``begun`` where the manifest has deeper ones already.

    Those of fragments come often, and wait for each other. Larger ones come seldom, and wait only
    before the tree grows by a level: a level more is a request more for whoever reads.
    """
    return 1 if depth > 1 and begun else factor(options)


def factor(options: SnapshotOptions) -> int:
    """Say how many times as large as what joins it a node is that is left alone."""
    return min(options.snapshots_per_roll, options.snapshot_pointers_max)


def joins(before: SnapshotPointer, depth: int, size: int, options: SnapshotOptions) -> bool:
    """Tell whether a node takes in ``size`` pointers that come behind it, into one node of this depth."""
    held = before.num_pointers
    fits = held + size <= options.snapshot_pointers_max
    return before.depth == depth and fits and held < factor(options) * size


def waiting(snapshots: Sequence[SnapshotPointer], depth: int, options: SnapshotOptions) -> tuple[int, int]:
    """Find the snapshots of a depth, [start, limit), that are as full as they get, behind all deeper ones.

    A snapshot of fragments never grows. One of snapshots does while it fits together with what follows.
    """
    start = next((at for at in range(len(snapshots), 0, -1) if snapshots[at - 1].depth > depth), 0)
    limit = start
    while limit < len(snapshots) and snapshots[limit].depth == depth:
        limit += 1
    sizes = [pointer.num_pointers for pointer in snapshots[start:limit]]
    if depth > 1:
        # What there is to come has one pointer at least.
        pairs = list(pairwise([*sizes, 1]))
        while pairs and sum(pairs[-1]) <= options.snapshot_pointers_max:
            pairs.pop()
        limit = start + len(pairs)
    return start, limit


def build_snapshot(roll: Roll, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> Snapshot:
    """Make the snapshot for a roll of a manifest; those in it that are as deep as itself are loaded, and extended."""
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
) -> Rolled | None:
    """Make the snapshots for all that is due, ``rolls_ahead_max`` rolls at most; None when nothing is.

    A snapshot that a later roll takes in is never written. Where one that is needed can not be loaded,
    the rolls before that are all there are.
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
        except LogError:
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
    """Find the snapshots among those made that pointers lead to, each behind what it holds."""
    found = []
    for pointer in pointers:
        if pointer.path in made:
            snapshot = made[pointer.path]
            found += [*_reached(snapshot.pointers, made), snapshot]
    return found
