"""A delay queue in plain Python: the simplest thing that answers as a DelayQueue should."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from wal3_core.errors import QueueFullError, StaleTokenError, UnknownItemError
from wal3_core.views.queue.operations import (
    Enqueued,
    ItemState,
    ItemStats,
    Leased,
    NewItem,
    Peeked,
    QueueDefinition,
    QueueStats,
)

US_PER_MS = 1000


@dataclass
class Item:
    """One item; times are in milliseconds, and ``back`` is when it was put back, in what order it was buried."""

    id: int
    value: bytes
    deadline_ms: int
    priority: int
    enqueued_ms: int
    dedupe_key: bytes | None
    requeued_ms: int | None = None
    deliveries: int = 0
    state: ItemState = ItemState.PENDING
    until_ms: int | None = None
    # By how much the queue's time has jumped since the lease began.
    jumped_ms: int = 0
    token: str = ""

    @property
    def end_ms(self) -> int:
        """When its lease ends."""
        return (self.until_ms or 0) + self.jumped_ms

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands in line."""
        return self.priority, self.deadline_ms, self.id

    def peeked(self) -> Peeked:
        return Peeked(
            self.id,
            self.value,
            self.deadline_ms * US_PER_MS,
            self.priority,
            self.deliveries,
            self.enqueued_ms * US_PER_MS,
            _us(self.requeued_ms),
        )

    def stats(self) -> ItemStats:
        return ItemStats(
            self.id,
            self.state,
            self.deadline_ms * US_PER_MS,
            self.priority,
            self.enqueued_ms * US_PER_MS,
            _us(self.requeued_ms),
            self.deliveries,
            None if self.until_ms is None else _us(self.end_ms),
            len(self.value),
        )


def _us(ms: int | None) -> int | None:
    return None if ms is None else ms * US_PER_MS


