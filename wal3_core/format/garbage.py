"""The garbage document: what a collection leaves to be deleted, and why."""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.errors import CollectionRefusedError, CorruptError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary
from wal3_core.format.paths import LOG_ID, NO_LOG, TOKEN, LogId, check_object_path, garbage_path
from wal3_core.format.setsum import Setsum
from wal3_core.format.snapshot import Pointer, SnapshotPointer, check_run, count_fragments, sum_setsums
from wal3_core.format.strict_json import (
    FLAG,
    INTEGER,
    TEXT,
    Fields,
    JsonObject,
    StoredDocument,
    member,
    nested,
    several,
)
from wal3_core.options import POINTERS_MAX


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

    BYTES_MAX = 64 * 2**20
    MEMBERS = (
        member("log_id", LOG_ID),
        member("generation", INTEGER),
        member("token", TOKEN),
        member("writer", TEXT),
        member("reason", TEXT),
        member("first", nested(Boundary), default=None),
        member("dropped", several(_pointer_from_json, POINTERS_MAX, _pointer_to_json)),
        member("replaced", several(SnapshotPointer.from_json, POINTERS_MAX, SnapshotPointer.to_json)),
        member("orphans", several(_orphan_from_json, POINTERS_MAX, lambda path: {"path": path})),
        member("pruned", FLAG),
    )

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON; CollectionRefusedError when it is larger than readers accept."""
        data = StoredDocument.to_bytes(self)
        count = max(map(len, (self.dropped, self.replaced, self.orphans)))
        if count > POINTERS_MAX or len(data) > self.BYTES_MAX:
            raise CollectionRefusedError(
                f"garbage of {self.token}: expected at most {POINTERS_MAX} pointers and {self.BYTES_MAX} bytes, found"
                f" {count} and {len(data)}: compact the log's snapshots first, or collect fewer at a time"
            )
        return data

    def check_stored(self, what: str) -> None:
        """Refuse pointers that one collection cannot have dropped."""
        check_run(self.dropped)
        limit = self.dropped[-1].last_seq_no + 1 if self.dropped else None
        if self.dropped and (self.first is None or self.first.seq_no != limit):
            found = None if self.first is None else self.first.seq_no
            raise CorruptError(f"{what}: expected the log to continue at fragment {limit}, found {found}")
