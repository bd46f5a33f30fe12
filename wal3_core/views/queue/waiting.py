"""Operations that wait for their turn, and calls of dequeue that wait for an item."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wal3_core.errors import ClosedError, OverloadedError
from wal3_core.runtime import CancellableOutcome, reentered
from wal3_core.views.queue.operations import Enqueue, Requeue

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from wal3_core.runtime import Runtime
    from wal3_core.views.queue.operations import Dequeue, Operation
    from wal3_core.views.queue.queue_state import QueueState

# The memory of an operation, besides its values.
_OPERATION_BYTES = 512
# The longest single wait: a topic that was not used for longer is forgotten.
_SLICE_S = 10.0
# The pause between two passes over all who wait, whether any has waited enough or not.
_SCAN_S = 1.0


@dataclass(frozen=True, slots=True)
class Query:
    """A read of the queue; its result is given when all that it shows is durable."""

    read: Callable[[QueueState, int], Any]


@dataclass(frozen=True, slots=True)
class QueuedCall:
    """An operation and the future of its result."""

    operation: Operation | Query
    future: Future[Any]
    num_bytes: int
    # The state of one that goes on for several turns: what it has done by earlier ones, and the time that it sets.
    num_removed: int = 0
    at_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Waiter:
    """A dequeue for which there was no item; ``until_s`` is by the monotonic clock, ``number`` its place."""

    operation: Dequeue
    future: Future[Any]
    until_s: float
    number: int


class Line:
    """The calls of dequeue that wait for an item, in their order."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._waiters: deque[Waiter] = deque()
        # The earliest end of a wait.
        self._until_s = math.inf
        # The time of the last pass over all, which takes long of many.
        self._scanned_s = 0.0
        self._num_joined = 0
        # Those that have left in the turn that is under way.
        self._left: list[Waiter] = []

    def __len__(self) -> int:
        """Return how many wait; those who gave up leave with the next turn."""
        return sum(not each.future.cancelled() for each in self._waiters)

    def join(self, operation: Dequeue, future: Future[Any]) -> None:
        """Add a call; its time begins now."""
        until_s = self._runtime.monotonic_s() + operation.timeout_s
        self._num_joined += 1
        self._waiters.append(Waiter(operation, future, until_s, self._num_joined))
        self._until_s = min(self._until_s, until_s)

    def begin_turn(self) -> None:
        """Forget who has left by now."""
        self._left = []

    def undo_turn(self) -> None:
        """Let those wait on, in their places, who have left in this turn."""
        self._waiters = deque(sorted([*self._left, *self._waiters], key=lambda each: each.number))
        self._until_s = min((each.until_s for each in self._waiters), default=math.inf)
        self._left = []

    def first(self) -> Waiter | None:
        """Return who is next; those who gave up leave."""
        while self._waiters and self._waiters[0].future.cancelled():
            self._waiters.popleft()
        return self._waiters[0] if self._waiters else None

    def leave(self) -> None:
        """Take the first one out."""
        self._left.append(self._waiters.popleft())

    def futures(self) -> set[Future[Any]]:
        """Return those of all who wait."""
        return {each.future for each in self._waiters}

    def left_s(self) -> float | None:
        """Return how long until one may have waited enough; None when there is none."""
        return self._until_s - self._runtime.monotonic_s() if self._waiters else None

    def over(self, *, last: bool) -> list[Waiter]:
        """Take those out who have waited enough, with the ``last`` turn all, and now and then those who gave up."""
        now_s = self._runtime.monotonic_s()
        if not last and now_s < min(self._until_s, self._scanned_s + _SCAN_S):
            return []
        over = [each for each in self._waiters if last or each.until_s <= now_s or each.future.cancelled()]
        if over:
            gone = {id(each) for each in over}
            self._waiters = deque(each for each in self._waiters if id(each) not in gone)
            self._left += over
        self._until_s = min((each.until_s for each in self._waiters), default=math.inf)
        self._scanned_s = now_s
        return over


