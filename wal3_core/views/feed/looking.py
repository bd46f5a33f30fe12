"""How one follower looks at its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.manifest import Manifest
    from wal3_core.runtime import Runtime
    from wal3_core.views.feed.tail import Tail
    from wal3_core.views.feed.vigil import Call

T = TypeVar("T")

# How long a thread waits for a look at a time, in seconds.
_LOOK_S_MAX = 0.25


class Looking:
    """What one follower has seen of its log, and how new it wants to see it.

    ``limit_s``, by the monotonic clock, is how long it waits for a look: then TimeIsOverError.
    """

    def __init__(self, tail: Tail, runtime: Runtime) -> None:
        self._tail = tail
        self._runtime = runtime
        self._since_s = 0.0
        self.limit_s: float | None = None
        self.closed = False
        # The tail's news when this one has last looked.
        self._seen = -1
        self._calls: set[Call] = set()

    def called(self, call: Call, work: Callable[[Call], T]) -> T:
        """Do the work of a call that may wait."""
        self._calls.add(call)
        try:
            return work(call)
        finally:
            self._calls.discard(call)

    def begin(self, limit_s: float | None, call: Call, *, at_once: bool) -> None:
        """Begin a round of a call: it looks ``at_once`` to the end, or leaves that to pauses, and ends at ``limit_s``.

        A look does not hold it for long: other threads of the follower may have less time, or it may be closed.
        """
        self._runtime.check_process()
        # Before what has changed is looked at.
        call.roused = False
        if self.closed:
            raise ClosedError(f"feed {self._tail.url}: expected a follower that is open, found it closed")
        self._since_s = self._tail.since_s(at_once=at_once)
        slice_s = self._runtime.monotonic_s() + _LOOK_S_MAX
        self.limit_s = None if at_once else min(slice_s, slice_s if limit_s is None else limit_s)

    def manifest(self, offset: int | None) -> Manifest:
        """Return a manifest for going on from an offset."""
        # As of now, in case that the look fails.
        self._seen = self._tail.news
        manifest, self._seen = self._tail.onwards(offset, self._since_s, self.limit_s)
        return manifest

    def is_over(self, limit_s: float | None) -> bool:
        """Tell whether it is ``limit_s``, by the monotonic clock."""
        return limit_s is not None and self._runtime.monotonic_s() >= limit_s

    def pause(self, limit_s: float | None, call: Call) -> bool:
        """Wait until a look finds more than this one has seen, or the call is roused; False if it is ``limit_s``."""
        return self._tail.pause(self._seen, limit_s, call)

    def rouse(self) -> None:
        """Let all calls of this follower look at what has changed."""
        for call in tuple(self._calls):
            call.roused = True
        self._tail.rouse()

    def call_off(self, call: Call) -> None:
        """End the wait of one call, whose caller is gone."""
        call.called_off = True
        self._tail.rouse()

    def close(self) -> None:
        """End all waits of this follower, now and later: ``begin`` raises ClosedError."""
        self.closed = True
        self.rouse()
