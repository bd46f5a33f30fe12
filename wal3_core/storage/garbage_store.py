"""What collections leave on storage: documents that name what is to be deleted, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.model.garbage import BYTES_MAX, Garbage
from wal3_core.model.paths import CLOCK, GARBAGE_FOLDER, check_garbage_path
from wal3_core.storage.document_store import DocumentStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.manifest_store import ManifestStore
    from wal3_core.storage.object_store import ObjectMeta


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
        for meta in self._store.list_objects(GARBAGE_FOLDER):
            if meta.path != CLOCK:
                check_garbage_path(meta.path)
                yield meta
