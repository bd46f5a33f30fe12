"""Changes the tree of snapshots below a manifest at any place: cuts it off below an offset, and replaces fragments.

Only the snapshots that lead to a change are written again. A run of fragments that one fragment replaces may lie across
snapshots, across depths, and across the fragments that the manifest itself holds: the siblings it connects are opened
and packed together. Keeps INV-13 and INV-41. Source: docs/protocol/compaction.md, "Key compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from wal3_core.errors import InvalidRequestError
from wal3_core.format.manifest import Boundary, Compaction, Manifest
from wal3_core.format.pass_record import Replacement
from wal3_core.format.paths import MANIFEST
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer, sum_setsums
from wal3_core.log.tree.shape import Packer, opened
from wal3_core.options import SnapshotOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A manifest's ``pointers`` from ``first`` on, and the pointers it drops.

    ``dropped`` are pointers dropped with everything below them, in log order; ``replaced`` are snapshots
    of which a part is kept; ``written`` are the new snapshots with those parts, deepest first.
    """

    first: Boundary
    pointers: tuple[Pointer, ...]
    dropped: tuple[Pointer, ...]
    replaced: tuple[SnapshotPointer, ...]
    written: tuple[Snapshot, ...]


def cut_below(manifest: Manifest, offset: int, load: Callable[[SnapshotPointer], Snapshot]) -> Cut:
    """Cut off the fragments whose records all lie below ``offset``; ``dropped`` is empty when there are none."""
    dropped: list[Pointer] = []
    replaced: list[SnapshotPointer] = []
    written: list[Snapshot] = []

    def keep(pointers: Sequence[Pointer]) -> Sequence[Pointer]:
        for index, pointer in enumerate(pointers):
            if pointer.limit.offset <= offset:
                dropped.append(pointer)
            elif isinstance(pointer, SnapshotPointer) and pointer.start.offset < offset:
                return [keep_part(pointer), *pointers[index + 1 :]]
            else:
                return pointers[index:]
        return []

    def keep_part(pointer: SnapshotPointer) -> SnapshotPointer:
        below = load(pointer).pointers
        kept = tuple(keep(below))
        if kept == below:
            return pointer
        replaced.append(pointer)
        written.append(manifest.snapshot_of(kept))
        return written[-1].pointer

    kept = tuple(keep(manifest.pointers))
    first = Boundary(kept[0].first_seq_no, kept[0].start) if kept else manifest.next
    return Cut(first=first, pointers=kept, dropped=tuple(dropped), replaced=tuple(replaced), written=tuple(written))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spliced:
    """A manifest's ``pointers`` after the replacements.

    ``written`` are the new snapshots, deepest first; they carry the manifest's fence. ``replaced`` are the paths that
    the manifest led to before and does not lead to any more, each snapshot after what it held.
    """

    pointers: tuple[Pointer, ...]
    written: tuple[Snapshot, ...]
    replaced: tuple[str, ...]


def splice(
    manifest: Manifest,
    replacements: Sequence[Replacement],
    options: SnapshotOptions,
    load: Callable[[SnapshotPointer], Snapshot],
) -> Spliced:
    """Replace runs of fragments, given in log order; InvalidRequestError if the manifest does not hold them all."""
    splicer = _Splicer(options, manifest, load)
    pointers = tuple(splicer.level(manifest.pointers, replacements))
    return Spliced(pointers=pointers, written=tuple(splicer.written), replaced=tuple(splicer.replaced))


def apply_splice(
    manifest: Manifest, spliced: Spliced, replacements: Sequence[Replacement], compaction: Compaction
) -> Manifest:
    """Install the replacements: what they lack is added to ``pruned``; the announcement is removed.

    An announced collection is withdrawn if its cutoff now lies inside a fragment.
    """
    before = sum_setsums(member for each in replacements for member in each.members)
    pointers = [each.pointer for each in replacements]
    dropped = before - sum_setsums(pointers)
    announced = manifest.announced
    if announced is not None and any(each.first_seq_no < announced.first.seq_no <= each.seq_no for each in pointers):
        announced = None
    changed = replace(
        manifest, pruned=manifest.pruned + dropped, compaction=compaction, compacting=None, announced=announced
    )
    return changed.holding(spliced.pointers)


class _Splicer(Packer):
    def __init__(
        self, options: SnapshotOptions, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]
    ) -> None:
        super().__init__(options, manifest, load)
        self.replaced: list[str] = []

    def level(self, siblings: Sequence[Pointer], replacements: Sequence[Replacement]) -> Iterator[Pointer]:
        """Yield the siblings with the replacements made, those below a sibling in a new one of its depth."""
        for cluster, inside in _clusters(siblings, replacements):
            yield from self._changed(cluster, inside) if inside else cluster

    def _changed(self, siblings: Sequence[Pointer], inside: Sequence[Replacement]) -> Sequence[Pointer]:
        """Make replacements that connect siblings, packed into nodes of the greatest depth among these."""
        depth = max(sibling.depth for sibling in siblings)
        if depth == 0:
            return self._replaced(siblings, inside)
        made = self._raised(list(self.level(opened(siblings, depth, self._load), inside)), depth)
        self.replaced += [sibling.path for sibling in siblings if sibling.depth == depth]
        return made

    def _replaced(self, siblings: Sequence[Pointer], inside: Sequence[Replacement]) -> Sequence[Pointer]:
        if len(inside) != 1 or inside[0].members != tuple(siblings):
            raise _gone(inside[0])
        self.replaced += [member.path for member in inside[0].members]
        return (inside[0].pointer,)

    def _raised(self, pointers: list[Pointer], depth: int) -> list[Pointer]:
        """Pack pointers of lesser depths into nodes until all have the depth."""
        for level in range(1, depth + 1):
            runs = [list(run) for _, run in groupby(pointers, partial(_lies_above, level))]
            pointers = []
            for run in runs:
                pointers += run if _lies_above(level, run[0]) else self.nodes(run, level)
        return pointers


def _lies_above(level: int, pointer: Pointer) -> bool:
    return pointer.depth >= level


def _clusters(
    siblings: Sequence[Pointer], replacements: Sequence[Replacement]
) -> Iterator[tuple[tuple[Pointer, ...], tuple[Replacement, ...]]]:
    """Divide siblings into those that no replacement touches, one by one, and those that some connect."""
    cluster: list[Pointer] = []
    inside: list[Replacement] = []
    at = 0
    for sibling in siblings:
        cluster.append(sibling)
        while at < len(replacements) and replacements[at].pointer.first_seq_no <= sibling.last_seq_no:
            if replacements[at].pointer.first_seq_no < cluster[0].first_seq_no:
                raise _gone(replacements[at])
            inside.append(replacements[at])
            at += 1
        if inside and inside[-1].pointer.seq_no > sibling.last_seq_no:
            continue
        yield tuple(cluster), tuple(inside)
        cluster, inside = [], []
    if cluster or at < len(replacements):
        raise _gone(inside[-1] if inside else replacements[at])


def _gone(replacement: Replacement) -> InvalidRequestError:
    pointer = replacement.pointer
    return InvalidRequestError(
        f"{MANIFEST}: expected fragments {pointer.first_seq_no} to {pointer.seq_no} as they were compacted,"
        f" found others"
    )
