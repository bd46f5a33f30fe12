"""Loads the manifest and swaps it by CAS. Keeps INV-5 (no version comes back) and INV-22 (one life).

A name's manifest is never deleted: while the name has no log, a ``Vacancy`` takes the manifest's place, and
the next life replaces it by CAS.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from wal3_core.arguments import checked
from wal3_core.errors import (
    CorruptError,
    LogExistsError,
    LogNotFoundError,
    LogReplacedError,
    MissingError,
    StoreDeniedError,
    UnavailableError,
    UnsuitableStoreError,
)
from wal3_core.format.manifest import BYTES_MAX, NONE_KNOWN, Announcement, KnownTexts, Manifest, ManifestText
from wal3_core.format.paths import MANIFEST, LogId, life_folder, life_of
from wal3_core.format.strict_json import check_whole, load
from wal3_core.format.vacancy import Vacancy, VacancyKind, manifest_or_vacancy
from wal3_core.options import POINTERS_MAX, REBASES_MAX, RetryOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.documents.document_store import DocumentStore, LoadedDocument, check_readable, encoded, stamp
from wal3_core.store.object_store import (
    OPENING,
    Done,
    Etag,
    FolderStore,
    NotModified,
    ObjectStore,
    Refused,
    Unknown,
    Versioned,
    log_store,
    object_url,
    share_of,
)
from wal3_core.store.retrying import reread_if_damaged, with_retries

_REMEDY = "choose another name, or destroy that log first"


@dataclass(frozen=True, slots=True)
class Installed:
    """A manifest and the version of the object that holds it: the witness for the next swap."""

    manifest: Manifest
    etag: Etag


@dataclass(frozen=True, slots=True)
class PreparedManifest:
    """A manifest to be installed, and its bytes."""

    manifest: Manifest
    data: bytes


InstallOutcome = Installed | Refused | Unknown
# The content of a name's MANIFEST.json: a log's manifest, or a vacancy.
Entry = Manifest | Vacancy


def new_log_id(runtime: Runtime) -> LogId:
    """Make the id of a new life: 128 random bits."""
    return LogId(runtime.token() + runtime.token())


class ManifestStore:
    """The manifest of one life of a log; ``store`` is the log's folder.

    The life is that of ``log_id``, or else of the first manifest that is loaded; from then on another life
    is an error. ``objects`` is the store of everything else in this life.
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
        # Of the manifest that was prepared last.
        self._known_texts = NONE_KNOWN
        self._entries: DocumentStore[Entry] = DocumentStore(
            store, runtime, self._retry, manifest_or_vacancy, bytes_max=BYTES_MAX
        )
        self.objects: ObjectStore = FolderStore(store, lambda: life_folder(self.log_id()))

    @property
    def url(self) -> str:
        """The log's address, for messages."""
        return self._store.url

    @property
    def what(self) -> str:
        """The manifest's address, for messages."""
        return object_url(self._store, MANIFEST)

    def log_id(self) -> LogId:
        """Return the life's id; one GET if it is not known yet. ClosedError in a forked child, checked at each call."""
        self._runtime.check_process()
        return self._log_id or self.load().manifest.log_id

    # ------------------------------------------------------------------ the log

    def load(self, known: Installed | None = None) -> Installed:
        """Load the manifest; ``known`` is returned as it is while the store still has that version.

        LogNotFoundError when there is no log, LogReplacedError when it is another one.
        """
        # Before taking the lock, which a thread of the parent may have held when this process was forked.
        self._runtime.check_process()
        return reread_if_damaged(lambda: self._load(known), self._store)

    def _load(self, known: Installed | None) -> Installed:
        found = self._store.get(MANIFEST, if_none_match=None if known is None else known.etag, length_max=BYTES_MAX)
        match found:
            case None:
                raise self._no_log("expected a log, found none: create the log first")
            case NotModified():
                assert known is not None
                return known
            case Versioned(data, etag):
                entry = manifest_or_vacancy(data, what=self.what)
                if isinstance(entry, Vacancy):
                    raise self._no_log(describe(entry))
                return self._checked(Installed(entry, etag))

    def load_newer(self, base: Installed, missing: MissingError) -> Installed:
        """Load the manifest again where an object of ``base`` is missing; raises ``missing`` when there is no newer."""
        newest = self.load()
        if newest.etag == base.etag:
            raise missing
        return newest

    def _no_log(self, found: str) -> LogNotFoundError:
        name = share_of(self._store).log.rstrip("/")
        how = f" (`wal3 init {name}`, or LogWriter.create)" if ": create " in found else ""
        return LogNotFoundError(f"log {self.url}: {found}{how}")

    def _checked(self, found: Installed) -> Installed:
        """Raise LogReplacedError for another life than this store's."""
        with self._lock:
            log_id = self._log_id = self._log_id or found.manifest.log_id
        if found.manifest.log_id != log_id:
            raise LogReplacedError(
                f"log {self.url}: expected log {log_id}, found log {found.manifest.log_id} under its name:"
                f" destroyed and created again, or restored, since it was opened: open it again"
            )
        return found

    def install(self, changed: Manifest, witness: Installed) -> InstallOutcome:
        """Replace the manifest if the store still holds the witness. After Refused and Unknown, load it again.

        InvalidRequestError, and nothing written, for a manifest that breaks an invariant or could not be read back.
        """
        return self.send(self.prepare(changed, witness), witness)

    def prepare(self, changed: Manifest, witness: Installed) -> PreparedManifest:
        """Encode and check a manifest for ``send``; raises as ``install`` does. Nothing is sent."""
        assert changed.log_id == witness.manifest.log_id
        changed = replace(changed, generation=witness.manifest.generation + 1, writer=stamp(self._runtime))
        known, what = self._known_texts, self.what
        text = encoded(partial(changed.text, known), what)
        data = text.data()
        if len(data) > BYTES_MAX or len(changed.pointers) > POINTERS_MAX:
            # Once installed, it could never be loaded again.
            raise StoreDeniedError(
                f"{what}: expected at most {BYTES_MAX} bytes and {POINTERS_MAX} pointers, found {len(data)} and"
                f" {len(changed.pointers)}: let a writer roll pointers into snapshots"
            )
        check_readable(data, changed, partial(_read_back, text=text, known=known), what)
        self._known_texts = text.texts()
        return PreparedManifest(changed, data)

    def send(self, prepared: PreparedManifest, witness: Installed) -> InstallOutcome:
        """Replace the manifest by one prepared for this witness, if the store still holds the witness."""
        outcome = self._store.replace(MANIFEST, prepared.data, witness.etag)
        return Installed(prepared.manifest, outcome.etag) if isinstance(outcome, Done) else outcome

    def change(
        self, base: Installed, change: Callable[[Manifest], Manifest | None], *, rebases_max: int = REBASES_MAX
    ) -> None:
        """Change the manifest by CAS, unless ``change`` returns None; UnavailableError after ``rebases_max`` tries."""
        for _ in range(rebases_max):
            changed = change(base.manifest)
            if changed is None or isinstance(self.install(changed, base), Installed):
                return
            base = self.load()
        raise UnavailableError(f"log {self.url}: the manifest changed {rebases_max} times over")

    def withdraw(self, base: Installed, announcement: Announcement, *, rebases_max: int = REBASES_MAX) -> None:
        """Withdraw an announcement, unless it was pruned or withdrawn meanwhile."""
        self.change(
            base,
            lambda manifest: (
                manifest.withdraw_announcement(announcement) if manifest.announced == announcement else None
            ),
            rebases_max=rebases_max,
        )

    # ------------------------------------------------------------------ the name

    def look(self) -> LoadedDocument[Entry] | None:
        """Load the manifest or vacancy of any life; None when the name never had one."""
        return self._entries.load(MANIFEST)

    def swap(self, entry: Entry, seen: LoadedDocument[Entry] | None) -> LoadedDocument[Entry] | None:
        """Replace the version that was seen; None when another version is there."""
        outcome = self._swap(entry, seen)
        return outcome if isinstance(outcome, LoadedDocument) else None

    def begin(self, manifest: Manifest, seen: LoadedDocument[Entry] | None) -> LoadedDocument[Entry] | None:
        """Create a log in place of the vacancy, or of nothing, that was seen; None when another version is there."""
        outcome = self._swap(manifest, seen)
        if isinstance(outcome, Unknown):
            # It may have been created, and a process that waited for the log may already have changed the manifest.
            found = self.look()
            entry = None if found is None else found.document
            return found if isinstance(entry, Manifest) and entry.log_id == manifest.log_id else None
        return outcome if isinstance(outcome, LoadedDocument) else None

    def _swap(self, entry: Entry, seen: LoadedDocument[Entry] | None) -> LoadedDocument[Entry] | Refused | Unknown:
        generation, etag = (1, None) if seen is None else (seen.document.generation + 1, seen.etag)
        return self._entries.swap(MANIFEST, replace(entry, generation=generation), etag)

    def changed_us(self) -> int:
        """Return the store's time of the manifest's last change, which the store's clock has reached by now."""
        found = self._store.head(MANIFEST)
        if found is None:
            raise LogNotFoundError(f"log {self.url}: expected {MANIFEST}, found none: it was deleted meanwhile")
        return found.last_modified_us

    def lives(self) -> list[LogId]:
        """List the lives that have a folder here."""
        return [log_id for folder in self._store.list_folders("") if (log_id := life_of(folder)) is not None]

    def create(self, initial: Manifest) -> Installed:
        """Create the manifest of a new log; LogExistsError when there is one, CorruptError when one was lost."""
        seen = self.look()
        self.refuse_taken(seen, initial.follows)
        created = self.begin(initial, seen)
        if created is None:
            message = f"log {self.url}: expected no log there, found one that was created just now: {_REMEDY}"
            raise LogExistsError(message)
        self.probe(created)
        manifest = created.document
        assert isinstance(manifest, Manifest)
        return self._checked(Installed(manifest, created.etag))

    def refuse_taken(self, seen: LoadedDocument[Entry] | None, follows: LogId | None = None) -> None:
        """Refuse a name where no log can be created: it has one, is kept for another one, or its manifest was lost.

        A name kept for the successor of the log ``follows`` is free for that successor.
        """
        match None if seen is None else seen.document:
            case Manifest():
                raise LogExistsError(f"log {self.url}: expected no log there, found {MANIFEST}: {_REMEDY}")
            case Vacancy() as vacancy:
                kept = follows is not None and vacancy.is_kept_for(follows)
                if not kept and vacancy.kind is not VacancyKind.DESTROYED:
                    raise LogExistsError(f"log {self.url}: {describe(vacancy)}")
                return
        self.refuse_lost()

    def open(self) -> Installed:
        """Load the manifest of a log that is opened; CorruptError, and not LogNotFoundError, when it was lost."""
        try:
            return self.load()
        except LogNotFoundError:
            with contextlib.suppress(UnavailableError):
                self.refuse_lost()
            raise

    def refuse_lost(self) -> None:
        """Raise CorruptError when there are objects of a life, but no manifest."""
        remains = next(iter(self.lives()), None)
        if remains is not None and self.look() is None:
            raise CorruptError(
                f"log {self.url}: expected {MANIFEST} beside {life_folder(remains)}, found none: restore it, or"
                f" destroy what is left"
            )

    def probe(self, created: LoadedDocument[Entry]) -> None:
        """Raise UnsuitableStoreError for a store that allows a second create, or a swap with a stale version.

        Such a store would lose appends. Both probes write the same bytes again.
        """
        data, stale = created.document.to_bytes(), _stale(created.etag)
        ignored = isinstance(self._store.create(MANIFEST, data), Done)
        if ignored or (stale != created.etag and isinstance(self._store.replace(MANIFEST, data, stale), Done)):
            self._store.delete(MANIFEST)
            raise UnsuitableStoreError(
                f"store {self.url}: expected conditions on PUT to be honoured, found them ignored:"
                f" no log can live here (run wal3 doctor for details)"
            )


