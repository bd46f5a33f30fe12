"""What a writer's cursor says of the writer's last appends that have a name: which there were, and where they lie."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from wal3_core.errors import CorruptError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import check_fragment_path
from wal3_core.format.strict_json import INTEGER, TEXT, Stored, member

# The appends that a cursor remembers: older ones are forgotten.
NAMED_APPENDS_MAX = 16
SERIES_LENGTH_MAX = 200
# The digits of a token's sixteen that name the append; the others are random, so that no path is used again.
NAMING_DIGITS = 12
_NAMING = re.compile(rf"[0-9a-f]{{{NAMING_DIGITS}}}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedAppend(Stored):
    """An append that was begun: ``naming`` is how the tokens of its fragments begin.

    ``number`` is its own in a ``series``, in which each append begins when those before it are done; 0 without a
    series. It lies from the offset ``start`` to ``limit``, which are 0 as long as it was not found in the log.
    """

    naming: str
    series: str = ""
    number: int = 0
    start: int = 0
    limit: int = 0

    MEMBERS = (
        member("naming", TEXT),
        member("series", TEXT, default=""),
        member("number", INTEGER, default=0, beside="series"),
        member("start", INTEGER, default=0),
        member("limit", INTEGER, default=0, beside="start"),
    )

    @property
    def is_done(self) -> bool:
        """Whether the log has it."""
        return self.limit > 0

    def within(self, limit: int) -> NamedAppend:
        """Return it for a log that ends at an offset: it lies wholly below that, or not in the log."""
        return replace(self, start=0, limit=0) if self.limit > limit else self

    def check_stored(self, what: str) -> None:
        """Refuse what no append can be."""
        if not _NAMING.fullmatch(self.naming):
            raise CorruptError(f"{what}: expected {NAMING_DIGITS} hex digits as naming, found {self.naming[:40]!r}")
        if len(self.series) > SERIES_LENGTH_MAX:
            raise CorruptError(f"{what}: expected a series of 1 to {SERIES_LENGTH_MAX} characters, or no such field")
        if self.start and self.start >= self.limit:
            raise CorruptError(f"{what}: expected a start below its limit, found {self.start} and {self.limit}")


def named_of(pointers: Iterable[FragmentPointer]) -> dict[str, list[FragmentPointer]]:
    """Return fragments by how their tokens begin."""
    found: dict[str, list[FragmentPointer]] = {}
    for each in pointers:
        found.setdefault(check_fragment_path(each.path, each.seq_no)[:NAMING_DIGITS], []).append(each)
    return found


def placed(appends: Iterable[NamedAppend], pointers: Iterable[FragmentPointer]) -> tuple[NamedAppend, ...]:
    """Return appends with the places of those that were not found before, and are among the fragments given."""
    todo = list(appends)
    if all(each.is_done for each in todo):
        return tuple(todo)
    found = named_of(pointers)
    return tuple(each if each.is_done else _placed(each, found.get(each.naming, ())) for each in todo)


def _placed(append: NamedAppend, pointers: Sequence[FragmentPointer]) -> NamedAppend:
    if not pointers:
        return append
    return replace(append, start=pointers[0].start.offset, limit=pointers[-1].limit.offset)


def begun(appends: Iterable[NamedAppend], append: NamedAppend) -> tuple[NamedAppend, ...]:
    """Return what a cursor remembers when an append begins, the newest last: of a series, the newest alone.

    An append without a series makes it forget none of a series: there may be one more than a cursor can have then.
    """
    held = tuple(appends)
    gone = forgotten(held, append)
    return (*(each for each in _beside(held, append) if each not in gone), append)


def forgotten(appends: Iterable[NamedAppend], append: NamedAppend) -> list[NamedAppend]:
    """Return those that a cursor has no place for when an append begins.

    Those without a series come first: a number below that of a series is refused, however old it is.
    """
    kept = _beside(appends, append)
    order = sorted(kept, key=lambda each: bool(each.series))
    num_over = max(0, len(kept) + 1 - NAMED_APPENDS_MAX)
    return [each for each in order[:num_over] if append.series or not each.series]


def _beside(appends: Iterable[NamedAppend], append: NamedAppend) -> list[NamedAppend]:
    """Return the others, without an earlier one of the same series."""
    return [
        each for each in appends if each.naming != append.naming and (not append.series or each.series != append.series)
    ]


class Places:
    """Where named appends lie that end behind an offset."""

    def __init__(self, appends: Iterable[NamedAppend], offset: int) -> None:
        held = sorted({(each.start, each.limit, each.naming) for each in appends if each.limit > offset})
        self._held = held
        self._starts = [start for start, _, _ in held]
        self._bounds = sorted({bound for start, limit, _ in held for bound in (start, limit)})

    def naming_at(self, offset: int) -> str:
        """Return the naming of the append that has the record at an offset; empty if none has."""
        at = bisect_right(self._starts, offset) - 1
        return self._held[at][2] if at >= 0 and offset < self._held[at][1] else ""

    def continue_at(self, offset: int) -> bool:
        """Tell whether the records before and at an offset are one append's."""
        return bool(self.naming_at(offset)) and offset not in self._starts

    def cut(self, start: int, limit: int) -> list[int]:
        """Return the offsets from ``start`` to ``limit``, both included, between which all records are one append's."""
        low, high = bisect_right(self._bounds, start), bisect_left(self._bounds, limit)
        return [start, *self._bounds[low:high], limit]
