"""A store whose reads are retried: a short outage is no error for readers, cursors and maintenance.

PUTs and deletes are sent once: only the protocol knows what a repeated one means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.options import RetryOptions
from wal3_core.storage.object_store import share_of
from wal3_core.storage.retry import attempts, for_store, until_answered

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


class PatientStore:
    """Another store's objects; reads are retried, as the options say, while that store does not answer."""

    def __init__(self, store: ObjectStore, retry: RetryOptions, runtime: Runtime) -> None:
        self._store = store
        self._retry = for_store(retry, store)
        self._runtime = runtime

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
        return until_answered(lambda: self._store.read(path, start=start, length=length), self._retry, self._runtime)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read an object with its version."""

        def get() -> Versioned | NotModified | None:
            return self._store.get(path, if_none_match=if_none_match, length_max=length_max)

        return until_answered(get, self._retry, self._runtime)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write an object that must not exist; sent once."""
        return self._store.create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write an object that must have the version ``etag``; sent once."""
        return self._store.replace(path, data, etag)

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object."""
        return until_answered(lambda: self._store.head(path), self._retry, self._runtime)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder; a listing that breaks off continues after its last path."""
        while True:
            for _ in attempts(self._retry, self._runtime):
                before = start_after
                try:
                    for meta in self._store.list_objects(folder, start_after=start_after):
                        yield meta
                        start_after = meta.path
                except StoreDeniedError:
                    raise
                except UnavailableError as error:
                    failure = error
                else:
                    return
                if start_after != before:
                    # It has answered since: this is a new outage.
                    break
            else:
                raise failure

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder."""
        return until_answered(lambda: self._store.list_folders(folder), self._retry, self._runtime)

    def delete(self, path: str) -> None:
        """Remove an object; sent once."""
        self._store.delete(path)


def patient(store: ObjectStore, runtime: Runtime, retry: RetryOptions | None = None) -> PatientStore:
    """Wrap a store so that its reads are retried; a PatientStore is returned as it is."""
    return store if isinstance(store, PatientStore) else PatientStore(store, retry or RetryOptions(), runtime)
