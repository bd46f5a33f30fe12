"""Small documents that are created once and swapped by CAS: cursors, pins, policies, garbage documents."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from wal3_core.errors import CorruptError, UnavailableError
from wal3_core.storage.documents.readback import readable
from wal3_core.storage.object_store import REFUSED, Done, Etag, Refused, Unknown, Versioned, object_url
from wal3_core.storage.retry import attempts, for_store, reread_if_damaged

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.paths import LogId
    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


class Document(Protocol):
    """A dataclass that can be encoded and names its log and its write. Each version has the next ``generation``."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def log_id(self) -> LogId:
        """The life of the log that it belongs to."""
        ...

    @property
    def generation(self) -> int:
        """Its version's number."""
        ...

    @property
    def writer(self) -> str:
        """Its writer's process, and a token that no other write has."""
        ...

    def to_bytes(self) -> bytes:
        """Encode."""
        ...


D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class Seen(Generic[D]):
    """A document as it was loaded, with its version: the witness for a change."""

    document: D
    etag: Etag


def stamp(runtime: Runtime) -> str:
    """Name one write by its process, for people, and a token, so that no two writes have the same bytes."""
    return f"{runtime.process_name()} {runtime.token()}"


class DocumentStore(Generic[D]):
    """Documents of one kind, of at most ``bytes_max`` bytes; ``read`` decodes the bytes at a path.

    With ``log_id`` they belong to one life: its id is written into them, and another life's document is refused.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        retry: RetryOptions,
        read: Callable[[bytes, str], D],
        *,
        bytes_max: int,
        log_id: Callable[[], LogId] | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._retry = retry
        self._read = read
        self._bytes_max = bytes_max
        self._log_id = log_id

    def load(self, path: str, known: Seen[D] | None = None) -> Seen[D] | None:
        """Load a document; None when there is none, CorruptError when it is damaged or belongs to another log.

        Read again, and not decoded again, if it still is the version ``known``.
        """
        return reread_if_damaged(lambda: self._load(path, known), self._store)

    def _load(self, path: str, known: Seen[D] | None) -> Seen[D] | None:
        found = self._store.get(path, length_max=self._bytes_max)
        if not isinstance(found, Versioned):
            return None
        if known is not None and found.etag == known.etag:
            return known
        what = object_url(self._store, path)
        document = self._read(found.data, what)
        if self._log_id is not None and document.log_id != self._log_id():
            message = f"{what}: expected a document of log {self._log_id()}, found one of log {document.log_id}"
            raise CorruptError(message)
        return Seen(document, found.etag)

    def save(self, path: str, document: D, seen: Seen[D] | None) -> Seen[D] | None:
        """Create the document, or replace the version that was seen; None when another version is there.

        InvalidRequestError, and nothing written, for a document that could not be read back.
        """
        outcome = self.swap(path, document, None if seen is None else seen.etag)
        return outcome if isinstance(outcome, Seen) else None

    def swap(self, path: str, document: D, etag: Etag | None) -> Seen[D] | Refused | Unknown:
        """Save the document in place of the version ``etag``, or create it; say more when another version is there.

        Refused: nothing was done, nor will be. Unknown: it may have been saved before the other version. The numbers
        tell: of two documents in place of the same version, only one was saved.
        """
        # A token for every write: another write is never taken for this one, and no version comes back.
        document = replace(document, writer=stamp(self._runtime))
        if self._log_id is not None:
            document = replace(document, log_id=self._log_id())
        data = readable(document, self._read, object_url(self._store, path))
        for tries in attempts(for_store(self._retry, self._store), self._runtime):
            outcome = self._store.create(path, data) if etag is None else self._store.replace(path, data, etag)
            if isinstance(outcome, Done):
                return Seen(document, outcome.etag)
            found = self.load(path)
            if found is not None and found.document == document:
                return found
            cause = outcome.cause if isinstance(outcome, Unknown) else REFUSED
            if (None if found is None else found.etag) != etag:
                others = found is not None and found.document.generation == document.generation
                return Refused() if others else Unknown(cause)
            message = f"{object_url(self._store, path)}: not known to be saved, after {tries} tries: {cause}"
        raise UnavailableError(message)

    def delete(self, path: str) -> None:
        """Remove a document."""
        self._store.delete(path)
