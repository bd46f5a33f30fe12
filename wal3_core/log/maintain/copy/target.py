"""Where a log begins that takes something along: a name that is claimed by CAS, filled, and made a log, by CAS again.

A call that continues a copy which was cut short takes over its claim; the call that held it before may still be
running. It notices before it changes a cursor, and at the latest when it finishes. A claim names the pin of its source
that the call may rely on. Source: docs/protocol/copies.md, "Copy".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import (
    CorruptError,
    InvalidRequestError,
    LogError,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    UnavailableError,
)
from wal3_core.format import parquet
from wal3_core.format.cursor import Cursor
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.named_append import placed
from wal3_core.format.paths import POLICY, LogId, cursor_path, fragment_path
from wal3_core.format.pin import Pin
from wal3_core.format.policy import Policy
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.snapshot import Pointer, Snapshot, SnapshotPointer
from wal3_core.format.tombstone import or_tombstone
from wal3_core.format.vacancy import Vacancy, VacancyKind
from wal3_core.log.contents import delete_remains
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED, RetryOptions
from wal3_core.runtime import Runtime, map_ahead
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.document_store import D, DocumentStore, LoadedDocument, write_immutable
from wal3_core.store.documents.manifest_store import Entry, ManifestStore, describe, new_log_id
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, object_url
from wal3_core.store.retrying import for_store, until_answered

if TYPE_CHECKING:
    import pyarrow as pa

    from wal3_core.log.log_stores import LogStores


_SNAPSHOTS_AHEAD = 8


class CopyTarget:
    """A name to copy to; ``root`` is the log's own store. Nothing is changed before it is claimed.

    ``names`` loads what stands there.
    """

    def __init__(self, root: ObjectStore, runtime: Runtime, retry: RetryOptions) -> None:
        self._root = root
        self._runtime = runtime
        self._retry = retry
        self.names = ManifestStore(root, runtime, retry)
        self.url = root.url

    def look(self, source: str) -> LoadedDocument[Entry] | None:
        """Return what stands at the name; raises if there is a log, or something else is being copied to it."""
        seen = self.names.look()
        earlier = copying_at(seen)
        if earlier is None:
            self.names.refuse_taken(seen)
        elif earlier.source != source:
            raise InvalidRequestError(f"log {self.url}: {describe(earlier)}")
        return seen

    def claim(self, seen: LoadedDocument[Entry] | None, *, source: str, terms: str, pin: str = "") -> Claim:
        """Claim the name in place of what was seen there, or take over a try of the same source, terms and pin."""
        earlier = copying_at(seen)
        resumed = earlier is not None and (earlier.source, earlier.terms, earlier.pin) == (source, terms, pin)
        log_id = earlier.log_id if earlier is not None and resumed else new_log_id(self._runtime)
        vacancy = Vacancy(kind=VacancyKind.COPYING, log_id=log_id, source=source, terms=terms, pin=pin)
        claim = self._claim(vacancy, seen, resumed=resumed)
        if claim is None:
            message = f"log {self.url}: expected to be alone in copying to it, found that another call began just now"
            raise InvalidRequestError(message)
        return claim

    def claim_successor(self, seen: LoadedDocument[Entry] | None, *, source: str, sealed: LogId) -> Claim | None:
        """Claim the name for the successor of a sealed log, in place of another call's claim or of a free name.

        It is another life than that of the claim before: what the other call writes is never relied on. None when
        something else stands there by now.
        """
        log_id = new_log_id(self._runtime)
        vacancy = Vacancy(kind=VacancyKind.FOLLOWING, log_id=log_id, source=source, terms=sealed)
        return self._claim(vacancy, seen, resumed=False)

    def _claim(self, vacancy: Vacancy, seen: LoadedDocument[Entry] | None, *, resumed: bool) -> Claim | None:
        lives, log_id = self.names.lives(), vacancy.log_id
        claimed = self.names.swap(vacancy, seen)
        if claimed is None:
            return None
        self.names.probe(claimed)
        # They were listed before the claim: all but the claim's own are over.
        delete_remains(self._root, [life for life in lives if life != log_id], self._runtime, self._retry)
        return Claim(self._root, claimed, self._runtime, self._retry, resumed=resumed)

    def forgets(self, pin: str, since: LoadedDocument[Entry] | None, *, final: bool) -> bool:
        """Tell whether no claim on the name refers to a pin of the source, nor will.

        ``since`` is what this call's claim was to replace: a claim that is not ``final`` may still arrive as long as
        that stands. A pin that is no longer named is never named again: each claim takes it from the one that it
        replaces.
        """
        try:
            seen = self.names.look()
        except LogError:
            return False
        claimed = copying_at(seen)
        if claimed is not None and claimed.pin == pin:
            return False
        return final or (seen and seen.etag) != (since and since.etag)


def copying_at(seen: LoadedDocument[Entry] | None) -> Vacancy | None:
    """Return the claim of a copy that stands at a name, if one does."""
    entry = None if seen is None else seen.document
    return entry if isinstance(entry, Vacancy) and entry.kind is VacancyKind.COPYING else None


class Claim:
    """A name that one call may fill, and its ``objects``; ``resumed`` is true when an earlier call began to."""

    def __init__(
        self, root: ObjectStore, claimed: LoadedDocument[Entry], runtime: Runtime, retry: RetryOptions, *, resumed: bool
    ) -> None:
        self.log_id = claimed.document.log_id
        self.resumed = resumed
        self._claimed = claimed
        self._runtime = runtime
        self._retry = retry
        self._manifests = ManifestStore(root, runtime, retry, log_id=self.log_id)
        self.objects = self._manifests.objects
        self._snapshots = SnapshotStore(self._manifests, runtime, loaded_max=0)

    def begun_us(self) -> int:
        """Return the store's time when the name was claimed."""
        return self._manifests.changed_us()

    def write_fragment(self, pointer: FragmentPointer, data: bytes) -> None:
        """Write a fragment's bytes where the source has them."""
        write_immutable(self.objects, pointer.path, data, self._retry, self._runtime)

    def write_snapshots(
        self, pointers: Sequence[Pointer], load: Callable[[SnapshotPointer], Snapshot]
    ) -> list[Pointer]:
        """Write the snapshots that pointers lead to as this life's own; return the pointers to them."""

        def rewritten(pointer: Pointer) -> Pointer:
            if not isinstance(pointer, SnapshotPointer):
                return pointer
            below = load(pointer).pointers
            # Fence 0: the copy has no manifest yet, and so no fence.
            snapshot = Snapshot(
                tuple(below if pointer.depth == 1 else self.write_snapshots(below, load)), 0, self.log_id
            )
            return self._snapshots.write(snapshot, self._retry)

        if all(not isinstance(pointer, SnapshotPointer) or pointer.depth == 1 for pointer in pointers):
            return list(map_ahead(self._runtime, rewritten, pointers, count=_SNAPSHOTS_AHEAD))
        return [rewritten(pointer) for pointer in pointers]

    def write_documents(self, cursors: Mapping[str, Cursor], policy: Policy | None) -> None:
        """Write the copy's cursors and policy."""
        # If another call has finished the copy, a cursor of it may have been deleted since.
        cursor_store = self._documents(
            lambda data, what: or_tombstone(data, Cursor.from_fields, what=what, bytes_max=Cursor.BYTES_MAX),
            Cursor.BYTES_MAX,
        )
        for name, cursor in cursors.items():
            self._write(cursor_store, cursor_path(name), cursor)
        if policy is not None:
            policies = self._documents(Policy.from_bytes, Policy.BYTES_MAX)
            self._write(policies, POLICY, policy)

    def _documents(self, read: Callable[[bytes, str], D], bytes_max: int) -> DocumentStore[D]:
        log_id = self._manifests.log_id
        return DocumentStore(self.objects, self._runtime, self._retry, read, bytes_max=bytes_max, log_id=log_id)

    def _write(self, documents: DocumentStore[D], path: str, document: D) -> None:
        found = documents.load(path)
        # After the load: if a call that took over writes the document later, its new version makes this save fail.
        self.check_ours()
        if documents.save(path, document, found) is None:
            self.check_ours()
            message = f"{object_url(self.objects, path)}: expected to be alone in copying to it, found it changed"
            raise InvalidRequestError(message)

    def finish(self, manifest: Manifest) -> None:
        """Make it a log; LogExistsError when another call has, LogReplacedError when another call has taken it over.

        Returns as well when another call has made it the same log and the refusal does not tell which was first.
        """
        if self._manifests.begin(manifest, self._claimed) is None:
            self.check_ours()
            message = f"log {self._manifests.url}: the copy is whole, but could not be made a log: copy it again"
            raise UnavailableError(message)

    def check_ours(self) -> None:
        """Raise unless this claim is the newest: LogExistsError when the copy was made a log.

        LogReplacedError when another call has taken over, or destroyed it.
        """
        seen = self._manifests.look()
        if seen is not None and seen.etag == self._claimed.etag:
            return
        if seen is not None and isinstance(seen.document, Manifest):
            message = f"log {self._manifests.url}: expected to finish a copy to it, found that another call has"
            raise LogExistsError(message)
        raise LogReplacedError(
            f"log {self._manifests.url}: expected to go on with a copy to it, found that another call has taken over,"
            f" or destroyed it"
        )


