"""The port to an object store: only what the protocol needs.

A PUT has three outcomes: Done, Refused (the condition did not hold, as the store says), Unknown (it may have
been applied, or may be applied minutes later). A call that certainly changed nothing and cannot succeed
as things are (no access, no bucket, no space) raises UnavailableError. No implementation retries a
PUT: a hidden retry turns the caller's own success into a refusal.
Source: docs/protocol/stores.md, "Object store contract".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NewType, Protocol, TypeVar
from urllib.parse import urlencode

from wal3_core.arguments import Check, optional, with_methods
from wal3_core.errors import CorruptError, UnavailableError
from wal3_core.format.paths import CLOCK, check_log_name, given_log_id
from wal3_core.runtime import Runtime
from wal3_core.store.store_urls import TUNING_OPTIONS, named_in
from wal3_core.workers import Share

# Names one version of an object; opaque, and never the same for two versions of different bytes.
Etag = NewType("Etag", str)

# The content of a PUT: bytes, or a view of them that saves a copy.
Buffer = bytes | memoryview
# The content of an object that says all by being there. A list of a bucket asks for each empty object again.
PRESENT = b"1"

_CONTROL = re.compile("[\0-\x1f\x7f]")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done:
    """The PUT was applied; the object's version is now ``etag``."""

    etag: Etag


@dataclass(frozen=True, slots=True)
class Refused:
    """The store says that the condition did not hold: read the object before anything is concluded.

    Whatever repeats a request on its way (a proxy, a client) passes on the last answer. If the object has the version
    of before, an earlier request of this call may still be applied; if it has another, one may have been.
    """


@dataclass(frozen=True, slots=True)
class Unknown:
    """It is unknown whether the PUT was, or will be, applied; ``slow_down`` as in UnavailableError."""

    cause: str
    slow_down: bool = False


# The kinds of requests that change objects, each sent once.
WRITES = frozenset({"create", "replace", "delete"})

PutOutcome = Done | Refused | Unknown
# The cause in errors of a refusal that the object does not explain.
REFUSED = "refused, perhaps as the repetition of a request that is under way or done"


@dataclass(frozen=True, slots=True)
class Versioned:
    """An object's bytes and their version."""

    data: bytes
    etag: Etag


@dataclass(frozen=True, slots=True)
class NotModified:
    """The object still has the version the caller named."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's path, its size in bytes, and when it last changed by the store's clock (microseconds)."""

    path: str
    size: int
    last_modified_us: int


class ObjectStore(Protocol):
    """Objects by path: relative, parts joined by ``/``. Each version of an object is immutable.

    Every method may raise UnavailableError.
    """

    @property
    def url(self) -> str:
        """The URL of the objects, as ``open_store`` takes it."""
        ...

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read bytes ``[start, start + length)`` of an object, by default all; None when it is missing."""
        ...

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read an object with its version; None when it is missing.

        CorruptError when it is longer than ``length_max`` bytes; then no more than that is read.
        """
        ...

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write an object that must not exist."""
        ...

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write an object that must have the version ``etag``."""
        ...

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object; None when it is missing."""
        ...

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder ("" or ending in ``/``) in order of their paths."""
        ...

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder, each ending in ``/``, in order."""
        ...

    def delete(self, path: str) -> None:
        """Remove an object; removing a missing one succeeds."""
        ...


class StoreWrapper:
    """Another store's objects, each request as that store answers it: the base of what changes some requests."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @property
    def url(self) -> str:
        return self._store.url

    @property
    def share(self) -> Share:
        return share_of(self._store)

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        return self._sent("read", path, lambda: self._store.read(self._at(path), start=start, length=length))

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        return self._sent(
            "get", path, lambda: self._store.get(self._at(path), if_none_match=if_none_match, length_max=length_max)
        )

    def create(self, path: str, data: Buffer) -> PutOutcome:
        return self._sent("create", path, lambda: self._store.create(self._at(path), data))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        return self._sent("replace", path, lambda: self._store.replace(self._at(path), data, etag))

    def head(self, path: str) -> ObjectMeta | None:
        return self._sent("head", path, lambda: self._store.head(self._at(path)))

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        return self._store.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        return self._sent("list", folder, lambda: self._store.list_folders(folder))

    def delete(self, path: str) -> None:
        self._sent("delete", path, lambda: self._store.delete(self._at(path)))

    def _at(self, path: str) -> str:
        """Return an object's path in the other store."""
        return path

    def _sent(self, kind: str, path: str, send: Callable[[], T]) -> T:
        """Send a request of the ``kind`` read, get, create, replace, head, list or delete; all but lists of objects."""
        del kind, path
        return send()


