"""The manifest: the one document that says what a log holds, and its pure transitions.

Every transition returns a new manifest; all but ``apply_fragments`` check it when its pointers changed. The storage
layer reads each back, which checks it, and swaps it in by CAS.
Keeps INV-1 to INV-7, and INV-41 to INV-44, of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from operator import attrgetter
from typing import TypeVar

from wal3_core.errors import CorruptError, InvalidRequestError, SealedError
from wal3_core.format import strict_json
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import LOG_ID, MANIFEST, TOKEN, LogId, check_garbage_path
from wal3_core.format.position import FIRST_OFFSET, FIRST_SEQ_NO, FragmentSeqNo, LogPosition
from wal3_core.format.setsum import EMPTY, SETSUM, Setsum
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer, check_run, describe, sum_setsums
from wal3_core.format.strict_json import (
    FLAG,
    INTEGER,
    SET,
    TEXT,
    Fields,
    Stored,
    check_format_version,
    member,
    nested,
    one_of,
    several,
    text_as,
)
from wal3_core.options import POINTERS_MAX, View
from wal3_core.runtime import US_PER_S

P = TypeVar("P", FragmentPointer, SnapshotPointer)
FORMAT_VERSION = 2
BYTES_MAX = 64 * 2**20

# The seal's reason in a log that is being destroyed.
BEING_DESTROYED = "being destroyed"
# The remedy in errors about such a log.
UNDO = "destroy it again to the end, or take that back (`wal3 destroy LOG --undo`, or undo_destroy)"

# The outcome of an unanswered commit of an older term is unknown.
EPOCHS_MAX = 16
# All tokens of a writer that appends begin with the same digits; the others are random, more than enough for its terms.
TAG_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Boundary(Stored):
    """A boundary between fragments: the seq_no and the position that follow it."""

    seq_no: FragmentSeqNo
    position: LogPosition

    MEMBERS = (member("seq_no", INTEGER), member("position", nested(LogPosition)))


@dataclass(frozen=True, slots=True)
class Epoch(Stored):
    """One writer's reign: it wrote the fragments from ``first_seq_no`` to the next epoch's."""

    epoch: int
    token: str
    first_seq_no: FragmentSeqNo

    MEMBERS = (member("epoch", INTEGER), member("writer", TOKEN, "token"), member("first_seq_no", INTEGER))

    @property
    def tag(self) -> str:
        """What the epochs of one writer have in common; by chance also those of two: no decision on data uses it."""
        return self.token[:TAG_DIGITS]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal(Stored):
    """Why, when and by whom the log was sealed, and its successor's name."""

    reason: str
    sealed_by: str
    timestamp_us: int
    successor: str | None = None

    MEMBERS = (
        member("reason", TEXT),
        member("sealed_by", TEXT),
        member("timestamp_us", INTEGER),
        member("successor", TEXT, default=None),
    )


@dataclass(frozen=True, slots=True)
class Announcement(Stored):
    """An announced collection: the path of its garbage document, and the boundary where the log will begin.

    It is part of the manifest, so that announcing, pruning and withdrawing have one order for every process:
    a cursor or pin below ``first`` comes too late. ``generation`` is that of the manifest that announced it, so
    an announcement that is withdrawn and made again is a different one.
    """

    garbage: str
    first: Boundary
    generation: int

    MEMBERS = (
        member("garbage", text_as(lambda path, _: check_garbage_path(path))),
        member("first", nested(Boundary)),
        member("generation", INTEGER),
    )


class Durability(StrEnum):
    """Whether a fragment that was sent for commit is durable."""

    DURABLE = "durable"
    NOT_DURABLE = "not durable"
    UNKNOWN = "unknown"


VIEW = one_of(View)

# Passes that a delete retention remembers one by one. With more, some tombstones stay until the next one's time.
CLEAN_PREFIXES_MAX = 32


@dataclass(frozen=True, slots=True)
class CleanPrefix(Stored):
    """A pass that left one record of each key below the offset ``limit``; ``timestamp_us`` is the store's time then."""

    limit: int
    timestamp_us: int

    MEMBERS = (member("limit", INTEGER), member("timestamp_us", INTEGER))


