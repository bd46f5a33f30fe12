"""Replaces runs of fragments anywhere in a manifest's tree by one fragment each.

Only the snapshots that lead to a replaced fragment are written again. A run may lie across snapshots, across depths,
and across the fragments that the manifest itself holds: the siblings it connects are opened and packed together.
Keeps INV-41. Source: docs/protocol.md, "Key compaction".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError
from wal3_core.format.paths import MANIFEST
from wal3_core.format.snapshot import Snapshot, SnapshotPointer, sum_setsums
from wal3_core.log.tree.repack import capacity, pack
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.manifest import Compaction, Manifest
    from wal3_core.format.pass_record import Replacement
    from wal3_core.format.snapshot import Pointer
    from wal3_core.options import SnapshotOptions


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
    splicer = _Splicer(manifest, options, load)
    pointers = tuple(splicer.level(manifest.pointers, replacements))
    return Spliced(pointers=pointers, written=tuple(splicer.written), replaced=tuple(splicer.replaced))


def apply_splice(
    manifest: Manifest, spliced: Spliced, replacements: Sequence[Replacement], compaction: Compaction
) -> Manifest:
    """Install the replacements: what they lack is added to ``pruned``; the announcement is removed.

    An announced collection is withdrawn if its cutoff now lies inside a fragment.
    """
    before = sum_setsums(member for each in replacements for member in each.members)
    dropped = before - sum_setsums(each.pointer for each in replacements)
    announced = manifest.announced
    if announced is not None and any(_cuts(announced.first.seq_no, each.pointer) for each in replacements):
        announced = None
    changed = replace(
        manifest, pruned=manifest.pruned + dropped, compaction=compaction, compacting=None, announced=announced
    )
    return changed.holding(spliced.pointers)


def _cuts(seq_no: int, pointer: FragmentPointer) -> bool:
    return pointer.first_seq_no < seq_no <= pointer.seq_no


class _Splicer:
    def __init__(
        self, manifest: Manifest, options: SnapshotOptions, load: Callable[[SnapshotPointer], Snapshot]
    ) -> None:
        self._manifest = manifest
        self._options = options
        self._load = load
        self.written: list[Snapshot] = []
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
        below: list[Pointer] = []
        opened: list[str] = []
        for sibling in siblings:
            if isinstance(sibling, SnapshotPointer) and sibling.depth == depth:
                below += self._load(sibling).pointers
                opened.append(sibling.path)
            else:
                below.append(sibling)
        made = self._raised(list(self.level(below, inside)), depth)
        self.replaced += opened
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
                pointers += run if _lies_above(level, run[0]) else self._packed(run, level)
        return pointers

    def _packed(self, pointers: Sequence[Pointer], depth: int) -> Iterator[SnapshotPointer]:
        for node in pack(pointers, capacity(self._options, depth), self._options.gc_interval_s * US_PER_S):
            self.written.append(self._manifest.snapshot_of(node))
            yield self.written[-1].pointer


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
    message = (
        f"{MANIFEST}: expected fragments {pointer.first_seq_no} to {pointer.seq_no} as they were compacted,"
        f" found others"
    )
    return InvalidRequestError(message)
