"""The manifest's tree stays shallow, complete and small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.format.conftest import HOUR_US, fragments_after
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Epoch, Manifest
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
from wal3_core.log.tree.shape import build_snapshot, plan_roll
from wal3_core.options import SnapshotOptions

SMALL = SnapshotOptions(
    fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=3, snapshot_pointers_max=6, gc_interval_s=3600
)


class Tree:
    """A log grown one fragment at a time, rolled as its writer would."""

    def __init__(self, manifest: Manifest, entry: Epoch, options: SnapshotOptions) -> None:
        self.manifest, self.entry, self.options = manifest, entry, options
        self.snapshots: dict[str, Snapshot] = {}

    def load(self, pointer: SnapshotPointer) -> Snapshot:
        return self.snapshots[pointer.path]

    def grow(self, count: int, *, step_us: int = 1000) -> None:
        for _ in range(count):
            [added] = fragments_after(self.manifest, 1)
            at = replace(added.start, timestamp_us=added.start.timestamp_us + step_us)
            added = replace(added, start=at, limit=replace(added.limit, timestamp_us=at.timestamp_us))
            self.manifest = self.manifest.apply_fragments(self.entry, [added])
            while (roll := plan_roll(self.manifest, self.options)) is not None:
                snapshot = build_snapshot(roll, self.manifest, self.load)
                pointer = snapshot.pointer_to(snapshot.to_bytes())
                self.snapshots[pointer.path] = snapshot
                self.manifest = self.manifest.apply_snapshot(pointer, roll)

    def leaves(self, pointer: Pointer) -> list[FragmentPointer]:
        if isinstance(pointer, FragmentPointer):
            return [pointer]
        return [leaf for below in self.load(pointer).pointers for leaf in self.leaves(below)]


def test_every_fragment_stays_reachable_in_order_within_few_levels(empty: Manifest, entry: Epoch) -> None:
    """INV-8: one more level for every six times as many fragments."""
    tree = Tree(empty, entry, SMALL)

    tree.grow(1000)

    found = [leaf for pointer in tree.manifest.pointers for leaf in tree.leaves(pointer)]
    assert [leaf.seq_no for leaf in found] == list(range(1, 1001))
    assert {snapshot.depth for snapshot in tree.snapshots.values()} == {1, 2, 3, 4}
    assert all(len(snapshot.pointers) <= SMALL.snapshot_pointers_max for snapshot in tree.snapshots.values())
    tree.manifest.check()


def test_newest_fragments_stay_in_the_manifest(empty: Manifest, entry: Epoch) -> None:
    tree = Tree(empty, entry, SMALL)

    for _ in range(100):
        tree.grow(1)
        held = min(SMALL.fragments_kept, tree.manifest.next.seq_no - 1)
        assert len(tree.manifest.fragments) >= held


@pytest.mark.slow
def test_manifest_hardly_grows_with_the_log(empty: Manifest, entry: Epoch) -> None:
    """INV-8: up to 19 fragments, 7 snapshots of them, and 3 of those, each eight times as large as the next."""
    tree = Tree(empty, entry, SnapshotOptions())
    sizes = []

    for _ in range(3):
        tree.grow(2000)
        sizes.append(len(tree.manifest.pointers))

    assert max(sizes) <= 19 + 7 + 3


class Root:
    """The snapshots that a manifest holds, by depth and size alone, rolled as a writer would."""

    def __init__(self, empty: Manifest, begun: Sequence[SnapshotPointer] = ()) -> None:
        self.empty = empty
        self.snapshots = tuple(begun)
        self.most = 0

    def feed(self, depth: int, count: int) -> Root:
        """Add full snapshots of a depth one by one; remember the most that the manifest held."""
        for _ in range(count):
            self.snapshots = (*self.snapshots, sized(depth, SnapshotOptions().snapshot_pointers_max))
            while (roll := plan_roll(replace(self.empty, snapshots=self.snapshots), SnapshotOptions())) is not None:
                kept = len(self.snapshots) - len(roll)
                *taken_in, last = roll
                assert isinstance(last, SnapshotPointer)
                sizes = [each.num_pointers for each in taken_in if each.depth > last.depth]
                size = sum(sizes) + len(roll) - len(sizes)
                self.snapshots = (*self.snapshots[:kept], sized(last.depth + 1, size))
            self.most = max(self.most, len(self.snapshots))
        return self


def sized(depth: int, num_pointers: int) -> SnapshotPointer:
    place = LogPosition(1, 0)
    return SnapshotPointer(
        path=f"snapshot/{depth}",
        depth=depth,
        num_pointers=num_pointers,
        first_seq_no=FragmentSeqNo(1),
        last_seq_no=FragmentSeqNo(1),
        start=place,
        limit=place,
        setsum=EMPTY,
        num_bytes=0,
        num_records=0,
    )


@pytest.mark.slow
def test_root_of_a_hundred_million_fragments_is_as_small_as_of_ten_thousand(empty: Manifest) -> None:
    """INV-8: it once grew by a pointer for every 32,768 fragments, and was written with every commit."""
    options = SnapshotOptions()
    node = options.fragments_per_snapshot * options.snapshot_pointers_max

    # Each level by itself, up to where it becomes one node of the next: they peak at different times.
    leaves = Root(empty, [sized(3, 1024)]).feed(1, 1023).most - 1
    nodes = Root(empty).feed(2, 10**8 // node)
    deeper = Root(empty).feed(3, 14 * 10**10 // node // options.snapshot_pointers_max)

    assert leaves <= 7 + 3
    assert leaves + nodes.most <= 25
    assert max(pointer.depth for pointer in nodes.snapshots) == 3
    # An exabyte of fragments of 8 MiB; up to four nodes of depth 3 wait to be as full as those that were fed.
    assert leaves + 4 + deeper.most <= 25
    assert max(pointer.depth for pointer in deeper.snapshots) == 5


def test_snapshot_ends_where_a_collection_interval_does(empty: Manifest, entry: Epoch) -> None:
    tree = Tree(empty, entry, SMALL)

    # Three fragments an hour: full runs of four would straddle most boundaries.
    tree.grow(60, step_us=HOUR_US // 3)

    level_one = [snapshot for snapshot in tree.snapshots.values() if snapshot.depth == 1]
    assert level_one
    for snapshot in level_one:
        hours = {pointer.start.timestamp_us // HOUR_US for pointer in snapshot.pointers}
        assert len(hours) == 1, snapshot


def test_log_with_a_fragment_an_interval_still_gets_full_snapshots(empty: Manifest, entry: Epoch) -> None:
    tree = Tree(empty, entry, SMALL)

    tree.grow(60, step_us=HOUR_US)

    sizes = [len(snapshot.pointers) for snapshot in tree.snapshots.values() if snapshot.depth == 1]
    assert min(sizes) > SMALL.fragments_per_snapshot // 2
