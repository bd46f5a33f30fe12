"""How one follower looks at its log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.runtime import Runtime
    from wal3_core.views.feed.tail import Tail

# How long one of several threads waits for a look, in seconds; then it waits as the others do, and the look goes on.
_SHARED_S_MAX = 0.25


class Looking:
    """What one follower has seen of its log, and how new it wants to see it.

    ``limit_s``, by the monotonic clock, is how long it waits for a look: then TimeIsOverError.
    """

    def __init__(self, tail: Tail, runtime: Runtime) -> None:
        self._tail = tail
        self._runtime = runtime
        self._since_s = 0.0
        self.limit_s: float | None = None
        # The tail's news when this one has last looked.
        self._seen = -1

    def begin(self, limit_s: float | None, *, at_once: bool, shared: bool = False) -> None:
        """Begin a call, which looks ``at_once`` to the end, or leaves that to the pauses and returns at ``limit_s``.

        If the follower is ``shared`` by threads, others may have less time, and wait while this one reads.
        """
        self._runtime.check_process()
        self._since_s = self._tail.since_s(at_once=at_once)
        slice_s = self._runtime.monotonic_s() + _SHARED_S_MAX if shared else None
        self.limit_s = None if at_once else min((each for each in (limit_s, slice_s) if each is not None), default=None)

    def manifest(self, offset: int | None) -> Manifest:
        """Return a manifest for going on from an offset."""
        # As of now, in case that the look fails.
        self._seen = self._tail.news
        manifest, self._seen = self._tail.onwards(offset, self._since_s, self.limit_s)
        return manifest

    def pause(self, limit_s: float | None) -> bool:
        """Wait until a look finds more than this one has seen; False if it is ``limit_s``."""
        return self._tail.pause(self._seen, limit_s)
