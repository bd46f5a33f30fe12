"""The time of a queue: the wall clock, but it never runs backwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.runtime import wall_us
from wal3_core.views.queue.definition import MS_PER_S
from wal3_core.views.queue.held_items import US_PER_MS

if TYPE_CHECKING:
    from wal3_core.runtime import Runtime


class QueueClock:
    """While the wall clock is behind, because it was put back, time goes on from where it was at its usual pace."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._now_ms = 0.0
        self._read_s = runtime.monotonic_s()

    def begin_at(self, now_ms: int) -> None:
        """Go on from a time that the queue has come to by now, unless this clock is ahead of it."""
        # What has passed before belongs to neither: the one who wrote that time may have done so a moment ago.
        self._now_ms = max(self._read_ms(), now_ms)

    def now_ms(self) -> int:
        """Return the time, in whole milliseconds since the Unix epoch."""
        return int(self._read_ms())

    def _read_ms(self) -> float:
        # The wall clock first: what passes between the two would be counted twice.
        wall_ms, read_s = wall_us(self._runtime) / US_PER_MS, self._runtime.monotonic_s()
        passed_s, self._read_s = max(0.0, read_s - self._read_s), read_s
        self._now_ms = max(self._now_ms + passed_s * MS_PER_S, wall_ms)
        return self._now_ms
