"""The pieces in which an update of a copy takes a source's fragments, and which of them one commit appends.

A copy has each staged append wholly or not at all, so no commit ends within one. Source: docs/protocol.md, "Updating a
copy". Keeps INV-51.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.named_append import Places
    from wal3_core.model.snapshot import Pointer, Snapshot, SnapshotPointer

# A commit that dies leaves this many fragments to be copied again.
_FRAGMENTS_PER_COMMIT = 16
# Earlier versions did not mark the fragments of an append: those of one time may be one, up to this many.
_FRAGMENTS_OF_ONE_TIME_MAX = 256


@dataclass(frozen=True, slots=True)
class Piece:
    """The records of a fragment of the source from ``start`` to ``limit``, which become one of the copy's own.

    ``continues`` says whether the first of them belongs to the same append as the record before.
    """

    pointer: FragmentPointer
    start: int
    limit: int
    continues: bool


def pieces(
    pointers: Iterable[Pointer], offset: int, places: Places, load: Callable[[SnapshotPointer], Snapshot]
) -> Iterator[Piece]:
    """Cut fragments where a named append begins or ends: a pass may have joined it with others."""
    for pointer in select(pointers, offset, UNLIMITED, load):
        cuts = places.cut(max(pointer.start.offset, offset), pointer.limit.offset)
        for start, limit in pairwise(cuts):
            continues = pointer.continues and start == pointer.start.offset
            yield Piece(pointer, start, limit, continues or places.continue_at(start))


def groups(copied: Iterable[tuple[Piece, FragmentPointer]]) -> Iterator[list[FragmentPointer]]:
    """Yield what one commit appends; given is each piece with the copy's own fragment of it."""
    group: list[FragmentPointer] = []
    for piece, pointer in copied:
        if len(group) >= _FRAGMENTS_PER_COMMIT and not piece.continues and not _may_be_one(group, pointer):
            yield group
            group = []
        group.append(pointer)
    if group:
        yield group


def _may_be_one(group: list[FragmentPointer], following: FragmentPointer) -> bool:
    """Tell whether a fragment may belong to the append before it, as far as times say: an append's records have one."""
    same = group[-1].limit.timestamp_us == following.start.timestamp_us
    return same and len(group) < _FRAGMENTS_OF_ONE_TIME_MAX
