"""Loads the manifest and swaps it by CAS. Keeps INV-5 (generation rises) of docs/protocol.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.errors import (
    CorruptError,
    LogExistsError,
    LogNotFoundError,
    StoreDeniedError,
    UnavailableError,
    UnsuitableStoreError,
)
from wal3_core.model.manifest import BYTES_MAX, Manifest
from wal3_core.model.paths import FRAGMENT_FOLDER, MANIFEST
from wal3_core.options import POINTERS_MAX, RetryOptions
from wal3_core.storage.object_store import Done, Etag, NotModified, Refused, Unknown, Versioned
from wal3_core.storage.retry import attempts, reread_if_damaged

if TYPE_CHECKING:
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Installed:
    """A manifest and the version of the object that holds it: the witness for the next swap."""

    manifest: Manifest
    etag: Etag


InstallOutcome = Installed | Refused | Unknown


class ManifestStore:
    """The manifest of one log; ``store`` is the log's own."""

    def __init__(self, store: ObjectStore, runtime: Runtime, retry: RetryOptions | None = None) -> None:
        self._store = store
        self._runtime = runtime
        self._retry = retry or RetryOptions()

    @property
    def what(self) -> str:
        """The manifest's address, for messages."""
        return f"{self._store.url}/{MANIFEST}"

    def load(self, known: Installed | None = None) -> Installed:
        """Load the manifest; ``known`` is returned as it is while the store still has that version."""
        return reread_if_damaged(lambda: self._load(known))

    def _load(self, known: Installed | None) -> Installed:
        found = self._store.get(MANIFEST, if_none_match=None if known is None else known.etag)
        match found:
            case None:
                message = f"log {self._store.url}: expected {MANIFEST}, found none: initialize the log first"
                raise LogNotFoundError(message)
            case NotModified():
                assert known is not None
                return known
            case Versioned(data, etag):
                return Installed(Manifest.from_bytes(data, what=self.what), etag)

    def install(self, changed: Manifest, witness: Installed) -> InstallOutcome:
        """Swap the manifest in if the store still holds the witness. Refused and Unknown want a reload."""
        changed = replace(changed, generation=witness.manifest.generation + 1, writer=self._runtime.process_name())
        changed.check()
        data = changed.to_bytes()
        if len(data) > BYTES_MAX or len(changed.pointers) > POINTERS_MAX:
            # Installed, it could never be loaded again.
            message = f"{self.what}: expected less than {BYTES_MAX} bytes: let snapshots be written (see snapshot/)"
            raise StoreDeniedError(message)
        outcome = self._store.replace(MANIFEST, data, witness.etag)
        return Installed(changed, outcome.etag) if isinstance(outcome, Done) else outcome

    def initialize(self, initial: Manifest, *, over_fragments: bool = False) -> Installed:
        """Create the manifest of a new log; LogExistsError when there is one.

        Fragments that lie there already are refused, unless the caller has made sure that they are its own.

        A store that would let a second create, or a swap with a stale version, pass is refused with
        UnsuitableStoreError: a log on it would lose appends. Both probes write the same bytes again.
        """
        if not over_fragments:
            self._refuse_over_remains()
        created = self._create(initial)
        data = initial.to_bytes()
        stale = _stale(created.etag)
        ignored = isinstance(self._store.create(MANIFEST, data), Done)
        if ignored or (stale != created.etag and isinstance(self._store.replace(MANIFEST, data, stale), Done)):
            self._store.delete(MANIFEST)
            message = (
                f"store {self._store.url}: expected conditions on PUT to be honoured, found them ignored:"
                f" no log can live here (wal3 doctor tells more)"
            )
            raise UnsuitableStoreError(message)
        return created

    def _refuse_over_remains(self) -> None:
        """Begin no log where fragments lie without a manifest: that one was lost, and they are its records."""
        remains = next(iter(self._store.list_objects(FRAGMENT_FOLDER)), None)
        if remains is not None and self._store.head(MANIFEST) is None:
            message = f"log {self._store.url}: expected {MANIFEST} beside {remains.path}, found none: restore it"
            raise CorruptError(message)

    def _create(self, initial: Manifest) -> Installed:
        data = initial.to_bytes()
        unknown = False
        for _ in attempts(self._retry, self._runtime):
            outcome = self._store.create(MANIFEST, data)
            if isinstance(outcome, Done):
                return Installed(initial, outcome.etag)
            unknown = unknown or isinstance(outcome, Unknown)
            found = self._store.get(MANIFEST)
            if isinstance(found, Versioned):
                if unknown and found.data != data:
                    # What differs may have been damaged on the way.
                    found = self._store.get(MANIFEST)
                if unknown and isinstance(found, Versioned) and found.data == data:
                    return Installed(initial, found.etag)
                message = f"log {self._store.url}: expected no log there, found {MANIFEST}"
                raise LogExistsError(message)
        message = f"log {self._store.url}: {MANIFEST} could not be written in {self._retry.attempts_max} tries"
        raise UnavailableError(message)


def _stale(etag: Etag) -> Etag:
    """Return a version of the same form that the object does not have, or the same where none can be made."""
    return Etag(re.sub(r"[0-9a-f]{8}", "0" * 8, etag, count=1))
