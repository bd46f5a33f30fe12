"""The part of a log that a copy from an offset holds: it begins exactly there, so that parts adjoin.

A fragment that holds the offset and others before it is cut there and encoded again, in the same way each time: another
call may finish the copy. Source: docs/protocol.md, "Copy".

An update takes the source's fragments in pieces, and ``groups`` says which of them one commit appends: a copy has each
staged append wholly or not at all, so no commit ends within one. Source: docs/protocol.md, "Updating a copy". Keeps
INV-51.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.garbage import cut_below
from wal3_core.format.manifest import Boundary
from wal3_core.format.named_append import NAMING_DIGITS
from wal3_core.format.paths import check_fragment_path, fragment_path
from wal3_core.format.position import LogPosition
from wal3_core.format.snapshot import Snapshot, sum_setsums
from wal3_core.log.read.reader import read_fragment
from wal3_core.log.read.scan import check_start, select, trim
from wal3_core.options import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.named_append import Places
    from wal3_core.format.snapshot import Pointer, SnapshotPointer
    from wal3_core.store.object_store import ObjectStore


class CopiedPart:
    """One part; of what the source does not have, ``written`` are the snapshots, ``encoded`` the fragment, by path."""

    def __init__(
        self, objects: ObjectStore, load: Callable[[SnapshotPointer], Snapshot], expanded_bytes_max: int
    ) -> None:
        self._objects = objects
        self._load = load
        self._expanded_bytes_max = expanded_bytes_max
        self.written: dict[str, Snapshot] = {}
        self.encoded: dict[str, bytes] = {}

    def of(self, source: Manifest, offset: int) -> Manifest:
        """Return the part of a manifest from an offset on; InvalidRequestError when that lies beyond the log's end.

        GarbageCollectedError when the log no longer holds it. The part begins with the next fragment if the rest of
        the one that holds the offset was dropped.
        """
        check_start(source, offset)
        cut = cut_below(source, offset, self._load)
        self.written = {part.pointer_to(part.to_bytes()).path: part for part in cut.written}
        pointers = self._from(cut.pointers, offset, source)
        first = Boundary(pointers[0].first_seq_no, pointers[0].start) if pointers else source.next
        return replace(
            source,
            first=source.first if pointers == source.pointers else first,
            pruned=source.pruned + (sum_setsums(source.pointers) - sum_setsums(pointers)),
            announced=None,
        ).holding(pointers)

    def _from(self, pointers: Sequence[Pointer], offset: int, source: Manifest) -> tuple[Pointer, ...]:
        if not pointers or pointers[0].start.offset >= offset:
            return tuple(pointers)
        first, *others = pointers
        begun: tuple[Pointer, ...] = ()
        if isinstance(first, FragmentPointer):
            begun = self._cut(first, offset)
        elif below := self._from((self.written.get(first.path) or self._load(first)).pointers, offset, source):
            part = Snapshot(below, source.fence, source.log_id)
            begun = (part.pointer_to(part.to_bytes()),)
            self.written[begun[0].path] = part
        return (*begun, *others)

    def _cut(self, pointer: FragmentPointer, offset: int) -> tuple[FragmentPointer, ...]:
        """Encode a fragment's records from an offset on as a fragment of their own; none if there are none."""
        most = self._expanded_bytes_max
        _, fragment = read_fragment(self._objects, pointer, expanded_bytes_max=most)
        table = trim(fragment.table, offset, UNLIMITED)
        if not len(table):
            return ()
        token = check_fragment_path(pointer.path, pointer.seq_no)
        digest = hashlib.sha256(f"{pointer.path} from {offset}".encode()).hexdigest()
        # The name of an append stays in the path.
        token = token[:NAMING_DIGITS] + digest[: len(token) - NAMING_DIGITS]
        encoded = parquet.encode_table(table, seq_no=pointer.seq_no, token=token)
        cut = replace(
            pointer,
            path=fragment_path(pointer.seq_no, token),
            first_seq_no=pointer.seq_no,
            start=LogPosition(offset, table["timestamp_us"][0].as_py()),
            setsum=encoded.setsum,
            num_bytes=len(encoded.data),
            num_records=len(table),
            continues=False,
        )
        self.encoded[cut.path] = bytes(encoded.data)
        parquet.decode(encoded.data, cut, expanded_bytes_max=most)
        return (cut,)


# Fragments of one commit: one that dies leaves as many to be copied again.
_FRAGMENTS_PER_COMMIT = 16
# Fragments of one time that are taken for one append: earlier versions did not mark those of an append.
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
        if len(group) >= _FRAGMENTS_PER_COMMIT and not piece.continues:
            # An append's records have one time.
            same = group[-1].limit.timestamp_us == pointer.start.timestamp_us
            if not same or len(group) >= _FRAGMENTS_OF_ONE_TIME_MAX:
                yield group
                group = []
        group.append(pointer)
    if group:
        yield group
