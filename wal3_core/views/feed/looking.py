"""How one follower looks at its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import ClosedError

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.runtime import Runtime
    from wal3_core.views.feed.tail import Tail

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

    def begin(self, limit_s: float | None, *, at_once: bool) -> None:
        """Begin a call, which looks ``at_once`` to the end, or leaves that to the pauses and returns at ``limit_s``.

        A look does not hold it for long: other threads of the follower may have less time, or it may be closed.
        """
        self._runtime.check_process()
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

    def pause(self, limit_s: float | None) -> bool:
        """Wait until a look finds more than this one has seen; False if it is ``limit_s``."""
        return self._tail.pause(self._seen, limit_s, self)

    def close(self) -> None:
        """End all waits of this follower, now and later: ``begin`` raises ClosedError."""
        self.closed = True
        self._tail.rouse(self)
