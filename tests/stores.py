"""Wrappers of a real store: they count requests, make them fail, or check their bounds."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.format.paths import LogId, life_folder
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import (
    Buffer,
    Done,
    Etag,
    NotModified,
    ObjectMeta,
    ObjectStore,
    PutOutcome,
    Refused,
    Unknown,
    Versioned,
    log_store,
)

# The life of a made-up log.
LOG_ID = LogId("1d" * 16)


def content(store: ObjectStore) -> dict[str, bytes | None]:
    """All objects of a store, by path."""
    return {meta.path: store.read(meta.path) for meta in store.list_objects("")}


def life_store(store: ObjectStore, log: str) -> ObjectStore:
    """Return the store of the current life of a log; which life that is, is found at first use."""
    return ManifestStore(log_store(store, log), shared_runtime()).objects


def life_path(store: ObjectStore, log: str, path: str) -> str:
    """Return the path in the whole store of an object in the current life of a log."""
    return f"{log}/{life_folder(ManifestStore(log_store(store, log), shared_runtime()).log_id())}{path}"


class CountingStore:
    """Counts requests by kind, the bytes that reads gave, and the bytes written to each path's first part."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.bytes_read = 0

    @property
    def url(self) -> str:
        return self._inner.url

    def _count(self, kind: str, path: str = "", num_bytes: int = 0) -> None:
        with self._lock:
            self.requests[kind] += 1
            folder = next((part for part in path.split("/") if part in {"manifest", "snapshot", "log", "cursor"}), "")
            self.written[folder] += num_bytes

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        self._count("read")
        found = self._inner.read(path, start=start, length=length)
        with self._lock:
            self.bytes_read += len(found or b"")
        return found

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        self._count("get")
        return self._inner.get(path, if_none_match=if_none_match, length_max=length_max)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        self._count("create", path, len(data))
        return self._inner.create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        self._count("replace", path, len(data))
        return self._inner.replace(path, data, etag)

    def head(self, path: str) -> ObjectMeta | None:
        self._count("head")
        return self._inner.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        self._count("list")
        return self._inner.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        self._count("list")
        return self._inner.list_folders(folder)

    def delete(self, path: str) -> None:
        self._count("delete")
        self._inner.delete(path)


# Faults of a PUT: applied without an answer; neither applied nor answered; applied later; conflict; refused as the
# repetition of one that is applied before or later; no access; unavailable.
Fault = Literal[
    "applied-unknown", "unknown", "late", "conflict", "applied-refused", "late-refused", "denied", "unavailable"
]


@dataclass
class _Plan:
    matches: Callable[[str, str], bool]
    fault: Fault
    times: int


