"""Copies a log as one manifest says, object by object, the copy's own manifest last.

The source is pinned meanwhile; records appended meanwhile are not copied. A copy that was cut short is no log; the next
call finishes it. Source: docs/protocol/copies.md, "Copy".
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from wal3_core.arguments import checked, flag, function, instance_of, integer, make_plain, optional
from wal3_core.errors import (
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    StoreDeniedError,
    UnavailableError,
)
from wal3_core.format import parquet
from wal3_core.format.cursor import Cursor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Manifest
from wal3_core.format.named_append import NAMING_DIGITS
from wal3_core.format.paths import check_fragment_path, check_log_name
from wal3_core.format.pin import Pin
from wal3_core.format.policy import Policy
from wal3_core.format.position import LogPosition
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer, sum_setsums
from wal3_core.format.strict_json import Shown
from wal3_core.log.belongings import take_cursors, take_manifest
from wal3_core.log.log_stores import LogStores
from wal3_core.log.maintain.copy.target import Claim, CopyPins, CopyTarget, copying_at, encode_checked, load_cursors
from wal3_core.log.read.reader import read_fragment
from wal3_core.log.read.scan import check_start, select, trim
from wal3_core.log.tree.splice import cut_below
from wal3_core.log.write.commit import bounded
from wal3_core.options import CLOCK_AHEAD_S_MAX, UNLIMITED, ReaderOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.documents.document_store import LoadedDocument
from wal3_core.store.documents.manifest_store import Entry
from wal3_core.store.object_store import ObjectStore, a_store, canonical_url, log_store, share_of
from wal3_core.store.retrying import with_retries

_OBJECTS_AHEAD = 4


@dataclass(frozen=True, slots=True)
class LogAt:
    """A log, the store it lies in, and how it is read."""

    store: ObjectStore
    log: str
    reading: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, store=a_store, log=check_log_name, reading=instance_of(ReaderOptions))


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport(Shown):
    """What a copy holds; ``pinned_us`` is when the source held exactly that, ``resumed`` whether it was begun before.

    ``setsum`` covers every record ever appended to the source, as in its manifest. ``pins_left`` names pins of the
    source that are no longer needed and could not be deleted: delete them.
    """

    log: str
    first_offset: int
    next_offset: int
    num_records: int
    num_bytes: int
    num_fragments: int
    num_cursors: int
    setsum: Setsum
    pinned_us: int
    resumed: bool
    pins_left: tuple[str, ...] = ()


def _offset_or_copy(value: object, name: str) -> int | LogAt:
    return value if isinstance(value, LogAt) else integer(value, name)


# Before anything is pinned or claimed.
@checked(from_offset=optional(_offset_or_copy), progress=function, with_cursors=flag)
def copy(
    source: LogAt,
    target: LogAt,
    *,
    from_offset: int | LogAt | None = None,
    with_cursors: bool = False,
    progress: Callable[[int, int], None] = lambda _records, _total: None,
    runtime: Runtime | None = None,
) -> CopyReport:
    """Copy a log as it is now, whole or from ``from_offset`` on; positions stay as they are.

    ``from_offset`` may be an earlier copy: this one begins where that ends, and holds all records since, so that an
    update of a copy of that one can append them. GarbageCollectedError when the source lacks some of them.
    The copy is open, also of a sealed log, and has no successor: copies of a chain are read one by one.
    ``with_cursors`` copies the cursors that lie in the copy. ``progress`` gets the number of records copied and of
    all records. LogExistsError when the target exists, InvalidRequestError when something lies
    there that is not this copy's, CorruptError when the source is damaged; the target is no log then.
    LogReplacedError when another call took the copy over, or gave it up.
    """
    runtime = runtime or shared_runtime()
    report = _Copying(source, target, runtime, progress).run(from_offset, with_cursors=with_cursors)
    MAINTAIN.info("log %s: copied to %s: %d records", source.log, target.log, report.num_records)
    return report


@dataclass(frozen=True, slots=True)
class _CopyPlan:
    """The part of what one pin keeps that is copied, and the terms on which another call may continue."""

    pin_name: str
    pin: Pin
    manifest: Manifest
    cursors: Mapping[str, Cursor]
    terms: str


class _Copying:
    def __init__(self, source: LogAt, target: LogAt, runtime: Runtime, progress: Callable[[int, int], None]) -> None:
        self._target = target
        self._runtime = runtime
        self._progress = progress
        self._from = LogStores(source.store, source.log, runtime=runtime)
        self._into = CopyTarget(with_retries(log_store(target.store, target.log), runtime), runtime, self._from.retry)
        self._expanded_bytes_max = source.reading.fragment_expanded_bytes_max
        self._part = CopiedPart(self._from.objects, self._from.snapshots.load, self._expanded_bytes_max)
        self._after: Manifest | None = None

    def run(self, begins: int | LogAt | None, *, with_cursors: bool) -> CopyReport:
        """Copy what is pinned for it; a pin is deleted when no claim names it any more, nor will."""
        from_offset = None if isinstance(begins, LogAt) else begins
        if isinstance(begins, LogAt):
            self._after = LogStores(begins.store, begins.log, runtime=self._runtime).manifests.load().manifest
            from_offset = self._after.next.position.offset
        address = canonical_url(self._from.url)
        if address == canonical_url(self._into.url):
            raise InvalidRequestError(f"log {self._from.url}: expected another log to copy to, found itself")
        # Before anything is pinned: a target that is taken fails here.
        found = self._into.look(address)
        pins = CopyPins(self._from)

        def planned(name: str, pin: Pin) -> _CopyPlan:
            return self._plan(name, pin, from_offset, with_cursors=with_cursors)

        plan = _begun(found, pins, planned) or self._begin(pins, planned)
        earlier = copying_at(found)
        named = {plan.pin_name} | ({earlier.pin} if earlier else set())
        try:
            claim = self._into.claim(found, source=address, terms=plan.terms, pin=plan.pin_name)
            for name in named - {plan.pin_name}:
                # The pin of a try on other terms, whose claim is gone.
                pins.let_go(name)
            copied = self._copy(plan, claim, pins)
        except LogError as error:
            for name in named:
                if self._into.forgets(name, found, final=_is_final(error)):
                    pins.let_go(name)
            raise
        # The copy is a log now: nothing from here on is a failure.
        pins.let_go(plan.pin_name)
        return replace(copied, pins_left=tuple(sorted(pins.left)))

    def _begin(self, pins: CopyPins, planned: Callable[[str, Pin], _CopyPlan]) -> _CopyPlan:
        """Pin the source as it is now."""
        name, pin = pins.make(self._into.url)
        try:
            return planned(name, pin)
        except LogError:
            # No claim names it yet.
            pins.let_go(name)
            raise

    def _plan(self, name: str, pin: Pin, from_offset: int | None, *, with_cursors: bool) -> _CopyPlan:
        manifest = self._cut(pin.manifest, from_offset)
        # Those that the copy can have; named appends may lie in the part that is not copied.
        cursors: dict[str, Cursor] = {}
        if with_cursors:
            cursors = take_cursors(
                load_cursors(self._from, pin.manifest), manifest.first.position, manifest.next.position
            )
        terms = f"log {pin.log_id}, pinned by {pin.writer}, from {from_offset}, cursors: {_names(cursors)}"
        return _CopyPlan(name, pin, manifest, cursors, terms)

    def _copy(self, plan: _CopyPlan, claim: Claim, pins: CopyPins) -> CopyReport:
        """Copy what was pinned, and make it a log."""
        try:
            num_fragments = self._copy_fragments(plan.manifest, claim)
            pointers = claim.write_snapshots(plan.manifest.pointers, self._load)
        except CorruptError:
            # A call that took over deletes the pin that this one reads by, and what it wrote.
            claim.check_ours()
            # Destroying the source deletes what is read, too, pinned or not.
            self._from.manifests.load()
            pins.check(plan.pin_name)
            raise
        policy = self._policy()
        claim.write_documents(plan.cursors, policy)
        copied = self._made(plan.manifest, pointers, policy, claim)
        # Manifest last: until then there is no log that could be read too early.
        claim.finish(copied)
        return CopyReport(
            log=self._target.log,
            first_offset=copied.first.position.offset,
            next_offset=copied.next.position.offset,
            num_records=copied.num_records,
            num_bytes=copied.num_bytes,
            num_fragments=num_fragments,
            num_cursors=len(plan.cursors),
            setsum=copied.setsum,
            pinned_us=plan.pin.epoch_us,
            resumed=claim.resumed,
        )

    def _cut(self, source: Manifest, from_offset: int | None) -> Manifest:
        """Return the part of the source's manifest that is copied, from a fragment on."""
        if from_offset is None:
            return source
        part = self._part.of(source, from_offset)
        if self._after is not None and self._after.setsum != part.pruned:
            raise GarbageCollectedError(
                f"log {self._from.url}: expected all its records from offset {from_offset} on, where the earlier copy"
                f" ends, found that some were compacted away, or that this is no copy of the log: make a whole copy,"
                f" and keep a cursor of the log where the last copy ends"
            )
        return part

    def _made(self, source: Manifest, pointers: list[Pointer], policy: Policy | None, claim: Claim) -> Manifest:
        """Make the copy's manifest: what was copied, under its own log_id, open, and not being collected."""
        copied = take_manifest(source, policy, log_id=claim.log_id, writer=source.writer)
        if not pointers:
            # No record has its timestamp: if a wrong clock moved it far ahead, it is not inherited.
            place = bounded(copied.next, claim.begun_us(), CLOCK_AHEAD_S_MAX)
            copied = replace(copied, first=place, next=place)
        return copied.holding(pointers)

    def _load(self, pointer: SnapshotPointer) -> Snapshot:
        return self._part.written.get(pointer.path) or self._from.snapshots.load(pointer)

    # ------------------------------------------------------------------ fragments

    def _copy_fragments(self, manifest: Manifest, claim: Claim) -> int:
        """Copy all fragments that the manifest leads to, and prove that they add up; returns how many there are."""
        total, records, fragments = EMPTY, 0, 0

        walk, share = select(manifest.pointers, None, UNLIMITED, self._load), share_of(self._from.objects)
        for pointer in map_ahead(
            self._runtime, partial(self._copy_fragment, claim), walk, count=_OBJECTS_AHEAD, share=share
        ):
            total, records, fragments = total + pointer.setsum, records + pointer.num_records, fragments + 1
            self._progress(records, manifest.num_records)
        if (total + manifest.pruned, records) != (manifest.setsum, manifest.num_records):
            raise CorruptError(
                f"log {self._from.url}: expected {manifest.num_records} records and setsum {manifest.setsum},"
                f" found {records} and {total + manifest.pruned} in what was copied and pruned"
            )
        return fragments

    def _copy_fragment(self, claim: Claim, pointer: FragmentPointer) -> FragmentPointer:
        if claim.resumed and claim.objects.head(pointer.path) is not None:
            # Written by an earlier try: read back instead of sent again.
            try:
                self._checked(claim.objects, pointer)
            except CorruptError as error:
                raise CorruptError(
                    f"log {self._into.url}: expected what an earlier try copied there, found it damaged: destroy the"
                    f" partial copy, delete its pin of the source, and copy again: {error}"
                ) from error
            return pointer
        data = self._part.encoded.get(pointer.path)
        claim.write_fragment(pointer, data or self._checked(self._from.objects, pointer))
        return pointer

    def _checked(self, store: ObjectStore, pointer: FragmentPointer) -> bytes:
        return read_fragment(store, pointer, expanded_bytes_max=self._expanded_bytes_max)[0]

    def _policy(self) -> Policy | None:
        """Load the source's policy, if it has one: the copy keeps records by the same rule."""
        policy = self._from.policies.load()
        return policy if policy.generation else None


