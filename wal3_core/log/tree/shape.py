"""How the tree of snapshots below a manifest keeps its shape: writers roll pointers into it, maintenance repacks them.

**Rolls.** The newest fragments stay in the manifest, so that reading the tail needs no snapshot. Full runs of older
ones become snapshots of depth 1, and runs of snapshots that can grow no further become one of the next depth. A run
takes in the node before it while that node holds less than ``snapshots_per_roll`` times the run's pointers.

**Repacks**, where collections, compactions, dead writers or new options left it badly shaped. A node is rewritten only
when it is too full, or when it is less than half full and fits together with its neighbour. Every step leaves fewer bad
nodes, so the steps end. ``measure_shape`` says how well a tree is shaped.

Keeps INV-8: the bytes of a commit hardly grow with the log. Source: docs/protocol/compaction.md, "Snapshot tree".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, pairwise

from wal3_core.errors import LogError
from wal3_core.format.manifest import Manifest
from wal3_core.format.snapshot import DEPTH_MAX, Pointer, Snapshot, SnapshotPointer, count_fragments
from wal3_core.format.strict_json import JsonObject
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import US_PER_S


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
    return manifest.snapshot_of(opened(run, run[-1].depth + 1, load))


def opened(siblings: Iterable[Pointer], depth: int, load: Callable[[SnapshotPointer], Snapshot]) -> list[Pointer]:
    """Return the pointers of the snapshots of this depth, and the other siblings themselves."""
    found: list[Pointer] = []
    for sibling in siblings:
        if isinstance(sibling, SnapshotPointer) and sibling.depth == depth:
            found += load(sibling).pointers
        else:
            found.append(sibling)
    return found


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


# ---------------------------------------------------------------------- what to repack

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
    packer = Packer(options, manifest, load)
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


class Packer:
    """Packs pointers into new snapshots of a manifest, which are ``written``, each after those it holds."""

    def __init__(
        self, options: SnapshotOptions, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]
    ) -> None:
        self._options = options
        self._manifest = manifest
        self._load = load
        self.written: list[Snapshot] = []

    def nodes(self, siblings: Sequence[Pointer], depth: int) -> Iterator[SnapshotPointer]:
        """Pack the pointers of siblings of this depth, and the other siblings themselves."""
        known = {
            (sibling.first_seq_no, sibling.last_seq_no): sibling
            for sibling in siblings
            if isinstance(sibling, SnapshotPointer) and sibling.depth == depth
        }
        pointers, interval_us = opened(siblings, depth, self._load), self._options.gc_interval_s * US_PER_S
        for node in pack(pointers, capacity(self._options, depth), interval_us):
            same = known.get((node[0].first_seq_no, node[-1].last_seq_no))
            if same is None:
                self.written.append(self._manifest.snapshot_of(node))
            yield same or self.written[-1].pointer


# ---------------------------------------------------------------------- the shape of a tree


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
        sizes = [pointer.num_pointers for pointer in nodes]
        levels.append(
            Level(
                depth=depth,
                num_nodes=len(sizes),
                num_pointers=sum(sizes),
                capacity=capacity(options, depth),
                smallest=min(sizes, default=None),
                largest=max(sizes, default=None),
            )
        )
    return levels[::-1]


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
