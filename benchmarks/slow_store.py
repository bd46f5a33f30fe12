"""A store in memory that answers as slowly as S3, in real or in simulated time."""

from __future__ import annotations

import random
import time
import uuid
from collections import Counter
from collections.abc import Iterator

from wal3_core import MemoryStore
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import Buffer, Etag, NotModified, ObjectMeta, PutOutcome, Versioned

# Medians that Amazon publishes, or that are measured from one region: PUT, conditional PUT, GET.
PUT_S, CAS_S, GET_S = 0.028, 0.058, 0.020


class SlowStore:
    """A store in memory that answers as slowly as S3. ``spread`` is the sigma of log-normal latencies.

    With a ``runtime`` its answers take that runtime's time. With ``memory``, its objects are those of another one.
    """

    def __init__(
        self,
        spread: float = 0.0,
        *,
        runtime: Runtime | None = None,
        seed: int = 0,
        memory: MemoryStore | None = None,
    ) -> None:
        self._inner = memory or MemoryStore(runtime or shared_runtime(), name=uuid.uuid4().hex)
        self._spread = spread
        self._sleep = runtime.sleep if runtime else time.sleep
        self._random = random.Random(seed)
        self.requests: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self._inner.url

    def _answer(self, kind: str, path: str, seconds: float) -> None:
        self.requests[f"{kind} {'dirty' if path.startswith('dirty/') else 'logs'}"] += 1
        self._sleep(seconds * (self._random.lognormvariate(0, self._spread) if self._spread else 1))

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        self._answer("GET", path, GET_S)
        return self._inner.read(path, start=start, length=length)

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        self._answer("GET", path, GET_S)
        return self._inner.get(path, if_none_match=if_none_match, length_max=length_max)

    def create(self, path: str, data: Buffer) -> PutOutcome:
        self._answer("PUT", path, PUT_S)
        return self._inner.create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        self._answer("CAS", path, CAS_S)
        return self._inner.replace(path, data, etag)

    def head(self, path: str) -> ObjectMeta | None:
        self._answer("GET", path, GET_S)
        return self._inner.head(path)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        return self._inner.list_objects(folder, start_after=start_after)

    def list_folders(self, folder: str) -> list[str]:
        return self._inner.list_folders(folder)

    def delete(self, path: str) -> None:
        self._inner.delete(path)
