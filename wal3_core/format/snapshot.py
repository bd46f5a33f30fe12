"""Snapshots: immutable documents that hold a run of pointers, so that the manifest stays small.

A snapshot of depth 1 points to fragments, one of depth d to snapshots of depth d - 1. A snapshot is
named by its setsum and the hash of its bytes, so that two with the same records in different fragments
never share a name. Keeps INV-2 and INV-8 of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wal3_core.arguments import integer, make_plain
from wal3_core.errors import CorruptError
from wal3_core.format import strict_json
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import LOG_ID, LogId, check_snapshot_path, snapshot_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import SETSUM, Setsum
from wal3_core.format.strict_json import INTEGER, TEXT, JsonValue, Stored, member, nested
from wal3_core.options import POINTERS_MAX

FORMAT_VERSION = 2
# With nodes of a thousand pointers five levels hold an exabyte; more levels make room for smaller nodes.
DEPTH_MAX = 8
BYTES_MAX = 64 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPointer(Stored):
    """Names a snapshot, its range, its checksum and how many pointers it holds.

    ``num_bytes`` and ``num_records`` count what the fragments below it hold.
    """

    path: str
    depth: int
    num_pointers: int
    first_seq_no: FragmentSeqNo
    last_seq_no: FragmentSeqNo
    start: LogPosition
    limit: LogPosition
    setsum: Setsum
    num_bytes: int
    num_records: int

    MEMBERS = (
        member("path", TEXT),
        member("depth", INTEGER),
        member("num_pointers", INTEGER),
        member("first_seq_no", INTEGER),
        member("last_seq_no", INTEGER),
        member("start", nested(LogPosition)),
        member("limit", nested(LogPosition)),
        member("setsum", SETSUM),
        member("num_bytes", INTEGER),
        member("num_records", INTEGER),
    )

    def __post_init__(self) -> None:
        """Refuse values that are not integers: true would be taken for 1, and written as true."""
        plain = type(self.depth) is type(self.num_pointers) is type(self.first_seq_no) is type(self.last_seq_no) is int
        if not (plain and type(self.num_bytes) is type(self.num_records) is int):
            make_plain(self, depth=integer, num_pointers=integer, first_seq_no=integer, last_seq_no=integer)
            make_plain(self, num_bytes=integer, num_records=integer)

    def check_stored(self, what: str) -> None:
        """Refuse a path of another setsum."""
        del what
        check_snapshot_path(self.path, self.setsum)

    def check(self) -> None:
        """Refuse a range that runs backwards, or a depth out of range."""
        backwards = self.limit.offset <= self.start.offset or self.limit.timestamp_us < self.start.timestamp_us
        if backwards or self.first_seq_no > self.last_seq_no or not 1 <= self.depth <= DEPTH_MAX:
            raise CorruptError(
                f"snapshot {self.path}: expected a range and a depth of 1 to {DEPTH_MAX}, found fragments"
                f" {self.first_seq_no} to {self.last_seq_no}, {self.start} to {self.limit}, depth {self.depth}"
            )


Pointer = FragmentPointer | SnapshotPointer


def describe(pointer: Pointer) -> str:
    """Name a pointer in a message."""
    if isinstance(pointer, FragmentPointer):
        return f"fragment {pointer.seq_no}"
    return f"snapshot {pointer.path}"


def check_run(pointers: Sequence[Pointer]) -> None:
    """Refuse pointers whose seq_nos or positions do not follow each other."""
    for pointer in pointers:
        pointer.check()
    for before, after in pairwise(pointers):
        if after.first_seq_no != before.last_seq_no + 1:
            message = f"{describe(after)}: expected first seq_no {before.last_seq_no + 1}, found {after.first_seq_no}"
            raise CorruptError(message)
        if after.start.offset != before.limit.offset or after.start.timestamp_us < before.limit.timestamp_us:
            raise CorruptError(f"{describe(after)}: expected to start at {before.limit}, found {after.start}")


def count_fragments(pointers: Iterable[Pointer]) -> int:
    """Count the fragment numbers that the pointers cover."""
    return sum(pointer.last_seq_no - pointer.first_seq_no + 1 for pointer in pointers)


def sum_setsums(pointers: Iterable[Pointer]) -> Setsum:
    """Add up the pointers' setsums."""
    return Setsum.total(pointer.setsum for pointer in pointers)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A run of pointers of one kind: fragments (depth 1), or snapshots all of the depth below its own.

    ``fence`` is the manifest's when the upload began, ``log_id`` the log's. Both change the name: an upload
    under a later fence, or in another life, is never taken for an earlier one that is marked for deletion.
    """

    pointers: tuple[Pointer, ...]
    fence: int
    log_id: LogId

    @property
    def depth(self) -> int:
        """Levels down to the fragments."""
        return self.pointers[0].depth + 1

    @property
    def pointer(self) -> SnapshotPointer:
        """The pointer to it."""
        return self.pointer_to(self.to_bytes())

    def to_bytes(self) -> bytes:
        """Encode; the name covers the bytes, so they carry no checksum of their own."""
        pointers: list[JsonValue] = [pointer.to_json() for pointer in self.pointers]
        head = strict_json.dump_members(self, _BEFORE_POINTERS)
        return strict_json.dump({"format_version": FORMAT_VERSION, **head, "pointers": pointers})

    def pointer_to(self, data: bytes) -> SnapshotPointer:
        """Point to this snapshot, encoded as ``data``."""
        first, last = self.pointers[0], self.pointers[-1]
        setsum = sum_setsums(self.pointers)
        return SnapshotPointer(
            path=snapshot_path(setsum, data),
            depth=self.depth,
            num_pointers=len(self.pointers),
            first_seq_no=first.first_seq_no,
            last_seq_no=last.last_seq_no,
            start=first.start,
            limit=last.limit,
            setsum=setsum,
            num_bytes=sum(pointer.num_bytes for pointer in self.pointers),
            num_records=sum(pointer.num_records for pointer in self.pointers),
        )

    @classmethod
    def from_bytes(cls, data: bytes, pointer: SnapshotPointer) -> Snapshot:
        """Decode and check against the pointer; CorruptError names the snapshot."""
        what = f"snapshot {pointer.path}"
        if snapshot_path(pointer.setsum, data) != pointer.path:
            raise CorruptError(f"{what}: expected bytes that hash to its name, found {len(data)} bytes that do not")
        snapshot, depth = cls._decoded(data, what)
        if depth != pointer.depth or snapshot.pointer_to(data) != pointer:
            raise CorruptError(f"{what}: expected what its pointer says, found another range, size or setsum")
        return snapshot

    @classmethod
    def pointer_of(cls, data: bytes, path: str) -> SnapshotPointer:
        """Point to a snapshot that was found at a path; CorruptError unless its bytes have that name."""
        pointer = cls._decoded(data, f"snapshot {path}")[0].pointer_to(data)
        if pointer.path != path:
            raise CorruptError(f"snapshot {path}: expected bytes that hash to its name, found those of {pointer.path}")
        return pointer

    @classmethod
    def _decoded(cls, data: bytes, what: str) -> tuple[Snapshot, int]:
        """Decode a snapshot, and the depth that it states."""
        fields = strict_json.load(data, what=what, bytes_max=BYTES_MAX)
        strict_json.check_format_version(fields, FORMAT_VERSION)
        head = strict_json.read_members(fields, _BEFORE_POINTERS)
        depth = head.pop("depth")
        reader = FragmentPointer.from_json if depth == 1 else SnapshotPointer.from_json
        snapshot = cls(tuple(map(reader, fields.objects("pointers", count_max=POINTERS_MAX))), **head)
        fields.finish()
        snapshot.check(what)
        return snapshot, depth

    def check(self, what: str) -> None:
        """Refuse an empty snapshot, one that mixes levels, or one with gaps."""
        depths = {pointer.depth for pointer in self.pointers}
        if len(depths) != 1 or self.depth > DEPTH_MAX:
            raise CorruptError(
                f"{what}: expected pointers to fragments, or to snapshots of one depth below {DEPTH_MAX},"
                f" found depths {sorted(depths)}"
            )
        check_run(self.pointers)


# The members in the order in which they are stored, but for the pointers, whose kind follows from the depth.
_BEFORE_POINTERS = (member("log_id", LOG_ID), member("fence", INTEGER), member("depth", INTEGER))
