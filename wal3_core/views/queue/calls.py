"""The calls of a queue's callers: those that wait for their turn, or for an item, and their answers.

Answers are given when the turn is durable, and, of items that were handed out, when their values were read.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, InvalidStateError
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wal3_core.errors import ClosedError, CorruptError, GarbageCollectedError, LogError, MissingError, OverloadedError
from wal3_core.format.manifest import Manifest
from wal3_core.options import Limits
from wal3_core.runtime import CancellableOutcome, Runtime, reentered
from wal3_core.runtime.loggers import QUEUE
from wal3_core.views.queue.encoding import value_header
from wal3_core.views.queue.operations import Dequeue, Enqueue, GiveBack, Leased, Operation, Peeked, Requeue
from wal3_core.views.queue.queue_state import US_PER_MS, Lease, QueueState, Row, time_us

if TYPE_CHECKING:
    from wal3_core.log.read.reader import LogReader

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


_TRIES_MAX = 8
# Python's memory for a body, besides its bytes.
_BODY_BYTES = 50


class _CachedRecords:
    """The bodies of adjacent records, by their rising offsets; all that the log has from ``start`` to ``limit``."""

    __slots__ = ("bodies", "limit", "num_bytes", "offsets", "start")

    def __init__(self, start: int, limit: int, offsets: Sequence[int], bodies: Sequence[bytes | None]) -> None:
        self.start, self.limit = start, limit
        self.offsets, self.bodies = offsets, bodies
        self.num_bytes = sum(len(body or b"") + _BODY_BYTES for body in bodies)

    def body(self, offset: int) -> bytes | None:
        index = bisect.bisect_left(self.offsets, offset)
        found = index < len(self.offsets) and self.offsets[index] == offset
        return self.bodies[index] if found else None


class ValueCache:
    """The values of one queue. Safe to share between threads."""

    def __init__(self, reader: LogReader, bytes_max: int, runtime: Runtime, url: str) -> None:
        self._reader = reader
        self._bytes_max = bytes_max
        self._url = url
        self._lock = runtime.lock()
        self._parts: OrderedDict[int, _CachedRecords] = OrderedDict()
        self._starts: list[int] = []
        self._num_bytes = 0
        self._manifest: Manifest | None = None

    def keep(self, start: int, bodies: Sequence[bytes | None]) -> None:
        """Remember records that were just appended."""
        self._keep(_CachedRecords(start, start + len(bodies), range(start, start + len(bodies)), bodies))

    def _keep(self, part: _CachedRecords) -> None:
        if part.num_bytes > self._bytes_max:
            return
        with self._lock:
            # Those that lie in it, as it was merged from several fragments, would hide it.
            begin, end = (bisect.bisect_left(self._starts, edge) for edge in (part.start, part.limit))
            for start in self._starts[begin:end]:
                self._num_bytes -= self._parts.pop(start).num_bytes
            self._starts[begin:end] = [part.start]
            self._parts[part.start] = part
            self._num_bytes += part.num_bytes
            while self._num_bytes > self._bytes_max:
                start, oldest = self._parts.popitem(last=False)
                del self._starts[bisect.bisect_left(self._starts, start)]
                self._num_bytes -= oldest.num_bytes

    def _known(self, offset: int) -> _CachedRecords | None:
        with self._lock:
            index = bisect.bisect_right(self._starts, offset) - 1
            part = self._parts[self._starts[index]] if index >= 0 else None
            if part is None or offset >= part.limit:
                return None
            self._parts.move_to_end(part.start)
            return part

    def has_all(self, rows: Iterable[Row]) -> bool:
        """Tell whether the values of items are in memory."""
        return all(self._known(row.offset) is not None for row in rows)

    def read_ahead(self, rows: Iterable[Row]) -> None:
        """Load the values of items that are not in memory, in their order, as many as may stay there."""
        left, wanted = self._bytes_max, []
        for row in rows:
            left -= row.length + _BODY_BYTES
            if left < 0:
                break
            wanted.append(row.offset)
        for _ in self._parts_of(sorted(wanted)):
            pass

    def read(self, rows: Sequence[Row], created_ms: int) -> list[bytes]:
        """Return the values of items, in their order; CorruptError when a record is not theirs."""
        found: dict[int, bytes] = {}
        in_order = sorted(rows, key=lambda row: row.offset)
        for row, part in zip(in_order, self._parts_of(row.offset for row in in_order), strict=True):
            what = f"queue {self._url}: item {row.id}"
            body = part.body(row.offset)
            if body is None:
                raise CorruptError(f"{what}: expected its value at offset {row.offset}, found none")
            value = body[value_header(body, created_ms, what).length :]
            if len(value) != row.length:
                raise CorruptError(f"{what}: expected a value of {row.length} bytes, found {len(value)}")
            found[row.id] = value
        return [found[row.id] for row in rows]

    def _parts_of(self, offsets: Iterable[int]) -> Iterator[_CachedRecords]:
        """Yield the part that has each of some rising offsets; one that is too large to be kept is read once."""
        part: _CachedRecords | None = None
        for offset in offsets:
            if part is None or not part.start <= offset < part.limit:
                part = self._known(offset) or self._load(offset)
            yield part

    def _load(self, offset: int) -> _CachedRecords:
        """Read the fragment that has a record; it may have been replaced, by key compaction, or moved since."""
        for tried in range(_TRIES_MAX):
            manifest = self._manifest
            if manifest is None or manifest.next.position.offset <= offset or tried:
                manifest = self._manifest = self._reader.manifest()
            try:
                pointer = next(iter(self._reader.pointers(offset, Limits(offset=offset + 1), manifest=manifest)), None)
                if pointer is None:
                    continue
                fragment = self._reader.fetch(pointer)
            except (GarbageCollectedError, MissingError):
                if tried + 1 == _TRIES_MAX:
                    raise
                continue
            offsets = fragment.table["offset"].to_numpy().astype(np.int64).tolist()
            bodies = fragment.table["body"].to_pylist()
            part = _CachedRecords(pointer.start.offset, pointer.limit.offset, offsets, bodies)
            self._keep(part)
            return part
        raise CorruptError(f"queue {self._url}: expected a record at offset {offset}, found none")


class WithValues(NamedTuple):
    """A result that needs the values of some items: ``make`` makes each of an item's place and value."""

    rows: Sequence[Row]
    make: Callable[[int, bytes], Any]
    leases: Sequence[Lease] = ()


