"""A queue in memory, and how each operation changes it: no store, no clock, no threads.

An operation is checked, then applied; the records that make it durable are added to the turn's. It is answered when
these are durable. When they are not, the state is wrong, and is loaded again from the log.
"""

from __future__ import annotations

import bisect
import contextlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from wal3_core.errors import InvalidRequestError, QueueFullError, StaleTokenError, UnknownItemError
from wal3_core.views.queue import encoding
from wal3_core.views.queue.encoding import NEVER, NO_TOKEN, Meta, StateRecord, id_key, state_body, value_body
from wal3_core.views.queue.operations import (
    Enqueued,
    ItemState,
    ItemStats,
    NewItem,
    QueueDefinition,
    QueueStats,
    Requeue,
    whole_ms,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.void]

US_PER_MS = 1000
# Ends of leases that are kept in any case, whether the leases go on or not.
_ENDS_MIN = 1024


# Rows of items; the numbers of ``Row``.
DTYPE = np.dtype(
    [
        ("deadline_ms", "<i8"),
        ("id", "<u8"),
        ("offset", "<u8"),
        ("length", "<u4"),
        ("deliveries", "<u4"),
        ("enqueued_ms", "<i8"),
        ("requeued_ms", "<i8"),
    ]
)
_RECENT_MAX = 4096
# An array is merged into the one before it when that has less than this many times its items.
_GROWTH = 3


class Row(NamedTuple):
    """A pending item; ``offset`` and ``length`` are those of its value's record, and of the value in it."""

    deadline_ms: int
    id: int
    offset: int
    length: int
    deliveries: int
    enqueued_ms: int
    requeued_ms: int


def _first(run: Rows, count: int) -> list[Row]:
    return [Row(*numbers) for numbers in run[:count].tolist()]


def _num_due(run: Rows, now_ms: int) -> int:
    return int(np.searchsorted(run["deadline_ms"], now_ms, side="right"))


def _sorted(rows: Rows) -> Rows:
    """Return rows in the order of (deadline, id)."""
    return rows[np.lexsort((rows["id"], rows["deadline_ms"]))]


