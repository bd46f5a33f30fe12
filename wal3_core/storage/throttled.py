"""A store whose requests wait for their turn, so that they do not exceed what the store can take.

A waiting request occupies the thread of its caller, often one of the shared workers (``wal3_core/workers.py``). Other
stores go on meanwhile: no store gets more than its cap of the workers.
"""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.storage.object_store import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    from wal3_core.storage.throttle import Throttle, ThrottleStats

T = TypeVar("T")

# The objects in one answer to a list request; each answer takes a turn.
_PAGE_OBJECTS = 1000
# How many requests without an answer are remembered, to know their retries.
_UNANSWERED_MAX = 1000


class ThrottledStore:
    """Another store's objects; each request is sent once, when its turn comes.

    GET and HEAD are reads. PUT, DELETE and LIST are writes: S3 publishes no rate for LIST, but says that it is not that
    of GET. A listing of folders takes one turn, however many requests it needs. A throttle that is None limits
    nothing.

    UnavailableError "throttled" when the turn did not come within ``wait_s_max`` seconds: then the request was not
    sent, and a PUT was certainly not applied.
    """

    def __init__(
        self,
        store: ObjectStore,
        runtime: Runtime,
        *,
        writes: Throttle | None,
        reads: Throttle | None,
        wait_s_max: float,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._writes = writes
        self._reads = reads
        self._wait_s_max = wait_s_max
        self._process = os.getpid()
        # Whose next try is a retry: a PUT, or a read.
        self._unanswered: dict[tuple[bool, str], None] = {}

    @property
    def url(self) -> str:
        """The store's URL."""
        return self._store.url

    @property
    def throttles(self) -> dict[str, ThrottleStats]:
        """The figures of each throttle, by the kind of its requests: ``writes`` and ``reads``."""
        return {each.kind: each.stats() for each in (self._writes, self._reads) if each is not None}

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        """Read bytes of an object."""
        return self._read(path, lambda: self._store.read(path, start=start, length=length))

    def get(
        self, path: str, *, if_none_match: Etag | None = None, length_max: int | None = None
    ) -> Versioned | NotModified | None:
        """Read an object with its version."""
        return self._read(path, lambda: self._store.get(path, if_none_match=if_none_match, length_max=length_max))

    def create(self, path: str, data: Buffer) -> PutOutcome:
        """Write an object that must not exist."""
        return self._write(path, lambda: self._store.create(path, data))

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        """Write an object that must have the version ``etag``: ahead of new work, which needs it to finish."""
        return self._write(path, lambda: self._store.replace(path, data, etag), urgent=True)

    def head(self, path: str) -> ObjectMeta | None:
        """Describe an object."""
        return self._read(path, lambda: self._store.head(path))

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder."""
        listing = iter(self._store.list_objects(folder, start_after=start_after))
        more = True
        while more:
            page = self._write(folder, lambda: list(islice(listing, _PAGE_OBJECTS)))
            yield from page
            more = len(page) == _PAGE_OBJECTS

    def list_folders(self, folder: str) -> list[str]:
        """List the folders directly in a folder."""
        return self._write(folder, lambda: self._store.list_folders(folder))

    def delete(self, path: str) -> None:
        """Remove an object."""
        self._write(path, lambda: self._store.delete(path))

    def _read(self, path: str, send: Callable[[], T]) -> T:
        # Also when it shows what became of a PUT.
        urgent = bool(self._unanswered) and (True, path) in self._unanswered
        return self._sent(self._reads, (False, path), send, urgent=urgent)

    def _write(self, path: str, send: Callable[[], T], *, urgent: bool = False) -> T:
        return self._sent(self._writes, (True, path), send, urgent=urgent)

    def _sent(self, throttle: Throttle | None, request: tuple[bool, str], send: Callable[[], T], *, urgent: bool) -> T:
        # A fork inherits the throttle, perhaps with its lock held, but cannot use the store.
        if throttle is None or os.getpid() != self._process:
            return send()
        throttle.enter(self._wait_s_max, urgent=urgent or request in self._unanswered)
        sent_s = self._runtime.monotonic_s()
        try:
            outcome = send()
        except StoreDeniedError:
            raise
        except UnavailableError as error:
            self._failed(throttle, request, sent_s, slow_down=error.slow_down)
            raise
        if isinstance(outcome, Unknown):
            self._failed(throttle, request, sent_s, slow_down=outcome.slow_down)
        else:
            self._unanswered.pop(request, None)
            throttle.answered(sent_s)
        return outcome

    def _failed(self, throttle: Throttle, request: tuple[bool, str], sent_s: float, *, slow_down: bool) -> None:
        if len(self._unanswered) >= _UNANSWERED_MAX:
            # Most were never sent again.
            self._unanswered.clear()
        self._unanswered[request] = None
        if slow_down:
            throttle.slow_down(sent_s)


def throttle_stats(store: ObjectStore) -> dict[str, ThrottleStats]:
    """Return the figures of the throttles of a store from ``open_store``, by kind; none if it has none."""
    return store.throttles if isinstance(store, ThrottledStore) else {}
