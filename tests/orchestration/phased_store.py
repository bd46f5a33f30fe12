"""A store that stops a run at one of its writes: the log's name says in which phase."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from wal3_core.store.object_store import Buffer, Etag, NotModified, ObjectMeta, ObjectStore, PutOutcome, Versioned

GATES_VARIABLE = "WAL3_TEST_GATES"
WAIT_S_MAX = 600
_CREATED = {"/gc/GARBAGE": "document", "/snapshot/": "uploaded", "/compaction/": "merged"}


class PhasedStore:
    """Waits before or after one write to a log, until its gate is open.

    The log's name, ``<gate>/<phase>``, says which: ``before-`` or ``after-``, then ``document``,
    ``announced``, ``cut`` (the manifest pruned), ``marked`` (the document says so), ``deleted`` (half of
    it), ``removed`` (the document), ``uploaded`` (a snapshot), ``swapped`` (the manifest has it), ``merged``
    (the record of a key compaction), ``installed`` (the manifest has it). A gate is a folder below the one
    that WAL3_TEST_GATES names, open when it holds a file ``open``; a waiting process creates a file there,
    ``<phase>.<process>``.
    """

    def __init__(self, inner: ObjectStore, gates: Path) -> None:
        self._inner = inner
        self._gates = gates
        self._seen: list[str] = []
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return self._inner.url

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        return self._inner.read(path, start=start, length=length)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        return self._inner.get(path, if_none_match=if_none_match, length_max=length_max)

    def head(self, path: str) -> ObjectMeta | None:
        return self._inner.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        return self._inner.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        return self._inner.list_folders(folder)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        kind = next((kind for part, kind in _CREATED.items() if part in path), "")
        self._stop("before", kind, path)
        outcome = self._inner.create(path, data)
        self._stop("after", kind, path)
        return outcome

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        kind = self._replaced(path)
        self._stop("before", kind, path)
        outcome = self._inner.replace(path, data, etag)
        self._stop("after", kind, path)
        return outcome

    def delete(self, path: str) -> None:
        kind = self._deleted(path)
        self._stop("before", kind, path)
        self._inner.delete(path)
        self._stop("after", kind, path)

    def _replaced(self, path: str) -> str:
        if "/gc/GARBAGE" in path:
            return "marked"
        if "/manifest/" not in path:
            return ""
        for kind in ("swapped", "installed"):
            if f"-{kind}/" in path:
                return kind
        return ("announced", "cut", "")[min(2, self._count("/manifest/", path) - 1)]

    def _deleted(self, path: str) -> str:
        if "/gc/GARBAGE" in path:
            return "removed"
        # Several are deleted at once: exactly one of them is the second.
        return "deleted" if path.endswith(".parquet") and self._count(".parquet", path) == 2 else ""

    def _count(self, part: str, path: str) -> int:
        with self._lock:
            self._seen.append(path)
            return sum(part in each for each in self._seen)

    def _stop(self, when: str, kind: str, path: str) -> None:
        gate, _, inside = path.partition("/")
        phase = inside.partition("/")[0]
        if self._stopped or phase != f"{when}-{kind}":
            return
        self._stopped = True
        (self._gates / gate / f"{phase}.{os.getpid()}").touch()
        deadline_s = time.monotonic() + WAIT_S_MAX
        while not (self._gates / gate / "open").exists():
            if time.monotonic() > deadline_s:
                # The process that opens the gate is gone.
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.02)


def wait_at_gates(store: ObjectStore) -> ObjectStore:
    """Make a process wait at gates if its environment names them."""
    gates = os.environ.get(GATES_VARIABLE)
    return store if gates is None else PhasedStore(store, Path(gates))
