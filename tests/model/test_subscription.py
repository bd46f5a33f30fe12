"""What a subscription's cursor says beyond its position, as stored; sets of offsets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.model import strict_json
from wal3_core.model.cursor import Cursor
from wal3_core.model.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.model.position import LogPosition
from wal3_core.model.strict_json import U64_MAX
from wal3_core.model.subscription import Subscribed

GOLDEN = Path(__file__).parent.parent / "golden"
SUBSCRIBED = Subscribed(token="0123456789abcdef", topics=("a/*", "b"), pins=False, done=OffsetRanges(((5, 7), (9, 10))))
CURSOR = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="w", generation=1, log_id=LOG_ID, subscribed=SUBSCRIBED)
SETS = st.frozensets(st.integers(1, 40)).map(sorted)


def ranges_of(offsets: list[int]) -> OffsetRanges:
    return OffsetRanges.of((offset, offset + 1) for offset in offsets)


def offsets_of(ranges: OffsetRanges) -> list[int]:
    return [offset for start, limit in ranges.ranges for offset in range(start, limit)]


def test_format_is_what_earlier_versions_wrote() -> None:
    stored = (GOLDEN / "cursor_of_a_subscription.json").read_bytes()

    assert CURSOR.to_bytes() == stored
    assert Cursor.from_bytes(stored, what="cursor") == CURSOR


@given(SETS, SETS, st.integers(1, 45), st.integers(1, 45))
def test_ranges_are_sets_of_offsets(one: list[int], other: list[int], start: int, limit: int) -> None:
    ranges, others = ranges_of(one), ranges_of(other)

    assert offsets_of(ranges) == one
    assert offsets_of(ranges | others) == sorted({*one, *other})
    assert [offset in ranges for offset in range(45)] == [offset in one for offset in range(45)]
    assert ranges.holds(start, limit) == all(offset in one for offset in range(start, limit))
    assert ranges.holds_all(others) == ({*other} <= {*one})
    assert offsets_of(ranges.between(start, limit)) == [each for each in one if start <= each < limit]
    missing = OffsetRanges(tuple(ranges.missing(start, limit)))
    assert offsets_of(missing) == [each for each in range(start, limit) if each not in one]
    assert ranges.first_missing(start) == next(each for each in range(start, 100) if each not in one)


@given(SETS)
def test_ranges_are_read_as_they_were_written(offsets: list[int]) -> None:
    ranges = OffsetRanges.of((offset + 1, offset + 2) for offset in offsets)

    assert OffsetRanges.from_text(ranges.to_text(1), 1, "x") == ranges


@pytest.mark.parametrize(
    "text",
    ["1", "0+1", "1+0", "1+1 ", " 1+1", "1+1  1+1", "-1+1", "01+1", "1+1,1+1", f"{U64_MAX}+1", "\u0661+1", "1+1\n"],
)
def test_text_that_is_no_ranges_is_refused(text: str) -> None:
    with pytest.raises(CorruptError, match="x: expected at most"):
        OffsetRanges.from_text(text, 1, "x")


def test_empty_field_is_refused_as_it_would_have_been_left_out() -> None:
    with pytest.raises(CorruptError, match="expected ranges as done, or no such field, found none"):
        Subscribed.from_json(strict_json.Fields({**SUBSCRIBED.to_json(3), "done": ""}, what="x"), 3)


def test_full_document_can_be_read_back_and_one_range_more_is_refused() -> None:
    full = OffsetRanges(tuple((10**12 + 10**9 * n, 10**12 + 10**9 * n + 10**8) for n in range(RANGES_MAX)))
    topics = tuple(sorted(f"{n:03}" + "x" * 50 for n in range(100)))
    cursor = Cursor(
        position=LogPosition(3, 5),
        epoch_us=7,
        generation=1,
        log_id=LOG_ID,
        subscribed=Subscribed(token="0" * 16, topics=topics, done=full),
    )

    assert Cursor.from_bytes(cursor.to_bytes(), what="cursor") == cursor
    with pytest.raises(CorruptError):
        OffsetRanges.from_text(full.to_text(1) + " 1+1", 1, "x")
