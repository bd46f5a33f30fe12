"""Documents of one life of a log under names that can be used again: cursors, pins.

Once created, the object of a name is never deleted while its log lives: a delete replaces it by a ``Tombstone``,
and a create replaces the tombstone, each by CAS. Keeps INV-14 and INV-23. Source: docs/protocol/collection.md, "Names".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from wal3_core.errors import CorruptError, UnavailableError
from wal3_core.format.strict_json import Fields
from wal3_core.format.tombstone import Tombstone, or_tombstone
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, map_ahead
from wal3_core.store.documents.document_store import Document, DocumentStore, LoadedDocument
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import Etag, ObjectMeta, ObjectStore, Unknown, Versioned, object_url, share_of

# A try is refused when the document was changed meanwhile.
_TRIES_MAX = 256


D = TypeVar("D", bound=Document)


class NamedStore(Generic[D]):
    """Named documents of one kind, of at most ``bytes_max`` bytes; ``read`` decodes one that is no tombstone."""

    def __init__(
        self,
        manifests: ManifestStore,
        runtime: Runtime,
        retry: RetryOptions,
        read: Callable[[Fields], D],
        *,
        bytes_max: int,
    ) -> None:
        self._store = manifests.objects
        self._runtime = runtime
        self._bytes_max = bytes_max
        self._documents: DocumentStore[D | Tombstone] = DocumentStore(
            self._store,
            runtime,
            retry,
            lambda data, what: or_tombstone(data, read, what=what, bytes_max=bytes_max),
            bytes_max=bytes_max,
            log_id=manifests.log_id,
        )

    def look(self, path: str) -> LoadedDocument[D | Tombstone] | None:
        """Load the document or tombstone of a name, which a new document replaces."""
        return self._documents.load(path)

    def load(self, path: str) -> LoadedDocument[D] | None:
        """Load a document; None when there is none or a tombstone, CorruptError when it is damaged."""
        return _living(self.look(path))

    def list(
        self, folder: str, name_of: Callable[[str], str], *, ahead: int
    ) -> Iterator[tuple[str, LoadedDocument[D] | CorruptError]]:
        """Yield the documents in a folder by path, some loaded ahead; for one that is damaged or foreign its error."""

        def load(path: str) -> tuple[str, LoadedDocument[D] | CorruptError | None]:
            try:
                name_of(path)
                return path, self.load(path)
            except CorruptError as error:
                return path, error

        paths = (meta.path for meta in self._store.list_objects(folder))
        for path, found in map_ahead(self._runtime, load, paths, count=ahead, share=share_of(self._store)):
            if found is not None:
                yield path, found

    def save(self, path: str, document: D, etag: Etag | None) -> LoadedDocument[D] | None:
        """Replace the version ``etag`` by a document, or create it; None when another version is there."""
        outcome = self._documents.swap(path, document, etag)
        return _living(outcome) if isinstance(outcome, LoadedDocument) else None

    def delete(self, path: str) -> None:
        """Replace any document by a tombstone; create one if there is none, since a create may be under way.

        UnavailableError when it may have been done, without an answer that says so, and another version is there since.
        """
        for _ in range(_TRIES_MAX):
            generation, etag = self._stored_version(path)
            if generation is None:
                return
            outcome = self._documents.swap(path, Tombstone(generation=generation + 1), etag)
            if isinstance(outcome, LoadedDocument):
                return
            if isinstance(outcome, Unknown):
                # The other version may have been created after the delete, and is then not to be deleted.
                raise UnavailableError(
                    f"{object_url(self._store, path)}: not known to be deleted: {outcome.cause}; it has another version"
                    f" now: load it, and delete that version if it is not wanted"
                )
        message = f"{object_url(self._store, path)}: not deleted: others changed it {_TRIES_MAX} times over: try again"
        raise UnavailableError(message)

    def delete_version(self, path: str, seen: LoadedDocument[D]) -> bool:
        """Replace just this version by a tombstone; False when another version is there."""
        tombstone = Tombstone(generation=seen.document.generation + 1)
        return isinstance(self._documents.swap(path, tombstone, seen.etag), LoadedDocument)

    def _stored_version(self, path: str) -> tuple[int | None, Etag | None]:
        """Return generation and version of a name's object; generation 0 if it has none, None for a tombstone."""
        try:
            seen = self.look(path)
        except CorruptError:
            # A damaged document is deleted as it is; one longer than ``bytes_max`` raises, since wal3 never wrote it.
            found = self._store.get(path, length_max=self._bytes_max)
            return 0, found.etag if isinstance(found, Versioned) else None
        if seen is None:
            return 0, None
        return None if isinstance(seen.document, Tombstone) else seen.document.generation, seen.etag

    def forget(self, path: str) -> None:
        """Delete the object itself; only for a name that is never used again."""
        self._documents.delete(path)


def _living(seen: LoadedDocument[D | Tombstone] | None) -> LoadedDocument[D] | None:
    if seen is None or isinstance(seen.document, Tombstone):
        return None
    return LoadedDocument(seen.document, seen.etag)


def is_tombstone(store: ObjectStore, found: ObjectMeta) -> bool:
    """Return whether a listed object is an undamaged tombstone."""
    if found.size > Tombstone.BYTES_MAX:
        return False
    try:
        data = store.get(found.path, length_max=Tombstone.BYTES_MAX)
        if not isinstance(data, Versioned):
            return False
        or_tombstone(data.data, _refuse, what=found.path, bytes_max=Tombstone.BYTES_MAX)
    except CorruptError:
        return False
    return True


def _refuse(fields: Fields) -> Tombstone:
    raise CorruptError(f"{fields.what}: expected a tombstone, found none")
