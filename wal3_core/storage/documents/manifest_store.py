"""Loads the manifest and swaps it by CAS. Keeps INV-5 (no version comes back) and INV-22 (one life).

A name's manifest is never deleted: where there is no log any more, or not yet, a ``Vacancy`` stands in
its place, and the next life takes that one's place by CAS.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.errors import (
    CorruptError,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    StoreDeniedError,
    UnavailableError,
    UnsuitableStoreError,
)
from wal3_core.model.manifest import BYTES_MAX, Manifest
from wal3_core.model.paths import MANIFEST, LogId, life_folder, life_of
from wal3_core.model.vacancy import Vacancy, VacancyKind, manifest_or_vacancy
from wal3_core.options import POINTERS_MAX, REBASES_MAX, RetryOptions
from wal3_core.storage.documents.document_store import DocumentStore, Seen, stamp
from wal3_core.storage.documents.readback import check_readable, encoded
from wal3_core.storage.object_store import Done, Etag, FolderStore, NotModified, Refused, Unknown, Versioned
from wal3_core.storage.patient import patient
from wal3_core.storage.retry import reread_if_damaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.manifest_parts import Announcement
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Installed:
    """A manifest and the version of the object that holds it: the witness for the next swap."""

    manifest: Manifest
    etag: Etag


@dataclass(frozen=True, slots=True)
class Prepared:
    """A manifest to be installed, and the bytes that are sent."""

    manifest: Manifest
    data: bytes


InstallOutcome = Installed | Refused | Unknown
# What stands in a name's manifest: a log, or that there is none.
Entry = Manifest | Vacancy


def new_log_id(runtime: Runtime) -> LogId:
    """Make the id of a new life: 128 random bits."""
    return LogId(runtime.token() + runtime.token())


class ManifestStore:
    """The manifest of one life of a log; ``store`` is the log's own.

    The life is that of ``log_id``, or else of the first manifest that is loaded; from then on another one
    is an error, never gone on from. ``objects`` are all that this life has beside its manifest.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        retry: RetryOptions | None = None,
        *,
        log_id: LogId | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._retry = retry or RetryOptions()
        self._lock = runtime.lock()
        self._log_id = log_id
        self._entries: DocumentStore[Entry] = DocumentStore(
            store, runtime, self._retry, lambda data, what: manifest_or_vacancy(data, what=what), bytes_max=BYTES_MAX
        )
        self.objects: ObjectStore = FolderStore(store, lambda: life_folder(self.log_id()))

    @property
    def url(self) -> str:
        """The log's address, for messages."""
        return self._store.url

    @property
    def what(self) -> str:
        """The manifest's address, for messages."""
        return f"{self._store.url}/{MANIFEST}"

    def log_id(self) -> LogId:
        """Name the life; one GET when it is not known yet. ClosedError in a forked child: every request asks here."""
        self._runtime.check_process()
        return self._log_id or self.load().manifest.log_id

    # ------------------------------------------------------------------ the log

    def load(self, known: Installed | None = None) -> Installed:
        """Load the manifest; ``known`` is returned as it is while the store still has that version.

        LogNotFoundError when there is no log, LogReplacedError when it is another one.
        """
        # Before the lock, which a thread of the parent may have held when this process was forked.
        self._runtime.check_process()
        return reread_if_damaged(lambda: self._load(known))

    def _load(self, known: Installed | None) -> Installed:
        found = self._store.get(MANIFEST, if_none_match=None if known is None else known.etag, length_max=BYTES_MAX)
        match found:
            case None:
                message = f"log {self.url}: expected {MANIFEST}, found none: initialize the log first"
                raise LogNotFoundError(message)
            case NotModified():
                assert known is not None
                return known
            case Versioned(data, etag):
                entry = manifest_or_vacancy(data, what=self.what)
                if isinstance(entry, Vacancy):
                    raise LogNotFoundError(f"log {self.url}: {describe(entry)}")
                return self._checked(Installed(entry, etag))

    def _checked(self, found: Installed) -> Installed:
        """Refuse another life than the one that was first seen."""
        with self._lock:
            log_id = self._log_id = self._log_id or found.manifest.log_id
        if found.manifest.log_id != log_id:
            message = (
                f"log {self.url}: expected log {log_id}, found log {found.manifest.log_id} under its name:"
                f" destroyed and begun anew, or restored, since it was opened: open it again"
            )
            raise LogReplacedError(message)
        return found

    def install(self, changed: Manifest, witness: Installed) -> InstallOutcome:
        """Swap the manifest in if the store still holds the witness. Refused and Unknown want a reload.

        InvalidRequestError, and nothing written, for one that breaks an invariant or could not be read back.
        """
        return self.send(self.prepare(changed, witness), witness)

    def prepare(self, changed: Manifest, witness: Installed) -> Prepared:
        """Make what ``send`` sends; errors as ``install``, and nothing was sent."""
        assert changed.log_id == witness.manifest.log_id
        changed = replace(changed, generation=witness.manifest.generation + 1, writer=stamp(self._runtime))
        data = encoded(changed, self.what)
        if len(data) > BYTES_MAX or len(changed.pointers) > POINTERS_MAX:
            # Installed, it could never be loaded again.
            message = f"{self.what}: expected less than {BYTES_MAX} bytes: let snapshots be written (see snapshot/)"
            raise StoreDeniedError(message)
        check_readable(data, changed, _read, self.what)
        return Prepared(changed, data)

    def send(self, prepared: Prepared, witness: Installed) -> InstallOutcome:
        """Swap a manifest in that was prepared for this witness, if the store still holds it."""
        outcome = self._store.replace(MANIFEST, prepared.data, witness.etag)
        return Installed(prepared.manifest, outcome.etag) if isinstance(outcome, Done) else outcome

    def change(
        self, base: Installed, change: Callable[[Manifest], Manifest | None], *, rebases_max: int = REBASES_MAX
    ) -> None:
        """Change the manifest by CAS, until it is done or ``change`` says None: there is nothing to change any more.

        UnavailableError when it was changed by others ``rebases_max`` times over.
        """
        for _ in range(rebases_max):
            changed = change(base.manifest)
            if changed is None or isinstance(self.install(changed, base), Installed):
                return
            base = self.load()
        message = f"log {self.url}: the manifest changed {rebases_max} times over"
        raise UnavailableError(message)

    def withdraw(self, base: Installed, announcement: Announcement, *, rebases_max: int = REBASES_MAX) -> None:
        """Take back a collection that was announced, unless it is carried out or taken back by now."""
        self.change(
            base,
            lambda manifest: (
                manifest.withdraw_announcement(announcement) if manifest.announced == announcement else None
            ),
            rebases_max=rebases_max,
        )

    # ------------------------------------------------------------------ the name

    def look(self) -> Seen[Entry] | None:
        """Load what stands in the manifest, a log or not, of any life; None when there never was one."""
        return self._entries.load(MANIFEST)

    def swap(self, entry: Entry, seen: Seen[Entry] | None) -> Seen[Entry] | None:
        """Put something else in the place of what was seen; None when somebody else was there before."""
        outcome = self._swap(entry, seen)
        return outcome if isinstance(outcome, Seen) else None

    def begin(self, manifest: Manifest, seen: Seen[Entry] | None) -> Seen[Entry] | None:
        """Put a log in the place of what was seen, which was none; None when somebody else was there before."""
        outcome = self._swap(manifest, seen)
        if isinstance(outcome, Unknown):
            # Whoever waited for the log may have gone on with it before that was looked up.
            found = self.look()
            entry = None if found is None else found.document
            return found if isinstance(entry, Manifest) and entry.log_id == manifest.log_id else None
        return outcome if isinstance(outcome, Seen) else None

    def _swap(self, entry: Entry, seen: Seen[Entry] | None) -> Seen[Entry] | Refused | Unknown:
        generation, etag = (1, None) if seen is None else (seen.document.generation + 1, seen.etag)
        return self._entries.swap(MANIFEST, replace(entry, generation=generation), etag)

    def changed_us(self) -> int:
        """Tell the store's time when the manifest was last changed: the store's clock reads this or more by now."""
        found = self._store.head(MANIFEST)
        if found is None:
            message = f"log {self.url}: expected {MANIFEST}, found none: it was deleted meanwhile"
            raise LogNotFoundError(message)
        return found.last_modified_us

    def lives(self) -> list[LogId]:
        """List the lives that have objects here, or had some."""
        return [log_id for folder in self._store.list_folders("") if (log_id := life_of(folder)) is not None]

    def initialize(self, initial: Manifest) -> Installed:
        """Create the manifest of a new log; LogExistsError when there is one, CorruptError when one was lost."""
        seen = self.look()
        self.refuse_taken(seen, initial.follows)
        created = self.begin(initial, seen)
        if created is None:
            message = f"log {self.url}: expected no log there, found one that was begun just now"
            raise LogExistsError(message)
        self.probe(created)
        manifest = created.document
        assert isinstance(manifest, Manifest)
        return self._checked(Installed(manifest, created.etag))

    def refuse_taken(self, seen: Seen[Entry] | None, follows: LogId | None = None) -> None:
        """Refuse a name at which no log can be begun: there is one, or it is kept for another one, or one was lost.

        One that is kept for the log that goes on from ``follows`` is free for that.
        """
        match None if seen is None else seen.document:
            case Manifest():
                message = f"log {self.url}: expected no log there, found {MANIFEST}"
                raise LogExistsError(message)
            case Vacancy() as vacancy:
                kept = follows is not None and vacancy.is_kept_for(follows)
                if not kept and vacancy.kind is not VacancyKind.DESTROYED:
                    raise LogExistsError(f"log {self.url}: {describe(vacancy)}")
                return
        remains = next(iter(self.lives()), None)
        if remains is not None and self.look() is None:
            # Its records, if it had any, are still there.
            message = (
                f"log {self.url}: expected {MANIFEST} beside {life_folder(remains)}, found none: restore it, or"
                f" destroy what is left"
            )
            raise CorruptError(message)

    def probe(self, created: Seen[Entry]) -> None:
        """Refuse a store that lets a second create, or a swap with a stale version, pass: it would lose appends.

        UnsuitableStoreError. Both probes write the same bytes again.
        """
        data, stale = created.document.to_bytes(), _stale(created.etag)
        ignored = isinstance(self._store.create(MANIFEST, data), Done)
        if ignored or (stale != created.etag and isinstance(self._store.replace(MANIFEST, data, stale), Done)):
            self._store.delete(MANIFEST)
            message = (
                f"store {self.url}: expected conditions on PUT to be honoured, found them ignored:"
                f" no log can live here (wal3 doctor tells more)"
            )
            raise UnsuitableStoreError(message)


