"""Sets of offsets as ranges, for what is done ahead of a cursor."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from wal3_core.errors import CorruptError
from wal3_core.format.strict_json import U64_MAX

# A cursor's document has room for as many.
RANGES_MAX = 2000
_TEXT = re.compile(r"|[1-9][0-9]{0,19}\+[1-9][0-9]{0,19}( [1-9][0-9]{0,19}\+[1-9][0-9]{0,19})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Ranges of offsets, each from a start (inclusive) to a limit (exclusive), rising and apart from each other."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> OffsetRanges:
        """Unite ranges in any order; empty ones are left out."""
        united: list[tuple[int, int]] = []
        for start, limit in sorted(ranges):
            if start >= limit:
                continue
            if united and start <= united[-1][1]:
                united[-1] = united[-1][0], max(limit, united[-1][1])
            else:
                united.append((start, limit))
        return cls(tuple(united))

    def __or__(self, other: OffsetRanges) -> OffsetRanges:
        return OffsetRanges.of((*self.ranges, *other.ranges))

    def __contains__(self, offset: int) -> bool:
        return self.holds(offset, offset + 1)

    def holds(self, start: int, limit: int) -> bool:
        """Tell whether all offsets of a range are in the set."""
        index = bisect_right(self.ranges, (start, U64_MAX)) - 1
        return start >= limit or (index >= 0 and limit <= self.ranges[index][1])

    def holds_all(self, other: OffsetRanges) -> bool:
        """Tell whether another set is part of this one."""
        return all(self.holds(*each) for each in other.ranges)

    def between(self, start: int, limit: int) -> OffsetRanges:
        """Return the part of the set from ``start`` to ``limit``."""
        return OffsetRanges.of((max(start, low), min(limit, high)) for low, high in self.ranges)

    def missing(self, start: int, limit: int) -> Iterator[tuple[int, int]]:
        """Go through the ranges from ``start`` to ``limit`` that are not in the set."""
        for low, high in self.between(start, limit).ranges:
            if start < low:
                yield start, low
            start = high
        if start < limit:
            yield start, limit

    def offsets(self) -> Iterator[int]:
        """Go through the offsets of the set."""
        for start, limit in self.ranges:
            yield from range(start, limit)

    def first_missing(self, start: int) -> int:
        """Return the first offset at or after ``start`` that is not in the set."""
        index = bisect_right(self.ranges, (start, U64_MAX)) - 1
        return max(start, self.ranges[index][1]) if index >= 0 else start

    def to_text(self, start: int) -> str:
        """Encode ranges above ``start``: ``<offsets since the range before>+<offsets of the range>`` for each."""
        parts = []
        for low, high in self.ranges:
            parts.append(f"{low - start}+{high - low}")
            start = high
        return " ".join(parts)

    @classmethod
    def from_text(cls, text: str, start: int, what: str) -> OffsetRanges:
        """Decode ranges above ``start``; CorruptError names ``what`` when anything is off."""
        parts = text.split()
        ranges = []
        if _TEXT.fullmatch(text) and len(parts) <= RANGES_MAX:
            for part in parts:
                apart, _, length = part.partition("+")
                ranges.append((start + int(apart), start + int(apart) + int(length)))
                start = ranges[-1][1]
            if start <= U64_MAX:
                return cls(tuple(ranges))
        raise CorruptError(f"{what}: expected at most {RANGES_MAX} ranges of offsets within u64, found {text[:80]!r}")