class Pending:
    """The pending items of one priority, by (deadline, id): sorted arrays, and a heap of those added last.

    An item takes 48 bytes. The arrays are merged as they grow, so that there are few; items leave them from the front.
    """

    def __init__(self, rows: Rows | None = None) -> None:
        self._recent: list[Row] = []
        # Sorted arrays, none of them empty.
        self._runs: list[Rows] = [] if rows is None or not len(rows) else [_sorted(rows)]

    def __len__(self) -> int:
        return len(self._recent) + sum(map(len, self._runs))

    def add(self, row: Row) -> None:
        """Add an item."""
        heapq.heappush(self._recent, row)
        if len(self._recent) >= _RECENT_MAX:
            self._freeze()

    def _freeze(self) -> None:
        self._runs.append(_sorted(np.array(self._recent, dtype=DTYPE)))
        self._recent = []
        while len(self._runs) > 1 and len(self._runs[-2]) < _GROWTH * len(self._runs[-1]):
            last, before = self._runs.pop(), self._runs.pop()
            self._runs.append(_sorted(np.concatenate([before, last])))

    def head(self, count: int, due_ms: int | None = None) -> list[Row]:
        """Return the first items, of those due if a time is given."""
        heads = [_first(run, count) for run in self._runs]
        heads.append(heapq.nsmallest(count, self._recent) if count > 1 else self._recent[:1])
        merged = heads[0] if len(heads) == 1 else list(heapq.merge(*heads))
        return [row for row in merged[:count] if due_ms is None or row.deadline_ms <= due_ms]

    def take(self, count: int, due_ms: int | None = None) -> list[Row]:
        """Remove the first items, of those due if a time is given, and return them."""
        taken = self.head(count, due_ms)
        if not taken:
            return taken
        last = taken[-1]
        while self._recent and self._recent[0] <= last:
            heapq.heappop(self._recent)
        self._keep(run[bisect.bisect_right(_first(run, len(taken)), last) :] for run in self._runs)
        return taken

    def _keep(self, runs: Iterable[Rows]) -> None:
        self._runs = [run for run in runs if len(run)]

    def take_late(self, count: int, now_ms: int, was_ms: int) -> list[Row]:
        """Remove up to ``count`` items that have their deadlines because the time was ``was_ms``, and is another.

        They were enqueued or put back when it was further, or their leases ended then.
        """
        taken: list[Row] = []
        if self._recent:
            self._freeze()
        left: list[Rows] = []
        for rows in self._runs:
            since_ms = np.where(rows["requeued_ms"] < 0, rows["enqueued_ms"], rows["requeued_ms"])
            came_back = (rows["deliveries"] > 0) & (now_ms < rows["deadline_ms"]) & (rows["deadline_ms"] <= was_ms)
            # Those that were taken before.
            came_back &= rows["requeued_ms"] != now_ms
            late = ((since_ms > now_ms) & (rows["deadline_ms"] >= since_ms)) | came_back
            places = np.flatnonzero(late)[: count - len(taken)]
            taken += _first(rows[places], len(places))
            left.append(np.delete(rows, places))
        self._keep(left)
        return taken

    def next_deadline_ms(self) -> int | None:
        """Return the earliest deadline."""
        head = self.head(1)
        return head[0].deadline_ms if head else None

    def deadline_after_ms(self, now_ms: int) -> int | None:
        """Return the earliest deadline later than a time."""
        found = [row.deadline_ms for row in self._recent if row.deadline_ms > now_ms]
        for run in self._runs:
            due = _num_due(run, now_ms)
            if due < len(run):
                found.append(int(run["deadline_ms"][due]))
        return min(found, default=None)

    def num_due(self, now_ms: int) -> int:
        """Count the items with a deadline up to a time."""
        return sum(row.deadline_ms <= now_ms for row in self._recent) + sum(_num_due(run, now_ms) for run in self._runs)

    def find(self, item_id: int) -> Row | None:
        """Look an item up by its id: a pass over all."""
        for row in self._recent:
            if row.id == item_id:
                return row
        for run in self._runs:
            found = _first(run[run["id"] == item_id], 1)
            if found:
                return found[0]
        return None

    def move_value(self, item_id: int, offset: int) -> None:
        """Set the offset of an item's value: a pass over all."""
        for index, row in enumerate(self._recent):
            if row.id == item_id:
                # No two items have one deadline and one id: the offset has no part in their order.
                self._recent[index] = row._replace(offset=offset)
        for run in self._runs:
            run["offset"][run["id"] == item_id] = offset

    def oldest_enqueued_ms(self) -> int | None:
        """Return when the oldest item was enqueued."""
        found = [row.enqueued_ms for row in self._recent]
        found += [int(run["enqueued_ms"].min()) for run in self._runs]
        return min(found, default=None)

    def arrays(self) -> Iterator[Rows]:
        """Go through all items, in arrays that do not change."""
        if self._recent:
            yield np.array(self._recent, dtype=DTYPE)
        yield from self._runs


class Lease(NamedTuple):
    """An item that is handed out. ``jumped_ms`` is by how much the queue's time had jumped before its lease began."""

    row: Row
    priority: int
    until_ms: int
    token: bytes
    jumped_ms: float = 0.0


class DeadLetter(NamedTuple):
    """An item that is not handed out again."""

    row: Row
    priority: int