@dataclass(frozen=True, slots=True)
class Compaction(Stored):
    """How far a log is compacted: the number of passes, and what they left clean, each longer than the one before.

    Below the offset ``swept`` a pass has dropped the expired tombstones. Below ``arranged`` passes have arranged by key
    whatever they found; 0 if the last one did not arrange. ``token`` is the last pass's.
    """

    passes: int = 0
    token: str = ""
    clean: tuple[CleanPrefix, ...] = ()
    swept: int = 0
    arranged: int = 0

    MEMBERS = (
        member("passes", INTEGER),
        member("token", TOKEN),
        member("clean", several(CleanPrefix.from_json, CLEAN_PREFIXES_MAX, CleanPrefix.to_json)),
        member("swept", INTEGER),
        member("arranged", INTEGER, default=0),
    )

    def check_stored(self, what: str) -> None:
        """Refuse clean prefixes that do not grow."""
        for before, after in pairwise(self.clean):
            if after.limit <= before.limit or after.timestamp_us < before.timestamp_us:
                raise CorruptError(f"{what}: expected rising clean prefixes, found {before} before {after}")

    @property
    def clean_limit(self) -> int:
        """The offset below which each key has one record; 0 before the first pass."""
        return self.clean[-1].limit if self.clean else 0

    def expired_below(self, now_us: int, delete_retention_s: int) -> int:
        """Return the offset below which tombstones have been clean for the delete retention; 0 for nowhere."""
        since_us = now_us - delete_retention_s * US_PER_S
        return max((each.limit for each in self.clean if each.timestamp_us <= since_us), default=0)

    def passed(self, token: str, limit: int, timestamp_us: int, *, swept: int, arranged: int = 0) -> Compaction:
        """Return it after a pass that left everything below ``limit`` clean, and below ``swept`` no tombstones."""
        clean, swept = self.clean, max(self.swept, swept)
        if limit > self.clean_limit:
            # The store's clock does not run back; a prefix that seems older than the one before counts from that one.
            latest_us = max((each.timestamp_us for each in clean), default=0)
            clean = _thinned((*clean, CleanPrefix(limit, max(timestamp_us, latest_us))), swept)
        return Compaction(self.passes + 1, token, clean, swept, arranged)


def _thinned(prefixes: Sequence[CleanPrefix], swept: int) -> tuple[CleanPrefix, ...]:
    """Drop prefixes until they are few enough.

    First those whose tombstones were dropped, all but the last of them; then each time the one whose neighbours are the
    closest in time. So those that are left lie evenly between the oldest that counts and now, however often passes are
    made, and each comes to its time.
    """
    kept = list(prefixes)
    while len(kept) > CLEAN_PREFIXES_MAX and kept[1].limit <= swept:
        del kept[0]
    while len(kept) > CLEAN_PREFIXES_MAX:
        apart = [after.timestamp_us - before.timestamp_us for before, after in zip(kept, kept[2:], strict=False)]
        del kept[1 + apart.index(min(apart))]
    return tuple(kept)


NOT_COMPACTED = Compaction()


@dataclass(frozen=True, slots=True)
class CompactionAnnouncement(Stored):
    """A pass is about to replace fragments below the offset ``limit``: a cursor created below it withdraws this."""

    token: str
    limit: int
    generation: int

    MEMBERS = (member("token", TOKEN), member("limit", INTEGER), member("generation", INTEGER))


@dataclass(frozen=True, slots=True)
class PointerText:
    """A pointer, and its JSON."""

    pointer: Pointer
    text: bytes


# By path: pointers whose JSON was read back, and gave the same pointer.
KnownTexts = dict[str, PointerText]
NONE_KNOWN: KnownTexts = {}


