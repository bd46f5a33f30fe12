"""What collections leave on storage: documents that name what is to be deleted, and since when.

Beside a document that is marked as pruned lies its mark, an empty object: who lists them both need
not read the document before it is due. A mark is a hint: without one the document is read, and
nothing is deleted that the document does not say itself. Source: docs/protocol.md, "Collection".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.model.garbage import BYTES_MAX, Garbage
from wal3_core.model.paths import CLOCK, GARBAGE_FOLDER, check_garbage_path, mark_path, marked_path
from wal3_core.storage.documents.document_store import DocumentStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.manifest_store import ManifestStore
    from wal3_core.storage.object_store import ObjectMeta


@dataclass(frozen=True, slots=True)
class Listed:
    """One listing: the documents in order of their paths, those with a mark, and marks whose document is gone."""

    documents: tuple[ObjectMeta, ...]
    marked: frozenset[str]
    left: tuple[str, ...]


class GarbageStore(DocumentStore[Garbage]):
    """The garbage documents of one life of a log."""

    def __init__(self, manifests: ManifestStore, runtime: Runtime, retry: RetryOptions) -> None:
        super().__init__(
            manifests.objects,
            runtime,
            retry,
            lambda data, what: Garbage.from_bytes(data, what=what),
            bytes_max=BYTES_MAX,
            log_id=manifests.log_id,
        )

    def list(self) -> Iterator[ObjectMeta]:
        """List the documents that are there, in order of their paths; CorruptError for a foreign file."""
        return (meta for meta in self._listed() if marked_path(meta.path) is None)

    def survey(self) -> Listed:
        """List documents and marks at once; CorruptError for a foreign file."""
        documents, marked = [], set()
        for meta in self._listed():
            path = marked_path(meta.path)
            if path is None:
                documents.append(meta)
            else:
                marked.add(path)
        gone = marked - {meta.path for meta in documents}
        return Listed(tuple(documents), frozenset(marked - gone), tuple(map(mark_path, sorted(gone))))

    def _listed(self) -> Iterator[ObjectMeta]:
        for meta in self._store.list_objects(GARBAGE_FOLDER):
            if meta.path == CLOCK:
                continue
            if marked_path(meta.path) is None:
                check_garbage_path(meta.path)
            yield meta

    def mark(self, path: str) -> None:
        """Put a mark beside a document that was marked as pruned; whether it gets there changes no outcome."""
        self._store.create(mark_path(path), b"")

    def unmark(self, path: str) -> None:
        """Remove a document's mark: it is read again."""
        self.delete(mark_path(path))

    def forget(self, path: str) -> None:
        """Remove a document, and then its mark."""
        self.delete(path)
        self.unmark(path)

    def describe(self, path: str) -> ObjectMeta | None:
        """Tell when the store last changed a document; None when it is gone."""
        return self._store.head(path)