class FolderStore(StoreWrapper):
    """The objects below one folder of a store, as a store; a function as folder is called at each use."""

    def __init__(self, store: ObjectStore, folder: str | Callable[[], str]) -> None:
        super().__init__(store)
        self._named = folder

    @property
    def _folder(self) -> str:
        return self._named if isinstance(self._named, str) else self._named()

    @property
    def url(self) -> str:
        """The store's address with the folder."""
        address, *options = self._store.url.split("?", 1)
        return "?".join((f"{address.rstrip('/')}/{self._folder.rstrip('/')}", *options))

    @property
    def share(self) -> Share:
        """Whose work a request is: that of the outermost folder in the store."""
        whole = share_of(self._store)
        # A folder given as a function lies in a log's folder.
        return Share(whole.store, whole.log or self._named) if isinstance(self._named, str) else whole

    def head(self, path: str) -> ObjectMeta | None:
        found = self._store.head(self._folder + path)
        return None if found is None else self._inside(found)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        after = self._folder + start_after if start_after else ""
        for found in self._store.list_objects(self._folder + folder, start_after=after):
            yield self._inside(found)

    def list_folders(self, folder: str) -> list[str]:
        return [found.removeprefix(self._folder) for found in self._store.list_folders(self._folder + folder)]

    def _at(self, path: str) -> str:
        return self._folder + path

    def _inside(self, found: ObjectMeta) -> ObjectMeta:
        return ObjectMeta(found.path.removeprefix(self._folder), found.size, found.last_modified_us)


# The argument check that accepts any ObjectStore.
a_store = with_methods("a store, as open_store returns it", "read", "get", "create", "replace", "head", "delete")


def share_of(store: ObjectStore) -> Share:
    """Return whose work a request to a store is: a log's, if the store is a log's folder."""
    share = getattr(store, "share", None)
    return share if isinstance(share, Share) else Share(store.url)


def log_store(store: ObjectStore, log: str) -> ObjectStore:
    """Return the store of one log's folder; InvalidRequestError for a name that no log can have."""
    a_store(store, "store")
    return FolderStore(store, f"{check_log_name(log)}/")


def canonical_url(url: str) -> str:
    """Return the URL of a store, or of a folder in one, without ``TUNING_OPTIONS``: equal for the same store."""
    address = url.partition("?")[0]
    options = sorted(pair for pair in named_in(url).items() if pair[0] not in TUNING_OPTIONS)
    return f"{address}?{urlencode(options)}" if options else address


def object_url(store: ObjectStore, path: str) -> str:
    """Return an object's URL for messages: without the store's options, which say how it is reached."""
    return f"{store.url.partition('?')[0]}/{path}"


def check_length(store: ObjectStore, path: str, length: int, length_max: int | None) -> None:
    """Raise CorruptError for an object that is longer than its reader allows."""
    if length_max is not None and length > length_max:
        raise CorruptError(f"{object_url(store, path)}: expected at most {length_max} bytes, found {length}")


def check_path(path: str) -> str:
    """Assert that a path is relative, without empty or dotted parts: paths are made or checked in format/paths.py."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path:
        raise AssertionError(f"path {path!r}: expected relative parts joined by /")
    return path


def is_odd(path: str) -> bool:
    """Tell whether no object, and no folder, of a store of logs has a path; a folder's ends in a slash."""
    parts = path.removesuffix("/").split("/") if path else ()
    return any(part in {"", ".", ".."} for part in parts) or _CONTROL.search(path) is not None


# The argument checks of a store, a log and its id.
OPENING: Mapping[str, Check] = {"store": a_store, "log": check_log_name, "log_id": optional(given_log_id)}


# A token.
_CLOCK_BYTES_MAX = 1024


def store_now_us(store: ObjectStore, runtime: Runtime) -> int:
    """Return the time of a log's store: the change time it reports of an object just written.

    If the object could not be written now, the time is that of an earlier write: callers then only wait longer.
    Requires that the store's clock does not run backwards.
    """
    data, found = runtime.token().encode(), store.get(CLOCK, length_max=_CLOCK_BYTES_MAX)
    if isinstance(found, Versioned):
        store.replace(CLOCK, data, found.etag)
    else:
        store.create(CLOCK, data)
    written = store.head(CLOCK)
    if written is None:
        raise UnavailableError(f"log {store.url}: {CLOCK} could not be written to learn the store's time")
    return written.last_modified_us
