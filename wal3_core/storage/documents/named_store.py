"""Documents of one life of a log under names that may be used again: cursors, pins.

The object of a name, once there, is never deleted while its log lives: a ``Tombstone`` takes the place of what is
deleted, and what is created takes the place of a tombstone, each by CAS. Keeps INV-14 and INV-23. Source:
docs/protocol.md, "Names".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from wal3_core.errors import CorruptError, UnavailableError
from wal3_core.model.tombstone import BYTES_MAX as TOMBSTONE_BYTES_MAX
from wal3_core.model.tombstone import Tombstone, or_tombstone
from wal3_core.storage.documents.document_store import Document, DocumentStore, Seen
from wal3_core.storage.object_store import Unknown, Versioned

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.strict_json import Fields
    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.manifest_store import ManifestStore
    from wal3_core.storage.object_store import Etag, ObjectMeta, ObjectStore

# Each try that is refused means that somebody has moved meanwhile what is deleted.
_TRIES_MAX = 256


class Named(Document, Protocol):
    """What has a name: each version of it has the next number."""

    @property
    def generation(self) -> int:
        """The number of the version."""
        ...


D = TypeVar("D", bound=Named)


class NamedStore(Generic[D]):
    """Named documents of one kind, of ``bytes_max`` bytes at most; ``read`` decodes one that is no tombstone."""

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
        self._bytes_max = bytes_max
        self._documents: DocumentStore[D | Tombstone] = DocumentStore(
            self._store,
            runtime,
            retry,
            lambda data, what: or_tombstone(data, read, what=what, bytes_max=bytes_max),
            bytes_max=bytes_max,
            log_id=manifests.log_id,
        )

    def look(self, path: str) -> Seen[D | Tombstone] | None:
        """Load what stands under a name: it is what something new takes the place of."""
        return self._documents.load(path)

    def load(self, path: str) -> Seen[D] | None:
        """Load a document; None when there is none, or none any more, CorruptError when it is damaged."""
        return _living(self.look(path))

    def save(self, path: str, document: D, etag: Etag | None) -> Seen[D] | None:
        """Put a document in the place of a version, or of nothing; None when somebody else was there before."""
        outcome = self._documents.swap(path, document, etag)
        return _living(outcome) if isinstance(outcome, Seen) else None

    def delete(self, path: str) -> None:
        """Put a tombstone in the place of whatever stands there; of nothing, too, for a create may be under way.

        UnavailableError when an unanswered request may have done it, and something stands there since.
        """
        for _ in range(_TRIES_MAX):
            generation, etag = self._standing(path)
            if generation is None:
                return
            outcome = self._documents.swap(path, Tombstone(generation=generation + 1), etag)
            if isinstance(outcome, Seen):
                return
            if isinstance(outcome, Unknown):
                # What stands there may have been created behind the delete, and is another's then.
                message = (
                    f"{self._store.url}/{path}: not known to be deleted: {outcome.cause}; another version stands there"
                    f" by now: look, and delete that if need be"
                )
                raise UnavailableError(message)
        message = f"{self._store.url}/{path}: not deleted: others changed it {_TRIES_MAX} times over: try again"
        raise UnavailableError(message)

    def _standing(self, path: str) -> tuple[int | None, Etag | None]:
        """Tell number and version of what stands under a name; 0 where there is no telling, None for a tombstone."""
        try:
            seen = self.look(path)
        except CorruptError:
            # It is deleted as it is; what is too long to be read is nothing that was written here.
            found = self._store.get(path, length_max=self._bytes_max)
            return 0, found.etag if isinstance(found, Versioned) else None
        if seen is None:
            return 0, None
        return None if isinstance(seen.document, Tombstone) else seen.document.generation, seen.etag

    def forget(self, path: str) -> None:
        """Delete the object itself: only for a name that is never used again."""
        self._documents.delete(path)


def _living(seen: Seen[D | Tombstone] | None) -> Seen[D] | None:
    if seen is None or isinstance(seen.document, Tombstone):
        return None
    return Seen(seen.document, seen.etag)


def is_tombstone(store: ObjectStore, found: ObjectMeta) -> bool:
    """Tell whether a named document that was listed is a tombstone: nothing else is, and nothing damaged."""
    if found.size > TOMBSTONE_BYTES_MAX:
        return False
    try:
        data = store.get(found.path, length_max=TOMBSTONE_BYTES_MAX)
        if not isinstance(data, Versioned):
            return False
        or_tombstone(data.data, _refuse, what=found.path, bytes_max=TOMBSTONE_BYTES_MAX)
    except CorruptError:
        return False
    return True


def _refuse(fields: Fields) -> Tombstone:
    message = f"{fields.what}: expected a tombstone, found none"
    raise CorruptError(message)
