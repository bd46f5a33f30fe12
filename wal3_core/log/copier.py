"""Copies a log as one manifest says, object by object, the copy's own manifest last.

The source is pinned meanwhile, so collecting it takes nothing away; what is appended meanwhile is not
copied. A copy that was cut short is no log, and is finished by the next call. Every fragment is
decoded and checked on the way. Source: docs/protocol.md, "Copy".
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, GarbageCollectedError, InvalidRequestError, LogExistsError, MissingError
from wal3_core.log.contents import Found, Kind, own_objects
from wal3_core.log.references import References
from wal3_core.log.scan import check_start
from wal3_core.model import parquet
from wal3_core.model.cursor import Cursor
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.garbage import cut_below
from wal3_core.model.paths import CURSOR_FOLDER, MANIFEST, check_log_name, cursor_name, cursor_path
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.model.snapshot import SnapshotPointer, sum_setsums
from wal3_core.options import ReaderOptions, RetryOptions
from wal3_core.runtime import Runtime, ahead, shared_runtime
from wal3_core.storage.cursor_store import CursorStore
from wal3_core.storage.document_store import DocumentStore
from wal3_core.storage.immutable import write_immutable
from wal3_core.storage.manifest_store import ManifestStore
from wal3_core.storage.object_store import ObjectStore, log_store
from wal3_core.storage.pin_store import PinStore
from wal3_core.storage.retry import reread_if_damaged, until_answered
from wal3_core.storage.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.pin import Pin
    from wal3_core.model.snapshot import Pointer, Snapshot
    from wal3_core.model.strict_json import JsonObject

_OBJECTS_AHEAD = 4
_SNAPSHOTS_LOADED_MAX = 64
_NAMED_MAX = 10


@dataclass(frozen=True, slots=True)
class LogAt:
    """A log and the store it lies in."""

    store: ObjectStore
    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What a copy holds; ``pinned_us`` is when the source held just that, ``resumed`` whether it was begun before.

    ``setsum`` covers every record ever appended to the source, as in its manifest.
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

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "first_offset": self.first_offset,
            "next_offset": self.next_offset,
            "num_records": self.num_records,
            "num_bytes": self.num_bytes,
            "num_fragments": self.num_fragments,
            "num_cursors": self.num_cursors,
            "setsum": self.setsum.hexdigest(),
            "pinned_us": self.pinned_us,
            "resumed": self.resumed,
        }


def copy(
    source: LogAt,
    target: LogAt,
    *,
    from_offset: int | None = None,
    with_cursors: bool = False,
    progress: Callable[[int, int], None] = lambda _records, _total: None,
    runtime: Runtime | None = None,
) -> Copied:
    """Copy a log as it is now, whole or from the fragment that holds ``from_offset``; positions stay as they are.

    ``with_cursors`` copies the cursors that lie in the copy. ``progress`` hears of records copied and
    records there are. LogExistsError when the target exists, InvalidRequestError when something lies
    there that is not this copy's, CorruptError when the source is damaged; the target is no log then.
    """
    runtime = runtime or shared_runtime()
    check_log_name(source.log)
    check_log_name(target.log)
    copying = _Copying(source, target, runtime, progress)
    copying.check_target()
    with copying.pinned() as (pin, resumed):
        return copying.run(pin, from_offset, with_cursors=with_cursors, resumed=resumed)


class _Copying:
    """One call's parts."""

    def __init__(self, source: LogAt, target: LogAt, runtime: Runtime, progress: Callable[[int, int], None]) -> None:
        self._source, self._target = source, target
        self._from, self._into = log_store(source.store, source.log), log_store(target.store, target.log)
        self._runtime = runtime
        self._progress = progress
        self._retry = RetryOptions()
        self._manifests = ManifestStore(self._into, runtime, self._retry)
        self._pins = PinStore(source.store, source.log, runtime=runtime, retry=self._retry)
        loaded_max = _SNAPSHOTS_LOADED_MAX
        self._snapshots = SnapshotStore(self._from, runtime, loaded_max=loaded_max)
        self._copied_snapshots = SnapshotStore(self._into, runtime, loaded_max=loaded_max)
        # Snapshots of what stays of one that the copy begins in; the source has none of these.
        self._written: dict[str, Snapshot] = {}

    def check_target(self) -> None:
        """Refuse a target that is a log; LogExistsError."""
        if self._from.url == self._into.url:
            message = f"log {self._from.url}: expected another log to copy to, found itself"
            raise InvalidRequestError(message)
        if self._into.head(MANIFEST) is not None:
            message = f"log {self._into.url}: expected no log to copy to, found one"
            raise LogExistsError(message)

    @contextmanager
    def pinned(self) -> Iterator[tuple[Pin, bool]]:
        """Keep what is copied from being collected; a pin that is there was left by a call that was cut short."""
        # Named for the target: the next try finds it, and copies what this one began to.
        name = f"copy-{hashlib.sha256(self._into.url.encode()).hexdigest()[:16]}"
        pin = self._pins.load(name)
        resumed = pin is not None and pin.complete
        if pin is None or not pin.complete:
            pin = self._pins.create(name, reason=f"being copied to {self._into.url}")
        try:
            yield pin, resumed
        except LogExistsError:
            # Somebody else has finished it.
            self._pins.delete(name)
            raise
        except (InvalidRequestError, GarbageCollectedError):
            # Refused before anything was begun here.
            if not resumed:
                self._pins.delete(name)
            raise
        # Only now: until it is finished, another call may be at it, and the next one goes on from this pin.
        self._pins.delete(name)

    def run(self, pin: Pin, from_offset: int | None, *, with_cursors: bool, resumed: bool) -> Copied:
        """Copy what was pinned."""
        manifest = self._cut(pin.manifest, from_offset)
        cursors = self._cursors_within(manifest) if with_cursors else {}
        # The source may have lost a cursor since an earlier try; what does not belong here goes.
        begun = self._check_remains(manifest, None if resumed else cursors)
        num_fragments = self._copy_objects(manifest, begun=begun)
        self._copy_cursors(cursors)
        # Manifest last: until then there is no log, and nothing that could be read too early.
        self._manifests.initialize(manifest, over_fragments=True)
        return Copied(
            log=self._target.log,
            first_offset=manifest.first.position.offset,
            next_offset=manifest.next.position.offset,
            num_records=manifest.num_records,
            num_bytes=manifest.num_bytes,
            num_fragments=num_fragments,
            num_cursors=len(cursors),
            setsum=manifest.setsum,
            pinned_us=pin.epoch_us,
            resumed=resumed,
        )

    def _cut(self, source: Manifest, from_offset: int | None) -> Manifest:
        """Make the copy's manifest: the source's from a fragment on, open, and not being collected."""
        copied = replace(
            source,
            generation=1,
            # The token makes the document this call's own: one that others wrote is never taken for it.
            writer=f"{self._runtime.process_name()} {self._runtime.token()}",
            seal=None,
            collecting=None,
        )
        if from_offset is None:
            return copied
        check_start(source, from_offset)
        cut = cut_below(source, from_offset, self._snapshots.load)
        self._written = {part.pointer_to(part.to_bytes()).path: part for part in cut.written}
        return replace(
            copied,
            first=cut.first if cut.dropped or cut.replaced else source.first,
            pruned=source.pruned + (sum_setsums(source.pointers) - sum_setsums(cut.pointers)),
            snapshots=tuple(pointer for pointer in cut.pointers if isinstance(pointer, SnapshotPointer)),
            fragments=tuple(pointer for pointer in cut.pointers if isinstance(pointer, FragmentPointer)),
        ).counted()

    def _load(self, pointer: SnapshotPointer) -> Snapshot:
        written = self._written.get(pointer.path)
        return written or until_answered(lambda: self._snapshots.load(pointer), self._retry, self._runtime)

    # ------------------------------------------------------------------ what lies there already

    def _check_remains(self, manifest: Manifest, cursors: Mapping[str, Cursor] | None) -> bool:
        """Refuse to copy over what is not this copy's; tells whether a copy was begun.

        ``cursors`` are those that may lie there; None for any.
        """
        there = own_objects(self._into)
        begun = next(there, None)
        if begun is None:
            return False
        references = References([manifest.pointers], self._load)
        every = chain((begun,), there)
        foreign = (found.meta.path for found in every if not _is_ours(found, references, cursors))
        named = list(islice(foreign, _NAMED_MAX))
        if named:
            self.check_target()
            message = (
                f"log {self._into.url}: expected nothing there but what an earlier try of this copy left, found"
                f" {', '.join(named)}: destroy what is left of {self._target.log}, or copy to another name"
            )
            raise InvalidRequestError(message)
        return True

    # ------------------------------------------------------------------ objects

    def _copy_objects(self, manifest: Manifest, *, begun: bool) -> int:
        """Copy all that the manifest refers to, and prove that it adds up; returns how many fragments there are."""
        total, records, fragments = EMPTY, 0, 0

        def copy_one(pointer: Pointer) -> Pointer:
            if isinstance(pointer, FragmentPointer):
                self._copy_fragment(pointer, begun=begun)
            else:
                self._copy_snapshot(pointer)
            return pointer

        for pointer in ahead(self._runtime, copy_one, self._walk(manifest.pointers), count=_OBJECTS_AHEAD):
            if isinstance(pointer, FragmentPointer):
                total, records, fragments = total + pointer.setsum, records + pointer.num_records, fragments + 1
                self._progress(records, manifest.num_records)
        if (total + manifest.pruned, records) != (manifest.setsum, manifest.num_records):
            message = (
                f"log {self._from.url}: expected {manifest.num_records} records and setsum {manifest.setsum},"
                f" found {records} and {total + manifest.pruned} in what was copied and pruned"
            )
            raise CorruptError(message)
        return fragments

    def _walk(self, pointers: Iterable[Pointer]) -> Iterator[Pointer]:
        for pointer in pointers:
            yield pointer
            if isinstance(pointer, SnapshotPointer):
                yield from self._walk(self._load(pointer).pointers)

    def _copy_snapshot(self, pointer: SnapshotPointer) -> None:
        written = self._copied_snapshots.write(self._load(pointer), self._retry)
        # Its name is the hash of its bytes: they are the same, too.
        if written != pointer:
            message = f"snapshot {pointer.path}: expected to copy it as it is, found {written.path}"
            raise CorruptError(message)

    def _copy_fragment(self, pointer: FragmentPointer, *, begun: bool) -> None:
        if begun and self._into.head(pointer.path) is not None:
            # Written by an earlier try: read back instead of sent again.
            reread_if_damaged(lambda: self._checked(self._into, pointer))
            return
        data = reread_if_damaged(lambda: self._checked(self._from, pointer))
        write_immutable(self._into, pointer.path, data, self._retry, self._runtime)

    def _checked(self, store: ObjectStore, pointer: FragmentPointer) -> bytes:
        """Read a fragment's bytes, and check that its records are what the pointer says."""
        what = f"fragment {pointer.seq_no} ({store.url}/{pointer.path})"
        data = until_answered(
            # One byte more tells a longer file without fetching all of it.
            lambda: store.read(pointer.path, length=pointer.num_bytes + 1),
            self._retry,
            self._runtime,
        )
        if data is None:
            message = f"{what}: expected a file, found none"
            raise MissingError(message, path=pointer.path)
        if len(data) != pointer.num_bytes:
            message = f"{what}: expected {pointer.num_bytes} bytes, found {len(data)}, or more"
            raise CorruptError(message)
        parquet.decode(data, pointer, expanded_bytes_max=ReaderOptions().fragment_expanded_bytes_max)
        return data

    # ------------------------------------------------------------------ cursors

    def _cursors_within(self, manifest: Manifest) -> dict[str, Cursor]:
        """Load the source's cursors that lie in the copy."""
        first, limit = manifest.first.position, manifest.next.position
        witnesses = CursorStore(self._source.store, self._source.log, runtime=self._runtime).list()
        cursors = {name: witness.cursor for name, witness in witnesses.items()}
        return {
            # One that has moved beyond what was pinned has read all of it.
            name: cursor if cursor.position.offset <= limit.offset else replace(cursor, position=limit)
            for name, cursor in cursors.items()
            if cursor.position.offset >= first.offset
        }

    def _copy_cursors(self, cursors: Mapping[str, Cursor]) -> None:
        documents = DocumentStore(
            self._into, self._runtime, self._retry, lambda data, what: Cursor.from_bytes(data, what=what)
        )
        for meta in self._into.list_objects(CURSOR_FOLDER):
            if cursor_name(meta.path) not in cursors:
                documents.delete(meta.path)
        for name, cursor in cursors.items():
            path = cursor_path(name)
            if documents.save(path, cursor, documents.load(path)) is None:
                message = f"{self._into.url}/{path}: expected to be alone in copying to it, found it changed"
                raise InvalidRequestError(message)


def _is_ours(found: Found, references: References, cursors: Mapping[str, Cursor] | None) -> bool:
    path = found.meta.path
    match found.kind:
        case Kind.FRAGMENT:
            return references.hold(path)
        case Kind.SNAPSHOT:
            # The source may have been reorganised since an earlier try; beside our fragments it is an orphan.
            return True
        case Kind.CURSOR:
            return cursors is None or cursor_name(path) in cursors
        case _:
            return False
