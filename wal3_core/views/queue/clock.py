"""The time of a queue: the wall clock, but it never runs backwards, nor far ahead of the store's clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.runtime import wall_us
from wal3_core.views.queue.definition import MS_PER_S
from wal3_core.views.queue.held_items import US_PER_MS

if TYPE_CHECKING:
    from wal3_core.runtime import Runtime

# How far the wall clock may be ahead of what the store has confirmed before the store is asked, and how often it is.
_DOUBT_MS = 1000
_ASKED_AGAIN_S = 60.0


class QueueClock:
    """The time goes on with the monotonic clock, and follows the wall clock forward as far as the store confirms it.

    The store does by the log's time, which is never far ahead of it. ``jumped_ms`` is by how much more has passed than
    by the monotonic clock: leases, which count by that one, do not end by it.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._now_ms = self.jumped_ms = 0.0
        self._read_s = runtime.monotonic_s()
        # The latest time that was confirmed, and when.
        self._confirmed_ms, self._confirmed_s = 0.0, self._read_s
        self._asked_s = -_ASKED_AGAIN_S
        self._begun = False

    def begin_at(self, now_ms: int) -> None:
        """Go on from a time that the queue has come to by now, unless this clock is ahead of it."""
        # What has passed before belongs to neither: the one who wrote that time may have done so a moment ago.
        self._now_ms = max(self._read_ms(), now_ms)
        if not self._begun:
            self._begun, self.jumped_ms = True, 0.0

    def bounded_ms(self) -> int:
        """Return the wall clock's time, or the confirmed one if that is earlier, wherever the queue's is."""
        return int(min(wall_us(self._runtime) / US_PER_MS, self._limit_ms(self._runtime.monotonic_s())))

    def go_back(self, now_ms: int) -> None:
        """Go on from an earlier time."""
        self._now_ms = now_ms

    def confirm(self, log_us: int) -> None:
        """Take note of the log's time, of a moment ago."""
        now_s = self._runtime.monotonic_s()
        if log_us / US_PER_MS > self._limit_ms(now_s):
            self._confirmed_ms, self._confirmed_s = log_us / US_PER_MS, now_s

    def asks(self) -> bool:
        """Whether an append is to confirm the wall clock, which is far ahead; once a minute at most."""
        wall_ms, read_s = wall_us(self._runtime) / US_PER_MS, self._runtime.monotonic_s()
        ahead_ms = wall_ms - max(self._limit_ms(read_s), self._now_ms)
        if ahead_ms <= _DOUBT_MS or read_s - self._asked_s < _ASKED_AGAIN_S:
            return False
        self._asked_s = read_s
        return True

    def now_ms(self) -> int:
        """Return the time, in whole milliseconds since the Unix epoch."""
        return int(self._read_ms())

    def _limit_ms(self, read_s: float) -> float:
        return self._confirmed_ms + (read_s - self._confirmed_s) * MS_PER_S

    def _read_ms(self) -> float:
        # The wall clock first: what passes between the two would be counted twice.
        wall_ms, read_s = wall_us(self._runtime) / US_PER_MS, self._runtime.monotonic_s()
        passed_s, self._read_s = max(0.0, read_s - self._read_s), read_s
        self._now_ms += passed_s * MS_PER_S
        gained_ms = max(0.0, min(wall_ms, self._limit_ms(read_s)) - self._now_ms)
        self._now_ms, self.jumped_ms = self._now_ms + gained_ms, self.jumped_ms + gained_ms
        return self._now_ms
