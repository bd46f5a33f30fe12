"""Request rates: a token bucket for each client.

Written here, since the kept libraries for it count in windows and bring storage of their own; this is one addition and
one comparison for each request.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.runtime import Runtime

_CLIENTS_MAX = 10_000
_BURST_S = 2.0


class Rates:
    """Lets each client make ``per_s`` requests a second, and two seconds' worth at once; 0: no limit."""

    def __init__(self, per_s: float, runtime: Runtime) -> None:
        self._per_s = per_s
        self._most = max(1.0, per_s * _BURST_S)
        self._runtime = runtime
        # What each has left, and as of when; the one that asked last is last.
        self._left: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: object) -> float:
        """Count a request; return 0, or after how many seconds the client may make it."""
        if not self._per_s:
            return 0.0
        now_s = self._runtime.monotonic_s()
        left, at_s = self._left.pop(client, (self._most, now_s))
        left = min(self._most, left + (now_s - at_s) * self._per_s)
        taken = left >= 1
        self._left[client] = (left - taken, now_s)
        if len(self._left) > _CLIENTS_MAX:
            # Of the others, the one that has been quiet longest: it begins again with a full bucket.
            self._left.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._per_s
