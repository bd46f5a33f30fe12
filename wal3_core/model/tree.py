"""When the manifest's pointers are rolled into snapshots, and which.

The newest fragments stay in the manifest, so that reading the tail needs no snapshot. Full runs of
older ones become snapshots of depth 1; runs of those join the last snapshot of depth 2 while it has
room. What a commit rewrites is so bounded by the fan-outs and hardly grows with the log (INV-8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.model.snapshot import DEPTH_MAX, Pointer, Snapshot, SnapshotPointer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Manifest
    from wal3_core.options import SnapshotOptions

US_PER_S = 1_000_000


@dataclass(frozen=True, slots=True)
class Roll:
    """A run of the manifest's pointers that one snapshot shall stand for."""

    replaced: tuple[Pointer, ...]


def plan_roll(manifest: Manifest, options: SnapshotOptions) -> Roll | None:
    """Choose the run to roll next, or None while the manifest is small enough."""
    return _roll_fragments(manifest, options) or _roll_snapshots(manifest, options)


def _roll_fragments(manifest: Manifest, options: SnapshotOptions) -> Roll | None:
    if len(manifest.fragments) < options.fragments_per_snapshot + options.fragments_kept:
        return None
    run = manifest.fragments[: options.fragments_per_snapshot]
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


def _roll_snapshots(manifest: Manifest, options: SnapshotOptions) -> Roll | None:
    snapshots = manifest.snapshots
    at = next((index for index, snapshot in enumerate(snapshots) if snapshot.depth == 1), len(snapshots))
    run = snapshots[at : at + options.snapshots_per_roll]
    if len(run) < options.snapshots_per_roll or any(snapshot.depth != 1 for snapshot in run):
        return None
    last = snapshots[at - 1] if at else None
    if last is not None and last.num_pointers + len(run) <= options.snapshot_pointers_max:
        return Roll((last, *run))
    return Roll(run)


def build_snapshot(roll: Roll, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> Snapshot:
    """Make the snapshot for a roll of a manifest; a snapshot of depth 2 in it is loaded and extended."""
    pointers: list[Pointer] = []
    for pointer in roll.replaced:
        if isinstance(pointer, SnapshotPointer) and pointer.depth == DEPTH_MAX:
            pointers += load(pointer).pointers
        else:
            pointers.append(pointer)
    return Snapshot(tuple(pointers), manifest.fence, manifest.log_id)