def up_ms(seconds: float) -> int:
    """Return whole milliseconds: never less than was asked for, to the microsecond."""
    return -(-round(seconds * 1_000_000) // 1000)


@dataclass
class QueueModel:
    """A queue that was created at ``now_ms``."""

    now_ms: int
    definition: QueueDefinition = field(default_factory=QueueDefinition)
    last_id: int = 0
    items: dict[int, Item] = field(default_factory=dict)
    # The ids of the dead letters, in the order in which they were buried.
    buried: list[int] = field(default_factory=list)
    # By priority, the latest deadline that was handed out.
    floors_ms: dict[int, int] = field(default_factory=dict)

    # ------------------------------------------------------------------ time

    def come_to(self, now_ms: int, jumped_ms: int = 0) -> None:
        """Let time pass, ``jumped_ms`` of it by no other clock: leases end, in the order of their ends."""
        self.now_ms = now_ms
        leased = [each for each in self.items.values() if each.until_ms is not None]
        for item in leased:
            item.jumped_ms += jumped_ms
        ended = [each for each in leased if each.end_ms <= now_ms]
        for item in sorted(ended, key=lambda each: (each.end_ms, each.id)):
            assert item.until_ms is not None
            item.deadline_ms = max(item.until_ms, self.floors_ms.get(item.priority, 0))
            self._come_back(item)

    def _come_back(self, item: Item) -> None:
        most = self.definition.max_deliveries
        if most is not None and item.deliveries >= most:
            self._bury(item)
        else:
            item.state, item.until_ms = ItemState.PENDING, None

    def _bury(self, item: Item) -> None:
        item.state, item.until_ms = ItemState.DEAD, None
        self.buried.append(item.id)

    def restarted(self) -> None:
        """Another broker knows nothing of what has jumped."""
        for item in self.items.values():
            item.jumped_ms = 0

    # ------------------------------------------------------------------ operations

    def enqueue_many(self, items: Sequence[NewItem]) -> list[Enqueued]:
        known = {each.dedupe_key for each in self.items.values()} - {None}
        added = len({each.dedupe_key for each in items} - known - {None})
        added += sum(each.dedupe_key is None for each in items)
        limit = self.definition.items_max
        if limit is not None and len(self.items) + added > limit:
            raise QueueFullError
        return [self._enqueue(each) for each in items]

    def _enqueue(self, new: NewItem) -> Enqueued:
        for item in self.items.values():
            if new.dedupe_key is not None and item.dedupe_key == new.dedupe_key:
                return Enqueued(
                    item.id, item.deadline_ms * US_PER_MS, duplicate=True, dead=item.state is ItemState.DEAD
                )
        self.last_id += 1
        deadline_ms, advanced = self._deadline(new.deadline_us, new.delay_s, new.priority)
        self.items[self.last_id] = Item(self.last_id, new.value, deadline_ms, new.priority, self.now_ms, new.dedupe_key)
        return Enqueued(self.last_id, deadline_ms * US_PER_MS, advanced=advanced)

    def _deadline(self, deadline_us: int | None, delay_s: float | None, priority: int) -> tuple[int, bool]:
        wanted = self.now_ms + up_ms(delay_s or 0.0) if deadline_us is None else -(-deadline_us // US_PER_MS)
        floor = self.floors_ms.get(priority, 0)
        return max(wanted, floor), wanted < floor

    def dequeue(self, count: int, lease_s: float | None, tokens: Callable[[int], str]) -> list[Leased]:
        """Lease items; ``tokens`` gives the token of an id."""
        found = [each for each in self.line() if each.deadline_ms <= self.now_ms][:count]
        leased = []
        for item in found:
            item.deliveries += 1
            item.state, item.token = ItemState.LEASED, tokens(item.id)
            item.until_ms, item.jumped_ms = self.now_ms + up_ms(lease_s or self.definition.lease_s), 0
            self.floors_ms[item.priority] = max(item.deadline_ms, self.floors_ms.get(item.priority, 0))
            leased.append(
                Leased(
                    item.id,
                    item.token,
                    item.value,
                    item.deadline_ms * US_PER_MS,
                    item.priority,
                    item.until_ms * US_PER_MS,
                    item.deliveries,
                    item.enqueued_ms * US_PER_MS,
                    _us(item.requeued_ms),
                    item.dedupe_key,
                )
            )
        return leased

    def _leased(self, item_id: int, token: str) -> Item:
        item = self.items.get(item_id)
        if item is None or item.state is not ItemState.LEASED or item.token != token:
            raise StaleTokenError
        return item

    def release_many(self, leases: Iterable[tuple[int, str]]) -> None:
        for item in [self._leased(*lease) for lease in leases]:
            del self.items[item.id]

    def give_back(self, item_id: int, token: str) -> None:
        with contextlib.suppress(StaleTokenError):
            item = self._leased(item_id, token)
            item.deadline_ms = max(item.deadline_ms, self.floors_ms[item.priority])
            item.deliveries -= 1
            item.state, item.until_ms = ItemState.PENDING, None

    def requeue(self, item_id: int, token: str, **wanted: object) -> Enqueued:
        item = self._leased(item_id, token)
        new = replace(NewItem(item.value, priority=item.priority), **{k: v for k, v in wanted.items() if v is not None})
        item.deadline_ms, advanced = self._deadline(new.deadline_us, new.delay_s, item.priority)
        item.value, item.requeued_ms = new.value, self.now_ms
        self._come_back(item)
        dead = item.state is ItemState.DEAD
        return Enqueued(item_id, item.deadline_ms * US_PER_MS, advanced=advanced, dead=dead)

    def reclaim(self, ids: Iterable[int]) -> list[Enqueued]:
        ids = list(ids)
        if any(item_id not in self.items or self.items[item_id].state is not ItemState.LEASED for item_id in ids):
            raise UnknownItemError
        return [replace(self.requeue(item_id, self.items[item_id].token), advanced=False) for item_id in ids]

    def extend(self, item_id: int, token: str, lease_s: float) -> int:
        item = self._leased(item_id, token)
        item.until_ms, item.jumped_ms = self.now_ms + up_ms(lease_s), 0
        return item.until_ms * US_PER_MS

    def bury(self, item_id: int, token: str) -> None:
        self._bury(self._leased(item_id, token))

    def kick(self, count: int) -> list[int]:
        ids = self.buried[:count]
        self.kick_ids(ids)
        return ids

    def kick_ids(self, ids: Iterable[int]) -> None:
        ids = list(ids)
        if not set(ids) <= set(self.buried):
            raise UnknownItemError
        for item_id in ids:
            self.buried.remove(item_id)
            item = self.items[item_id]
            item.deadline_ms, _ = self._deadline(None, None, item.priority)
            item.state, item.deliveries, item.requeued_ms = ItemState.PENDING, 0, self.now_ms

    def purge(self, states: Collection[ItemState], *, dry_run: bool = False) -> int:
        chosen = [each for each in self.items.values() if each.state in states]
        for item in () if dry_run else chosen:
            del self.items[item.id]
        if not dry_run:
            self.buried = [item_id for item_id in self.buried if item_id in self.items]
        return len(chosen)

    # ------------------------------------------------------------------ looking

    def line(self) -> list[Item]:
        return sorted(self._in(ItemState.PENDING), key=lambda each: each.place)

    def _in(self, state: ItemState) -> list[Item]:
        return [each for each in self.items.values() if each.state is state]

    def dead(self) -> list[Peeked]:
        return [self.items[item_id].peeked() for item_id in sorted(self.buried)]

    def item(self, item_id: int) -> ItemStats:
        if item_id not in self.items:
            raise UnknownItemError
        return self.items[item_id].stats()

    def stats(self) -> QueueStats:
        line = self.line()
        due = [each.deadline_ms for each in line if each.deadline_ms <= self.now_ms]
        later = [each.deadline_ms for each in line if each.deadline_ms > self.now_ms]
        return QueueStats(
            pending=len(line),
            due=len(due),
            scheduled=len(later),
            leased=len(self._in(ItemState.LEASED)),
            dead=len(self.buried),
            bytes=sum(len(each.value) for each in self.items.values()),
            oldest_due_us=_us(min(due, default=None)),
            oldest_enqueued_us=_us(min((each.enqueued_ms for each in self.items.values()), default=None)),
            next_deadline_us=_us(min(later, default=None)),
            last_id=self.last_id,
            waiting=0,
        )
