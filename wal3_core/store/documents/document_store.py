"""Documents on storage: encoded and read back before they are written, created once, and swapped by CAS.

A document that its own strict reader refuses is never sent to the store. Cursors, pins, policies and garbage documents
are swapped; what has a path that is unique to its writer or its content is written by ``write_immutable``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from wal3_core.errors import CorruptError, InvalidRequestError, StoreDeniedError, UnavailableError
from wal3_core.format import strict_json
from wal3_core.format.paths import LogId
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime
from wal3_core.store.object_store import (
    REFUSED,
    Buffer,
    Done,
    Etag,
    ObjectStore,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
    object_url,
)
from wal3_core.store.retrying import attempts, for_store, reread_if_damaged


class Encodable(Protocol):
    """A document that can be encoded."""

    def to_bytes(self) -> bytes:
        """Encode."""
        ...


E = TypeVar("E", bound=Encodable)
T = TypeVar("T")
B = TypeVar("B", bytes, memoryview)


def encoded(encode: Callable[[], T], what: str) -> T:
    """Encode a document; InvalidRequestError, with ``what`` and the field, for a value that JSON cannot represent."""
    try:
        return encode()
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{what}: not written: {error}") from error


def check_readable(data: B, document: T, read: Callable[[B, str], T], what: str) -> None:
    """Decode an encoded document; InvalidRequestError when that fails, or gives another document."""
    try:
        found = read(data, what)
    except CorruptError as error:
        field = strict_json.unreadable_field(data)
        raise InvalidRequestError(f"{what}: not written, since it could not be read back: {field or error}") from error
    if found != document:
        message = f"{what}: not written, since it would be read back as {found}, not {document}"
        raise InvalidRequestError(message[:1000])


def readable(document: E, read: Callable[[bytes, str], E], what: str) -> bytes:
    """Encode a document; InvalidRequestError if its reader would not return it unchanged."""
    data = encoded(document.to_bytes, what)
    check_readable(data, document, read, what)
    return data


def write_immutable(
    store: ObjectStore,
    path: str,
    data: Buffer,
    retry: RetryOptions,
    runtime: Runtime,
    retried: Callable[[], None] = lambda: None,
) -> None:
    """Make ``data`` durable at ``path``, where no other bytes are ever written.

    Finding the path taken by these bytes means that an earlier try succeeded. Raises UnavailableError
    when it could not be written; the object may then still appear, and nothing may refer to it.
    ``retried`` is called for each try after the first.
    """
    # One byte more shows that the object is longer.
    cause, length = "refused", len(data) + 1
    for attempt in attempts(for_store(retry, store), runtime):
        if attempt > 1:
            retried()
        outcome = put_once(store, path, data, None)
        if isinstance(outcome, Done):
            return
        if isinstance(outcome, Unknown):
            cause = outcome.cause
        # Refused may also be a conflict that wrote nothing: only the object itself shows which.
        found = _read(store, path, length)
        if found is not None and found != data:
            # The difference may be damage in transit.
            found = _read(store, path, length)
        if found == data:
            return
        if found is not None:
            expected = f"expected the {len(data)} bytes written here, found {len(found)} others"
            raise UnavailableError(f"{object_url(store, path)}: {expected}")
    raise UnavailableError(f"{object_url(store, path)}: not written in {attempt} tries: {cause}")


def put_once(store: ObjectStore, path: str, data: Buffer, etag: Etag | None) -> PutOutcome:
    """Create an object, or replace a version, once; Unknown also if it was not sent."""
    try:
        return store.create(path, data) if etag is None else store.replace(path, data, etag)
    except StoreDeniedError:
        raise
    except UnavailableError as error:
        # It was not sent, for lack of a lock or a file descriptor: retried while there is time.
        return Unknown(str(error))


def _read(store: ObjectStore, path: str, length: int) -> bytes | None:
    try:
        return store.read(path, length=length)
    except StoreDeniedError:
        raise
    except UnavailableError:
        return None


class Document(Encodable, Protocol):
    """A dataclass that names its log and its write. Each version has the next ``generation``."""

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


D = TypeVar("D", bound=Document)


@dataclass(frozen=True, slots=True)
class LoadedDocument(Generic[D]):
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

    def load(self, path: str, known: LoadedDocument[D] | None = None) -> LoadedDocument[D] | None:
        """Load a document; None when there is none, CorruptError when it is damaged or belongs to another log.

        Read again, and not decoded again, if it still is the version ``known``.
        """
        return reread_if_damaged(lambda: self._load(path, known), self._store)

    def _load(self, path: str, known: LoadedDocument[D] | None) -> LoadedDocument[D] | None:
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
        return LoadedDocument(document, found.etag)

    def save(self, path: str, document: D, seen: LoadedDocument[D] | None) -> LoadedDocument[D] | None:
        """Create the document, or replace the version that was seen; None when another version is there.

        InvalidRequestError, and nothing written, for a document that could not be read back.
        """
        outcome = self.swap(path, document, None if seen is None else seen.etag)
        return outcome if isinstance(outcome, LoadedDocument) else None

    def swap(self, path: str, document: D, etag: Etag | None) -> LoadedDocument[D] | Refused | Unknown:
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
                return LoadedDocument(document, outcome.etag)
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