class LifeStore:
    """The base of the stores of a life's documents: the life is that of ``log_id``, or else the first one found."""

    @checked(**OPENING)
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        runtime: Runtime | None = None,
        retry: RetryOptions | None = None,
        log_id: LogId | None = None,
    ) -> None:
        self._log = log
        self._runtime = runtime or shared_runtime()
        self._retry = retry or RetryOptions()
        inside = with_retries(log_store(store, log), self._runtime, self._retry)
        self._manifests = ManifestStore(inside, self._runtime, self._retry, log_id=log_id)
        self._store = self._manifests.objects
        self._open()

    def _open(self) -> None:
        """Open the documents."""


def describe(vacancy: Vacancy) -> str:
    """Explain why there is no log, and what to do."""
    match vacancy.kind:
        case VacancyKind.DESTROYED:
            return "expected a log, found that it was destroyed: create it again"
        case VacancyKind.COPYING:
            pinned = f", and delete the pin {vacancy.pin} of its source" if vacancy.pin else ""
            return (
                f"expected a log, found a copy of {vacancy.source} that is under way, or was cut short:"
                f" run that copy again, or destroy the partial copy{pinned}"
            )
        case VacancyKind.FOLLOWING:
            return (
                f"expected a log, found its name kept for the successor of log {vacancy.source}:"
                f" run the migration of that log again, which creates it (wal3 migrate), or destroy the kept name"
            )


def lost_manifest(store: ObjectStore, runtime: Runtime) -> CorruptError | None:
    """Return the error for a log that was not found; None when it was destroyed, or never existed."""
    manifests = ManifestStore(with_retries(store, runtime), runtime)
    found = manifests.look()
    if found is None:
        try:
            manifests.refuse_lost()
        except CorruptError as error:
            return error
    elif isinstance(found.document, Vacancy) and found.document.kind is VacancyKind.COPYING:
        return CorruptError(f"log {store.url}: {describe(found.document)}")
    return None


def _read_back(data: bytes, what: str, text: ManifestText, known: KnownTexts) -> Manifest:
    check_whole(data, what=what, bytes_max=BYTES_MAX)
    return Manifest.from_fields(load(text.unknown(known), what=what, bytes_max=BYTES_MAX), known=known)


def _stale(etag: Etag) -> Etag:
    """Return a version of the same form that the object does not have, or the same if none can be made."""
    return Etag(re.sub(r"[0-9a-f]{8}", "0" * 8, etag, count=1))