class CopyPins:
    """Pins of one life of a source; ``left`` names those that could not be deleted and may still exist."""

    def __init__(self, source: LogStores) -> None:
        self._runtime = source.runtime
        self._retry = for_store(source.retry, source)
        self._pins = source.pins
        self.left: set[str] = set()

    def make(self, target: str) -> tuple[str, Pin]:
        """Pin what the source holds now, under a name that no other pin has ever had."""
        name = f"copy-{self._runtime.token()}"
        try:
            return name, self._pins.create(name, reason=f"being copied to {target}")
        except LogError:
            # Its object stays: a create that is still under way finds the name taken.
            self._remove(name, self._pins.delete)
            raise

    def find(self, name: str) -> Pin | None:
        """Load a pin to rely on; None if there is none, or it was never finished."""
        pin = self._pins.load(name)
        return pin if pin is not None and pin.complete else None

    def check(self, name: str) -> None:
        """Raise if others deleted the pin that is relied on: objects missing then are no damage."""
        if self.find(name) is None:
            message = f"pin {name}: expected it to stay until the copy is whole, found it deleted: copy again"
            raise InvalidRequestError(message)

    def let_go(self, name: str) -> None:
        """Delete a pin that is no longer relied on; if it cannot be deleted, note it in ``left`` instead of raising."""
        self._remove(name, self._pins.forget)

    def _remove(self, name: str, remove: Callable[[str], None]) -> None:
        try:
            until_answered(lambda: remove(name), self._retry, self._runtime)
        except (LogNotFoundError, LogReplacedError):
            # It was deleted with its log.
            return
        except LogError:
            self.left.add(name)