@dataclass(frozen=True, slots=True)
class ManifestText:
    """The members of a manifest's JSON: those before its pointers, the pointers, and those behind them."""

    opening: bytes
    snapshots: Sequence[PointerText]
    fragments: Sequence[PointerText]
    closing: bytes

    def data(self) -> bytes:
        """Return the manifest's bytes."""
        return strict_json.with_checksum(self._joined(attrgetter("text")))

    def unknown(self, known: KnownTexts) -> bytes:
        """Return its JSON with the mere path, for each pointer whose text is known, in place of that text."""
        return self._joined(lambda each: _name(each) if known.get(each.pointer.path) is each else each.text) + b"}"

    def texts(self) -> KnownTexts:
        """Return the texts of its pointers, to be known once they have been read back."""
        return {each.pointer.path: each for each in (*self.snapshots, *self.fragments)}

    def _joined(self, text: Callable[[PointerText], bytes]) -> bytes:
        snapshots, fragments = b",".join(map(text, self.snapshots)), b",".join(map(text, self.fragments))
        return b'%b,"snapshots":[%b],"fragments":[%b],%b' % (self.opening, snapshots, fragments, self.closing)


def _pointer_texts(pointers: Sequence[Pointer], known: Mapping[str, PointerText]) -> tuple[PointerText, ...]:
    """Return the pointers' texts; one is known only for the very object that was encoded before."""
    texts = []
    for pointer in pointers:
        text = known.get(pointer.path)
        if text is None or text.pointer is not pointer:
            text = PointerText(pointer, strict_json.dump(pointer.to_json()))
        texts.append(text)
    return tuple(texts)


