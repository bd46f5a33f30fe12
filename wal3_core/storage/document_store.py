"""One log's small documents that are created once and swapped by CAS: cursors, pins, what collections leave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from wal3_core.errors import UnavailableError
from wal3_core.storage.object_store import Done, Etag, Unknown, Versioned
from wal3_core.storage.retry import attempts, reread_if_damaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


class Document(Protocol):
    """What can be written."""

    def to_bytes(self) -> bytes:
        """Encode."""
        ...


D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class Seen(Generic[D]):
    """A document as it was seen: what a change starts from."""

    document: D
    etag: Etag


class DocumentStore(Generic[D]):
    """Documents of one kind; ``store`` is the log's own, ``read`` decodes what lies at a path."""

    def __init__(
        self, store: ObjectStore, runtime: Runtime, retry: RetryOptions, read: Callable[[bytes, str], D]
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._retry = retry
        self._read = read

    def load(self, path: str) -> Seen[D] | None:
        """Load a document; None when there is none, CorruptError when it is damaged."""
        return reread_if_damaged(lambda: self._load(path))

    def _load(self, path: str) -> Seen[D] | None:
        found = self._store.get(path)
        if not isinstance(found, Versioned):
            return None
        return Seen(self._read(found.data, f"{self._store.url}/{path}"), found.etag)

    def save(self, path: str, document: D, seen: Seen[D] | None) -> Seen[D] | None:
        """Create the document, or change it from how it was seen; None when somebody else was there before.

        Its bytes must be like no other writer's, which is what a token in it is for.
        """
        data, cause = document.to_bytes(), "conflicts"
        for _ in attempts(self._retry, self._runtime):
            outcome = self._store.create(path, data) if seen is None else self._store.replace(path, data, seen.etag)
            if isinstance(outcome, Done):
                return Seen(document, outcome.etag)
            if isinstance(outcome, Unknown):
                cause = outcome.cause
            found = self.load(path)
            if found is not None and found.document == document:
                return found
            present = None if found is None else found.etag
            if present != (None if seen is None else seen.etag):
                return None
        message = f"{self._store.url}/{path}: not saved in {self._retry.attempts_max} tries: {cause}"
        raise UnavailableError(message)

    def delete(self, path: str) -> None:
        """Remove a document."""
        self._store.delete(path)
