"""The newest records of a log, decoded once for all its followers in a process. Immutable."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from wal3_core.model import parquet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.parquet import Fragment
    from wal3_core.model.record import Record

# How much is kept decoded, and fetched by one look; what is more is fetched by each follower, a few fragments ahead.
RECORDS_MAX = 4096
BYTES_MAX = 2**22
FRAGMENTS_MAX = 16

_offset_of = attrgetter("offset")


@dataclass(frozen=True, slots=True)
class _Piece:
    """One fragment's records, and their size in memory."""

    pointer: FragmentPointer
    records: Sequence[Record]
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Recent:
    """The records of the last fragments of one manifest, from ``start`` to its end."""

    manifest: Manifest
    start: int
    pieces: tuple[_Piece, ...] = ()

    @classmethod
    def none_of(cls, manifest: Manifest) -> Recent:
        """Hold no records, and end where a manifest does."""
        return cls(manifest, manifest.next.position.offset)

    @property
    def end(self) -> int:
        """The offset behind the last record, where the manifest ends."""
        return self.manifest.next.position.offset

    def records(self, start: int, manifest: Manifest) -> Iterator[Record] | None:
        """Go through a manifest's records from an offset on; None when some of them are not held, or are gone."""
        end = manifest.next.position.offset
        if not max(self.start, manifest.first.position.offset) <= start <= end <= self.end:
            return None
        if start == end:
            return iter(())
        at = len(self.pieces) - 1
        while self.pieces[at].pointer.start.offset > start:
            at -= 1
        found = chain.from_iterable(_from(piece, start) for piece in self.pieces[at:])
        return found if end == self.end else (record for record in found if record.offset < end)

    def moved_to(self, manifest: Manifest, fetch: Callable[[FragmentPointer], Fragment]) -> Recent:
        """Take what a newer manifest adds, and let go of the oldest; errors of ``fetch``."""
        added = self._added(manifest)
        if added is None:
            return Recent.none_of(manifest)
        pieces = [] if self._is_replaced(manifest) else list(self.pieces)
        for pointer in added:
            table = fetch(pointer).table
            if table.nbytes > BYTES_MAX:
                return Recent.none_of(manifest)
            pieces.append(_Piece(pointer, tuple(parquet.records_of(table)), table.nbytes))
        kept = _bounded(pieces)
        return Recent(manifest, kept[0].pointer.start.offset if kept else self.end, kept)

    def _added(self, manifest: Manifest) -> list[FragmentPointer] | None:
        """List the fragments behind the end; None when they are too much, or are in snapshots already."""
        added: list[FragmentPointer] = []
        for pointer in reversed(manifest.fragments):
            if pointer.limit.offset <= self.end:
                break
            added.append(pointer)
        begins = added[-1].start.offset if added else manifest.next.position.offset
        if begins > self.end or len(added) > FRAGMENTS_MAX or manifest.next.position.offset < self.end:
            return None
        if sum(each.num_records for each in added) > RECORDS_MAX or sum(each.num_bytes for each in added) > BYTES_MAX:
            return None
        return added[::-1]

    def _is_replaced(self, manifest: Manifest) -> bool:
        """Tell whether a manifest may hold other records here: some were dropped, or an older one was restored."""
        if not self.pieces:
            return True
        last = self.pieces[-1].pointer
        found = next((each for each in reversed(manifest.fragments) if each.start.offset <= last.start.offset), None)
        return (
            found != last
            or manifest.generation < self.manifest.generation
            or manifest.compaction.passes != self.manifest.compaction.passes
        )


def _from(piece: _Piece, start: int) -> Sequence[Record]:
    records = piece.records
    if piece.pointer.start.offset >= start:
        return records
    return records[bisect_left(records, start, key=_offset_of) :]


def _bounded(pieces: Sequence[_Piece]) -> tuple[_Piece, ...]:
    """Return the newest pieces that are within the limits."""
    num_records = num_bytes = 0
    for at in range(len(pieces) - 1, -1, -1):
        num_records += len(pieces[at].records)
        num_bytes += pieces[at].num_bytes
        if num_records > RECORDS_MAX or num_bytes > BYTES_MAX:
            return tuple(pieces[at + 1 :])
    return tuple(pieces)
