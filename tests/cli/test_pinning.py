"""``pin`` keeps what a log holds, and ``cat --pin`` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from wal3_core.cli.program import cli

from .conftest import on_terminal

if TYPE_CHECKING:
    from .conftest import Command


def appended(wal3: Command, log: str, *bodies: str) -> None:
    """Append fragments of one record each."""
    for body in bodies:
        wal3.ok("append", "--create", "--raw", log, stdin=f"{body}\n")


def test_pin_keeps_what_is_collected(wal3: Command) -> None:
    appended(wal3, "a", "1", "2", "3")
    before = wal3.json("cat", "a")

    made = wal3.ok("pin", "create", "a", "audit", "--reason", "the audit")
    appended(wal3, "a", "4")
    wal3.ok("cursor", "set", "a", "reader", "3")
    wal3.ok("gc", "a", "--interval-s", "0")

    assert made == b"pinned 3 records of a as audit (from offset 1, next 4)\n"
    assert [record["offset"] for record in wal3.json("cat", "a")] == [3, 4]
    assert wal3.json("cat", "a", "--pin", "audit") == before
    assert wal3.json("cat", "a", "--pin", "audit", "--from-offset", "2", "--limit", "1") == before[1:2]


def test_pins_are_listed_and_deleted(wal3: Command) -> None:
    appended(wal3, "a", "1", "2", "3")
    [made] = wal3.json("pin", "create", "a", "audit", "--reason", "the audit", "--json")

    [listed] = wal3.json("pin", "list", "a", "--json")
    shown = wal3.ok("pin", "list", "a").decode()

    assert listed == made
    expected = {"pin": "audit", "first_offset": 1, "next_offset": 4, "records": 3, "reason": "the audit"}
    assert {name: made[name] for name in expected} == expected
    assert shown.split()[:7] == ["pin", "first", "next", "records", "made", "by", "reason"]
    assert "the audit" in shown
    assert wal3.ok("pin", "delete", "a", "audit", "--yes") == b"deleted audit\n"
    assert wal3.ok("pin", "list", "a", "--json") == b""


@pytest.mark.slow
def test_deleting_a_pin_asks_first(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")

    code, shown = on_terminal(wal3.url, b"n\n", "pin", "delete", "a", "audit")

    assert code == 1
    assert "Error: log a, pin audit: not deleted" in shown
    assert len(wal3.json("pin", "list", "a", "--json")) == 1
    assert on_terminal(wal3.url, b"y\n", "pin", "delete", "a", "audit")[0] == 0
    assert wal3.json("pin", "list", "a", "--json") == []


def test_deleting_a_pin_without_a_terminal_requires_yes(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")

    refused = wal3("pin", "delete", "a", "audit")

    assert refused.exit_code == 2
    assert refused.stderr == "Error: log a, pin audit: expected --yes, or a terminal to ask for a yes, found neither\n"
    assert len(wal3.json("pin", "list", "a", "--json")) == 1


def test_damaged_pin_can_be_deleted(wal3: Command) -> None:
    appended(wal3, "a", "1")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")
    [stored] = (Path(urlsplit(wal3.url).path) / "a").glob("Life=*/pin/audit.json")
    stored.write_bytes(b"{}")

    assert wal3("pin", "list", "a").exit_code == 1
    wal3.ok("pin", "delete", "a", "audit", "--yes")

    assert wal3.json("pin", "list", "a", "--json") == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("pin", "create", "a", "audit", "--reason", "again"), "found one"),
        (("pin", "create", "a", "no/name", "--reason", "x"), "pin name"),
        (("pin", "create", "a", "other"), "--reason"),
        (("pin", "create", "none", "audit", "--reason", "x"), "create the log first"),
        (("pin", "list", "none"), "create the log first"),
        (("pin", "delete", "a", "none", "--yes"), "expected a pin none, found none"),
        (("cat", "a", "--pin", "none"), "expected a pin none, found none"),
        (("cat", "a", "--pin", "audit", "--from-offset", "9"), "from 1 to 2, found 9"),
    ],
)
def test_invalid_pin_request_is_refused(wal3: Command, arguments: tuple[str, ...], complaint: str) -> None:
    appended(wal3, "a", "1")
    wal3.ok("pin", "create", "a", "audit", "--reason", "a test")

    result = wal3(*arguments)

    assert result.exit_code == 2
    assert complaint in result.stderr
    assert len(wal3.json("pin", "list", "a", "--json")) == 1


@pytest.mark.parametrize("name", ["create", "list", "delete"])
def test_help_of_every_pin_command_shows_examples(name: str) -> None:
    assert f"  wal3 pin {name}" in CliRunner().invoke(cli, ["pin", name, "--help"]).stdout
