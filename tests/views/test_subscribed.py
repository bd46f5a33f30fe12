"""What an owner keeps in its cursor beyond the position, as stored; sets of offsets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.format.cursor import Cursor, Extension, Owner
from wal3_core.format.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.format.paths import LogId
from wal3_core.format.position import LogPosition
from wal3_core.format.strict_json import U64_MAX, Fields, JsonObject
from wal3_core.views.feed.subscribed import ATTEMPTS_MAX, DEAD_MAX, DELIVERIES_MAX, Progress, Subscribed
from wal3_core.views.feed.topics import Levels
from wal3_core.views.keyed.keyed_consumer import extension_of

GOLDEN = Path(__file__).parent.parent / "golden"
DONE = OffsetRanges(((5, 7), (9, 10)))
SUBSCRIBED = Subscribed(token="0123456789abcdef", topics=("a/*", "b"), pins=False, progress=Progress(DONE))
PLAIN = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="w", generation=1, log_id=LOG_ID)
CURSOR = replace(PLAIN, owner=Owner.SUBSCRIPTION, pins=False, extension=SUBSCRIBED.extension(3))
KEYS = extension_of(b"p", ((b"", 9), (b"a", 4), (b"a\0", 7)))
SETS = st.frozensets(st.integers(1, 40)).map(sorted)


def ranges_of(offsets: list[int]) -> OffsetRanges:
    return OffsetRanges.of((offset, offset + 1) for offset in offsets)


def offsets_of(ranges: OffsetRanges) -> list[int]:
    return [offset for start, limit in ranges.ranges for offset in range(start, limit)]


@pytest.mark.parametrize(
    ("name", "cursor"),
    [
        ("cursor_of_a_subscription", CURSOR),
        ("cursor_of_keys", replace(PLAIN, owner=Owner.KEYED_CONSUMER, extension=KEYS, carried_from=LogId("2" * 32))),
    ],
)
def test_format_is_what_earlier_versions_wrote(name: str, cursor: Cursor) -> None:
    stored = (GOLDEN / f"{name}.json").read_bytes()

    assert cursor.to_bytes() == stored
    assert Cursor.from_bytes(stored, what="cursor") == cursor


def test_cursors_that_do_not_name_their_owner_are_read() -> None:
    """Versions before owners showed the kind by the fields alone."""
    subscribed, keyed = (
        Cursor.from_bytes((GOLDEN / f"{name}_without_owner.json").read_bytes(), what="cursor")
        for name in ("cursor_of_a_subscription", "cursor_of_keys")
    )

    assert (subscribed.owner, subscribed.pins) == (Owner.SUBSCRIPTION, False)
    assert Subscribed.of(subscribed, "cursor") == SUBSCRIBED
    assert (keyed.owner, keyed.extension) == (Owner.KEYED_CONSUMER, replace(KEYS, terms={}))
    # How far the acknowledgements go is not said there: no other log takes them over.
    assert subscribed.within(LogPosition(100, 9)).extension == CURSOR.extension.behind


@pytest.mark.parametrize(
    "extension",
    [
        {},
        {"terms": {}},
        {"terms": {"x": 1}, "ahead": {}},
        {"terms": {"x": 1}, "limit": 0, "ahead": {}},
        {"terms": {"x": 1}, "limit": 2},
        {"ahead": {"x": 1}},
        {"ahead": {"x": 1}, "limit": 3},
        {"limit": 4},
        {"ahead": {}, "limit": 4},
    ],
)
def test_extension_says_how_far_it_goes_and_that_is_ahead(extension: JsonObject) -> None:
    with pytest.raises(CorruptError, match=r"cursor\.extension: .*expected|expected something ahead below a limit"):
        Cursor.from_json(Fields({**PLAIN.to_json(), "extension": extension}, "cursor"))


def test_log_that_ends_earlier_forgets_what_is_ahead_and_keeps_whose_cursor_it_is() -> None:
    whole, cut, moved = (CURSOR.within(LogPosition(limit, 0)) for limit in (10, 9, 2))

    assert whole == CURSOR
    assert (cut.position, cut.extension) == (CURSOR.position, CURSOR.extension.behind)
    assert (moved.position.offset, moved.owner, moved.pins) == (2, Owner.SUBSCRIPTION, False)
    assert Subscribed.of(cut, "cursor") == replace(SUBSCRIBED, progress=Progress())


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
        Subscribed.of(replace(CURSOR, extension=replace(CURSOR.extension, ahead={"done": ""})), "x")


def test_counts_dead_letters_and_levels_are_read_as_they_were_written() -> None:
    progress = Progress(OffsetRanges(((5, 7),)), {3: 1, 4: 12, 9: ATTEMPTS_MAX}, OffsetRanges(((3, 5), (20, 21))))
    subscribed = replace(SUBSCRIBED, topics=("a/*", Levels("a/*")), progress=progress)
    cursor = replace(CURSOR, extension=subscribed.extension(3))

    assert cursor.extension.limit == 21
    assert cursor.extension.terms["topics"] == [{"pattern": "a/*"}, {"levels": "a/*"}]
    assert Subscribed.of(Cursor.from_bytes(cursor.to_bytes(), what="x"), "x") == subscribed


@pytest.mark.parametrize(
    "ahead",
    [
        {"deliveries": ""},
        {"deliveries": "1*0"},
        {"deliveries": "1*1 0*1"},
        {"deliveries": f"1*{ATTEMPTS_MAX + 1}"},
        {"deliveries": f"{U64_MAX}*1"},
        {"deliveries": " ".join(["1*1"] * (DELIVERIES_MAX + 1))},
        {"dead": ""},
        {"dead": f"1+{10**18}"},
        {"other": 1},
    ],
)
def test_progress_that_is_off_is_refused(ahead: JsonObject) -> None:
    with pytest.raises(CorruptError, match="expected"):
        Subscribed.of(replace(CURSOR, extension=replace(CURSOR.extension, ahead=ahead)), "x")


def test_pattern_of_levels_that_is_none_is_refused() -> None:
    terms: JsonObject = {"token": "0123456789abcdef", "topics": [{"levels": "a/x**"}]}

    with pytest.raises(CorruptError, match="expected \\*\\* alone"):
        Subscribed.of(replace(CURSOR, extension=Extension(terms=terms)), "x")


@pytest.mark.slow
def test_full_document_can_be_read_back_and_one_range_more_is_refused() -> None:
    full = OffsetRanges(tuple((10**12 + 10**9 * n, 10**12 + 10**9 * n + 10**8) for n in range(RANGES_MAX)))
    counts = {3 + 10**9 * n: ATTEMPTS_MAX for n in range(DELIVERIES_MAX)}
    dead = OffsetRanges(tuple((3 + 10**9 * n, 4 + 10**9 * n) for n in range(2 * DEAD_MAX)))
    topics = tuple(sorted(f"{n:03}" + "x" * 1000 for n in range(100)))
    cursor = Cursor(
        position=LogPosition(3, 5),
        epoch_us=7,
        generation=1,
        log_id=LOG_ID,
        owner=Owner.SUBSCRIPTION,
        extension=Subscribed(token="0" * 16, topics=topics, progress=Progress(full, counts, dead)).extension(3),
    )

    assert Cursor.from_bytes(cursor.to_bytes(), what="cursor") == cursor
    with pytest.raises(CorruptError):
        OffsetRanges.from_text(full.to_text(1) + " 1+1", 1, "x")
