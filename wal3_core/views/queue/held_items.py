"""What a queue holds in memory: all of it but the values."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING, NamedTuple

from wal3_core.errors import UnknownItemError
from wal3_core.views.queue.encoding import NEVER
from wal3_core.views.queue.items import ItemState, ItemStats, QueueStats
from wal3_core.views.queue.runs import Pending, Row

if TYPE_CHECKING:
    from wal3_core.views.queue.definition import QueueDefinition

US_PER_MS = 1000
# So many ends of leases are kept in any case, whether the leases go on or not.
_ENDS_MIN = 1024


class Lease(NamedTuple):
    """An item that is handed out. ``jumped_ms`` is by how much the queue's time had jumped before its lease began."""

    row: Row
    priority: int
    until_ms: int
    token: bytes
    jumped_ms: float = 0.0


class Buried(NamedTuple):
    """An item among the dead letters."""

    row: Row
    priority: int


class HeldItems:
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
        self.dead: dict[int, Buried] = {}
        # Only of the items that have one.
        self.dedupe_keys: dict[int, bytes] = {}
        self.ids_by_key: dict[bytes, int] = {}
        # Of these, when each was due the last time that it was pending.
        self._named_due_ms: dict[int, int] = {}
        self.num_bytes = 0
        # By how much the queue's time has jumped while its broker had it: no lease ends by that.
        self.jumped_ms = 0.0
        # When leases end, but for what jumped, and of which item; some have ended earlier, or go on.
        self._ends: list[tuple[float, int]] = []
        # By how much the time had jumped before each lease began, by its token and end: a lease that a turn has ended
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
        buried = self.dead.get(item_id)
        if buried is not None:
            return ItemState.DEAD, buried.row, buried.priority, None
        for priority, queue in self.pending.items():
            row = queue.find(item_id)
            if row is not None:
                return ItemState.PENDING, row, priority, None
        message = f"item {item_id}: expected an item of the queue, found none"
        raise UnknownItemError(message)

    def move_value(self, row: Row, priority: int) -> None:
        """Take note of another offset of the value of an item that is not leased."""
        if row.id in self.dead:
            self.dead[row.id] = Buried(row, priority)
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
        enqueued += [buried.row.enqueued_ms for buried in self.dead.values()]
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

    def head(self, count: int, due_ms: int | None = None) -> list[tuple[Row, int]]:
        """Return the pending items that come first, each with its priority."""
        found: list[tuple[Row, int]] = []
        for priority in sorted(self.pending):
            found += [(row, priority) for row in self.pending[priority].head(count - len(found), due_ms)]
            if len(found) == count:
                break
        return found

    def letters(self, count: int, after: int) -> list[tuple[Row, int]]:
        """Return dead letters by rising ids, at most ``count``, with ids above ``after``; each with its priority."""
        ids = heapq.nsmallest(count, (item_id for item_id in self.dead if item_id > after))
        return [(self.dead[item_id].row, self.dead[item_id].priority) for item_id in ids]

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

    def begin_leases(self, jumped_ms: float, earlier: HeldItems | None) -> None:
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
