"""Garbage collection as values: the cut through a log's tree, and the garbage document.

A cut drops the fragments and snapshots that lie wholly below an offset. A snapshot that straddles the
offset is replaced by a new one with the pointers that are kept (INV-13).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CollectionRefusedError, CorruptError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary
from wal3_core.format.paths import LOG_ID, NO_LOG, TOKEN, LogId, check_object_path, garbage_path
from wal3_core.format.snapshot import (
    Pointer,
    Snapshot,
    SnapshotPointer,
    check_run,
    count_fragments,
    sum_setsums,
)
from wal3_core.format.strict_json import FLAG, INTEGER, TEXT, Member, StoredDocument, nested, several
from wal3_core.options import POINTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.setsum import Setsum
    from wal3_core.format.strict_json import Fields, JsonObject

BYTES_MAX = 64 * 2**20


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
    cutter = _Cutter(offset, manifest, load)
    kept = tuple(cutter.keep(manifest.pointers))
    first = Boundary(kept[0].first_seq_no, kept[0].start) if kept else manifest.next
    return Cut(
        first=first,
        pointers=kept,
        dropped=tuple(cutter.dropped),
        replaced=tuple(cutter.replaced),
        written=tuple(cutter.written),
    )


class _Cutter:
    def __init__(self, offset: int, manifest: Manifest, load: Callable[[SnapshotPointer], Snapshot]) -> None:
        self._offset = offset
        self._manifest = manifest
        self._load = load
        self.dropped: list[Pointer] = []
        self.replaced: list[SnapshotPointer] = []
        self.written: list[Snapshot] = []

    def keep(self, pointers: Sequence[Pointer]) -> Sequence[Pointer]:
        for index, pointer in enumerate(pointers):
            if pointer.limit.offset <= self._offset:
                self.dropped.append(pointer)
            elif isinstance(pointer, SnapshotPointer) and pointer.start.offset < self._offset:
                return [self._keep_part(pointer), *pointers[index + 1 :]]
            else:
                return pointers[index:]
        return []

    def _keep_part(self, pointer: SnapshotPointer) -> SnapshotPointer:
        below = self._load(pointer).pointers
        kept = tuple(self.keep(below))
        if kept == below:
            return pointer
        self.replaced.append(pointer)
        part = self._manifest.snapshot_of(kept)
        self.written.append(part)
        return part.pointer


def _pointer_to_json(pointer: Pointer) -> JsonObject:
    kind = "fragment" if isinstance(pointer, FragmentPointer) else "snapshot"
    return {kind: pointer.to_json()}


def _pointer_from_json(fields: Fields) -> Pointer:
    pointer: Pointer
    if fields.has("fragment"):
        pointer = FragmentPointer.from_json(fields.object("fragment"))
    else:
        pointer = SnapshotPointer.from_json(fields.object("snapshot"))
    fields.finish()
    return pointer


def _orphan_from_json(fields: Fields) -> str:
    path = check_object_path(fields.string("path"))
    fields.finish()
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Garbage(StoredDocument):
    """A garbage document: the objects that a collection leaves to be deleted, and why.

    ``first`` is where the log begins afterwards, None for a document of ``orphans`` (paths) alone. ``pruned``
    marks the objects for deletion: no manifest refers to them any more. The interval counts from the write that
    sets it. ``log_id`` and ``writer`` are set when it is written.
    """

    generation: int
    token: str
    reason: str
    first: Boundary | None
    dropped: tuple[Pointer, ...] = ()
    replaced: tuple[SnapshotPointer, ...] = ()
    orphans: tuple[str, ...] = ()
    pruned: bool = False
    log_id: LogId = NO_LOG
    writer: str = ""

    @property
    def path(self) -> str:
        """Path of a new document, from the setsum of what is dropped and the collection's token.

        A document that is changed keeps its path, even when ``dropped`` differs.
        """
        return garbage_path(self.setsum, self.token)

    @property
    def setsum(self) -> Setsum:
        """Setsum of the dropped records."""
        return sum_setsums(self.dropped)

    @property
    def num_fragments(self) -> int:
        """How many fragment numbers are dropped."""
        return count_fragments(self.dropped)

    @property
    def num_records(self) -> int:
        """How many records are dropped."""
        return sum(pointer.num_records for pointer in self.dropped)

    @property
    def num_bytes(self) -> int:
        """Bytes of the fragments that are dropped."""
        return sum(pointer.num_bytes for pointer in self.dropped)

    BYTES_MAX = BYTES_MAX
    MEMBERS = (
        Member("log_id", LOG_ID),
        Member("generation", INTEGER),
        Member("token", TOKEN),
        Member("writer", TEXT),
        Member("reason", TEXT),
        Member("first", nested(Boundary), default=None),
        Member("dropped", several(_pointer_from_json, POINTERS_MAX, _pointer_to_json)),
        Member("replaced", several(SnapshotPointer.from_json, POINTERS_MAX, SnapshotPointer.to_json)),
        Member("orphans", several(_orphan_from_json, POINTERS_MAX, lambda path: {"path": path})),
        Member("pruned", FLAG),
    )

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON; CollectionRefusedError when it is larger than readers accept."""
        data = StoredDocument.to_bytes(self)
        count = max(map(len, (self.dropped, self.replaced, self.orphans)))
        if count > POINTERS_MAX or len(data) > BYTES_MAX:
            message = (
                f"garbage of {self.token}: expected at most {POINTERS_MAX} pointers and {BYTES_MAX} bytes, found"
                f" {count} and {len(data)}: compact the log's snapshots first, or collect fewer at a time"
            )
            raise CollectionRefusedError(message)
        return data

    def check_stored(self, what: str) -> None:
        """Refuse pointers that one collection cannot have dropped."""
        check_run(self.dropped)
        limit = self.dropped[-1].last_seq_no + 1 if self.dropped else None
        if self.dropped and (self.first is None or self.first.seq_no != limit):
            found = None if self.first is None else self.first.seq_no
            message = f"{what}: expected the log to continue at fragment {limit}, found {found}"
            raise CorruptError(message)
