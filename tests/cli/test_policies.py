"""``policy`` says how a log is collected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .conftest import Command


def test_policy_is_shown_and_changed(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")

    before = wal3.ok("policy", "a")
    changed = wal3.ok("policy", "a", "--retention-s", "60", "--without-cursors")
    [shown] = wal3.json("policy", "a", "--json")
    back = wal3.ok("policy", "a", "--no-retention", "--with-cursors")

    assert before == back == b"a: collected only below its cursors; no retention\n"
    assert changed == b"a: collected by age alone; records are kept for at least 1m\n"
    assert (shown["retention_s"], shown["without_cursors"], shown["generation"]) == (60, True, 1)


def test_limit_of_unprocessed_records_is_set_and_taken_back(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")
    wal3.ok("policy", "a", "--percent-max", "50")

    changed = wal3.ok("policy", "a", "--unprocessed-max", "5000")
    [shown] = wal3.json("policy", "a", "--json")
    [back] = wal3.json("policy", "a", "--no-unprocessed-max", "--json")

    assert changed.endswith(b"; appends are refused beyond 5,000 unprocessed records\n")
    assert (shown["unprocessed_max"], shown["percent_max"]) == (5000, 50)
    assert (back["unprocessed_max"], back["percent_max"]) == (None, 50)


def test_gc_follows_the_policy(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")
    wal3.ok("policy", "a", "--retention-s", "1000", "--without-cursors")

    [plan] = wal3.json("gc", "a", "--dry-run", "--json")

    assert plan["num_records"] == 0
    assert plan["reason"] == "the first record younger than 1000 s is at offset 1"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--without-cursors",), "expected a retention for a log without cursors"),
        (("--retention-s", "5", "--no-retention"), "not both"),
        (("--retention-s", "0"), "expected at least 1 seconds"),
        (("--unprocessed-max", "999"), "is not in the range 1000<="),
        (("--unprocessed-max", "1000", "--no-unprocessed-max"), "not both"),
    ],
)
def test_invalid_policy_is_refused(wal3: Command, arguments: tuple[str, ...], complaint: str) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")

    result = wal3("policy", "a", *arguments)

    assert result.exit_code == 2
    assert complaint in result.stderr


def test_policy_of_a_missing_log_is_refused(wal3: Command) -> None:
    result = wal3("policy", "none")

    assert result.exit_code == 2
    assert "expected a log, found none" in result.stderr