def _name(text: PointerText) -> bytes:
    # A path that was read back has no character that JSON escapes.
    return b'"%b"' % text.pointer.path.encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a log holds: the pointers, oldest first, snapshots before fragments.

    ``log_id`` identifies this life of the log, ``follows`` the sealed log that it succeeds.
    ``setsum`` covers every record ever appended, ``pruned`` the pruned ones; ``first`` and
    ``next`` bound the records held; ``num_bytes`` and ``num_records`` count them. ``fence`` grows before
    unreferenced uploads are deleted; ``generation`` grows with every write. A ``keyed`` log takes no append without
    a key, and one of a ``view`` none of another.
    """

    log_id: LogId
    generation: int
    fence: int
    writer: str
    setsum: Setsum
    pruned: Setsum
    first: Boundary
    next: Boundary
    epochs: tuple[Epoch, ...]
    snapshots: tuple[SnapshotPointer, ...]
    fragments: tuple[FragmentPointer, ...]
    num_bytes: int
    num_records: int
    seal: Seal | None = None
    announced: Announcement | None = None
    follows: LogId | None = None
    destroying: bool = False
    compaction: Compaction = NOT_COMPACTED
    compacting: CompactionAnnouncement | None = None
    keyed: bool = False
    view: View | None = None

    @classmethod
    def initial(cls, *, log_id: LogId, writer: str, timestamp_us: int) -> Manifest:
        """Return the manifest of a new, empty log."""
        place = Boundary(FIRST_SEQ_NO, LogPosition(FIRST_OFFSET, timestamp_us))
        return cls(
            log_id=log_id,
            generation=1,
            fence=0,
            writer=writer,
            setsum=EMPTY,
            pruned=EMPTY,
            first=place,
            next=place,
            epochs=(),
            snapshots=(),
            fragments=(),
            num_bytes=0,
            num_records=0,
        )

    @classmethod
    def successor(cls, sealed: Manifest, *, log_id: LogId, writer: str) -> Manifest:
        """Return the manifest of a sealed log's successor: it begins at its end, with all of its setsum pruned."""
        return replace(
            cls.initial(log_id=log_id, writer=writer, timestamp_us=sealed.next.position.timestamp_us),
            follows=sealed.log_id,
            setsum=sealed.setsum,
            pruned=sealed.setsum,
            first=sealed.next,
            next=sealed.next,
        )

    @property
    def first_kept(self) -> Boundary:
        """Where the records that stay begin: a cursor below it comes too late."""
        return self.first if self.announced is None else self.announced.first

    @property
    def doomed(self) -> bool:
        """Whether it was sealed to be destroyed, and is about to be: its end is not where its writers ended it."""
        return self.destroying and self.seal is not None and self.seal.reason == BEING_DESTROYED

    @property
    def pointers(self) -> tuple[Pointer, ...]:
        """Snapshots and fragments together, in log order."""
        return (*self.snapshots, *self.fragments)

    @property
    def last_epoch(self) -> int:
        """Number of the newest epoch, 0 before the first."""
        return self.epochs[-1].epoch if self.epochs else 0

    def snapshot_of(self, pointers: Iterable[Pointer]) -> Snapshot:
        """Return a new snapshot of some of its pointers, or of those below."""
        return Snapshot(tuple(pointers), self.fence, self.log_id)

    def is_of(self, view: View | None) -> bool:
        """Whether it takes appends of a view, or of none."""
        return self.view in {None, view}

    def durability(self, epoch: int, token: str, seq_no: FragmentSeqNo) -> Durability:
        """Return whether fragment ``seq_no`` of an epoch is durable, from the table of epochs alone."""
        for index, entry in enumerate(self.epochs):
            if (entry.epoch, entry.token) == (epoch, token):
                later = self.epochs[index + 1 : index + 2]
                limit = later[0].first_seq_no if later else self.next.seq_no
                return Durability.DURABLE if entry.first_seq_no <= seq_no < limit else Durability.NOT_DURABLE
        if self.epochs and self.epochs[0].epoch > epoch:
            return Durability.UNKNOWN
        return Durability.NOT_DURABLE

    def apply_fragments(self, entry: Epoch, fragments: Sequence[FragmentPointer]) -> Manifest:
        """Append fragments written in the epoch ``entry``, adding it to the table if it is new.

        It is not checked here, but when it is read back: at once, before it is sent.
        """
        if self.seal is not None:
            raise SealedError(f"{MANIFEST}: expected an open log, found it sealed: {self.seal.reason}")
        epochs = self.epochs if entry in self.epochs[-1:] else (*self.epochs, entry)[-EPOCHS_MAX:]
        last = fragments[-1]
        return replace(
            self,
            setsum=self.setsum + sum_setsums(fragments),
            next=Boundary(FragmentSeqNo(last.last_seq_no + 1), last.limit),
            epochs=epochs,
            fragments=(*self.fragments, *fragments),
            num_bytes=self.num_bytes + sum(fragment.num_bytes for fragment in fragments),
            num_records=self.num_records + sum(fragment.num_records for fragment in fragments),
        )

    def apply_snapshot(self, snapshot: SnapshotPointer, replaced: Sequence[Pointer]) -> Manifest:
        """Replace a run of pointers by the snapshot that holds them; InvalidRequestError if the run is gone."""
        return self.apply_repack((snapshot,), replaced)

    def apply_repack(self, pointers: Sequence[Pointer], replaced: Sequence[Pointer]) -> Manifest:
        """Replace a run of pointers by others of the same records; InvalidRequestError if the run is gone."""
        held = self.pointers
        at = held.index(replaced[0]) if replaced[0] in held else len(held)
        if held[at : at + len(replaced)] != tuple(replaced):
            message = f"{describe(pointers[0])}: expected the run it replaces in the manifest, found it changed"
            raise InvalidRequestError(message)
        return self.holding((*held[:at], *pointers, *held[at + len(replaced) :]))

    def apply_seal(self, seal: Seal) -> Manifest:
        """Seal the log."""
        if self.seal is not None:
            raise SealedError(f"{MANIFEST}: expected an open log, found it sealed: {self.seal.reason}")
        return replace(self, seal=seal)

    def announce_destroy(self) -> Manifest:
        """Announce that the log is about to be destroyed: no new pin is made."""
        return replace(self, destroying=True)

    def withdraw_destroy(self) -> Manifest:
        """Withdraw that announcement. A log that was sealed meanwhile stays sealed."""
        return replace(self, destroying=False)

    def apply_announcement(self, garbage: str, first: Boundary) -> Manifest:
        """Announce a collection; this withdraws an earlier announcement."""
        if not self.first.seq_no < first.seq_no <= self.next.seq_no:
            raise InvalidRequestError(
                f"{MANIFEST}: expected to collect up to a fragment from {self.first.seq_no + 1} to"
                f" {self.next.seq_no}, found {first.seq_no}"
            )
        return replace(self, announced=Announcement(garbage, first, self.generation + 1))

    def withdraw_announcement(self, announcement: Announcement) -> Manifest:
        """Withdraw an announced collection; InvalidRequestError when another is announced, or none."""
        self._check_announced(announcement)
        return replace(self, announced=None)

    def apply_garbage(self, announcement: Announcement, kept: Sequence[Pointer]) -> Manifest:
        """Prune: drop all pointers but ``kept`` and remove the announcement; InvalidRequestError for another cutoff."""
        self._check_announced(announcement)
        first = Boundary(kept[0].first_seq_no, kept[0].start) if kept else self.next
        if first.seq_no != announcement.first.seq_no:
            message = f"{MANIFEST}: expected to begin at fragment {announcement.first.seq_no}, found {first.seq_no}"
            raise InvalidRequestError(message)
        pruned = self.pruned + (sum_setsums(self.pointers) - sum_setsums(kept))
        return replace(self, first=first, pruned=pruned, announced=None).holding(kept)

    def announce_compaction(self, token: str, limit: int) -> Manifest:
        """Announce that a pass is about to replace fragments below ``limit``; this withdraws an earlier one."""
        return replace(self, compacting=CompactionAnnouncement(token, limit, self.generation + 1))

    def withdraw_compaction(self) -> Manifest:
        """Withdraw that announcement: the pass is planned again."""
        return replace(self, compacting=None)

    def move_fence(self) -> Manifest:
        """Move the fence: no upload that began before is linked any more, so a pass that is announced is over, too."""
        return replace(self.withdraw_compaction(), fence=self.fence + 1)

    def _check_announced(self, announcement: Announcement) -> None:
        if self.announced != announcement:
            found = None if self.announced is None else self.announced.garbage
            message = f"{MANIFEST}: expected collection {announcement.garbage} to be announced, found {found}"
            raise InvalidRequestError(message)

    def counted(self) -> Manifest:
        """Return it with counts computed from its pointers; CorruptError when it breaks an invariant."""
        pointers = self.pointers
        num_bytes, num_records = sum(p.num_bytes for p in pointers), sum(p.num_records for p in pointers)
        counted = replace(self, num_bytes=num_bytes, num_records=num_records)
        counted.check()
        return counted

    def holding(self, pointers: Sequence[Pointer]) -> Manifest:
        """Return it with other pointers; CorruptError when it breaks an invariant."""
        return replace(
            self,
            snapshots=tuple(pointer for pointer in pointers if isinstance(pointer, SnapshotPointer)),
            fragments=tuple(pointer for pointer in pointers if isinstance(pointer, FragmentPointer)),
        ).counted()

    def check(self) -> None:
        """Refuse a manifest that breaks an invariant; CorruptError says which and where."""
        pointers = self.pointers
        check_run(pointers)
        _check_ends(pointers, self.first, self.next)
        _check_epochs(self.epochs, self.next)
        _check_balance(pointers, self.pruned, self.setsum)
        _check_counts(pointers, self.num_bytes, self.num_records)

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        return self.text(NONE_KNOWN).data()

    def text(self, known: KnownTexts) -> ManifestText:
        """Encode, but for pointers whose texts are known."""
        opening = {"format_version": FORMAT_VERSION, **strict_json.dump_members(self, _BEFORE_POINTERS)}
        return ManifestText(
            opening=strict_json.dump(opening)[:-1],
            snapshots=_pointer_texts(self.snapshots, known),
            fragments=_pointer_texts(self.fragments, known),
            closing=strict_json.dump(strict_json.dump_members(self, _BEHIND_POINTERS))[1:-1],
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str = MANIFEST) -> Manifest:
        """Decode and check; CorruptError names ``what`` when anything is off."""
        return cls.from_fields(strict_json.load_checksummed(data, what=what, bytes_max=BYTES_MAX))

    @classmethod
    def from_fields(cls, fields: Fields, *, known: KnownTexts = NONE_KNOWN) -> Manifest:
        """Read from a JSON object, and check; a known pointer may be given by its path alone."""
        check_format_version(fields, FORMAT_VERSION)
        manifest = cls(
            **strict_json.read_members(fields, (*_BEFORE_POINTERS, *_BEHIND_POINTERS)),
            snapshots=_read_each(fields, "snapshots", SnapshotPointer, known),
            fragments=_read_each(fields, "fragments", FragmentPointer, known),
        )
        fields.finish()
        manifest.check()
        return manifest


