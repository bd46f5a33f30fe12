"""A store whose reads and creates are kept to a number of bytes a second, so that background work leaves room.

Unlike ``ThrottledStore``, which counts requests, it knows no urgent ones: a manifest must not be swapped through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.storage.object_store import Done, share_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import (
        Buffer,
        Etag,
        NotModified,
        ObjectMeta,
        ObjectStore,
        PutOutcome,
        Versioned,
    )
    from wal3_core.workers import Share


class BytePace:
    """Makes its callers, from any thread, wait until the bytes that they have moved are paid for by time."""

    def __init__(self, bytes_per_s: float, runtime: Runtime) -> None:
        self._bytes_per_s = bytes_per_s
        self._runtime = runtime
        self._lock = runtime.lock()
        # When all bytes so far are paid for.
        self._paid_s = runtime.monotonic_s()

    def pay(self, num_bytes: int) -> None:
        """Block for as long as these bytes take at the rate, after all those before them."""
        now_s = self._runtime.monotonic_s()
        with self._lock:
            # Time in which nothing was moved is lost: no burst follows a pause.
            self._paid_s = until_s = max(self._paid_s, now_s) + num_bytes / self._bytes_per_s
        if until_s > now_s:
            self._runtime.sleep(until_s - now_s)


class PacedStore:
    """Another store's objects; the bytes of reads and of creates are paid for after the request."""

    def __init__(self, store: ObjectStore, pace: BytePace) -> None:
        self._store = store
        self._pace = pace

    @property
    def url(self) -> str:
        """The store's URL."""
        return self._store.url

    @property
    def share(self) -> Share:
        """Whose work a request is."""
        return share_of(self._store)

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read bytes of an object."""
        found = self._store.read(path, start=start, length=length)
        self._pace.pay(len(found or b""))
        return found

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read an object with its version; not counted."""
        return self._store.get(path, if_none_match=if_none_match, length_max=length_max)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write an object that must not exist."""
        outcome = self._store.create(path, data)
        # One without an answer is tried again first: its caller has only so much time.
        if isinstance(outcome, Done):
            self._pace.pay(len(data))
        return outcome

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write an object that must have the version ``etag``; not counted."""
        return self._store.replace(path, data, etag)

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object."""
        return self._store.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder."""
        return self._store.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder."""
        return self._store.list_folders(folder)

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._store.delete(path)


def paced(store: ObjectStore, bytes_per_s_max: float | None, runtime: Runtime) -> ObjectStore:
    """Keep a store's reads and creates to a rate, all of them together; None for no limit."""
    return store if bytes_per_s_max is None else PacedStore(store, BytePace(bytes_per_s_max, runtime))
