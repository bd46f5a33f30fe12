"""Pending items of one priority in memory, ordered by (deadline, id): sorted arrays, and a heap of those added last.

An item takes 48 bytes. The arrays are merged as they grow, so that there are few; items leave them from the front.
"""

from __future__ import annotations

import bisect
import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    Rows = NDArray[np.void]

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
    """The pending items of one priority."""

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
