"""All commands alike: what their help shows, and what they do with arguments that nothing can have.

The commands are those of the program itself, so that a new one, or a new argument, is covered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from wal3_core.cli.program import cli
from wal3_core.cli.program import command as imported
from wal3_core.cli.types import Decimal, Duration, LogOffset, Name, Time, Whole

from .conftest import Command

DOCS = Path(__file__).parent.parent.parent / "docs" / "cli.md"
WIDTH = 80
# No name, no number, no time and no choice.
NOTHING = [
    *(
        "a//b",
        "/a",
        "a b",
        "a.b",
        "..",
        "*",
        "[",
        "--=",
        "\N{LATIN SMALL LETTER E WITH ACUTE}",
        "\N{ARABIC-INDIC DIGIT ONE}",
    ),
    *(
        "a\x01b",
        "a\nb",
        "\x1b[2J",
        "\udcff\udcfe",
        "x" * 10_000,
        "9" * 5_000,
        "s3://logs/a",
        "file:///none",
        "http://[",
    ),
]
NO_NUMBER = [*NOTHING, "", "nan", "inf", "-inf", "1e3", "0x10", "1_0", "infd"]
NO_STORE = [
    "",
    "a b",
    "a\x01b",
    "\udcff",
    "x" * 10_000,
    "http://[",
    "ftp://x",
    "file:",
    "file://host/x",
    "s3:",
    "gs://",
]
NUMBERS = (Whole, Decimal, Duration, Time, LogOffset)
CHECKED = (Name, *NUMBERS, click.Choice)
TEXTS = {"reason", "separator", "value", "dedupe_key", "token", "receipt", "folder", "host", "summary_path"}
STORES = {"server", "to_store", "from_store", "url"}
VALID = {"log": "a", "logs": "a", "successor": "b", "target": "t", "repo": "/none", "shell": "bash", "reason": "r"}
VALID |= {"from_store": "memory:none", "offset": "1", "lease_s": "1s", "item": "1", "token": "t", "name": "n"}
# Else these commands would go on.
BESIDE = {"exercise": ["--clean"], "fleet top": ["--looks", "1"], "queue serve": ["--tokens-file", "/none/tokens"]}


def pages(group: click.Group = cli, above: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """Each command and group, by how it is called."""
    for name, found in group.commands.items():
        each = imported(name) if group is cli else found
        yield " ".join((*above, name)), each
        if isinstance(each, click.Group):
            yield from pages(each, (*above, name))


COMMANDS = {name: each for name, each in pages() if not isinstance(each, click.Group)}


def called(name: str, odd: click.Parameter, value: str) -> list[str]:
    """The command with one odd argument, and whatever else it needs."""
    given, placed = [], []
    for each in COMMANDS[name].params:
        text = value if each is odd else VALID.get(str(each.name), "1")
        if isinstance(each, click.Argument):
            if each is odd or each.required or each.nargs == 1:
                placed.append(text)
        elif each is odd or each.required:
            flag = each.opts[-1]
            given.append(f"{flag}={text}" if flag.startswith("--") else f"{flag}{text}")
    return [*name.split(), *BESIDE.get(name, []), *given, "--", *placed]


def arguments(name: str) -> list[click.Parameter]:
    return [each for each in COMMANDS[name].params if not getattr(each, "is_flag", False)]


def refused(wal3: Command, line: list[str]) -> int:
    """Run a command; the code with which it ended, in a readable way."""
    done = CliRunner().invoke(cli, ["--store", wal3.url, *line])

    assert done.exception is None or isinstance(done.exception, SystemExit), (line, done.exception)
    if done.exit_code:
        complaint = done.stderr.splitlines()
        assert any(each.startswith("Error: ") for each in complaint), (line, complaint)
        assert all(each.isprintable() and len(each) <= 1000 for each in complaint), (line, complaint)
    return done.exit_code


# ---------------------------------------------------------------------- arguments


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_has_a_checked_type_or_is_free_text(name: str) -> None:
    unchecked = {each.name for each in arguments(name) if not isinstance(each.type, (*CHECKED, click.Path))}

    assert unchecked <= TEXTS | STORES, "give it a type of wal3_core/cli/types.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_odd_argument_is_refused_in_a_line_and_changes_nothing(wal3: Command, name: str) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")
    before = wal3.ok("inspect", "a")

    for each in arguments(name):
        if isinstance(each.type, CHECKED):
            for value in NO_NUMBER if isinstance(each.type, NUMBERS) else NOTHING:
                assert refused(wal3, called(name, each, value)) == 2, (each.name, value)

    assert wal3.ok("inspect", "a") == before
    assert wal3.ok("ls", "--json").count(b"\n") == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_free_text_of_any_kind_is_taken_or_refused(wal3: Command, name: str) -> None:
    wal3.ok("append", "--create", "--raw", "a", stdin="1\n")

    for each in arguments(name):
        if each.name in TEXTS | STORES and not isinstance(each.type, CHECKED):
            for value in NO_STORE if each.name in STORES else [*NOTHING, ""]:
                assert refused(wal3, called(name, each, value)) in {0, 1, 2}


@pytest.mark.parametrize("value", NO_STORE, ids=lambda value: ascii(value)[:20])
def test_odd_store_is_refused_in_a_line(value: str) -> None:
    assert refused(Command(value), ["ls"]) == 2


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (["ls", "s3://logs"], "`wal3 --store s3://logs ls`"),
        (["ls", "s3://logs/eu"], "`wal3 --store s3://logs/eu ls`"),
        (["cat", "s3://logs"], "`wal3 --store s3://logs cat LOG`"),
        (["cat", "s3://logs/eu/orders?region=x"], "`wal3 --store URL cat orders`"),
        (["cat", "s3://key:secret@logs/orders"], "`wal3 --store URL cat orders`"),
        (["cursor", "set", "gs://logs/orders", "n", "1"], "`wal3 --store gs://logs cursor set orders …`"),
        (["cat", "{store}/eu/orders"], "`wal3 cat eu/orders`"),
        (["ls", "{store}/eu"], "`wal3 ls eu`"),
        (["ls", "{store}"], "`wal3 ls`"),
        (["cat", "{folder}/eu"], "`wal3 cat eu`"),
        (["cat", "eu/orders/"], "eu/orders"),
        (["cat", "./eu//orders"], "eu/orders"),
        (["cat", "my orders.json"], "my-orders-json"),
        (["cursor", "get", "eu/orders", "a/b"], "a-b"),
        (["cat", "eu/Order"], "eu/orders"),
        (["ls", "eu/ordesr"], "eu/orders"),
        (["gc", "EU"], "eu"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_name_that_cannot_be_one_or_is_not_there_is_refused_with_what_is_meant(
    wal3: Command, line: list[str], meant: str
) -> None:
    wal3.ok("init", "eu/orders")
    folder = wal3.url.removeprefix("file://")

    done = wal3(*(each.format(store=wal3.url, folder=folder) for each in line))

    assert done.exit_code == 2
    assert f"did you mean {meant}?" in done.stderr
    assert "secret" not in done.stderr


def test_slash_after_a_prefix_does_not_count(wal3: Command) -> None:
    wal3.ok("init", "eu/orders")

    assert wal3.ok("ls", "eu/") == wal3.ok("ls", "eu") == wal3.ok("ls", "/") == wal3.ok("ls")


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        (["gc"], "name the logs to collect, or give --all"),
        (["gc", "a", "--all"], "name the logs to collect, or give --all"),
        (["gc", "a", "--without-cursors"], "--without-cursors needs --up-to-offset"),
        (["scrub"], "name the logs to scrub, or give --all"),
        (["scrub", "--all", "--from-offset", "2"], "--from-offset: name one log"),
        (["copy", "a", "b", "--update", "--after", "c"], "leave out --after"),
        (["copy", "a", "b", "--from-offset", "2", "--after", "c"], "leave out --from-offset or --after"),
        (["destroy", "a", "--undo", "--yes"], "--undo: expected no --dry-run, --yes or --also-pinned"),
        (["cat", "a", "--separator", "x"], "--separator needs --raw"),
        (["tail", "a", "--follow", "--to-offset", "2"], "--follow: expected no --to-offset"),
        (["files", "a", "--from-offset", "2", "--from-time", "-1h"], "give only one of them"),
        (["compact", "a", "--verify", "--force"], "--verify and --receipt compact nothing"),
        (["policy", "a", "--retention", "7d", "--no-retention"], "not both"),
        (["dirty", "rollup", "--all", "--handled", "a"], "expected --handled or --all, found both"),
    ],
    ids=lambda each: each if isinstance(each, str) else " ".join(each),
)
def test_wrong_options_are_refused_before_the_store_is_opened(line: list[str], wrong: str) -> None:
    done = Command("ftp://no/store")(*line)

    assert done.exit_code == 2
    assert wrong in done.stderr
    assert "ftp" not in done.stderr


# ---------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    "line",
    [
        *(["cat", "a", "--from-offset"], ["tail", "a", "--from-offset"], ["files", "a", "--from-offset"]),
        *(["copy", "a", "b", "--from-offset"], ["cursor", "set", "a", "other"], ["cursor", "set", "a", "reader"]),
    ],
    ids=" ".join,
)
def test_offset_that_is_too_low_and_one_that_is_too_high_end_alike(wal3: Command, line: list[str]) -> None:
    for number in range(4):
        wal3.ok("append", "--create", "--raw", "a", stdin=f"{number}\n")
    wal3.ok("cursor", "set", "a", "reader", "3")
    wal3.ok("gc", "a")

    assert [wal3(*line, offset).exit_code for offset in ("1", "99")] == [2, 2]


def test_exit_codes_are_those_of_the_documentation() -> None:
    page = DOCS.read_text().partition("## Exit codes")[2]
    documented = dict(re.findall(r"^\| (\d+) \| ([^;.|]*[^;.| ])", page, re.MULTILINE))

    text = CliRunner().invoke(cli, ["--help"]).stdout.partition("Exit codes:")[2].partition("\n\n")[0]
    shown = dict(re.findall(r"^ +(\d+) +(\S.*)$", text, re.MULTILINE))

    assert shown == documented


# ---------------------------------------------------------------------- help


@pytest.mark.parametrize("name", ["", *(name for name, _ in pages())])
def test_help_fits_a_terminal_and_no_line_is_cut(name: str) -> None:
    page = CliRunner().invoke(cli, [*name.split(), "--help"], terminal_width=WIDTH, prog_name="wal3").stdout

    lines = [line for line in page.splitlines() if not line.startswith("Usage: ")]
    assert lines
    assert [line for line in lines if len(line) > WIDTH or line.endswith("...")] == []
