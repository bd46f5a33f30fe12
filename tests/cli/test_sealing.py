"""``seal`` and ``migrate`` close a log, and name its successor."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .conftest import Command


def appended(wal3: Command, log: str, *bodies: str) -> None:
    wal3.ok("append", "--create", "--raw", log, stdin="".join(f"{body}\n" for body in bodies))


def test_sealed_log_refuses_records_and_names_its_successor(wal3: Command) -> None:
    appended(wal3, "a", "1", "2")

    printed = wal3.ok("seal", "a", "--reason", "a log a year", "--successor", "b").decode()
    refused = wal3("append", "--raw", "a", stdin="3\n")

    assert printed.startswith("sealed a at 20")
    assert printed.endswith("Z: a log a year; it goes on in b\n")
    assert refused.exit_code == 1
    assert "a log a year; it goes on in b" in refused.stderr
    assert len(wal3.json("cat", "a")) == 2
    assert wal3.json("ls", "--json")[0]["sealed"]


def test_seal_as_json(wal3: Command) -> None:
    appended(wal3, "a", "1")

    [sealed] = wal3.json("seal", "a", "--reason", "full", "--json")

    assert (sealed.pop("timestamp_us"), sealed.pop("sealed_by")) != (None, None)
    assert sealed == {"log": "a", "reason": "full"}


def test_second_seal_names_the_first_and_does_not_mention_records(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("seal", "a", "--reason", "full")

    result = wal3("seal", "a", "--reason", "old")

    assert result.exit_code == 1
    assert "sealed already, by " in result.stderr
    assert ": full\n" in result.stderr
    assert "records" not in result.stderr


def test_seal_requires_a_reason_and_a_free_successor_name(wal3: Command) -> None:
    appended(wal3, "a", "1")
    appended(wal3, "b", "1")

    for arguments in (("a",), ("none", "--reason", "x"), ("a", "--reason", "x", "--successor", "b")):
        assert wal3("seal", *arguments).exit_code == 2

    assert not wal3.json("ls", "--json")[0]["sealed"]


def test_migrated_log_continues_in_its_successor(wal3: Command) -> None:
    appended(wal3, "a", "1", "2")

    first = wal3.ok("migrate", "a", "b", "--reason", "a log a year")
    again = wal3.ok("migrate", "a", "b", "--reason", "a log a year")

    assert first == again
    assert b": a log a year; it goes on in b\n" in first
    assert b"\nits policy and 0 cursors went along: b: collected only below its cursors; no retention\n" in first
    assert wal3.ok("append", "--raw", "b", stdin="3\n") == b"1 record appended (offsets 3 to 3) to b\n"


def test_migration_to_another_log_is_refused(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("migrate", "a", "b", "--reason", "full", "--json")

    result = wal3("migrate", "a", "c", "--reason", "full")

    assert result.exit_code == 1
    assert result.stderr.endswith("; it goes on in b (`wal3 migrate a b --reason …` begins that one)\n")
    assert [row["log"] for row in wal3.json("ls", "--json")] == ["a", "b"]


def test_migration_of_a_log_sealed_without_successor_names_the_alternative(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("seal", "a", "--reason", "full")

    result = wal3("migrate", "a", "b", "--reason", "a log a year")

    assert result.exit_code == 1
    assert "sealed already, by " in result.stderr
    assert result.stderr.endswith(
        ": full; a seal is never lifted, and this one names no successor: `wal3 copy a TARGET` makes an unsealed copy\n"
    )
    wal3.ok("copy", "a", "b")
    assert wal3.ok("append", "--raw", "b", stdin="2\n") == b"1 record appended (offsets 2 to 2) to b\n"


def test_tail_of_a_sealed_log_ends_and_names_the_successor(wal3: Command) -> None:
    appended(wal3, "a", "1", "2")
    wal3.ok("seal", "a", "--reason", "a log a year", "--successor", "b")

    result = wal3("tail", "a", "-n", "1", "--follow")

    assert result.exit_code == 0
    assert '"body":"2"' in result.stdout.replace(" ", "")
    assert result.stderr == "log a: sealed: a log a year; it goes on in b: wal3 tail b --follow\n"


def test_name_reserved_for_a_successor_is_reported_and_not_listed(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("seal", "a", "--reason", "full", "--successor", "b")

    for arguments in (
        ("append", "--create", "--raw", "b"),
        ("init", "b"),
        ("inspect", "b"),
        ("copy", "a", "b"),
        ("scrub", "b"),
    ):
        result = wal3(*arguments, stdin="2\n")
        assert result.exit_code != 0
        assert "its name kept for the successor of log" in result.stderr + result.stdout
    assert [row["log"] for row in wal3.json("ls", "--json")] == ["a"]

    wal3.ok("migrate", "a", "b", "--reason", "full")
    assert wal3.ok("append", "--raw", "b", stdin="2\n") == b"1 record appended (offsets 2 to 2) to b\n"


def test_reserved_name_is_free_once_it_is_destroyed(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("seal", "a", "--reason", "full", "--successor", "b")
    wal3.ok("destroy", "a", "--yes")

    assert wal3("init", "b").exit_code != 0
    wal3.ok("destroy", "b", "--yes")

    appended(wal3, "b", "2")
