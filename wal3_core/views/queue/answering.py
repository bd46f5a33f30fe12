"""Answers: given when the turn is durable, and, of items that were handed out, when their values were read."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from wal3_core.errors import CorruptError, GarbageCollectedError, LogError
from wal3_core.runtime.loggers import QUEUE
from wal3_core.views.queue.held_items import US_PER_MS, time_us
from wal3_core.views.queue.items import Leased, Peeked
from wal3_core.views.queue.operations import GiveBack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor

    from wal3_core.views.queue.held_items import Lease
    from wal3_core.views.queue.queue_state import QueueState
    from wal3_core.views.queue.runs import Row
    from wal3_core.views.queue.values import Values


class WithValues:
    """A result that needs the values of some items: each is made of an item, given by its place, and its value."""

    def __init__(
        self, rows: Sequence[Row], make_one: Callable[[int, bytes], Any], leases: Sequence[Lease] = ()
    ) -> None:
        self.rows = rows
        self.leases = leases
        self._make_one = make_one

    def make(self, values: Iterable[tuple[int, bytes]]) -> list[Any]:
        """Return the result for some of the items, or all: their places and values."""
        return [self._make_one(index, value) for index, value in values]


class Answers:
    """The answers of one turn. ``give_back`` gets the leases of a caller who has given up meanwhile."""

    def __init__(self, values: Values, readers: Executor, give_back: Callable[[GiveBack], object]) -> None:
        self._values = values
        self._readers = readers
        self._give_back = give_back
        self._results: list[tuple[Future[Any], Any]] = []
        self._errors: list[tuple[Future[Any], Exception]] = []

    def add(self, future: Future[Any], result: Any) -> None:  # noqa: ANN401 - each has its own result
        """Add the result of an operation."""
        self._results.append((future, result))

    def add_error(self, future: Future[Any], error: Exception) -> None:
        """Add the refusal of an operation, which changed nothing."""
        self._errors.append((future, error))

    def add_leases(self, future: Future[Any], state: QueueState, leases: list[Lease]) -> None:
        """Add items that were handed out."""
        keys = [state.dedupe_keys.get(lease.row.id) for lease in leases]

        def make(index: int, value: bytes) -> Leased:
            return _leased(leases[index], value, keys[index])

        self.add(future, WithValues([lease.row for lease in leases], make, leases))

    def give(self, created_ms: int) -> None:
        """Give the answers: values that are not in memory are read by others meanwhile."""
        for future, error in self._errors:
            give(future, None, error)
        for future, result in self._results:
            if not isinstance(result, WithValues):
                give(future, result, None)
            elif not self._values.has_all(result.rows):
                self._readers.submit(self._read, future, result, created_ms)
            else:
                self._read(future, result, created_ms)

    def _read(self, future: Future[Any], result: WithValues, created_ms: int) -> None:
        try:
            made = result.make(enumerate(self._values.read(result.rows, created_ms)))
        except (CorruptError, GarbageCollectedError) as error:
            self._read_rest(future, result, created_ms, error)
        except Exception as error:  # noqa: BLE001 - the caller gets it; the lease ends, and the item comes back
            give(future, None, error)
        else:
            self._hand_over(future, made, result.leases)

    def _read_rest(self, future: Future[Any], result: WithValues, created_ms: int, error: LogError) -> None:
        """Give the items whose values can be read, if there are any: one that is damaged holds up no others."""
        found: list[tuple[int, bytes]] = []
        for index, row in enumerate(result.rows):
            try:
                found.append((index, self._values.read([row], created_ms)[0]))
            except LogError as missing:
                QUEUE.warning("item %d is left out of what it was asked with: %s", row.id, missing)
        if not found:
            give(future, None, error)
            return
        self._hand_over(future, result.make(found), result.leases)

    def _hand_over(self, future: Future[Any], made: list[Any], leases: Sequence[Lease]) -> None:
        if not give(future, made, None) and leases:
            self._give_back(GiveBack(tuple((lease.row.id, lease.token.hex()) for lease in leases)))

    def fail(self, futures: Sequence[Future[Any]], error: Exception) -> None:
        """Give an error instead of all answers: those of the turn, and those of calls that were not looked at."""
        waiting = dict.fromkeys([*futures, *(future for future, _ in (*self._results, *self._errors))])
        for future in waiting:
            give(future, None, error)


def give(future: Future[Any], result: Any, error: Exception | None) -> bool:  # noqa: ANN401 - each has its own result
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


def _leased(lease: Lease, value: bytes, dedupe_key: bytes | None) -> Leased:
    row = lease.row
    return Leased(
        id=row.id,
        token=lease.token.hex(),
        value=value,
        deadline_us=row.deadline_ms * US_PER_MS,
        priority=lease.priority,
        lease_until_us=lease.until_ms * US_PER_MS,
        deliveries=row.deliveries,
        enqueued_us=row.enqueued_ms * US_PER_MS,
        requeued_us=time_us(row.requeued_ms),
        dedupe_key=dedupe_key,
    )


def fitting(rows: list[tuple[Row, int]], bytes_max: int | None) -> list[tuple[Row, int]]:
    """Return those that come first and whose values have so many bytes together; at least one."""
    if bytes_max is None:
        return rows
    ends = accumulate(row.length for row, _ in rows)
    return rows[: max(1, sum(end <= bytes_max for end in ends))]


def peeked(rows: Sequence[tuple[Row, int]]) -> WithValues:
    """Return items as they wait, once their values are read."""

    def make(index: int, value: bytes) -> Peeked:
        row, priority = rows[index]
        return Peeked(
            id=row.id,
            value=value,
            deadline_us=row.deadline_ms * US_PER_MS,
            priority=priority,
            deliveries=row.deliveries,
            enqueued_us=row.enqueued_ms * US_PER_MS,
            requeued_us=time_us(row.requeued_ms),
        )

    return WithValues([row for row, _ in rows], make)
