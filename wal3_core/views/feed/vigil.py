"""Waiting at the end of a log: one of its followers in a process keeps watch, the others sleep until it is worth it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from wal3_core.runtime import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.runtime import Runtime

# How long a watcher watches at a time, and how long others sleep, in seconds. One that was interrupted in the wrong
# moment has called no other to watch: those that sleep find it.
WATCH_S_MAX = 1.0
_SLEEP_S_MAX = 4.0


class Follower(Protocol):
    """One that waits, with any number of threads."""

    @property
    def closed(self) -> bool:
        """Whether none of them is to wait any longer."""
        ...


class Call:
    """One call of a follower that waits: it may be ``roused``, to look at what has changed, or ``called_off``."""

    def __init__(self) -> None:
        self.roused = self.called_off = False

    @property
    def closed(self) -> bool:
        """Whether it is to wait no longer."""
        return self.roused or self.called_off


class Vigil:
    """The followers that wait for news of one log: news wakes each of them once; for all else one is awake.

    ``news`` grows with each look that has found something, or failed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._lock = runtime.lock()
        self.news = 0
        self._watcher: Outcome[None] | None = None
        # Whose thread that is.
        self._watching: Follower | None = None
        self._watched_s = 0.0
        # In the order in which they came.
        self._sleepers: dict[Outcome[None], Follower] = {}

    def wait(self, seen: int, limit_s: float | None, watch: Callable[[], None], follower: Follower) -> None:
        """Wait until there is more news than ``seen``, it is ``limit_s`` (monotonic clock), or the follower is closed.

        ``watch`` is called by one of those that wait, again and again; an error of it ends that one's wait.
        """
        own: Outcome[None] = Outcome()
        try:
            while not follower.closed and self._is_on(seen, limit_s):
                if self._watches(own, seen, follower):
                    self._watched_s = self._runtime.monotonic_s()
                    watch()
                else:
                    self._sleep(own, limit_s)
        finally:
            self._leave(own)

    def tell(self) -> None:
        """Wake all: there is news."""
        with self._lock:
            self.news += 1
            woken, self._sleepers = self._sleepers, {}
        for sleeper in woken:
            sleeper.set_or_rouse()

    def rouse(self) -> bool:
        """Wake the sleeping threads of followers that have closed, to see that; True if one of them watches."""
        with self._lock:
            woken = [own for own, each in self._sleepers.items() if each.closed]
            watches = self._watcher is not None and self._watching is not None and self._watching.closed
        for sleeper in woken:
            sleeper.set_or_rouse()
        return watches

    def _is_on(self, seen: int, limit_s: float | None) -> bool:
        return self.news == seen and (limit_s is None or self._runtime.monotonic_s() < limit_s)

    def _watches(self, own: Outcome[None], seen: int, follower: Follower) -> bool:
        """Return whether this one is to watch; else it may sleep."""
        now_s = self._runtime.monotonic_s()
        with self._lock:
            if self._watcher is None or now_s > self._watched_s + _SLEEP_S_MAX:
                self._watcher, self._watching, self._watched_s = own, follower, now_s
            if self._watcher is own:
                self._sleepers.pop(own, None)
                return True
            if self.news == seen and not follower.closed:
                self._sleepers[own] = follower
        return False

    def _sleep(self, own: Outcome[None], limit_s: float | None) -> None:
        left_s = _SLEEP_S_MAX if limit_s is None else min(_SLEEP_S_MAX, limit_s - self._runtime.monotonic_s())
        with contextlib.suppress(TimeoutError):
            self._runtime.wait(own, left_s)

    def _leave(self, own: Outcome[None]) -> None:
        called = None
        with self._lock:
            self._sleepers.pop(own, None)
            if self._watcher is own:
                called, self._watching = next(iter(self._sleepers.items()), (None, None))
                self._watcher = called
                self._watched_s = self._runtime.monotonic_s()
        if called is not None:
            called.set_or_rouse()