class ItemIndex:
    """The items of a queue. ``floors_ms``: by priority, the latest deadline that was handed out."""

    def __init__(self, definition: QueueDefinition, definition_at: int, created_ms: int) -> None:
        self.definition = definition
        # The offset of its record.
        self.definition_at = definition_at
        self.created_ms = created_ms
        self.last_id = 0
        self.floors_ms: dict[int, int] = {}
        self.pending: dict[int, Pending] = {}
        self.leased: dict[int, Lease] = {}
        # In the order in which they were buried.
        self.dead: dict[int, DeadLetter] = {}
        # Only of the items that have one.
        self.dedupe_keys: dict[int, bytes] = {}
        self.ids_by_key: dict[bytes, int] = {}
        # Deadlines of these, as of the last time that each was pending.
        self._named_due_ms: dict[int, int] = {}
        self.num_bytes = 0
        # The sum of the jumps of the queue's time while its broker had it: no lease ends by these.
        self.jumped_ms = 0.0
        # Ends of leases, but for jumps, and their items; some have ended earlier, or go on.
        self._ends: list[tuple[float, int]] = []
        # Jumps of the time before each lease began, by its token and end: a lease that a turn has ended
        # is back if that turn is not done.
        self._jumped_ms: dict[tuple[bytes, int], float] = {}
        # Records of others that were passed, the offset of the newest, and damaged fragments that were left out.
        self.num_strays, self.num_damaged = 0, 0
        self.stray_offset: int | None = None

    @property
    def num_pending(self) -> int:
        """The items that wait, due or not."""
        return sum(map(len, self.pending.values()))

    def __len__(self) -> int:
        return self.num_pending + len(self.leased) + len(self.dead)

    def add_pending(self, row: Row, priority: int) -> None:
        """Put an item in line."""
        queue = self.pending.get(priority)
        if queue is None:
            queue = self.pending[priority] = Pending()
        queue.add(row)
        if row.id in self._named_due_ms:
            self._named_due_ms[row.id] = row.deadline_ms

    def name(self, row: Row, dedupe_key: bytes | None) -> None:
        """Remember an item's dedupe key, before the item is added."""
        if dedupe_key is not None:
            self.dedupe_keys[row.id] = dedupe_key
            self.ids_by_key[dedupe_key] = row.id
            self._named_due_ms[row.id] = row.deadline_ms

    def forget_name(self, item_id: int) -> None:
        """Let another item have the dedupe key of one that is removed."""
        key = self.dedupe_keys.pop(item_id, None)
        if key is not None:
            del self._named_due_ms[item_id]
            # Where damage hid an item for a while, another one may have its key.
            if self.ids_by_key.get(key) == item_id:
                del self.ids_by_key[key]

    def named_deadline_ms(self, item_id: int) -> int:
        """Return the deadline of an item that has a dedupe key, at once however many items there are."""
        held = self.leased.get(item_id) or self.dead.get(item_id)
        return self._named_due_ms[item_id] if held is None else held.row.deadline_ms

    def find(self, item_id: int) -> tuple[ItemState, Row, int, Lease | None]:
        """Look an item up; UnknownItemError when there is none."""
        lease = self.leased.get(item_id)
        if lease is not None:
            return ItemState.LEASED, lease.row, lease.priority, lease
        if item_id in self.dead:
            return ItemState.DEAD, *self.dead[item_id], None
        for priority, queue in self.pending.items():
            row = queue.find(item_id)
            if row is not None:
                return ItemState.PENDING, row, priority, None
        raise UnknownItemError(f"item {item_id}: expected an item of the queue, found none")

    def move_value(self, row: Row, priority: int) -> None:
        """Take note of another offset of the value of an item that is not leased."""
        if row.id in self.dead:
            self.dead[row.id] = DeadLetter(row, priority)
        elif row.id not in self.leased:
            self.pending[priority].move_value(row.id, row.offset)

    def item_stats(self, item_id: int) -> ItemStats:
        """Return what is known of an item; UnknownItemError when there is none."""
        state, row, priority, lease = self.find(item_id)
        return ItemStats(
            id=item_id,
            state=state,
            deadline_us=row.deadline_ms * US_PER_MS,
            priority=priority,
            enqueued_us=row.enqueued_ms * US_PER_MS,
            requeued_us=time_us(row.requeued_ms),
            deliveries=row.deliveries,
            lease_until_us=None if lease is None else self.end_ms(lease) * US_PER_MS,
            value_bytes=row.length,
        )

    def stats(self, now_ms: int, waiting: int) -> QueueStats:
        """Return what the queue holds at a time."""
        queues = list(self.pending.values())
        pending, due = self.num_pending, sum(queue.num_due(now_ms) for queue in queues)
        heads = [head for queue in queues if (head := queue.next_deadline_ms()) is not None and head <= now_ms]
        later = [ms for queue in queues if (ms := queue.deadline_after_ms(now_ms)) is not None]
        enqueued = [ms for queue in queues if (ms := queue.oldest_enqueued_ms()) is not None]
        enqueued += [lease.row.enqueued_ms for lease in self.leased.values()]
        enqueued += [letter.row.enqueued_ms for letter in self.dead.values()]
        return QueueStats(
            pending=pending,
            due=due,
            scheduled=pending - due,
            leased=len(self.leased),
            dead=len(self.dead),
            bytes=self.num_bytes,
            oldest_due_us=time_us(min(heads, default=NEVER)),
            oldest_enqueued_us=time_us(min(enqueued, default=NEVER)),
            next_deadline_us=time_us(min(later, default=NEVER)),
            last_id=self.last_id,
            waiting=waiting,
            strays=self.num_strays,
            stray_offset=self.stray_offset,
            damaged=self.num_damaged,
        )

    def stats_without_broker(self, now_ms: int) -> QueueStats:
        """Return what the queue holds at a time when no broker may run, which would take back what was leased."""
        ends = [end_ms for lease in self.leased.values() if (end_ms := self.end_ms(lease)) <= now_ms]
        return replace(self.stats(now_ms, 0), ended=len(ends), oldest_ended_us=time_us(min(ends, default=NEVER)))

    def head(self, count: int, due_ms: int | None = None) -> list[tuple[Row, int]]:
        """Return the pending items that come first, each with its priority."""
        found: list[tuple[Row, int]] = []
        for priority in sorted(self.pending):
            found += [(row, priority) for row in self.pending[priority].head(count - len(found), due_ms)]
            if len(found) == count:
                break
        return found

    def dead_letters(self, count: int, after: int) -> list[DeadLetter]:
        """Return dead letters by rising ids, at most ``count``, with ids above ``after``."""
        return [self.dead[item_id] for item_id in heapq.nsmallest(count, (each for each in self.dead if each > after))]

    def next_change_ms(self) -> int | None:
        """Return when the next item is due, or the next lease ends."""
        times = [ms for queue in self.pending.values() if (ms := queue.next_deadline_ms()) is not None]
        until_ms = self._first_end_ms()
        return min(times if until_ms is None else [*times, until_ms], default=None)

    def end_ms(self, lease: Lease) -> int:
        """Return when a lease ends, by the queue's time as it is now."""
        return lease.until_ms + math.ceil(round(self.jumped_ms - lease.jumped_ms, 3))

    def _first_end_ms(self) -> int | None:
        """Return when the first lease ends."""
        while self._ends:
            lease = self.leased.get(self._ends[0][1])
            if lease is not None and lease.until_ms - lease.jumped_ms == self._ends[0][0]:
                return self.end_ms(lease)
            heapq.heappop(self._ends)
        return None

    def begin_leases(self, jumped_ms: float, earlier: ItemIndex | None) -> None:
        """Let leases go on by this broker's clock; those that it knew before end when they would have."""
        self.jumped_ms = jumped_ms
        known = {} if earlier is None else earlier._jumped_ms  # noqa: SLF001 - of the same class
        for lease in list(self.leased.values()):
            self.hold(lease._replace(jumped_ms=known.get((lease.token, lease.until_ms), jumped_ms)))

    def forget_ended(self) -> None:
        """Let go of what is known of leases that have ended; what a turn has done is durable."""
        if len(self._jumped_ms) > _ENDS_MIN + 2 * len(self.leased):
            self._jumped_ms = {(each.token, each.until_ms): each.jumped_ms for each in self.leased.values()}

    def hold(self, lease: Lease) -> None:
        """Add a lease, or replace that of the same item."""
        self.leased[lease.row.id] = lease
        self._jumped_ms[lease.token, lease.until_ms] = lease.jumped_ms
        heapq.heappush(self._ends, (lease.until_ms - lease.jumped_ms, lease.row.id))
        if len(self._ends) > _ENDS_MIN + 2 * len(self.leased):
            # Leases that were extended, and items that were released long before their leases end.
            self._ends = [(each.until_ms - each.jumped_ms, item_id) for item_id, each in self.leased.items()]
            heapq.heapify(self._ends)