def describe(vacancy: Vacancy) -> str:
    """Say why there is no log, and what to do."""
    match vacancy.kind:
        case VacancyKind.DESTROYED:
            return "expected a log, found that it was destroyed: initialize it anew"
        case VacancyKind.COPYING:
            pinned = f", and delete the pin {vacancy.pin} of what it copies" if vacancy.pin else ""
            return (
                f"expected a log, found a copy of {vacancy.source} that is under way, or was cut short:"
                f" run that copy again, or destroy what there is of it{pinned}"
            )
        case VacancyKind.FOLLOWING:
            return (
                f"expected a log, found its name kept for the one that goes on from log {vacancy.source}:"
                f" run the migration of that one again, which begins it (wal3 migrate), or destroy what is kept"
            )


def lost_manifest(store: ObjectStore, runtime: Runtime) -> CorruptError | None:
    """Say what is wrong with a log that was not found; None when it was destroyed, or never was."""
    manifests = ManifestStore(patient(store, runtime), runtime)
    found = manifests.look()
    if found is None and manifests.lives():
        return CorruptError(f"log {store.url}: expected {MANIFEST} beside its fragments, found none: restore it")
    if found is not None and isinstance(found.document, Vacancy) and found.document.kind is VacancyKind.COPYING:
        return CorruptError(f"log {store.url}: {describe(found.document)}")
    return None


def _read(data: bytes, what: str) -> Manifest:
    return Manifest.from_bytes(data, what=what)


def _stale(etag: Etag) -> Etag:
    """Return a version of the same form that the object does not have, or the same where none can be made."""
    return Etag(re.sub(r"[0-9a-f]{8}", "0" * 8, etag, count=1))
