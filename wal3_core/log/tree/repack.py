"""Repacking the manifest's tree where collections, compactions, dead writers or new options left it badly shaped.

A tree as a writer builds it is left unchanged. A node is rewritten only when it is too full, or when it is
less than half full and fits together with its neighbour. Of the nodes that are left, any two neighbours
hold more than one node can, or are both half full, or belong to the few nodes of falling size that a writer
leaves in the manifest. Every step leaves fewer bad nodes, so the steps end, and a well-shaped tree needs
none. Keeps INV-8.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

from wal3_core.format.snapshot import DEPTH_MAX, Pointer, Snapshot, SnapshotPointer
from wal3_core.log.tree.rolls import Rewrite, behind, factor, interval_end, waiting
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.position import FragmentSeqNo
    from wal3_core.options import SnapshotOptions

# A writer's own roll may be under way: pointers for up to this many rolls are left to the writer.
ROLLS_LEFT = 2


class Reason(StrEnum):
    """Why pointers are repacked."""

    FRAGMENTS = "fragments in the manifest that no writer rolled"
    LEAVES = "snapshots of fragments that are too full, or fit together"
    NODES = "snapshots of snapshots that no writer rolled, are too full, or fit together"


@dataclass(frozen=True, slots=True, kw_only=True)
class Repack:
    """Runs of siblings to repack into snapshots of ``depth``.

    The last of the ``parents`` holds the siblings, and each holds the next one; there are none when the
    manifest itself holds the siblings. ``runs`` are [start, limit) among the siblings.
    """

    reason: Reason
    depth: int
    parents: tuple[SnapshotPointer, ...]
    siblings: tuple[Pointer, ...]
    runs: tuple[tuple[int, int], ...]

    @property
    def packed(self) -> tuple[Pointer, ...]:
        """The siblings that are repacked."""
        return tuple(pointer for start, limit in self.runs for pointer in self.siblings[start:limit])

    @property
    def opened(self) -> tuple[SnapshotPointer, ...]:
        """The snapshots among them whose pointers move into others."""
        return tuple(p for p in self.packed if isinstance(p, SnapshotPointer) and p.depth == self.depth)

    @property
    def above(self) -> tuple[SnapshotPointer, ...]:
        """The snapshots that hold a parent: one pointer of each changes."""
        return self.parents[:-1]

    @property
    def num_pointers(self) -> int:
        """How many pointers are packed."""
        return sum(_size(pointer, self.depth) for pointer in self.packed)

    def within(self, pointers_max: int) -> Repack:
        """Return a part that packs about ``pointers_max`` pointers at most and still leaves fewer bad nodes."""
        start, limit = self.runs[0]
        runs, left = [], pointers_max
        for index in range(start, limit):
            left -= _size(self.siblings[index], self.depth)
            if left <= 0:
                return replace(self, runs=((start, index + 1),))
        runs.append((start, limit))
        for run in self.runs[1:]:
            left -= sum(_size(pointer, self.depth) for pointer in self.siblings[slice(*run)])
            if left < 0:
                break
            runs.append(run)
        return replace(self, runs=tuple(runs))


class Repacker:
    """Plans the steps for one log; remembers the well-shaped snapshots, which never change.

    A step packs about ``pointers_max`` pointers at most, and rewrites the snapshots above them, one of
    each depth. Snapshots of fragments are not loaded for a plan.
    """

    def __init__(
        self, options: SnapshotOptions, load: Callable[[SnapshotPointer], Snapshot], *, pointers_max: int
    ) -> None:
        self._options = options
        self._load = load
        # With less a step might repack one node alone, and change nothing.
        self._pointers_max = max(pointers_max, 2 * options.fragments_per_snapshot, 2 * options.snapshot_pointers_max)
        self._sound: set[str] = set()

    def plan(self, manifest: Manifest) -> Repack | None:
        """Choose the next step; None when the tree is well shaped."""
        found = next(self.findings(manifest), None)
        return None if found is None else found.within(self._pointers_max)

    def findings(self, manifest: Manifest) -> Iterator[Repack]:
        """Iterate over everything to repack in the tree as it is; a step may make others necessary."""
        loose = manifest.fragments[: -self._options.fragments_kept or None]
        if len(loose) >= ROLLS_LEFT * self._options.fragments_per_snapshot:
            yield from self._found(1, loose, reason=Reason.FRAGMENTS)
        for pointer in manifest.snapshots:
            yield from self._below((pointer,))
        for depth in range(1, DEPTH_MAX + 1):
            for run in self._runs(manifest.snapshots, depth):
                yield from self._found(depth, run)

    def _below(self, parents: tuple[SnapshotPointer, ...]) -> Iterator[Repack]:
        """Iterate over everything to repack below the last of the parents, deepest first."""
        node, sound = parents[-1], True
        if node.depth == 1 or node.path in self._sound:
            return
        below = self._load(node).pointers
        for pointer in below:
            if isinstance(pointer, SnapshotPointer):
                for found in self._below((*parents, pointer)):
                    sound = False
                    yield found
        for found in self._found(node.depth - 1, below, parents=parents):
            sound = False
            yield found
        if sound:
            self._sound.add(node.path)

    def _runs(self, snapshots: Sequence[SnapshotPointer], depth: int) -> Iterator[Sequence[SnapshotPointer]]:
        """Find the manifest's runs of snapshots to pack into nodes of a depth.

        Snapshots one level less deep are among them where they lie before a deeper one, so that no writer
        rolls them, and where there are more than a writer leaves.
        """
        limit = behind(snapshots, depth)
        if depth > 1:
            start, full = waiting(snapshots, depth - 1, self._options)
            limit = full if full - start >= ROLLS_LEFT * factor(self._options) else limit
        for together, run in groupby(snapshots[:limit], lambda pointer: depth - 1 <= pointer.depth <= depth):
            if together:
                yield list(run)

    def _found(
        self,
        depth: int,
        siblings: Sequence[Pointer],
        *,
        parents: tuple[SnapshotPointer, ...] = (),
        reason: Reason | None = None,
    ) -> Iterator[Repack]:
        # A writer leaves a few nodes in the manifest, each larger than the next by this factor.
        falls_by = factor(self._options) if depth > 1 and not parents else None
        runs = find_runs(siblings, depth, capacity(self._options, depth), falls_by)
        if runs:
            reason = reason or (Reason.LEAVES if depth == 1 else Reason.NODES)
            yield Repack(reason=reason, depth=depth, parents=parents, siblings=tuple(siblings), runs=tuple(runs))


def capacity(options: SnapshotOptions, depth: int) -> int:
    """Return how many pointers a snapshot of a depth holds at most."""
    return options.fragments_per_snapshot if depth == 1 else options.snapshot_pointers_max


def half(full: int) -> int:
    """Return the least number of pointers that counts as half full."""
    return max(1, full // 2)


def _size(pointer: Pointer, depth: int) -> int:
    """Return how many pointers it adds to a node of a depth: those it holds, or itself."""
    return pointer.num_pointers if isinstance(pointer, SnapshotPointer) and pointer.depth == depth else 1


# ---------------------------------------------------------------------- which nodes


@dataclass(frozen=True, slots=True)
class _Segment:
    """Siblings [start, limit) with ``size`` pointers in them; ``dirty`` when they are repacked."""

    start: int
    limit: int
    size: int
    dirty: bool

    def joins(self, after: _Segment, full: int, falls_by: int | None) -> bool:
        """Return whether packing the two together is better than packing or keeping each."""
        if self.dirty and after.dirty:
            return True
        if min(self.size, after.size) >= half(full):
            return False
        if falls_by is not None and self.size >= falls_by * after.size:
            return False
        # Pointers that need several nodes anyway take in a small neighbour.
        return self.size + after.size <= full or max(self.size, after.size) > full


def find_runs(siblings: Sequence[Pointer], depth: int, full: int, falls_by: int | None = None) -> list[tuple[int, int]]:
    """Find the runs of siblings to pack into nodes of a depth that hold ``full`` pointers each.

    Siblings of a lesser depth are always packed. A node that is ``falls_by`` times as large as the next one
    is not joined with it.
    """
    segments: list[_Segment] = []
    for index, pointer in enumerate(siblings):
        size = _size(pointer, depth)
        segment = _Segment(index, index + 1, size, dirty=pointer.depth != depth or size > full)
        while segments and segments[-1].joins(segment, full, falls_by):
            before = segments.pop()
            segment = _Segment(before.start, segment.limit, before.size + segment.size, dirty=True)
        segments.append(segment)
    return [(segment.start, segment.limit) for segment in segments if segment.dirty]


# ---------------------------------------------------------------------- new nodes


def pack(pointers: Sequence[Pointer], full: int, interval_us: int) -> Iterator[tuple[Pointer, ...]]:
    """Cut pointers into nodes of at most ``full``, each at least half full if all together are.

    A node ends where the last collection interval within reach ends.
    """
    start = 0
    while left := len(pointers) - start:
        # The rest must fill half a node.
        longest = min(full, left - half(full))
        length = interval_end(pointers, range(half(full), longest + 1), interval_us, start) or (
            left if left <= full else longest
        )
        yield tuple(pointers[start : start + length])
        start += length


def build_repack(
    repack: Repack, options: SnapshotOptions, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]
) -> Rewrite:
    """Build the snapshots of a step on a manifest; loads its ``opened`` and ``above`` ones."""
    packer = _Packer(options, manifest, load)
    runs, parents = repack.runs, repack.parents
    first, last = (0, len(repack.siblings)) if parents else (runs[0][0], runs[-1][1])
    made: list[Pointer] = []
    at = first
    for start, limit in runs:
        made += repack.siblings[at:start]
        made += packer.nodes(repack.siblings[start:limit], repack.depth)
        at = limit
    made += repack.siblings[at:last]
    for number, parent in enumerate(reversed(parents), start=1):
        packed = list(packer.nodes(made, repack.depth + number))
        beside = load(parents[-number - 1]).pointers if number < len(parents) else (parent,)
        at = beside.index(parent)
        made = [*beside[:at], *packed, *beside[at + 1 :]]
    replaced = parents[:1] or repack.siblings[first:last]
    return Rewrite(replaced=replaced, pointers=tuple(made), written=tuple(packer.written))


class _Packer:
    def __init__(
        self, options: SnapshotOptions, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]
    ) -> None:
        self._options = options
        self._manifest = manifest
        self._load = load
        self.written: list[Snapshot] = []

    def nodes(self, siblings: Sequence[Pointer], depth: int) -> Iterator[SnapshotPointer]:
        """Pack the pointers of siblings of this depth, and the other siblings themselves."""
        pointers: list[Pointer] = []
        known: dict[tuple[FragmentSeqNo, FragmentSeqNo], SnapshotPointer] = {}
        for sibling in siblings:
            if isinstance(sibling, SnapshotPointer) and sibling.depth == depth:
                known[sibling.first_seq_no, sibling.last_seq_no] = sibling
                pointers += self._load(sibling).pointers
            else:
                pointers.append(sibling)
        for node in pack(pointers, capacity(self._options, depth), self._options.gc_interval_s * US_PER_S):
            same = known.get((node[0].first_seq_no, node[-1].last_seq_no))
            if same is None:
                self.written.append(self._manifest.snapshot_of(node))
            yield same or self.written[-1].pointer
