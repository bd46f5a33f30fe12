"""Garbage documents on storage, and their hints.

Beside a pruned document lies its hint, an object of one byte: with it, a listing is enough to know when the document
is due, without reading it. Without one the document is read, and only objects that it lists itself are deleted.
Source: docs/protocol/collection.md, "Collection".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wal3_core.format.garbage import Garbage
from wal3_core.format.paths import CLOCK, GARBAGE_FOLDER, check_garbage_path, hint_path, hinted_path
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime
from wal3_core.store.documents.document_store import DocumentStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.pass_store import note_deleted
from wal3_core.store.object_store import PRESENT, ObjectMeta


@dataclass(frozen=True, slots=True)
class Listed:
    """One listing: the documents in order of their paths, those with a hint, and hints whose document is gone."""

    documents: tuple[ObjectMeta, ...]
    hinted: frozenset[str]
    left: tuple[str, ...]


class GarbageStore(DocumentStore[Garbage]):
    """The garbage documents of one life of a log."""

    def __init__(self, manifests: ManifestStore, runtime: Runtime, retry: RetryOptions) -> None:
        super().__init__(
            manifests.objects, runtime, retry, Garbage.from_bytes, bytes_max=Garbage.BYTES_MAX, log_id=manifests.log_id
        )

    def list(self) -> Iterator[ObjectMeta]:
        """List the documents in order of their paths; CorruptError for a foreign file."""
        return (meta for meta in self._listed() if hinted_path(meta.path) is None)

    def survey(self) -> Listed:
        """List documents and hints; CorruptError for a foreign file."""
        documents, hinted = [], set()
        for meta in self._listed():
            path = hinted_path(meta.path)
            if path is None:
                documents.append(meta)
            else:
                hinted.add(path)
        gone = hinted - {meta.path for meta in documents}
        return Listed(tuple(documents), frozenset(hinted - gone), tuple(map(hint_path, sorted(gone))))

    def _listed(self) -> Iterator[ObjectMeta]:
        for meta in self._store.list_objects(GARBAGE_FOLDER):
            if meta.path == CLOCK:
                continue
            if hinted_path(meta.path) is None:
                check_garbage_path(meta.path)
            yield meta

    def hint(self, path: str) -> None:
        """Create the hint of a pruned document; whether that succeeds changes no outcome."""
        self._store.create(hint_path(path), PRESENT)

    def unhint(self, path: str) -> None:
        """Remove a document's hint, so that the document is read again."""
        self.delete(hint_path(path))

    def forget(self, path: str, *, all_deleted: bool) -> None:
        """Remove a document that is done with, and then its hint; note the time if all that it names is deleted."""
        # Before the document goes: a failure here is repeated with it.
        if all_deleted:
            note_deleted(self._store, path)
        self.delete(path)
        self.unhint(path)

    def describe(self, path: str) -> ObjectMeta | None:
        """Return a document's size and when the store last changed it; None when it is gone."""
        return self._store.head(path)
