"""How well a manifest's tree is shaped: what an operator looks at, and what maintenance decides by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.model.repack import ROLLS_LEFT, capacity, half
from wal3_core.model.snapshot import DEPTH_MAX, SnapshotPointer, count_fragments

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer, Snapshot
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.options import SnapshotOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The snapshots of one depth: how many, with how many pointers, of ``capacity`` each at most.

    ``smallest`` and ``largest`` are of those whose pointer was seen, None when there were none.
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
        """How many nodes more there are than the pointers need."""
        return max(0, self.num_nodes - -(-self.num_pointers // self.capacity))

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
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
    """A tree's shape.

    ``exact`` tells whether the fragments were counted; otherwise compacted ones below snapshots of
    depth 2 count as those that they stand for, and the leaves look fuller than they are.
    ``root_fragments`` and ``root_snapshots`` (of depth 1) are what the manifest holds itself.
    ``ripe`` says that packing it anew pays: the manifest holds more than a writer leaves there, a node
    is too full, or there are more than twice the nodes that are needed.
    """

    exact: bool
    manifest_bytes: int
    num_fragments: int
    root_pointers: int
    root_fragments: int
    root_snapshots: int
    leaves: Level
    nodes: Level
    ripe: bool

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "exact": self.exact,
            "manifest_bytes": self.manifest_bytes,
            "fragments": self.num_fragments,
            "root_pointers": self.root_pointers,
            "root_fragments": self.root_fragments,
            "root_snapshots": self.root_snapshots,
            "levels": [self.leaves.to_json(), self.nodes.to_json()],
            "ripe": self.ripe,
        }


def measure_shape(
    manifest: Manifest, options: SnapshotOptions, load: Callable[[SnapshotPointer], Snapshot] | None = None
) -> Shape:
    """Measure a tree from the manifest alone, or with ``load`` exactly, loading the snapshots of depth 2."""
    deep = [pointer for pointer in manifest.snapshots if pointer.depth == DEPTH_MAX]
    shallow = [pointer for pointer in manifest.snapshots if pointer.depth == 1]
    below = [] if load is None else [leaf for pointer in deep for leaf in load(pointer).pointers]
    nodes = _level(DEPTH_MAX, deep, options)
    leaves = _level(1, [*shallow, *(leaf for leaf in below if isinstance(leaf, SnapshotPointer))], options)
    if load is None:
        leaves = _with_unseen(leaves, deep)
    return Shape(
        exact=load is not None or not deep,
        manifest_bytes=len(manifest.to_bytes()),
        num_fragments=leaves.num_pointers + len(manifest.fragments),
        root_pointers=len(manifest.pointers),
        root_fragments=len(manifest.fragments),
        root_snapshots=len(shallow),
        leaves=leaves,
        nodes=nodes,
        ripe=_overgrown(manifest, shallow, options) or _lopsided(leaves, 1 + len(deep)) or _lopsided(nodes, 1),
    )


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


def _with_unseen(leaves: Level, deep: Sequence[SnapshotPointer]) -> Level:
    """Add the leaves that snapshots of depth 2 say they hold, and the fragments that their ranges can hold."""
    return replace(
        leaves,
        num_nodes=leaves.num_nodes + sum(pointer.num_pointers for pointer in deep),
        num_pointers=leaves.num_pointers + count_fragments(deep),
    )


def _overgrown(manifest: Manifest, shallow: Sequence[Pointer], options: SnapshotOptions) -> bool:
    fragments_max = options.fragments_kept + ROLLS_LEFT * options.fragments_per_snapshot
    snapshots_max = ROLLS_LEFT * options.snapshots_per_roll
    return len(manifest.fragments) >= fragments_max or len(shallow) >= snapshots_max


def _lopsided(level: Level, num_parents: int) -> bool:
    """Tell whether a node is too full, or there are more than packing leaves: twice those needed, and one a parent."""
    # Neighbours that packing leaves apart hold at least two halves together.
    nodes_max = level.num_pointers // half(level.capacity) + num_parents
    return level.num_nodes > nodes_max or (level.largest or 0) > level.capacity
