"""A manifest with its snapshots, grown into any shape and repacked, without a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from tests.format.conftest import HOUR_US, TOKEN, fragments_after
from tests.stores import LOG_ID
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Epoch, Manifest
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
from wal3_core.log.tree.shape import (
    Repack,
    Repacker,
    Rewrite,
    Shape,
    build_repack,
    build_snapshot,
    measure_shape,
    plan_roll,
)
from wal3_core.options import SnapshotOptions

ENTRY = Epoch(1, TOKEN, FragmentSeqNo(1))
SMALL = SnapshotOptions(
    fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=3, snapshot_pointers_max=6, gc_interval_s=3600
)
# The smallest limit: every step is cut to it.
STEP = 1


class Tree:
    """A manifest, its snapshots, and the depths of those that were loaded."""

    def __init__(self, options: SnapshotOptions = SMALL) -> None:
        self.options = options
        self.manifest = Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=HOUR_US)
        self.snapshots: dict[str, Snapshot] = {}
        self.loaded: list[int] = []

    def load(self, pointer: SnapshotPointer) -> Snapshot:
        self.loaded.append(pointer.depth)
        return self.snapshots[pointer.path]

    def keep(self, snapshot: Snapshot) -> SnapshotPointer:
        pointer = snapshot.pointer_to(snapshot.to_bytes())
        self.snapshots[pointer.path] = snapshot
        return pointer

    def replace(self, replaced: Sequence[Pointer]) -> SnapshotPointer:
        """Put a run of the manifest's pointers into one snapshot."""
        pointer = self.keep(Snapshot(tuple(replaced), self.manifest.fence, self.manifest.log_id))
        self.manifest = self.manifest.apply_snapshot(pointer, replaced)
        return pointer

    def append(self, count: int, *, step_us: int = 1000) -> None:
        added = [
            replace(pointer, start=later(pointer.start, step_us), limit=later(pointer.limit, step_us))
            for pointer in fragments_after(self.manifest, count, step_us=step_us)
        ]
        if added:
            self.manifest = self.manifest.apply_fragments(ENTRY, added)

    def leaf(self, count: int, *, step_us: int = 1000) -> SnapshotPointer:
        """Append a snapshot of ``count`` fragments; the manifest may hold no others."""
        self.append(count, step_us=step_us)
        return self.replace(self.manifest.fragments)

    def node(self, sizes: Iterable[int]) -> SnapshotPointer:
        return self.replace([self.leaf(size) for size in sizes])

    def roll(self) -> None:
        """Roll as a writer does."""
        while (roll := plan_roll(self.manifest, self.options)) is not None:
            pointer = self.keep(build_snapshot(roll, self.manifest, self.load))
            self.manifest = self.manifest.apply_snapshot(pointer, roll)

    def leaves(self, pointer: Pointer) -> list[FragmentPointer]:
        if isinstance(pointer, FragmentPointer):
            return [pointer]
        return [leaf for below in self.snapshots[pointer.path].pointers for leaf in self.leaves(below)]

    @property
    def fragments(self) -> list[FragmentPointer]:
        return [leaf for pointer in self.manifest.pointers for leaf in self.leaves(pointer)]

    def below(self, pointer: SnapshotPointer) -> list[SnapshotPointer]:
        """The snapshots that one of depth 2 or more holds."""
        found = self.snapshots[pointer.path].pointers
        return [each for each in found if isinstance(each, SnapshotPointer)]

    def sizes(self) -> list[list[int]]:
        """Sizes of the manifest's snapshots: one number for depth 1, one for each node below for deeper ones."""
        return [
            [below.num_pointers for below in self.below(pointer)] or [pointer.num_pointers]
            for pointer in self.manifest.snapshots
        ]

    def families(self) -> list[list[SnapshotPointer]]:
        """Snapshots of one depth side by side: those in the manifest, those in each snapshot that it leads to."""
        found = [list(run) for _, run in groupby(self.manifest.snapshots, lambda pointer: pointer.depth)]
        for family in found:
            found += [below for pointer in family if (below := self.below(pointer))]
        return found

    def shape(self) -> Shape:
        return measure_shape(self.manifest, self.options, lambda pointer: self.snapshots[pointer.path])

    def plan(self, *, pointers_max: int = STEP) -> Repack | None:
        return Repacker(self.options, self.load, pointers_max=pointers_max).plan(self.manifest)

    def take(self, repack: Repack) -> Rewrite:
        repacked = build_repack(repack, self.options, self.manifest, self.load)
        for snapshot in repacked.written:
            self.keep(snapshot)
        self.manifest = self.manifest.apply_repack(repacked.pointers, repacked.replaced)
        return repacked

    def compact(self, *, pointers_max: int = STEP) -> list[Rewrite]:
        repacker, steps = Repacker(self.options, self.load, pointers_max=pointers_max), []
        while (repack := repacker.plan(self.manifest)) is not None:
            steps.append(self.take(repack))
            assert len(steps) < 1000, "the steps do not end"
        return steps


def later(position: LogPosition, step_us: int) -> LogPosition:
    return replace(position, timestamp_us=position.timestamp_us + step_us)