@dataclass
class FaultyStore:
    """Passes every request on, except those that a test has asked to fail."""

    inner: ObjectStore
    plans: list[_Plan] = field(default_factory=list)
    late: list[Callable[[], object]] = field(default_factory=list)
    before: Callable[[str, str], None] = field(default=lambda _kind, _path: None)
    fired: Counter[str] = field(default_factory=Counter)

    @property
    def url(self) -> str:
        return self.inner.url

    def fail(self, kind: str, path_part: str, fault: Fault, *, times: int = 1) -> None:
        """Fail the next ``times`` requests of a kind whose path contains ``path_part``."""
        self.plans.append(_Plan(lambda k, p: k == kind and path_part in p, fault, times))

    def heal(self) -> None:
        self.plans.clear()

    def arrive(self) -> list[object]:
        """Apply the late requests, as a network may do minutes later."""
        held, self.late = self.late, []
        return [apply() for apply in held]

    def _fault(self, kind: str, path: str) -> Fault | None:
        self.before(kind, path)
        for plan in self.plans:
            if plan.times and plan.matches(kind, path):
                plan.times -= 1
                self.fired[plan.fault] += 1
                return plan.fault
        return None

    def _put(self, kind: str, path: str, apply: Callable[[], PutOutcome]) -> PutOutcome:
        match self._fault(kind, path):
            case None:
                return apply()
            case "applied-unknown" | "applied-refused" as fault:
                apply()
                return Unknown("the reply was dropped") if fault == "applied-unknown" else Refused()
            case "unknown":
                return Unknown("the request was dropped")
            case "late" | "late-refused" as fault:
                self.late.append(apply)
                return Unknown("timed out") if fault == "late" else Refused()
            case "conflict":
                return Refused()
            case "denied":
                raise StoreDeniedError(f"{path}: expected access, found 403")
            case "unavailable":
                raise UnavailableError(f"{path}: expected an answer, found none")

    def _ask(self, kind: str, path: str) -> None:
        match self._fault(kind, path):
            case None:
                return
            case "denied":
                raise StoreDeniedError(f"{path}: expected access, found 403")
            case _:
                raise UnavailableError(f"{path}: expected an answer, found none")

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        self._ask("read", path)
        return self.inner.read(path, start=start, length=length)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        self._ask("get", path)
        return self.inner.get(path, if_none_match=if_none_match, length_max=length_max)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        kept = bytes(data)
        return self._put("create", path, lambda: self.inner.create(path, kept))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        kept = bytes(data)
        return self._put("replace", path, lambda: self.inner.replace(path, kept, etag))

    def head(self, path: str) -> ObjectMeta | None:
        self._ask("head", path)
        return self.inner.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        self._ask("list", folder)
        return self.inner.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        self._ask("list", folder)
        return self.inner.list_folders(folder)

    def delete(self, path: str) -> None:
        fault = self._fault("delete", path)
        if fault == "late":
            self.late.append(lambda: self.inner.delete(path))
        if fault is not None:
            raise UnavailableError(f"{path}: expected an answer, found none")
        self.inner.delete(path)


@dataclass
class IgnoringStore(FaultyStore):
    """A store that ignores the conditions of PUTs, as some S3-compatible servers do."""

    ignored: frozenset[str] = frozenset({"create", "replace"})

    def create(self, path: str, data: Buffer) -> PutOutcome:
        if "create" in self.ignored:
            self.inner.delete(path)
        return self.inner.create(path, bytes(data))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        if "replace" not in self.ignored:
            return self.inner.replace(path, bytes(data), etag)
        self.inner.delete(path)
        return self.inner.create(path, bytes(data))


def damage(store: ObjectStore, path: str, at: int = -1) -> None:
    """Flip one bit of a stored object, by default in the last byte, which every format depends on."""
    data = store.read(path)
    assert data is not None
    store.delete(path)
    flipped = bytearray(data)
    flipped[at] ^= 1
    written = store.create(path, bytes(flipped))
    assert isinstance(written, Done)


class BoundedStore(CountingStore):
    """Requires a bound on every read; ``asked_max`` is the largest bound so far."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.asked_max = 0

    def _ask(self, path: str, length: int | None) -> None:
        assert length is not None, f"{path}: read without a bound"
        self.asked_max = max(self.asked_max, length)

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        self._ask(path, length)
        return super().read(path, start=start, length=length)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        self._ask(path, length_max)
        return super().get(path, if_none_match=if_none_match, length_max=length_max)


@dataclass
class OvertakenStore(FaultyStore):
    """Applies the first PUT of a document without answering it, and calls ``overtake`` before it returns."""

    path: str = ""
    overtake: Callable[[], object] = lambda: None
    overtaken: bool = False

    def create(self, path: str, data: bytes) -> PutOutcome:
        return self._silent(path, data, self.inner.create(path, data))

    def replace(self, path: str, data: bytes, etag: Etag) -> PutOutcome:
        return self._silent(path, data, self.inner.replace(path, data, etag))

    def _silent(self, path: str, data: bytes, outcome: PutOutcome) -> PutOutcome:
        # A vacancy is no log yet, so it cannot be overtaken.
        if self.overtaken or path != self.path or b'"vacant"' in data or not isinstance(outcome, Done):
            return outcome
        self.overtaken = True
        self.overtake()
        return Unknown("the reply was dropped")


def age_out(store: ObjectStore, log: str) -> None:
    """Let age alone decide on a log, so that a plan takes all of it: without a consumer's cursor, it is refused."""
    PolicyStore(store, log).change(lambda policy: replace(policy, retention_s=0, without_cursors=True))
