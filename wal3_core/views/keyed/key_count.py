"""How many records some keys have: bounds from what is in memory, drawn together by as many requests as allowed."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from wal3_core.errors import MissingError
from wal3_core.model.fragment import FragmentPointer
from wal3_core.views.keyed.key_reader import NO_ROLLUP, WHOLE_BYTES_MAX, key_hash, without_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.model.key_rollup import KeyRollup
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer
    from wal3_core.views.keyed.key_index import KeyMatch
    from wal3_core.views.keyed.key_reader import KeyReader

# A larger file's footer, and its key columns: at most two ranges of them. Or two for its footer, and its row groups.
_REQUESTS_OF_LARGE_FILE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCount:
    """Bounds of a number of records: at least ``lo``, at most ``hi``, of those below ``next_offset``."""

    lo: int
    hi: int
    next_offset: int

    @property
    def exact(self) -> bool:
        """Whether the bounds are one number."""
        return self.lo == self.hi


def count_exactly(keys: KeyReader, match: KeyMatch, start: int | None, limit: int | None) -> int:
    """Count the records of the keys in [start, limit)."""

    def counted(manifest: Manifest, first: int, end: int) -> int:
        hits = keys.hits(match, first, end, manifest)
        return sum(hit.index.count(match, max(begin, first), end) for hit, begin in hits)

    return keys.steady(start, limit, counted)


class Bounding:
    """Bounds the number of records of some keys in [start, limit) of one manifest."""

    def __init__(self, keys: KeyReader, match: KeyMatch, start: int, limit: int) -> None:
        self._keys = keys
        self._match = match
        self._start = start
        self._limit = limit
        self._lo = self._hi = 0
        # What is not known exactly, the widest first: how wide, a number to tell equal ones apart, the pointer.
        self._open: list[tuple[int, int, Pointer]] = []
        self._numbers = count()

    def bound(self, manifest: Manifest, requests_max: int) -> KeyCount:
        """Make at most so many requests where they tell most; with none, use only what is in memory."""
        self._add(manifest.pointers)
        while self._open and requests_max > 0:
            negative, _, pointer = heapq.heappop(self._open)
            cost = _cost(pointer)
            if cost > requests_max:
                # It stays as wide as it is.
                continue
            requests_max -= cost
            try:
                requests_max -= self._look(pointer, requests_max)
            except MissingError:
                # Maintenance has replaced it: the bounds hold without it.
                continue
            self._hi += negative
        return KeyCount(lo=self._lo, hi=self._hi, next_offset=min(self._limit, manifest.next.position.offset))

    def _look(self, pointer: Pointer, requests_left: int) -> int:
        """Read what a pointer stands for, and count that instead; return how many requests it took beside one."""
        keys, known, spent = self._keys, NO_ROLLUP, 0
        if isinstance(pointer, FragmentPointer):
            hit = keys.load_hit(self._match, pointer)
            self._count(hit.index.count(self._match, self._start, self._limit))
            return 0
        below = keys.load_snapshot(pointer).pointers
        if pointer.depth == 1 and not self._match.prefix:
            spent = int(requests_left > 0 and keys.shared.rollups.get(pointer.path) is None)
            known = keys.rollup(pointer) if spent else keys.shared.rollups.get(pointer.path) or NO_ROLLUP
        self._add(below, known)
        return spent

    def _add(self, pointers: Iterable[Pointer], rollup: KeyRollup = NO_ROLLUP) -> None:
        inside = [each for each in pointers if each.start.offset < self._limit and each.limit.offset > self._start]
        fragments = [each for each in inside if isinstance(each, FragmentPointer)]
        absent = without_key(rollup, fragments, key_hash(self._match.key)) if rollup.fragments else set()
        for pointer in inside:
            if pointer.path not in absent:
                self._add_one(pointer)

    def _add_one(self, pointer: Pointer) -> None:
        """Count what memory has of a pointer; what is left to read is open."""
        keys = self._keys
        if isinstance(pointer, FragmentPointer):
            hit = keys.known_hit(self._match, pointer)
            if hit is not None:
                self._count(hit.index.count(self._match, self._start, self._limit))
                return
        elif (snapshot := keys.stores.snapshots.held(pointer)) is not None:
            self._add(snapshot.pointers, keys.shared.rollups.get(pointer.path) or NO_ROLLUP)
            return
        overlap = min(pointer.limit.offset, self._limit) - max(pointer.start.offset, self._start)
        width = min(pointer.num_records, overlap)
        self._hi += width
        heapq.heappush(self._open, (-width, next(self._numbers), pointer))

    def _count(self, number: int) -> None:
        self._lo += number
        self._hi += number


def _cost(pointer: Pointer) -> int:
    small = not isinstance(pointer, FragmentPointer) or pointer.num_bytes <= WHOLE_BYTES_MAX
    return 1 if small else _REQUESTS_OF_LARGE_FILE
