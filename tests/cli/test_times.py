"""Times and durations as people write them, and the ranges that they select."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from wal3_core.cli.types import Duration, Time, age_of, seconds_of, wait_of
from wal3_core.runtime import US_PER_S, shared_runtime

if TYPE_CHECKING:
    from .conftest import Command

NOVEMBER_US = 1_793_491_200 * US_PER_S
HOUR_US = 3600 * US_PER_S


def time_us(text: str) -> int:
    return Time().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-01", NOVEMBER_US),
        ("2026-11-01T00:00:00", NOVEMBER_US),
        ("2026-11-01T12:00:00+01:00", NOVEMBER_US + 11 * HOUR_US),
        ("2026-11-01 12:00Z", NOVEMBER_US + 12 * HOUR_US),
        (str(NOVEMBER_US), NOVEMBER_US),
    ],
)
def test_time_is_utc_unless_it_has_an_offset(text: str, expected: int) -> None:
    assert time_us(text) == expected


@pytest.mark.parametrize(
    ("text", "ago_s"), [("-90s", 90), ("-1h", 3600), ("-1h30m", 5400), ("-7d", 604_800), ("now", 0)]
)
def test_time_may_be_so_long_ago(text: str, ago_s: int) -> None:
    before_us = shared_runtime().now_us()
    found = time_us(text)

    assert before_us <= found + ago_s * US_PER_S <= shared_runtime().now_us()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("7d", "found a duration, '7d': -7d is that long ago"),
        ("-7", "expected ISO 8601"),
        ("-1x", "expected ISO 8601"),
        ("yesterday", "expected ISO 8601"),
        ("1969-12-31", "expected a time since 1970"),
        ("²", "expected ISO 8601"),
    ],
)
def test_what_is_no_time_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(click.BadParameter, match=complaint):
        time_us(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0.5", 0.5),
        ("15m", 900),
        ("15min", 900),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("250ms", 0.25),
    ],
)
def test_duration_has_seconds_or_units(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "-1", "-7d", "7 days", "d", "nan", "1e3", "99d", "7dd"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Duration(0, 86_400).convert(text, None, None)


def test_policy_and_collection_take_durations(wal3: Command) -> None:
    wal3.ok("init", "a")

    [policy] = wal3.json("policy", "a", "--retention", "7d", "--without-cursors", "--json")
    refused = wal3("policy", "a", "--retention-s", "1.5")

    assert policy["retention_s"] == 604_800
    assert refused.exit_code == 2
    assert "expected whole seconds" in refused.stderr
    assert wal3.json("gc", "a", "--interval", "6h", "--json")[0]["num_records"] == 0


def numbered(wal3: Command) -> list[int]:
    """Append ten records, one by one; return their times."""
    for number in range(1, 11):
        wal3.ok("append", "--create", "--raw", "a", stdin=f"{number}\n")
    return [int(str(line["timestamp_us"])) for line in wal3.json("cat", "a")]


def offsets(wal3: Command, *arguments: str) -> list[object]:
    return [line["offset"] for line in wal3.json(*arguments)]


@pytest.mark.slow
def test_ranges_begin_at_and_end_before(wal3: Command) -> None:
    times = numbered(wal3)

    assert offsets(wal3, "cat", "a", "--from-offset", "3", "--to-offset", "6") == [3, 4, 5]
    assert offsets(wal3, "cat", "a", "--to-offset", "3", "--limit", "1") == [1]
    assert offsets(wal3, "cat", "a", "--from-time", str(times[2]), "--to-time", str(times[5])) == [3, 4, 5]
    assert offsets(wal3, "cat", "a", "--from-time", "-1h", "--to-time", "now") == list(range(1, 11))
    assert offsets(wal3, "cat", "a", "--to-time", "-1h") == []
    assert offsets(wal3, "tail", "a", "-n", "2", "--to-offset", "6") == [4, 5]
    assert offsets(wal3, "tail", "a", "--from-offset", "3", "--to-offset", "6") == [3, 4, 5]
    assert offsets(wal3, "tail", "a", "--from-time", "-1h", "-n", "3") == [8, 9, 10]
    assert offsets(wal3, "tail", "a", "-n", "2") == [9, 10]
    wal3.ok("pin", "create", "a", "p", "--reason", "a test")
    assert offsets(wal3, "cat", "a", "--pin", "p", "--from-offset", "9", "--to-offset", "10") == [9]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.01, "1s"), (59.2, "1m"), (3600, "1h"), (3601, "1h1m"), (86_399.5, "1d"), (90_001, "1d2h"), (1_209_600, "14d")],
)
def test_wait_is_rounded_up_to_its_second_unit_and_reads_as_a_duration(seconds: float, shown: str) -> None:
    assert wait_of(seconds) == shown
    assert (seconds_of(shown) or 0) >= seconds


def test_follower_of_a_range_with_an_end_is_refused(wal3: Command) -> None:
    wal3.ok("init", "a")

    assert wal3("tail", "a", "--follow", "--to-offset", "3").exit_code == 2


def test_raw_output_is_the_bodies_and_nothing_else(wal3: Command) -> None:
    lines = '{"body_b64": "AP8K"}\n{"key": "k", "body": null}\n{"body": "b"}\n'
    wal3.ok("append", "--create", "a", stdin=lines)

    assert wal3.ok("cat", "a", "--raw") == b"\x00\xff\n\nb\n"
    assert wal3.ok("cat", "a", "--raw", "--separator", "") == b"\x00\xff\nb"
    assert wal3.ok("cat", "a", "--raw", "--separator", r"\0") == b"\x00\xff\n\x00b\x00"
    assert wal3("cat", "a", "--separator", "x").exit_code == 2


def test_raw_output_is_raw_input(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n2\n\n3\n")
    wal3.ok("append", "--create", "--raw", "b", stdin=wal3.ok("cat", "a", "--raw"))

    assert wal3.ok("cat", "b", "--raw") == b"1\n2\n\n3\n"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.9, "0s"), (59.2, "59s"), (3719, "1h1m"), (86_399.5, "23h59m"), (2_257_445.0, "26d3h")]
)
def test_age_is_rounded_down_to_its_second_unit(seconds: float, shown: str) -> None:
    assert age_of(seconds) == shown
