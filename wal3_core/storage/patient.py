"""A store whose reads wait for an answer: a short outage is not told to readers, cursors and maintenance.

PUTs and deletes pass as they are: only the protocol knows what a repeated one means.
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
    """Another store's objects; every read is tried again while that store does not answer, as the options say."""

    def __init__(self, store: ObjectStore, retry: RetryOptions, runtime: Runtime) -> None:
        self._store = store
        self._retry = for_store(retry, store)
        self._runtime = runtime

    @property
    def url(self) -> str:
        """The store's own."""
        return self._store.url

    @property
    def share(self) -> Share:
        """Whose work a request is: the store's own."""
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
        """Write an object that must not exist: once."""
        return self._store.create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write an object that must have the version ``etag``: once."""
        return self._store.replace(path, data, etag)

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object."""
        return until_answered(lambda: self._store.head(path), self._retry, self._runtime)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Go through the objects below a folder; a listing that breaks off goes on behind what it gave last."""
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
                    # It answered meanwhile: this outage is another one.
                    break
            else:
                raise failure

    def list_folders(self, folder: str) -> list[str]:
        """Name the folders directly in a folder."""
        return until_answered(lambda: self._store.list_folders(folder), self._retry, self._runtime)

    def delete(self, path: str) -> None:
        """Remove an object: once."""
        self._store.delete(path)


def patient(store: ObjectStore, runtime: Runtime, retry: RetryOptions | None = None) -> PatientStore:
    """Let a store's reads wait for an answer; one that is patient already stays as it is."""
    return store if isinstance(store, PatientStore) else PatientStore(store, retry or RetryOptions(), runtime)