# The members in the order in which they are stored.
_BEFORE_POINTERS = (
    member("log_id", LOG_ID),
    member("follows", LOG_ID, default=None),
    member("generation", INTEGER),
    member("fence", INTEGER),
    member("writer", TEXT),
    member("setsum", SETSUM),
    member("pruned", SETSUM),
    member("first", nested(Boundary)),
    member("next", nested(Boundary)),
    member("epochs", several(Epoch.from_json, EPOCHS_MAX, Epoch.to_json)),
)
_BEHIND_POINTERS = (
    member("seal", nested(Seal), default=None),
    member("destroying", FLAG, default=False),
    member("collecting", nested(Announcement), "announced", default=None),
    member("keyed", SET, default=False),
    member("view", VIEW, default=None),
    member("compaction", nested(Compaction), default=NOT_COMPACTED),
    member("compacting", nested(CompactionAnnouncement), default=None),
    member("num_bytes", INTEGER),
    member("num_records", INTEGER),
)


def _read_each(fields: Fields, name: str, kind: type[P], known: KnownTexts) -> tuple[P, ...]:
    """Read pointers of one kind, those that are known by their paths."""
    pointers = []
    for index, item in enumerate(fields.items(name, count_max=POINTERS_MAX)):
        found = known.get(item) if isinstance(item, str) else None
        if found is not None and isinstance(found.pointer, kind):
            pointers.append(found.pointer)
        else:
            pointers.append(kind.from_json(Fields(item, f"{fields.what}.{name}[{index}]")))
    return tuple(pointers)