def time_us(ms: int) -> int | None:
    """Return a time in microseconds, None for never."""
    return None if ms == NEVER else ms * US_PER_MS


class Turn:
    """The records of some operations, as two columns; the first one lands at ``start``."""

    def __init__(self, start: int, now_ms: int) -> None:
        self.start: int = start
        self.now_ms: int = now_ms
        self.keys: list[bytes] = []
        self.bodies: list[bytes | None] = []
        self.num_bytes = 0
        # An answer from memory alone would be wrong if another broker has the queue by now.
        self.must_be_durable = False

    def add(self, key: bytes, body: bytes | None) -> int:
        """Add a record; return its offset."""
        self.keys.append(key)
        self.bodies.append(body)
        self.num_bytes += len(key) + len(body or b"")
        return self.start + len(self.keys) - 1

    def add_meta(self, state: QueueState, broker: bytes, as_of: int, parts: tuple[int, ...]) -> None:
        """Add what the queue as a whole has come to, its newest checkpoint included."""
        meta = Meta(
            broker=broker,
            definition=state.definition_at,
            last_id=state.last_id,
            created_ms=state.created_ms,
            now_ms=self.now_ms,
            floors_ms=state.floors_ms,
            as_of=as_of,
            parts=parts,
        )
        self.add(encoding.META_KEY, meta.to_bytes())