class Answers:
    """The answers of one turn. ``give_back`` gets the leases of a caller who has given up meanwhile."""

    def __init__(self, values: ValueCache, readers: Executor, give_back: Callable[[GiveBack], object]) -> None:
        self._values = values
        self._readers = readers
        self._give_back = give_back
        self._results: list[tuple[Future[Any], Any]] = []

    def add(self, future: Future[Any], result: Any) -> None:  # noqa: ANN401 - each has its own result
        """Add the result of an operation, or the LogError that refused it: then it changed nothing."""
        self._results.append((future, result))

    def add_leases(self, future: Future[Any], state: QueueState, leases: list[Lease]) -> None:
        """Add items that were handed out."""
        keys = [state.dedupe_keys.get(lease.row.id) for lease in leases]

        def make(index: int, value: bytes) -> Leased:
            row, priority, until_ms, token, _ = leases[index]
            return Leased(
                **_shown(row, priority, value),
                token=token.hex(),
                lease_until_us=until_ms * US_PER_MS,
                dedupe_key=keys[index],
            )

        self.add(future, WithValues([lease.row for lease in leases], make, leases))

    def complete(self, created_ms: int) -> None:
        """Give the answers: values that are not in memory are read by others meanwhile."""
        for future, result in self._results:
            if isinstance(result, LogError):
                complete(future, None, result)
            elif not isinstance(result, WithValues):
                complete(future, result, None)
            elif not self._values.has_all(result.rows):
                self._readers.submit(self._read, future, result, created_ms)
            else:
                self._read(future, result, created_ms)

    def _read(self, future: Future[Any], result: WithValues, created_ms: int) -> None:
        try:
            made = [result.make(index, value) for index, value in self._readable(result.rows, created_ms)]
        except Exception as error:  # noqa: BLE001 - the caller gets it; the lease ends, and the item comes back
            complete(future, None, error)
            return
        if not complete(future, made, None) and result.leases:
            self._give_back(GiveBack(tuple((lease.row.id, lease.token.hex()) for lease in result.leases)))

    def _readable(self, rows: Sequence[Row], created_ms: int) -> list[tuple[int, bytes]]:
        """Read the values of items; those that cannot be read are left out, so that one holds up no others."""
        found: list[tuple[int, bytes]] = []
        try:
            found += enumerate(self._values.read(rows, created_ms))
        except (CorruptError, GarbageCollectedError):
            for index, row in enumerate(rows):
                try:
                    found.append((index, self._values.read([row], created_ms)[0]))
                except LogError as missing:
                    QUEUE.warning("item %d is left out of what it was asked with: %s", row.id, missing)
            if not found:
                raise
        return found

    def fail(self, futures: Sequence[Future[Any]], error: Exception) -> None:
        """Give an error instead of all answers: those of the turn, and those of calls that were not looked at."""
        for future in dict.fromkeys([*futures, *(future for future, _ in self._results)]):
            complete(future, None, error)


def complete(future: Future[Any], result: Any, error: Exception | None) -> bool:  # noqa: ANN401 - each has its own result
    """Set a future that may have been cancelled: then return False."""
    if not future.running() and not future.set_running_or_notify_cancel():
        return False
    # The caller's callbacks run here; what they raise is logged by the future.
    with contextlib.suppress(InvalidStateError):
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
    return True


def _shown(row: Row, priority: int, value: bytes) -> dict[str, Any]:
    return {
        "id": row.id,
        "value": value,
        "deadline_us": row.deadline_ms * US_PER_MS,
        "priority": priority,
        "deliveries": row.deliveries,
        "enqueued_us": row.enqueued_ms * US_PER_MS,
        "requeued_us": time_us(row.requeued_ms),
    }


def fitting(rows: Sequence[tuple[Row, int]], bytes_max: int | None) -> Sequence[tuple[Row, int]]:
    """Return the first items whose values have at most ``bytes_max`` bytes together; at least one."""
    if bytes_max is None:
        return rows
    ends = accumulate(row.length for row, _ in rows)
    return rows[: max(1, sum(end <= bytes_max for end in ends))]


def peeked(rows: Sequence[tuple[Row, int]]) -> WithValues:
    """Return items as they wait, once their values are read."""
    return WithValues([row for row, _ in rows], lambda index, value: Peeked(**_shown(*rows[index], value)))