class Inbox:
    """What callers ask for, in order. ``bytes_max`` bounds what waits, but for what ``taken_here`` is true of.

    A callback that asks for more runs where all is taken from here: it would wait for itself.
    """

    def __init__(self, bytes_max: int, url: str, runtime: Runtime, taken_here: Callable[[], bool]) -> None:
        self._taken_here = taken_here
        self._bytes_max = bytes_max
        self._url = url
        self._runtime = runtime
        self._lock = runtime.lock()
        self._calls: deque[QueuedCall] = deque()
        self._num_bytes = 0
        self._closed: Exception | None = None
        # The topics that the broker awaits, and that callers await when there is no room.
        name = f"queue {url} {runtime.token()}"
        self._news, self._room = f"{name} news", f"{name} room"

    @property
    def closed(self) -> bool:
        """Whether no more operations are taken."""
        return self._closed is not None

    def check_reentry(self) -> None:
        """Refuse a call that interrupts another one of the same thread, and could only wait for it."""
        self._runtime.check_process()
        if self._lock.owned():
            raise reentered(f"queue {self._url}")

    def put(self, operation: Operation | Query, timeout_s: float | None) -> Future[Any]:
        """Add an operation; block while too many bytes wait, ``timeout_s`` seconds at most: then OverloadedError."""
        self.check_reentry()
        call = QueuedCall(operation, CancellableOutcome(), _size(operation))
        since_s = self._runtime.monotonic_s()
        version = -1
        while not self._add(call):
            left_s = _SLICE_S
            if timeout_s is not None:
                left_s = min(left_s, since_s + timeout_s - self._runtime.monotonic_s())
            if left_s <= 0:
                message = f"queue {self._url}: expected at most {self._bytes_max} bytes to wait, found more"
                raise OverloadedError(message)
            # The first wait only learns the version.
            version = self._runtime.await_topic(self._room, version, 0.0 if version < 0 else left_s)
        self._runtime.publish(self._news)
        return call.future

    def _add(self, call: QueuedCall) -> bool:
        with self._lock:
            if self._closed is not None:
                # Each frame of an error that is raised again and again would be kept.
                raise self._closed.with_traceback(None)
            is_full = self._calls and self._num_bytes + call.num_bytes > self._bytes_max
            if is_full and not self._taken_here():
                return False
            self._calls.append(call)
            self._num_bytes += call.num_bytes
            return True

    def take(self, timeout_s: float | None) -> list[QueuedCall]:
        """Return what waits, after at most ``timeout_s`` seconds; at once when it is closed."""
        version = self._runtime.await_topic(self._news, -1, 0.0)
        calls = self._take()
        if calls or self.closed or timeout_s == 0:
            return calls
        self._runtime.await_topic(self._news, version, _SLICE_S if timeout_s is None else timeout_s)
        return self._take()

    def _take(self) -> list[QueuedCall]:
        with self._lock:
            calls = list(self._calls)
            self._calls.clear()
            return calls

    def put_back(self, calls: list[QueuedCall]) -> None:
        """Return calls that had no room in this turn, to be the first of the next one."""
        with self._lock:
            self._calls.extendleft(reversed(calls))

    def done(self, num_bytes: int) -> None:
        """Make room for others."""
        with self._lock:
            self._num_bytes -= num_bytes
        self._runtime.publish(self._room)

    def wake(self) -> None:
        """End the broker's sleep."""
        self._runtime.publish(self._news)

    def close(self, error: Exception | None = None) -> None:
        """Take no more operations; ``error`` is what callers get from now on."""
        with self._lock:
            if self._closed is None or error is not None:
                self._closed = error or ClosedError(f"queue {self._url}: expected an open queue, found it closed")
        self._runtime.publish(self._news)
        self._runtime.publish(self._room)


def _size(operation: Operation | Query) -> int:
    match operation:
        case Enqueue(items=items):
            return sum(_OPERATION_BYTES + len(item.value) for item in items)
        case Requeue(value=bytes() as value):
            return _OPERATION_BYTES + len(value)
        case _:
            return _OPERATION_BYTES