def _begun(
    found: LoadedDocument[Entry] | None, pins: CopyPins, planned: Callable[[str, Pin], _CopyPlan]
) -> _CopyPlan | None:
    """Return the plan of an earlier try if its pin still exists and its terms are the same, else None."""
    earlier = copying_at(found)
    if earlier is None:
        return None
    try:
        pin = pins.find(earlier.pin)
        plan = None if pin is None else planned(earlier.pin, pin)
    except (InvalidRequestError, GarbageCollectedError, CorruptError):
        # The pin does not keep what is asked for now, or what it keeps cannot be read.
        return None
    return plan if plan is not None and plan.terms == earlier.terms else None


def _is_final(error: LogError) -> bool:
    """Tell whether no request of a call that failed with this error may still arrive."""
    return not isinstance(error, UnavailableError) or isinstance(error, StoreDeniedError)


def _names(cursors: Mapping[str, Cursor]) -> str:
    """Hash the names of a copy's cursors: a try is not continued if the source has lost a cursor since.

    It could not be deleted from the copy: a delete knows no versions, and may arrive after another call has taken over.
    """
    return hashlib.sha256("\n".join(sorted(cursors)).encode()).hexdigest()[:16] if cursors else "none"


# ---------------------------------------------------------------------- a part


class CopiedPart:
    """The part of a log from an offset on: it begins exactly there, so that parts adjoin.

    A fragment that holds the offset and others before it is cut there and encoded again, in the same way each time:
    another call may finish the copy. Of what the source does not have, ``written`` are the snapshots, ``encoded`` the
    fragment, by path.
    """

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
        cut = replace(
            pointer,
            start=LogPosition(offset, table["timestamp_us"][0].as_py()),
            setsum=parquet.table_setsum(table),
            num_records=len(table),
            continues=False,
        )
        cut, data = encode_checked(table, cut, seq_no=pointer.seq_no, token=token, expanded_bytes_max=most)
        self.encoded[cut.path] = data
        return (cut,)
