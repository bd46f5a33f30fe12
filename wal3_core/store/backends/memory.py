"""A store in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from wal3_core.arguments import checked, text
from wal3_core.errors import ClosedError
from wal3_core.runtime import Lock, Runtime, shared_runtime, wall_us
from wal3_core.store.object_store import (
    Buffer,
    Done,
    Etag,
    NotModified,
    ObjectMeta,
    PutOutcome,
    Refused,
    Versioned,
    check_length,
    check_path,
)


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    etag: Etag
    last_modified_us: int


class MemoryStore:
    """A store in this process's memory, for the tests of a program that uses logs; it keeps all promises of a store.

    ``open_store("memory:name")`` returns one that a whole process shares, each call of this class another one. It ends
    with the process. A fork of the process gets ClosedError: it would write to a copy.
    """

    @checked(name=text)
    def __init__(self, runtime: Runtime | None = None, *, name: str = "") -> None:
        self.url = f"memory:{name}"
        self._runtime = runtime or shared_runtime()
        self._lock = self._runtime.lock()
        self._objects: dict[str, _Stored] = {}

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read bytes of an object."""
        with self._held():
            stored = self._objects.get(path)
        if stored is None:
            return None
        return stored.data[start : None if length is None else start + length]

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read an object with its version."""
        with self._held():
            stored = self._objects.get(path)
        if stored is None:
            return None
        check_length(self, path, len(stored.data), length_max)
        return NotModified() if stored.etag == if_none_match else Versioned(stored.data, stored.etag)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write an object that must not exist."""
        return self._put(path, data, None)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write an object that must have the version ``etag``."""
        return self._put(path, data, etag)

    def _put(self, path: str, data: Buffer, etag: Etag | None) -> PutOutcome:
        data = bytes(data)
        stored = _Stored(data, Etag(hashlib.sha256(data).hexdigest()), wall_us(self._runtime))
        with self._held():
            present = self._objects.get(check_path(path))
            if (None if present is None else present.etag) != etag:
                return Refused()
            self._objects[path] = stored
        return Done(stored.etag)

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object."""
        with self._held():
            stored = self._objects.get(path)
        return None if stored is None else ObjectMeta(path, len(stored.data), stored.last_modified_us)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder."""
        with self._held():
            found = sorted(
                (path, len(stored.data), stored.last_modified_us)
                for path, stored in self._objects.items()
                if path.startswith(folder) and path > start_after
            )
        for path, size, last_modified_us in found:
            yield ObjectMeta(path, size, last_modified_us)

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder."""
        with self._held():
            inside = [path.removeprefix(folder) for path in self._objects if path.startswith(folder)]
        return sorted({f"{folder}{rest.split('/')[0]}/" for rest in inside if "/" in rest})

    def delete(self, path: str) -> None:
        """Remove an object."""
        with self._held():
            self._objects.pop(path, None)

    def _held(self) -> Lock:
        """Return the lock; ClosedError in a fork, which has a copy of the objects that no other process sees."""
        try:
            self._runtime.check_process()
        except ClosedError as error:
            raise ClosedError(
                f"store {self.url}: expected the process that made it, found a fork of it, which would write to a copy"
                f" that no other process sees: use a store that processes share, as file:///…"
            ) from error
        return self._lock
