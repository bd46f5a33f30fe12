"""What a server has to do at a time, and how often each client may ask."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.queue_server.server_options import QueueServerOptions
    from wal3_core.runtime import Runtime

_CLIENTS_MAX = 10_000
_BURST_S = 2.0


class Load:
    """The requests under way, those of them that wait for an item, and the bytes of bodies."""

    def __init__(self, options: QueueServerOptions) -> None:
        self.options = options
        self.num_requests = 0
        self.num_waiting = 0
        self.num_bytes = 0


class Ticket:
    """One request under way, from now on until it is ``done``."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.num_bytes = 0
        load.num_requests += 1

    def add(self, num_bytes: int) -> None:
        """Count bytes of its body."""
        self.num_bytes += num_bytes
        self._load.num_bytes += num_bytes

    @contextmanager
    def waiting(self) -> Iterator[bool]:
        """Count it among those that wait, with no body, and not among the others; False: as many wait as may."""
        load = self._load
        if load.num_waiting >= load.options.waiting_max:
            yield False
            return
        self.add(-self.num_bytes)
        load.num_requests -= 1
        load.num_waiting += 1
        try:
            yield True
        finally:
            load.num_waiting -= 1
            load.num_requests += 1

    def done(self) -> None:
        """Count it no more."""
        self.add(-self.num_bytes)
        self._load.num_requests -= 1


class Rates:
    """A token bucket for each client: libraries for it count in windows, and bring storage of their own.

    Lets each client make ``per_s`` requests a second, and two seconds' worth at once; 0: no limit.
    """

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
