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


def test_log_that_keeps_everything_is_never_refused_by_a_collection(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")
    refused = wal3("gc", "a")

    changed = wal3.ok("policy", "a", "--keep-everything")
    collected = [wal3.json("gc", *which, "--json") for which in (["a"], ["--all"])]
    contradictory = [
        wal3("policy", "a", *more) for more in (["--keep-everything", "--cleanup", "both"], ["--retention", "7d"])
    ]
    back = wal3.ok("policy", "a", "--cleanup", "collect")

    assert (refused.exit_code, "`wal3 policy LOG --keep-everything`" in refused.stderr) == (1, True)
    assert changed == b"a: keeps everything\n"
    assert [plan["reason"] for [plan] in collected] == ["its policy keeps everything"] * 2
    assert [each.exit_code for each in contradictory] == [2, 2]
    assert "(`--no-retention`, or `--cleanup collect`)" in contradictory[1].stderr
    assert back == b"a: collected only below its cursors; no retention\n"


def test_log_is_arranged_by_key_and_no_longer(wal3: Command) -> None:
    wal3.ok("append", "--create", "a", stdin='{"key": "k", "body": "b"}\n{"key": "j", "body": "c"}\n')

    shown = wal3.ok("policy", "a", "--arrange-by-key", "--min-dirty-percent", "10")
    [done] = wal3.json("compact", "a", "--json")
    facts = wal3.ok("inspect", "a")
    [found] = wal3.json("policy", "a", "--json")
    refused = wal3("policy", "a", "--delete-retention", "1d")
    back = wal3.ok("policy", "a", "--no-arrange-by-key", "--no-min-dirty-percent")

    assert shown == (
        b"a: collected only below its cursors; no retention; arranged by key when 10 % of its bytes are new; records"
        b" are left as they are for 0s; arranged fragments have about 8.4 MB; appends need keys\n"
    )
    assert (done["superseded"], done["fragments_written"], done["installed"]) == (0, 1, True)
    assert b"by key below offset 3" in facts
    assert found["arrange_by_key"] is True
    assert refused.exit_code == 2
    assert back == b"a: collected only below its cursors; no retention\n"


def test_compaction_is_set_shown_and_taken_back(wal3: Command) -> None:
    wal3.ok("append", "--create", "a", stdin='{"key": "k", "body": "b"}\n')
    values = {
        "min_compaction_lag": (300, "5m"),
        "max_compaction_lag": (3600, "1h"),
        "delete_retention": (604_800, "7d"),
        "min_dirty_percent": (10, "10"),
        "compacted_fragment_bytes": (1_000_000, "1000000"),
    }
    flags = {name: f"--{name.replace('_', '-')}" for name in values}

    plain = wal3.ok("policy", "a", "--cleanup", "compact")
    given = [word for name, (_, text) in values.items() for word in (flags[name], text)]
    full = wal3.ok("policy", "a", "--cleanup", "both", "--retention", "7d", *given)
    [shown] = wal3.json("policy", "a", "--json")
    removed = [f"--no-{flag[2:]}" for flag in flags.values()]
    [back] = wal3.json("policy", "a", "--cleanup", "collect", *removed, "--json")

    assert plain == (
        b"a: not collected; compacted by key when 50 % of its bytes are new; records are left as they are for 0s;"
        b" tombstones are kept for 1d; compacted fragments have about 8.4 MB; appends need keys\n"
    )
    assert full == (
        b"a: collected only below its cursors; records are kept for at least 7d; compacted by key when 10 % of its"
        b" bytes are new, or a superseded record is older than 1h; records are left as they are for 5m; tombstones are"
        b" kept for 7d; compacted fragments have about 1.0 MB; appends need keys\n"
    )
    assert (shown["cleanup"], shown["retention_s"]) == ("both", 604_800)
    fields = {name: f"{name}_s" if name.endswith(("lag", "retention")) else name for name in values}
    assert {name: shown[fields[name]] for name in values} == {name: value for name, (value, _) in values.items()}
    assert back["cleanup"] == "collect"
    assert {back[field] for field in fields.values()} == {None}


def test_percentage_is_taken_back(wal3: Command) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")
    wal3.ok("policy", "a", "--percent-max", "50")

    assert wal3.ok("policy", "a", "--no-percent-max") == b"a: collected only below its cursors; no retention\n"


@pytest.mark.parametrize(
    ("before", "arguments", "remedy"),
    [
        (("--retention", "1d"), ("--cleanup", "compact"), "(`--no-retention`, or `--cleanup both`)"),
        (("--percent-max", "5"), ("--cleanup", "compact"), "(`--no-percent-max`, or `--cleanup both`)"),
        (
            ("--retention", "1d", "--without-cursors"),
            ("--cleanup", "compact", "--no-retention"),
            "(`--with-cursors`, or `--cleanup both`)",
        ),
        ((), ("--min-dirty-percent", "5"), "(`--no-min-dirty-percent`, or `--cleanup compact`)"),
        (
            ("--cleanup", "compact", "--delete-retention", "1d"),
            ("--cleanup", "collect"),
            "(`--no-delete-retention`, or `--cleanup compact`)",
        ),
    ],
)
def test_value_that_the_cleanup_does_not_use_is_refused_with_the_options_that_help(
    wal3: Command, before: tuple[str, ...], arguments: tuple[str, ...], remedy: str
) -> None:
    wal3.ok("append", "--create", "a", stdin='{"key": "k", "body": "b"}\n')
    wal3.ok("policy", "a", *before)

    result = wal3("policy", "a", *arguments)

    assert result.exit_code == 2
    assert remedy in result.stderr


def test_line_without_a_key_is_refused_for_a_log_that_is_compacted(wal3: Command) -> None:
    wal3.ok("append", "--create", "a", stdin='{"key": "k", "body": "b"}\n')
    wal3.ok("policy", "a", "--cleanup", "compact")

    result = wal3("append", "a", stdin='{"key": "k", "body": "c"}\n{"body": "d"}\n')
    [inspected] = wal3.json("inspect", "a", "--json")

    assert result.exit_code == 1
    assert "record 1 of 2: expected a key, found none" in result.stderr
    assert "give every record a key, or let the log be collected only: `wal3 policy LOG --cleanup collect`" in (
        result.stderr
    )
    assert (inspected["keyed"], inspected["records"]) == (True, 1)
    assert b"takes only records with keys, since its policy compacts it" in wal3.ok("inspect", "a")


def test_gc_says_that_a_log_is_only_compacted(wal3: Command) -> None:
    wal3.ok("append", "--create", "a", stdin='{"key": "k", "body": "b"}\n')
    wal3.ok("policy", "a", "--cleanup", "compact")

    [done] = wal3.json("gc", "a", "--json")
    plan = wal3.ok("gc", "a", "--dry-run")

    assert (done["num_records"], done["reason"]) == (
        0,
        "its policy compacts it, and does not let collections prune it",
    )
    assert b"would prune 0 records in 0 fragments" in plan


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
        (
            ("--cleanup", "both", "--max-compaction-lag", "1h", "--min-compaction-lag", "2h"),
            "expected at least min_comp",
        ),
        (("--cleanup", "delete"), "is not one of 'collect', 'compact', 'both'"),
        (("--min-dirty-percent", "5", "--no-min-dirty-percent"), "not both"),
        (("--compacted-fragment-bytes", "5"), "is not in the range 4096<="),
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