def encode_checked(
    table: pa.Table, pointer: FragmentPointer, *, seq_no: FragmentSeqNo, token: str, expanded_bytes_max: int
) -> tuple[FragmentPointer, bytes]:
    """Encode a fragment's records under another number and token; return its pointer then, and the bytes, decoded."""
    data = bytes(parquet.encode_table(table, seq_no=seq_no, token=token).data)
    made = replace(pointer, path=fragment_path(seq_no, token), first_seq_no=seq_no, seq_no=seq_no, num_bytes=len(data))
    parquet.decode(data, made, expanded_bytes_max=expanded_bytes_max)
    return made, data


# ---------------------------------------------------------------------- cursors that another log takes along


def delete_cursor(store: ObjectStore, log: str, name: str) -> list[str]:
    """Delete a cursor; in successors of the log, too, where a migration has put it and its owner has not moved it.

    Return the names of these. Errors as ``CursorStore.delete``.
    """
    manifest = LogReader.open(store, log).manifest()
    CursorStore(store, log, log_id=manifest.log_id).delete(name)
    deleted: list[str] = []
    while (seal := manifest.seal) is not None and seal.successor is not None and seal.successor not in deleted:
        cursors = CursorStore(store, seal.successor)
        try:
            witness = cursors.load(name)
        except (LogNotFoundError, CorruptError):
            break
        carried = witness is not None and witness.cursor.carried_from == manifest.log_id
        if witness is None or not carried or not cursors.delete_version(name, witness):
            break
        deleted.append(seal.successor)
        manifest = LogReader.open(store, seal.successor).manifest()
    return deleted


def load_cursors(stores: LogStores, manifest: Manifest) -> dict[str, Cursor]:
    """Load a log's cursors; those of writers say where their named appends lie that they have not found yet."""

    def with_places(cursor: Cursor) -> Cursor:
        behind = select(manifest.pointers, cursor.position, UNLIMITED, stores.snapshots.load)
        return replace(cursor, appends=placed(cursor.appends, behind))

    return {name: with_places(witness.cursor) for name, witness in stores.cursors.list().items()}


def delete_retired(theirs: CursorStore, ours: CursorStore, source: Manifest) -> None:
    """Delete the cursors that came from a source, that were deleted there, and that no owner has moved here."""
    for name, held in ours.list().items():
        if held.cursor.carried_from == source.log_id and theirs.is_deleted(name):
            ours.delete_version(name, held)
