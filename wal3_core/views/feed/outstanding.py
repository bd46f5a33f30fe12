"""What a subscription has read and is not done with. No I/O, no clock; its caller holds a lock.

Everything below ``read_limit`` was read: it is done, or among the outstanding items. ``done_ahead`` is what an earlier
process, or another one, has done above that.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.model.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.model.strict_json import U64_MAX
from wal3_core.views.feed.messages import Delivery, Gap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.model.position import LogPosition

Item = Delivery | Gap


def start_of_item(item: Item) -> int:
    """Return the first offset that an item stands for."""
    return item.start if isinstance(item, Gap) else item.offset


def _limit_of(item: Item) -> int:
    return item.limit if isinstance(item, Gap) else item.offset + 1


class Outstanding:
    """The items that were delivered and not acknowledged, and those that are about to be delivered."""

    def __init__(self, position: LogPosition, done: OffsetRanges) -> None:
        self.read_limit = self._read_before = position.offset
        self.begin_again(position, done)

    def begin_again(self, position: LogPosition, done: OffsetRanges) -> None:
        """Forget all items, and read from the position."""
        self._read_before = self.end
        self.read_limit = position.offset
        # Where nothing is outstanding, the floor is here, at the time of the record before.
        self.read_us = position.timestamp_us
        self.done_ahead = done
        self._floor = position.offset
        self._items: dict[int, Item] = {}
        self._ready: deque[int] = deque()
        # By the offset of an item, when it is due again: the first one first.
        self._given: OrderedDict[int, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def end(self) -> int:
        """The offset from which on nothing was ever read here."""
        return max(self._read_before, self.read_limit)

    @property
    def due_s(self) -> float | None:
        """When an item is due to be delivered again, at the earliest."""
        return next(iter(self._given.values()), None)

    # ------------------------------------------------------------------ reading

    def add(self, item: Item) -> None:
        """Take an item that was read at ``read_limit`` or behind it; what lies between is done."""
        if isinstance(item, Delivery):
            self.read_us = max(self.read_us, item.timestamp_us)
        if not self.done_ahead.holds(start_of_item(item), _limit_of(item)):
            self._items[start_of_item(item)] = item
            self._ready.append(start_of_item(item))
        self.read_limit = max(self.read_limit, _limit_of(item))

    def passed(self, offset: int, timestamp_us: int) -> None:
        """Pass a record that is not subscribed to."""
        self.read_limit, self.read_us = offset + 1, max(self.read_us, timestamp_us)

    def lost(self, limit: int) -> Iterable[Gap]:
        """Return the gaps up to ``limit``, behind all that was read, without what is done."""
        return [Gap(start=start, limit=high) for start, high in self.done_ahead.missing(self.read_limit, limit)]

    # ------------------------------------------------------------------ delivering

    # A call that is interrupted may deliver an item twice, or later: none is left out.

    def next(self, now_s: float, ack_wait_s: float) -> Item | None:
        """Return an item to deliver: one that is due again, or else a new one."""
        while self._given and next(iter(self._given.values())) <= now_s:
            start = next(iter(self._given))
            item = self._items.get(start)
            if item is not None:
                again = replace(item, attempt=item.attempt + 1) if isinstance(item, Delivery) else item
                return self._give(again, now_s + ack_wait_s)
            del self._given[start]
        while self._ready:
            item = self._items.get(self._ready[0])
            if item is not None and self._ready[0] not in self._given:
                self._give(item, now_s + ack_wait_s)
                self._ready.popleft()
                return item
            self._ready.popleft()
        return None

    def _give(self, item: Item, due_s: float) -> Item:
        start = start_of_item(item)
        self._items[start] = item
        self._given[start] = due_s
        self._given.move_to_end(start)
        return item

    def finish(self, item: Item) -> bool:
        """Take out an acknowledged item; False when it is not outstanding, even if another one is at its offset."""
        found = self._items.get(start_of_item(item))
        if found is None or isinstance(found, Gap) != isinstance(item, Gap) or _limit_of(found) != _limit_of(item):
            return False
        self._forget(start_of_item(item))
        return True

    def _forget(self, start: int) -> None:
        del self._items[start]
        self._given.pop(start, None)

    # ------------------------------------------------------------------ what is saved

    def floor(self) -> tuple[int, int]:
        """Return the offset below which all is done, and the time of the record there, or of the one before."""
        lowest = min(self._items, default=None)
        if lowest is None:
            return max(self._floor, self.done_ahead.first_missing(self.read_limit)), self.read_us
        item = self._items[lowest]
        return max(self._floor, lowest), item.timestamp_us if isinstance(item, Delivery) else self.read_us

    def done(self) -> OffsetRanges:
        """Return what is done above the floor; of too many ranges the highest are left out, and delivered again."""
        floor, ranges = self.floor()[0], list(self.done_ahead.ranges)
        start = floor
        for low in sorted(self._items):
            ranges.append((start, low))
            start = _limit_of(self._items[low])
        ranges.append((start, self.read_limit))
        found = OffsetRanges.of((max(low, floor), high) for low, high in ranges)
        # A range that begins at the floor is possible only if another process has done a part of a gap.
        return OffsetRanges(tuple(each for each in found.ranges if each[0] > floor)).first(RANGES_MAX)

    def take_over(self, position: LogPosition, done: OffsetRanges) -> None:
        """Drop what another process has done since."""
        self._floor = max(self._floor, position.offset)
        self.done_ahead = (self.done_ahead | done).between(self._floor, U64_MAX)
        for start, item in list(self._items.items()):
            if _limit_of(item) <= position.offset or done.holds(start, _limit_of(item)):
                self._forget(start)
        if self.read_limit < position.offset:
            self.read_limit, self.read_us = position.offset, max(self.read_us, position.timestamp_us)