class QueueState(ItemIndex):
    """A queue in memory, and its operations."""

    def enqueue(self, items: tuple[NewItem, ...], turn: Turn) -> list[Enqueued]:
        """Add items, all or none."""
        limits = self.definition
        for index, item in enumerate(items):
            self._check_size(index, item.value)
        # A difference from the keys of the dictionary would go over all of them.
        new = {item.dedupe_key for item in items if item.dedupe_key not in self.ids_by_key} - {None}
        added = len(new) + sum(item.dedupe_key is None for item in items)
        if limits.items_max is not None and len(self) + added > limits.items_max:
            dead = f" ({len(self.dead)} of them dead letters: kick or purge these)" if self.dead else ""
            message = f"queue: expected at most {limits.items_max} items, found {len(self)}{dead} and {added} more"
            raise QueueFullError(message)
        return [self._enqueue(item, turn) for item in items]

    def _check_size(self, item: int, value: bytes) -> None:
        limit = self.definition.value_bytes_max
        if len(value) > limit:
            raise InvalidRequestError(f"item {item}: expected a value of at most {limit} bytes, found {len(value)}")

    def _enqueue(self, item: NewItem, turn: Turn) -> Enqueued:
        known = None if item.dedupe_key is None else self.ids_by_key.get(item.dedupe_key)
        if known is not None:
            turn.must_be_durable = True
            deadline_us = self.named_deadline_ms(known) * US_PER_MS
            return Enqueued(known, deadline_us, duplicate=True, dead=known in self.dead)
        self.last_id += 1
        item_id = self.last_id
        deadline_ms, advanced = self._deadline(item.deadline_us, item.delay_s, item.priority, turn.now_ms)
        body = value_body(item.value, deadline_ms, turn.now_ms, self.created_ms, item.priority, item.dedupe_key)
        offset = turn.add(id_key(encoding.VALUE, item_id), body)
        row = Row(deadline_ms, item_id, offset, len(item.value), 0, turn.now_ms, NEVER)
        self.name(row, item.dedupe_key)
        self.add_pending(row, item.priority)
        self.num_bytes += len(item.value)
        return Enqueued(item_id, deadline_ms * US_PER_MS, advanced=advanced)

    def _deadline(self, deadline_us: int | None, delay_s: float | None, priority: int, now_ms: int) -> tuple[int, bool]:
        """Return the deadline that an item gets, and whether it had to be advanced."""
        later_ms = now_ms + whole_ms(delay_s or 0)
        wanted = later_ms if deadline_us is None else -(-deadline_us // US_PER_MS)
        floor = self.floors_ms.get(priority, 0)
        return max(wanted, floor), wanted < floor

    def lease(self, count: int, lease_s: float | None, token: Callable[[], bytes], turn: Turn) -> list[Lease]:
        """Hand out up to ``count`` due items."""
        until_ms = turn.now_ms + max(1, whole_ms(lease_s or self.definition.lease_s))
        leases: list[Lease] = []
        for priority in sorted(self.pending):
            for row in self._take(priority, count - len(leases), turn.now_ms):
                row = row._replace(deliveries=row.deliveries + 1)  # noqa: PLW2901 - it is handed out once more
                self.floors_ms[priority] = row.deadline_ms
                leases.append(self._lease(Lease(row, priority, until_ms, token(), self.jumped_ms), turn))
            if len(leases) == count:
                break
        return leases

    def _take(self, priority: int, count: int, due_ms: int | None = None) -> list[Row]:
        rows = self.pending[priority].take(count, due_ms)
        if not len(self.pending[priority]):
            del self.pending[priority]
        return rows

    def _lease(self, lease: Lease, turn: Turn) -> Lease:
        self._save(encoding.LEASED, lease.row, turn, lease.until_ms, lease.token)
        self.hold(lease)
        return lease

    def held(self, item_id: int, token: str, now_ms: int) -> Lease:
        """Return the lease of an item; StaleTokenError unless it is by this token, and has not ended."""
        lease = self.leased.get(item_id)
        if lease is None or lease.token.hex() != token:
            message = f"item {item_id}: expected it to be leased by token {token[:40]}, found " + (
                "no lease" if lease is None else "another lease"
            )
            raise StaleTokenError(message)
        if self.end_ms(lease) <= now_ms:
            ended_ms = now_ms - self.end_ms(lease)
            message = f"item {item_id}: expected a lease that goes on, found one that ended {ended_ms} ms ago"
            raise StaleTokenError(message)
        return lease

    def release(self, leases: tuple[tuple[int, str], ...], turn: Turn) -> None:
        """Remove leased items, all or none."""
        for item_id, token in leases:
            self.held(item_id, token, turn.now_ms)
        for item_id, _ in leases:
            self._remove(self.leased.pop(item_id).row, turn)

    def _remove(self, row: Row, turn: Turn) -> None:
        turn.add(id_key(encoding.VALUE, row.id), None)
        turn.add(id_key(encoding.STATE, row.id), None)
        self.num_bytes -= row.length
        self.forget_name(row.id)

    def requeue(self, wanted: Requeue, turn: Turn) -> Enqueued:
        """Put a leased item back."""
        lease = self.held(wanted.id, wanted.token, turn.now_ms)
        row = lease.row
        deadline_ms, advanced = self._deadline(wanted.deadline_us, wanted.delay_s, lease.priority, turn.now_ms)
        if wanted.value is not None:
            self._check_size(wanted.id, wanted.value)
            dedupe_key = self.dedupe_keys.get(row.id)
            body = value_body(wanted.value, deadline_ms, row.enqueued_ms, self.created_ms, lease.priority, dedupe_key)
            self.num_bytes += len(wanted.value) - row.length
            row = row._replace(offset=turn.add(id_key(encoding.VALUE, row.id), body), length=len(wanted.value))
        del self.leased[wanted.id]
        return self._put_back(row, deadline_ms, lease.priority, turn, advanced=advanced)

    def give_back(self, leases: tuple[tuple[int, str], ...], turn: Turn) -> None:
        """Put leased items back where they were, as if they had not been handed out; those leased no more stay."""
        for item_id, token in leases:
            with contextlib.suppress(StaleTokenError):
                lease = self.held(item_id, token, turn.now_ms)
                row, priority = lease.row, lease.priority
                del self.leased[item_id]
                deadline_ms = max(row.deadline_ms, self.floors_ms.get(priority, 0))
                row = row._replace(deadline_ms=deadline_ms, deliveries=row.deliveries - 1)
                self._save(encoding.PENDING, row, turn)
                self.add_pending(row, priority)

    def reclaim(self, ids: Iterable[int], turn: Turn) -> list[Enqueued]:
        """Put leased items back without their tokens; UnknownItemError names one that is not leased."""
        ids = list(ids)
        for item_id in ids:
            if item_id not in self.leased:
                raise UnknownItemError(f"item {item_id}: expected it to be leased, found no lease")
        return [
            self._put_back(row, self._deadline(None, None, priority, turn.now_ms)[0], priority, turn)
            for row, priority, *_ in map(self.leased.pop, ids)
        ]

    def _put_back(self, row: Row, deadline_ms: int, priority: int, turn: Turn, *, advanced: bool = False) -> Enqueued:
        dead = self._come_back(row._replace(deadline_ms=deadline_ms, requeued_ms=turn.now_ms), priority, turn)
        return Enqueued(row.id, deadline_ms * US_PER_MS, advanced=advanced, dead=dead)

    def _come_back(self, row: Row, priority: int, turn: Turn) -> bool:
        """Put an item in line again, or among the dead letters if it was handed out as often as it may be."""
        limit = self.definition.max_deliveries
        if limit is not None and row.deliveries >= limit:
            self._bury(row, priority, turn)
            return True
        self._save(encoding.PENDING, row, turn)
        self.add_pending(row, priority)
        return False

    def _save(self, kind: bytes, row: Row, turn: Turn, until_ms: int = NEVER, token: bytes = NO_TOKEN) -> None:
        state = StateRecord(kind, row.deadline_ms, row.deliveries, row.requeued_ms, until_ms, token)
        turn.add(id_key(encoding.STATE, row.id), state_body(state))

    def write_again(self, item_id: int, value: bytes | None, turn: Turn) -> None:
        """Write an item's state as it is, and its value if given; UnknownItemError when there is no such item."""
        state, row, priority, lease = self.find(item_id)
        if value is not None:
            key = self.dedupe_keys.get(item_id)
            body = value_body(value, row.deadline_ms, row.enqueued_ms, self.created_ms, priority, key)
            row = row._replace(offset=turn.add(id_key(encoding.VALUE, item_id), body))
            self.move_value(row, priority)
        if lease is not None:
            self._lease(lease._replace(row=row), turn)
        else:
            self._save(encoding.DEAD if state is ItemState.DEAD else encoding.PENDING, row, turn)

    def _bury(self, row: Row, priority: int, turn: Turn) -> None:
        self._save(encoding.DEAD, row, turn)
        self.dead[row.id] = DeadLetter(row, priority)

    def extend(self, item_id: int, token: str, lease_s: float, turn: Turn) -> int:
        """Let a lease end that long from now; return when."""
        lease = self.held(item_id, token, turn.now_ms)
        until_ms = turn.now_ms + max(1, whole_ms(lease_s))
        self._lease(lease._replace(until_ms=until_ms, jumped_ms=self.jumped_ms), turn)
        return until_ms * US_PER_MS

    def bury(self, item_id: int, token: str, turn: Turn) -> None:
        """Put a leased item among the dead letters."""
        lease = self.held(item_id, token, turn.now_ms)
        del self.leased[item_id]
        self._bury(lease.row, lease.priority, turn)

    def define(self, definition: QueueDefinition, turn: Turn) -> None:
        """Take another definition."""
        self.definition_at = turn.add(encoding.DEFINITION_KEY, definition.to_bytes())
        self.definition = definition

    def kick(self, count: int, ids: Iterable[int] | None, turn: Turn) -> list[int]:
        """Make dead letters pending, due now, as if they had not been handed out yet; UnknownItemError for others."""
        ids = list(self.dead)[:count] if ids is None else list(ids)
        for item_id in ids:
            if item_id not in self.dead:
                raise UnknownItemError(f"item {item_id}: expected one of the dead letters, found none")
        for item_id in ids:
            row, priority = self.dead.pop(item_id)
            deadline_ms, _ = self._deadline(None, None, priority, turn.now_ms)
            row = row._replace(deadline_ms=deadline_ms, deliveries=0, requeued_ms=turn.now_ms)
            self._save(encoding.PENDING, row, turn)
            self.add_pending(row, priority)
        return ids

    def end_leases(self, count: int, turn: Turn) -> int:
        """Put items back whose leases have ended, at most ``count``; return how many."""
        ended = 0
        while ended < count and (until_ms := self._first_end_ms()) is not None and until_ms <= turn.now_ms:
            lease = self.leased.pop(self._ends[0][1])
            due_ms = max(lease.until_ms, self.floors_ms.get(lease.priority, lease.until_ms))
            self._come_back(lease.row._replace(deadline_ms=due_ms), lease.priority, turn)
            ended += 1
        return ended

    def retime(self, count: int, now_ms: int, turn: Turn) -> int:
        """Let the queue's time be an earlier one, for up to ``count`` items; return how many got another time.

        Leases end. What was due so long after it was enqueued or put back is due so long after that time.
        """
        self.floors_ms = {priority: min(floor_ms, now_ms) for priority, floor_ms in self.floors_ms.items()}
        ids = list(self.leased)[:count]
        for item_id in ids:
            lease = self.leased.pop(item_id)
            self._come_back(lease.row._replace(deadline_ms=now_ms), lease.priority, turn)
        moved = len(ids)
        for priority, queue in self.pending.items():
            for row in queue.take_late(count - moved, now_ms, turn.now_ms):
                since_ms = row.requeued_ms if row.requeued_ms != NEVER else row.enqueued_ms
                deadline_ms = now_ms + (row.deadline_ms - since_ms if since_ms > now_ms else 0)
                row = row._replace(deadline_ms=deadline_ms, requeued_ms=now_ms)  # noqa: PLW2901 - at its new time
                self._save(encoding.PENDING, row, turn)
                self.add_pending(row, priority)
                moved += 1
        return moved

    def purge(self, states: Iterable[ItemState], count: int, turn: Turn) -> int:
        """Remove up to ``count`` items of these states; return how many."""
        rows = list(self._taken(states, count))
        for row in rows:
            self._remove(row, turn)
        return len(rows)

    def _taken(self, states: Iterable[ItemState], count: int) -> Iterator[Row]:
        for state in states:
            if state is ItemState.PENDING:
                for priority in list(self.pending):
                    rows = self._take(priority, count)
                    count -= len(rows)
                    yield from rows
            else:
                held = self.leased if state is ItemState.LEASED else self.dead
                ids = list(held)[:count]
                count -= len(ids)
                yield from [held.pop(item_id).row for item_id in ids]
            if count == 0:
                return