def _check_balance(pointers: Sequence[Pointer], pruned: Setsum, setsum: Setsum) -> None:
    """Check that the pointers' records and those that were pruned are all that were ever appended."""
    balance = sum_setsums(pointers) + pruned
    if balance != setsum:
        raise CorruptError(f"{MANIFEST}: expected setsum {setsum}, found {balance} in its pointers and pruned")


def _check_counts(pointers: Sequence[Pointer], num_bytes: int, num_records: int) -> None:
    """Check that the manifest's counts are the sums of its pointers'."""
    held = sum(p.num_bytes for p in pointers), sum(p.num_records for p in pointers)
    if held != (num_bytes, num_records):
        raise CorruptError(f"{MANIFEST}: expected {num_bytes} bytes, {num_records} records, found {held}")


def _check_ends(pointers: Sequence[Pointer], first: Boundary, limit: Boundary) -> None:
    """Check that the log begins with its first pointer and ends with its last."""
    expected_first = expected_limit = limit
    if pointers:
        expected_first = Boundary(pointers[0].first_seq_no, pointers[0].start)
        expected_limit = Boundary(FragmentSeqNo(pointers[-1].last_seq_no + 1), pointers[-1].limit)
    for name, expected, found in (("first", expected_first, first), ("next", expected_limit, limit)):
        # Timestamps are not compared: that of a new log's ``first`` is set before its first fragment's.
        if (expected.seq_no, expected.position.offset) != (found.seq_no, found.position.offset):
            raise CorruptError(
                f"{MANIFEST}: {name}: expected fragment {expected.seq_no} at {expected.position},"
                f" found fragment {found.seq_no} at {found.position}"
            )


def _check_epochs(epochs: Sequence[Epoch], limit: Boundary) -> None:
    """Check that epochs rise, begin below the log's end, and are few."""
    numbers = [(entry.epoch, entry.first_seq_no) for entry in epochs]
    rising = all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(numbers))
    if not rising or len(numbers) > EPOCHS_MAX or any(first >= limit.seq_no for _, first in numbers):
        raise CorruptError(f"{MANIFEST}: expected epochs rising below fragment {limit.seq_no}, found {numbers}")
