"""The manifest: the one document that says what a log holds, and its pure transitions.

Every transition returns a new manifest; all but ``apply_fragments`` check it when its pointers changed. The storage
layer reads each back, which checks it, and swaps it in by CAS.
Keeps INV-1 to INV-7 of docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import InvalidRequestError, SealedError
from wal3_core.model import strict_json
from wal3_core.model.compacting import NOT_COMPACTED, Compaction, CompactionAnnouncement
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.manifest_checks import check_balance, check_counts, check_ends, check_epochs
from wal3_core.model.manifest_parts import (
    BEING_DESTROYED,
    EPOCHS_MAX,
    Announcement,
    Boundary,
    Durability,
    Epoch,
    Seal,
    view_of,
)
from wal3_core.model.manifest_text import NONE_KNOWN, KnownTexts, ManifestText, pointer_texts
from wal3_core.model.paths import MANIFEST, LogId, check_log_id
from wal3_core.model.position import FIRST_OFFSET, FIRST_SEQ_NO, FragmentSeqNo, LogPosition
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.model.snapshot import (
    Pointer,
    SnapshotPointer,
    check_format_version,
    check_run,
    describe,
    sum_setsums,
)
from wal3_core.model.strict_json import Fields
from wal3_core.options import POINTERS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.model.strict_json import JsonObject
    from wal3_core.options import View

P = TypeVar("P", FragmentPointer, SnapshotPointer)
FORMAT_VERSION = 2
BYTES_MAX = 64 * 2**20


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
        """Where the records that stay begin: a cursor or pin below it comes too late."""
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
            message = f"{MANIFEST}: expected an open log, found it sealed: {self.seal.reason}"
            raise SealedError(message)
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
            message = f"{MANIFEST}: expected an open log, found it sealed: {self.seal.reason}"
            raise SealedError(message)
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
            message = (
                f"{MANIFEST}: expected to collect up to a fragment from {self.first.seq_no + 1} to"
                f" {self.next.seq_no}, found {first.seq_no}"
            )
            raise InvalidRequestError(message)
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
        check_ends(pointers, self.first, self.next)
        check_epochs(self.epochs, self.next)
        check_balance(pointers, self.pruned, self.setsum)
        check_counts(pointers, self.num_bytes, self.num_records)

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        return self.text(NONE_KNOWN).data()

    def text(self, known: KnownTexts) -> ManifestText:
        """Encode, but for pointers whose texts are known."""
        closing: JsonObject = {**_states(self), "num_bytes": self.num_bytes, "num_records": self.num_records}
        return ManifestText(
            opening=strict_json.dump(_opening(self))[:-1],
            snapshots=pointer_texts(self.snapshots, known),
            fragments=pointer_texts(self.fragments, known),
            closing=strict_json.dump(closing)[1:-1],
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
            log_id=check_log_id(fields.string("log_id"), fields.what),
            follows=check_log_id(fields.string("follows"), fields.what) if fields.has("follows") else None,
            generation=fields.integer("generation"),
            fence=fields.integer("fence"),
            writer=fields.string("writer"),
            setsum=Setsum.from_hexdigest(fields.string("setsum")),
            pruned=Setsum.from_hexdigest(fields.string("pruned")),
            first=Boundary.from_json(fields.object("first")),
            next=Boundary.from_json(fields.object("next")),
            epochs=tuple(Epoch.from_json(item) for item in fields.objects("epochs", count_max=EPOCHS_MAX)),
            snapshots=_read_each(fields, "snapshots", SnapshotPointer, known),
            fragments=_read_each(fields, "fragments", FragmentPointer, known),
            seal=Seal.from_json(fields.object("seal")) if fields.has("seal") else None,
            destroying=fields.flag("destroying") if fields.has("destroying") else False,
            announced=Announcement.from_json(fields.object("collecting")) if fields.has("collecting") else None,
            compaction=Compaction.of(fields),
            compacting=CompactionAnnouncement.of(fields),
            keyed=fields.is_set("keyed"),
            view=view_of(fields),
            num_bytes=fields.integer("num_bytes"),
            num_records=fields.integer("num_records"),
        )
        fields.finish()
        manifest.check()
        return manifest


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


def _opening(manifest: Manifest) -> JsonObject:
    """Return the fields before the pointers, in the order in which they are stored."""
    follows: JsonObject = {} if manifest.follows is None else {"follows": manifest.follows}
    return {
        "format_version": FORMAT_VERSION,
        "log_id": manifest.log_id,
        **follows,
        "generation": manifest.generation,
        "fence": manifest.fence,
        "writer": manifest.writer,
        "setsum": manifest.setsum.hexdigest(),
        "pruned": manifest.pruned.hexdigest(),
        "first": manifest.first.to_json(),
        "next": manifest.next.to_json(),
        "epochs": [entry.to_json() for entry in manifest.epochs],
    }


def _states(manifest: Manifest) -> JsonObject:
    """Return the fields that most manifests leave out, in the order in which they are stored."""
    return {
        **({} if manifest.seal is None else {"seal": manifest.seal.to_json()}),
        **({"destroying": True} if manifest.destroying else {}),
        **({} if manifest.announced is None else {"collecting": manifest.announced.to_json()}),
        **({"keyed": True} if manifest.keyed else {}),
        **({} if manifest.view is None else {"view": manifest.view.value}),
        **({} if manifest.compaction == NOT_COMPACTED else {"compaction": manifest.compaction.to_json()}),
        **({} if manifest.compacting is None else {"compacting": manifest.compacting.to_json()}),
    }
