"""How fast a sensor goes over all logs: at each tick of a small store, in slices and then a pause for a large one.

Its cursor says only where it is, whatever the number of logs.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from wal3_core.runtime import US_PER_S, shared_runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

# So many logs are all looked at by every tick.
QUICK_LOGS_MAX = 100
# Dagster ends a tick after a minute.
LOGS_PER_TICK_MAX = 2_000
# One log a second on average, and all of them in an hour at the latest.
PERIOD_S_PER_LOG = 1.0
PERIOD_S_MAX = 60 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """When the going-over began, and the last log that it looked at; empty at its begin and at its end.

    ``held`` are logs that it found something about, for which runs are asked for together at its end.
    """

    begun_us: int = 0
    after: str = ""
    held: tuple[str, ...] = ()

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Self:
        """Read what the last tick wrote; an unknown form counts as nothing, so that all logs are looked at."""
        try:
            found = json.loads(cursor or "{}")
            held = tuple(map(str, found.get("held", ())))
            return cls(begun_us=int(found.get("begun_us", 0)), after=str(found.get("after", "")), held=held)
        except (ValueError, TypeError, AttributeError):
            return cls()

    def to_cursor(self) -> str:
        """Format as a sensor's cursor."""
        return json.dumps({"begun_us": self.begun_us, "after": self.after, "held": self.held})

    @property
    def under_way(self) -> bool:
        """Whether only some of the logs have been looked at."""
        return bool(self.after)

    def rests(self, num_logs: int, *, period_s: float = 0.0) -> bool:
        """Return whether the next going-over is not due yet; it begins ``period_s`` after the last one, or later."""
        if self.under_way:
            return False
        if num_logs > QUICK_LOGS_MAX:
            period_s = max(period_s, min(PERIOD_S_MAX, num_logs * PERIOD_S_PER_LOG))
        return 0 <= shared_runtime().now_us() - self.begun_us < period_s * US_PER_S

    def step(self, logs: Sequence[str]) -> tuple[list[str], Pace]:
        """Return the logs to look at now, of all in their order, and the pace after that."""
        begun = self if self.under_way else replace(self, begun_us=shared_runtime().now_us())
        start = bisect_right(logs, self.after) if self.under_way else 0
        some = list(logs[start : start + LOGS_PER_TICK_MAX])
        more = start + len(some) < len(logs)
        return some, replace(begun, after=some[-1] if more else "", held=())

    def resting(self, num_logs: int) -> str:
        """Say why a tick does nothing."""
        return f"{num_logs} logs, the next look at all of them is not due yet"
