"""How well a manifest's tree is shaped, for operators and for maintenance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.format.snapshot import DEPTH_MAX, SnapshotPointer, count_fragments
from wal3_core.log.tree.repack import ROLLS_LEFT, capacity, half
from wal3_core.log.tree.rolls import factor, waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.snapshot import Snapshot
    from wal3_core.format.strict_json import JsonObject
    from wal3_core.options import SnapshotOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The snapshots of one depth: how many, with how many pointers, at most ``capacity`` in each.

    ``smallest`` and ``largest`` cover the snapshots whose pointer was read, None when there were none.
    """

    depth: int
    num_nodes: int
    num_pointers: int
    capacity: int
    smallest: int | None
    largest: int | None

    @property
    def fill(self) -> float:
        """How full the nodes are on average; 1 when there are none."""
        return self.num_pointers / (self.num_nodes * self.capacity) if self.num_nodes else 1.0

    @property
    def num_wasted(self) -> int:
        """How many more nodes there are than the pointers need."""
        return max(0, self.num_nodes - -(-self.num_pointers // self.capacity))

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "depth": self.depth,
            "nodes": self.num_nodes,
            "pointers": self.num_pointers,
            "capacity": self.capacity,
            "smallest": self.smallest,
            "largest": self.largest,
            "wasted": self.num_wasted,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A tree's shape; ``levels`` are its snapshots by depth, those of fragments first.

    ``exact`` says whether the fragments were counted. Otherwise a compacted fragment below snapshots of
    snapshots counts as those it replaces, and snapshots that were not read count as full, so that the tree
    looks fuller than it is. ``root_fragments`` and ``root_snapshots`` count the manifest's own pointers.
    ``needs_compaction`` says that repacking pays: the manifest holds more than a writer
    leaves there, a node is too full, or there are more than twice the nodes that are needed.
    """

    exact: bool
    manifest_bytes: int
    num_fragments: int
    root_pointers: int
    root_fragments: int
    root_snapshots: int
    levels: tuple[Level, ...]
    needs_compaction: bool

    @property
    def num_snapshots(self) -> int:
        """How many snapshots there are, of all depths."""
        return sum(level.num_nodes for level in self.levels)

    @property
    def num_wasted(self) -> int:
        """How many more snapshots there are than the pointers need."""
        return sum(level.num_wasted for level in self.levels)

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "exact": self.exact,
            "manifest_bytes": self.manifest_bytes,
            "fragments": self.num_fragments,
            "root_pointers": self.root_pointers,
            "root_fragments": self.root_fragments,
            "root_snapshots": self.root_snapshots,
            "levels": [level.to_json() for level in self.levels],
            "needs_compaction": self.needs_compaction,
        }


def measure_shape(
    manifest: Manifest, options: SnapshotOptions, load: Callable[[SnapshotPointer], Snapshot] | None = None
) -> Shape:
    """Measure a tree from the manifest alone, or exactly with ``load``, which loads all snapshots of snapshots."""
    levels = _seen(manifest.snapshots, options, load)
    if load is None:
        levels = _with_unseen(levels, manifest.snapshots)
    parents = [1 + level.num_nodes for level in levels[1:]] + [1]
    lopsided = any(_lopsided(level, count, options) for level, count in zip(levels, parents, strict=True))
    return Shape(
        exact=load is not None or len(levels) == 1,
        manifest_bytes=len(manifest.to_bytes()),
        num_fragments=levels[0].num_pointers + len(manifest.fragments),
        root_pointers=len(manifest.pointers),
        root_fragments=len(manifest.fragments),
        root_snapshots=len(manifest.snapshots),
        levels=tuple(levels),
        needs_compaction=_overgrown(manifest, options) or lopsided,
    )


def _seen(
    snapshots: Sequence[SnapshotPointer],
    options: SnapshotOptions,
    load: Callable[[SnapshotPointer], Snapshot] | None,
) -> list[Level]:
    """Measure the levels of a tree from the manifest's pointers and the snapshots that are loaded."""
    levels: list[Level] = []
    nodes: list[SnapshotPointer] = []
    for depth in range(max((pointer.depth for pointer in snapshots), default=1), 0, -1):
        below = [] if load is None else [each for node in nodes for each in load(node).pointers]
        nodes = [each for each in below if isinstance(each, SnapshotPointer)]
        nodes += [each for each in snapshots if each.depth == depth]
        levels.append(_level(depth, nodes, options))
    return levels[::-1]


def _level(depth: int, seen: Sequence[SnapshotPointer], options: SnapshotOptions) -> Level:
    sizes = [pointer.num_pointers for pointer in seen]
    return Level(
        depth=depth,
        num_nodes=len(sizes),
        num_pointers=sum(sizes),
        capacity=capacity(options, depth),
        smallest=min(sizes, default=None),
        largest=max(sizes, default=None),
    )


def _with_unseen(levels: Sequence[Level], seen: Sequence[SnapshotPointer]) -> list[Level]:
    """Add the levels below the snapshots seen: as many nodes as each declares, and full ones below those."""
    whole = list(levels)
    for pointer in seen:
        num_pointers = count_fragments([pointer])
        for at, level in enumerate(whole[: pointer.depth - 1]):
            declared = level.depth == pointer.depth - 1
            num_nodes = pointer.num_pointers if declared else -(-num_pointers // level.capacity)
            whole[at] = replace(
                level, num_nodes=level.num_nodes + num_nodes, num_pointers=level.num_pointers + num_pointers
            )
            num_pointers = num_nodes
    return whole


def _overgrown(manifest: Manifest, options: SnapshotOptions) -> bool:
    """Return whether the manifest holds more than a writer leaves there."""
    fragments_max = options.fragments_kept + ROLLS_LEFT * options.fragments_per_snapshot
    runs = [waiting(manifest.snapshots, depth, options) for depth in range(1, DEPTH_MAX)]
    late = any(limit - start >= ROLLS_LEFT * factor(options) for start, limit in runs)
    return len(manifest.fragments) >= fragments_max or late


def _lopsided(level: Level, num_parents: int, options: SnapshotOptions) -> bool:
    """Return whether a node is too full, or there are more than packing leaves: twice those needed, one per parent."""
    # Two neighbours left apart hold at least two halves, except the few of falling size in the manifest.
    falling = level.capacity.bit_length() // (factor(options).bit_length() - 1) + 1 if level.depth > 1 else 0
    nodes_max = level.num_pointers // half(level.capacity) + num_parents + falling
    return level.num_nodes > nodes_max or (level.largest or 0) > level.capacity
