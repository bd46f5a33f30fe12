"""What a subscription has read and is not done with. No I/O, no clock; its caller holds a lock.

Everything below ``read_limit`` was read: it is done, or among the outstanding items, or a dead letter. What an earlier
process, or another one, has done above that is ``done_ahead``; how often it has delivered the rest is counted, too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from wal3_core.format.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import U64_MAX
from wal3_core.views.feed.messages import Delivery, Gap, Stray
from wal3_core.views.feed.subscribed import ATTEMPTS_MAX, DEAD_MAX, DEAD_SAVED_MAX, DELIVERIES_MAX, Progress

Item = Delivery | Gap | Stray
# Entries that have changed since, and are left in the order of what is due.
_DUE_MIN = 16


def start_of_item(item: Item) -> int:
    """Return the first offset that an item stands for."""
    return item.start if isinstance(item, Gap) else item.offset


def _limit_of(item: Item) -> int:
    return item.limit if isinstance(item, Gap) else item.offset + 1


class UncountedError(Exception):
    """The next delivery is to be counted in the subscription's cursor before it is made."""


class Outstanding:
    """The items that were delivered and not acknowledged, and those that are about to be delivered."""

    def __init__(self, position: LogPosition, progress: Progress) -> None:
        self.read_limit = self._read_before = position.offset
        self.begin_again(position, progress)

    def begin_again(self, position: LogPosition, progress: Progress) -> None:
        """Forget all items, and read from the position."""
        self._read_before = self.end
        self.read_limit = position.offset
        # Where nothing is outstanding, the floor is here, at the time of the record before.
        self.read_us = position.timestamp_us
        self.done_ahead = progress.done
        self._floor = position.offset
        self._items: dict[int, Item] = {}
        self._ready: deque[int] = deque()
        # By the offset of an item, when it is due again; and the same in order, with what has changed since.
        self._given: dict[int, float] = {}
        self._due: list[tuple[float, int]] = []
        # By offset, how often a message was delivered; and how often it may have been, as is to be saved.
        self._attempts: dict[int, int] = dict(progress.deliveries)
        self._counted: dict[int, int] = {}
        # Dead letters, and their times once they were read. One that another process has acknowledged is none.
        dead = progress.dead.offsets()
        self._dead = {each: 0 for each in dead if each >= position.offset and each not in progress.done}

    def __len__(self) -> int:
        return len(self._items)

    @property
    def end(self) -> int:
        """The offset from which on nothing was ever read here."""
        return max(self._read_before, self.read_limit)

    @property
    def due_s(self) -> float | None:
        """When an item is due to be delivered again, at the earliest."""
        while self._due and self._given.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    # ------------------------------------------------------------------ reading

    def add(self, item: Item) -> None:
        """Take an item that was read at ``read_limit`` or behind it; what lies between is done."""
        start, limit = start_of_item(item), _limit_of(item)
        if not isinstance(item, Gap):
            self.read_us = max(self.read_us, item.timestamp_us)
        if isinstance(item, Delivery) and start in self._dead:
            self._dead[start] = item.timestamp_us
        elif not self.done_ahead.holds(start, limit):
            self._items[start] = item
            self._ready.append(start)
        if isinstance(item, Gap):
            for gone in [offset for offset in self._dead if start <= offset < limit]:
                del self._dead[gone]
        self.read_limit = max(self.read_limit, limit)

    def passed(self, offset: int, timestamp_us: int) -> None:
        """Pass a record that is not subscribed to."""
        self.read_limit, self.read_us = offset + 1, max(self.read_us, timestamp_us)

    def lost(self, limit: int) -> Iterable[Gap]:
        """Return the gaps up to ``limit``, behind all that was read, without what is done."""
        return [Gap(start=start, limit=high) for start, high in self.done_ahead.missing(self.read_limit, limit)]

    # ------------------------------------------------------------------ delivering

    # A call that is interrupted may deliver an item twice, or later: none is left out.

    def next(self, now_s: float, ack_wait_s: float, limit: int | None, saved: Mapping[int, int]) -> Item | None:
        """Return an item to deliver: one that is due again, or else a new one; one delivered ``limit`` times is buried.

        With a limit, UncountedError comes before a delivery that is not among those ``saved``.
        """
        while (start := self._next_start(now_s)) is not None:
            item = self._items[start]
            if isinstance(item, Stray):
                # It is reported once, and done.
                self._forget(start)
                self._drop_ready(start)
                return item
            attempt = self._attempts.get(start, 0) + 1
            if isinstance(item, Delivery):
                if limit is not None and attempt > limit and len(self._dead) < DEAD_MAX:
                    self._bury(item)
                    continue
                if limit is not None and saved.get(start, 0) < min(attempt, ATTEMPTS_MAX):
                    self._count(start, attempt, ahead=limit > 1)
                    raise UncountedError
                item = self._items[start] = replace(item, attempt=attempt)
                self._attempts[start] = attempt
            self._set_due(start, now_s + ack_wait_s)
            self._drop_ready(start)
            return item
        return None

    def _next_start(self, now_s: float) -> int | None:
        due_s = self.due_s
        if due_s is not None and due_s <= now_s:
            return self._due[0][1]
        while self._ready and (self._ready[0] not in self._items or self._ready[0] in self._given):
            self._ready.popleft()
        return self._ready[0] if self._ready else None

    def _drop_ready(self, start: int) -> None:
        if self._ready and self._ready[0] == start:
            self._ready.popleft()

    def _count(self, start: int, attempt: int, *, ahead: bool) -> None:
        """Count a delivery that is about to be made, and ``ahead`` the first one of all messages that wait for it.

        One that was counted, and may have ended its process, is counted again only when its own turn comes.
        """
        for each in self._ready if ahead else ():
            if isinstance(self._items.get(each), Delivery) and not self._attempts.get(each):
                self._counted[each] = 1
        self._counted[start] = attempt

    def _bury(self, item: Delivery) -> None:
        self._dead[item.offset] = item.timestamp_us
        attempts = self._attempts[item.offset]
        self._forget(item.offset)
        self._attempts[item.offset] = attempts

    def _set_due(self, start: int, due_s: float) -> None:
        self._given[start] = due_s
        heapq.heappush(self._due, (due_s, start))
        if len(self._due) > 2 * len(self._given) + _DUE_MIN:
            self._due = sorted((each_s, offset) for offset, each_s in self._given.items())

    def put_off(self, item: Item, due_s: float) -> bool:
        """Change when an item is due again; False when it is not outstanding, or was delivered again since."""
        start = start_of_item(item)
        found = self._found(item)
        if found is None or start not in self._given or _attempt_of(found) != _attempt_of(item):
            return False
        self._set_due(start, due_s)
        return True

    def take_back(self, item: Item, now_s: float) -> None:
        """Take back an item that was delivered to a caller who is gone."""
        start = start_of_item(item)
        if isinstance(item, Stray):
            self._items[start] = item
            self._ready.appendleft(start)
        elif self.put_off(item, now_s) and isinstance(item, Delivery):
            self._attempts[start] -= 1

    def _found(self, item: Item) -> Item | None:
        """Return what is outstanding at an item's offset, if it is that, though perhaps for another time."""
        found = self._items.get(start_of_item(item))
        same = found is not None and type(found) is type(item) and _limit_of(found) == _limit_of(item)
        return found if same else None

    def finish(self, item: Item) -> bool:
        """Take out an acknowledged item; False when it is not outstanding, even if another one is at its offset."""
        start = start_of_item(item)
        if start in self._dead and _limit_of(item) == start + 1:
            del self._dead[start]
            self._attempts.pop(start, None)
            if start >= self.read_limit:
                self.done_ahead |= OffsetRanges(((start, start + 1),))
            return True
        if self._found(item) is None:
            return False
        self._forget(start)
        return True

    def _forget(self, start: int) -> None:
        del self._items[start]
        for each in (self._given, self._attempts, self._counted):
            each.pop(start, None)

    # ------------------------------------------------------------------ dead letters

    @property
    def dead(self) -> dict[int, int]:
        """By the offset of each dead letter, how often it was delivered."""
        return {offset: self._attempts.get(offset, 0) for offset in sorted(self._dead)}

    def revive(self, item: Delivery) -> bool:
        """Deliver a dead letter again, as often as a new message; False when it is none."""
        if self._dead.pop(item.offset, None) is None:
            return False
        for each in (self._attempts, self._counted):
            each.pop(item.offset, None)
        if item.offset < self.read_limit:
            self._items[item.offset] = item
            self._ready.appendleft(item.offset)
        return True

    # ------------------------------------------------------------------ what is saved

    def num_given(self) -> tuple[int, int, int]:
        """Count the messages that wait to be delivered, those that were and are not done, and those of them again."""
        given = [self._attempts.get(start, 0) for start in self._given]
        waiting = sum(isinstance(item, Delivery) and start not in self._given for start, item in self._items.items())
        return waiting, len(given), sum(attempts > 1 for attempts in given)

    def behind(self) -> tuple[int, Callable[[int], bool]]:
        """Return up to where all was read, and what tells whether a message from there on is to be delivered."""
        done, dead = self.done_ahead, frozenset(self._dead)
        return self.read_limit, lambda offset: offset not in done and offset not in dead

    def _open(self) -> Iterator[tuple[int, int, int]]:
        """Go through what was read and is not done, in order: its first offset, the one behind it, and its time."""
        opened = {start: (_limit_of(item), _time_of(item, self.read_us)) for start, item in self._items.items()}
        opened |= {start: (start + 1, at_us) for start, at_us in self._dead.items() if start < self.read_limit}
        return ((start, *opened[start]) for start in sorted(opened))

    def floor(self) -> tuple[int, int]:
        """Return the offset below which all is done, and the time of the record there, or of the one before."""
        lowest = next(self._open(), None)
        if lowest is None:
            return max(self._floor, self.done_ahead.first_missing(self.read_limit)), self.read_us
        return max(self._floor, lowest[0]), lowest[2]

    def progress(self) -> Progress:
        """Return what is to be saved beside the floor; of too many ranges the highest are left out, to come again."""
        floor, ranges = self.floor()[0], list(self.done_ahead.ranges)
        start = floor
        for low, high, _ in self._open():
            ranges.append((start, low))
            start = high
        ranges.append((start, self.read_limit))
        found = OffsetRanges.of((max(low, floor), high) for low, high in ranges)
        # A range that begins at the floor is possible only if another process has done a part of a gap.
        done = OffsetRanges(tuple(each for each in found.ranges if each[0] > floor)[:RANGES_MAX])
        # Of too many dead letters, which several processes may have made at once, the rest is delivered again.
        dead = OffsetRanges.of((offset, offset + 1) for offset in sorted(self._dead)[:DEAD_SAVED_MAX])
        return Progress(done, self._deliveries(floor), dead)

    def _deliveries(self, floor: int) -> dict[int, int]:
        """Return the counts to be saved: of too many those of what is outstanding here."""
        known = {*self._attempts, *self._counted}
        known -= {offset for offset in known if offset < floor or not self._is_open(offset)}
        chosen = sorted(known, key=lambda offset: (offset not in self._items, offset))[:DELIVERIES_MAX]
        counts = {each: max(self._attempts.get(each, 0), self._counted.get(each, 0)) for each in sorted(chosen)}
        return {each: min(count, ATTEMPTS_MAX) for each, count in counts.items() if count}

    def _is_open(self, offset: int) -> bool:
        return offset in self._items or offset in self._dead or offset >= self.read_limit

    def take_over(self, position: LogPosition, progress: Progress, before: Progress) -> None:
        """Take over what another process has done since ``before``."""
        done, kept = progress.done, {*progress.dead.offsets()}
        changed = {*before.dead.offsets()} - kept
        revived = {offset for offset in changed if offset >= position.offset and offset not in done}
        if revived:
            self._read_again(position, progress, revived)
            return
        self._floor = max(self._floor, position.offset)
        self.done_ahead = (self.done_ahead | done).between(self._floor, U64_MAX)
        for start, item in list(self._items.items()):
            if _limit_of(item) <= position.offset or done.holds(start, _limit_of(item)):
                self._forget(start)
        self._take_over_dead(position, progress, before)
        for offset, count in progress.deliveries.items():
            if self._is_open(offset):
                self._attempts[offset] = max(count, self._attempts.get(offset, 0))
        if self.read_limit < position.offset:
            self.read_limit, self.read_us = position.offset, max(self.read_us, position.timestamp_us)

    def _read_again(self, position: LogPosition, progress: Progress, revived: set[int]) -> None:
        """Begin again, with what both have done: dead letters are delivered again, and they are not in memory."""
        own = self.progress()
        read = OffsetRanges.of([(position.offset, self.floor()[0])])
        done = (progress.done | own.done | read).between(position.offset, U64_MAX)
        dead = {*progress.dead.offsets(), *own.dead.offsets()} - revived
        counts = {offset: count for offset, count in own.deliveries.items() if offset not in revived}
        ranges = OffsetRanges.of((offset, offset + 1) for offset in dead)
        self.begin_again(position, Progress(done, counts | progress.deliveries, ranges))

    def _take_over_dead(self, position: LogPosition, progress: Progress, before: Progress) -> None:
        for offset in list(self._dead):
            if offset < position.offset or offset in progress.done:
                del self._dead[offset]
        for offset in progress.dead.offsets():
            item = self._items.get(offset)
            if offset in before.dead:
                # If it is none here, it was acknowledged or delivered again since.
                continue
            if isinstance(item, Delivery):
                self._attempts.setdefault(offset, 1)
                self._bury(item)
            elif offset >= self.read_limit and offset not in self.done_ahead:
                self._dead[offset] = 0


def _attempt_of(item: Item) -> int:
    return item.attempt if isinstance(item, Delivery) else 0


def _time_of(item: Item, otherwise_us: int) -> int:
    return otherwise_us if isinstance(item, Gap) else item.timestamp_us
