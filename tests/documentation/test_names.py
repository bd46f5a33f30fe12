"""What the pages name exists: commands, options, variables, make targets, identifiers. Defaults are those of the code.

A figure that a page takes from a constant stands in ``FIGURES``, by the phrase of the page: add a row with the phrase.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path

import click
import pytest

import wal3_core
from wal3_core.cli.program import cli
from wal3_core.cli.program import command as imported

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/*/README.md", "tests/**/README.md")
    for path in ROOT.glob(pattern)
)
SOURCES = ("wal3_core", "wal3_orchestration", "benchmarks", "examples", "deploy", "tests", "docs")
SUFFIXES = {".py", ".json", ".yml", ".yaml", ".env", ".sh", ".toml", ".cfg", ".html", ".js", ".tmpl", ""}
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+(?:\n[^`\n]+)?)`")
# In a line of text, a command begins with its program, or follows a variable or another command.
WAL3 = re.compile(r"(?:(?<![\w./@-])(?<!-name )|bin/)wal3 (?=\S)")
WAL3_IN_TEXT = re.compile(r"(?:^|bin/|[|;&(] ?|^[A-Z0-9_]+=\S+ )wal3 (?=\S)")
VARIABLE = re.compile(r"\bWAL3_[A-Z0-9]+(?:_[A-Z0-9]+)*")
MAKE = re.compile(r"(?:^|&& )((?:[A-Z][A-Z0-9_]*=\S+ )*)make ((?:[\w-]+=?[^\s&|;#]*(?: |$))+)", re.MULTILINE)
IMPORT = re.compile(r"^from (wal3_(?:core|orchestration)[\w.]*) import (\([^)]*\)|[^\n#]+)", re.MULTILINE)
IDENTIFIER = re.compile(r"_?[a-z][a-z0-9]*(?:_[a-z0-9]+)+|[A-Z][a-z0-9]+(?:[A-Z][a-z0-9]+)+")
ENDS = ("|", "&&", ";", ">", "<", "#", "(", "2>", "&")
MIB = 2**20
# Of other programs and libraries: options of spark-submit, and names that no source of this project has.
FOREIGN_OPTIONS = {"--archives", "--master", "--py-files"}
FOREIGN_NAMES = {
    *("aws_allow_http", "aws_endpoint_url", "credential_process", "dagster_cloud", "endpoint_override", "from_epoch"),
    *("make_timestamp", "to_datetime", "url_style", "use_ssl"),
    *("by_start_sequence", "by_start_time", "last_per_subject"),
}


# ---------------------------------------------------------------------- what a page names


@cache
def pieces(page: str) -> tuple[tuple[str, bool], ...]:
    """Return the code of a page: each line of a block, and each piece in a line of text, with whether it is one."""
    text = (ROOT / page).read_text()
    lines: list[str] = []
    for _, block in FENCED.findall(text):
        lines += block.replace("\\\n", " ").splitlines()
    found = [(line.strip().removeprefix("$ "), False) for line in lines]
    for piece in INLINE.findall(FENCED.sub("", text)):
        found.append((" ".join(piece.replace("\\|", "|").split()), True))
    return tuple(found)


@cache
def words() -> frozenset[str]:
    """Return all words of the sources and the names of their files, without the words of this test."""
    here, found = Path(__file__), {*FOREIGN_NAMES}
    paths = [path for folder in SOURCES for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES]
    for path in [*paths, *ROOT.glob("*.toml"), *ROOT.glob("*.yml"), *ROOT.glob("*.yaml"), ROOT / "Makefile"]:
        if path.is_file() and path != here and "__pycache__" not in path.parts:
            found.update(re.findall(r"\w+", path.read_text(errors="ignore")), [path.stem])
    return frozenset(found)


@cache
def options_anywhere() -> frozenset[str]:
    """Return the options of all programs of this project."""
    found = {option for each in commands() for parameter in each.params for option in _options(parameter)}
    for folder in ("benchmarks", "examples", "tests", "wal3_orchestration"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != Path(__file__):
                found.update(re.findall(r"\"(--[a-z][a-z0-9-]*)[\"/]", path.read_text()))
    return frozenset(found | FOREIGN_OPTIONS | {"--help"})


@cache
def commands() -> tuple[click.Command, ...]:
    def below(group: click.Group) -> Iterator[click.Command]:
        for name, found in group.commands.items():
            each = imported(name) if group is cli else found
            yield each
            if isinstance(each, click.Group):
                yield from below(each)

    return (cli, *below(cli))


def _options(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else []


def arguments(line: str) -> Iterator[str]:
    """Yield the words of a command line, up to the next command."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError:
        found = line.split()
    for word in found:
        if word.startswith(ENDS):
            return
        yield word.rstrip(";,)")
        if word.endswith(";"):
            return


def wrong_in(line: str) -> str | None:
    """Say what is wrong with what follows ``wal3`` on a command line; None if all of it exists."""
    found: click.Command = cli
    left = arguments(line)
    for word in left:
        if word.startswith("-") and word != "-":
            name, _, value = word.partition("=")
            named = next((each for each in found.params if {name, name[:2]} & {*_options(each)}), None)
            if named is None and name not in {"-h", "--help", "-vv"}:
                return f"{found.name}: no option {name}"
            if isinstance(named, click.Option) and not (value or named.is_flag or named.count):
                next(left, None)
        elif isinstance(found, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            if word not in found.commands:
                return f"{found.name}: no command {word}"
            found = imported(word) if found is cli else found.commands[word]
        elif isinstance(found, click.Group):
            # A placeholder.
            return None
    return None


def is_command_line(piece: str) -> bool:
    """Whether a piece in a line of text is a command without ``wal3``: with an option, or of a group."""
    first, _, rest = piece.partition(" ")
    if first not in cli.commands or not rest:
        return False
    # Of a group, a command and its options: "dirty records (%)" is none.
    called = re.fullmatch(r"[a-z-]+(?: --[a-z-]+| [A-Z]+)*", rest) is not None
    return rest.startswith("--") or (called and isinstance(imported(first), click.Group))


# ---------------------------------------------------------------------- tests


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_on_a_page_exist(page: str) -> None:
    wrong = []
    for piece, in_text in pieces(page):
        lines = [piece[match.end() :] for match in (WAL3_IN_TEXT if in_text else WAL3).finditer(piece)]
        if in_text and is_command_line(piece):
            lines.append(piece)
        wrong += [(piece, fault) for line in lines if (fault := wrong_in(line)) and not _elsewhere(fault, piece)]
        if in_text and (option := re.match(r"--[a-z][a-z0-9-]*", piece)) and option[0] not in options_anywhere():
            wrong.append((piece, "no program has it"))

    assert not wrong


def _elsewhere(fault: str, piece: str) -> bool:
    """Whether a command without ``wal3`` is one of another program of this project."""
    return not WAL3.search(piece) and fault.rpartition(" ")[2] in options_anywhere()


@pytest.mark.parametrize("page", PAGES)
def test_variables_and_make_targets_on_a_page_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    wrong = {name for name in VARIABLE.findall((ROOT / page).read_text()) if name not in words()}
    for piece, in_text in pieces(page):
        if in_text and not piece.split("=")[0].isupper() and not piece.startswith("make "):
            continue
        for before, after in MAKE.findall(piece):
            for word in (*before.split(), *after.split()):
                name, is_variable, _ = word.partition("=")
                if not name.isupper() or is_variable:
                    wrong |= set() if name in (words() if is_variable else targets) else {f"make {word}"}

    assert not wrong


@pytest.mark.parametrize("page", PAGES)
def test_identifiers_on_a_page_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    wrong = set()
    for module, names in IMPORT.findall(text):
        for name in re.findall(r"(?:^|[(,])\s*(\w+)", names):
            if name not in (wal3_core.__all__ if module == "wal3_core" else words()):
                wrong.add(f"from {module} import {name}")
    for piece, in_text in pieces(page):
        if in_text:
            wrong |= {name for name in _own(piece).split(".") if IDENTIFIER.fullmatch(name) and name not in words()}
            wrong |= set(_not_of_its_class(piece))

    assert not wrong


def _own(piece: str) -> str:
    """Return a piece if it is an identifier, or a call or attribute of one; else nothing of it is looked up."""
    found = re.match(r"(?:\w+\.)*\w+(?=\(|$|=)", piece)
    return found[0] if found else ""


def _not_of_its_class(piece: str) -> Iterator[str]:
    """Yield the attribute or argument of a public class, as in ``KeyedOptions.tries_max``, that the class has not."""
    match = re.match(r"([A-Z]\w+)(?:\.(\w+)|\((\w+)=)", piece)
    if match is None or match[1] not in wal3_core.__all__:
        return
    found, attribute, argument = getattr(wal3_core, match[1]), match[2], match[3]
    fields = {each.name for each in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    if attribute and not hasattr(found, attribute) and attribute not in fields:
        yield f"{match[1]}.{attribute}"
    if argument and argument not in inspect.signature(found).parameters:
        yield f"{match[1]}({argument}=)"


def value(place: str) -> int | float:
    """Return a constant, or the default of an option: ``module:NAME`` or ``module:Class.option``, below wal3_core."""
    module, _, name = place.partition(":")
    named, _, option = name.partition(".")
    found = getattr(import_module(f"wal3_core.{module}"), named)
    number = getattr(found(), option) if option else found
    assert isinstance(number, int | float), place
    return number


# Of each page: phrases in which {} is the value of a constant, in units of the last number; without {}, it is one unit.
FIGURES: dict[str, Sequence[tuple[str, str, float]]] = {
    "docs/cli.md": [
        ("until `--timeout` ({} s) is over", "options:TIMEOUT_S", 1),
        ("at most {} characters, found", "format.paths:LOG_NAME_LENGTH_MAX", 1),
    ],
    "docs/consuming.md": [
        ("at most {} of one log (`batch_records_max`)", "options:ConsumerOptions.batch_records_max", 1),
        ("after {} records or", "options:ConsumerOptions.commit_records_max", 1),
        ("records or {} seconds (`ConsumerOptions`)", "options:ConsumerOptions.commit_s_max", 1),
        ("tries again for {} s (`ReaderOptions.retry`)", "options:TIMEOUT_S", 1),
        ("at most {} records ahead", "log.read.following:_RECORDS_MAX", 1),
        ("is over (a day by default)", "options:CollectorOptions.interval_s", 86_400),
    ],
    "docs/keyed.md": [
        ("`KeyedOptions.tries_max` ({}) times", "views.keyed.reads:KeyedOptions.tries_max", 1),
        ("at most ({}, `KeyedOptions.append_timeout_s`)", "views.keyed.reads:KeyedOptions.append_timeout_s", 1),
        ("`bodies_cached_bytes_max`: {} MiB each", "views.keyed.reads:KeyedOptions.bodies_cached_bytes_max", MIB),
        ("at most {} keys that are ahead", "views.keyed.keyed_consumer:KEYS_MAX", 1),
        ("and {} KiB of them", "views.keyed.keyed_consumer:_KEYS_BYTES_MAX", 1024),
        ("at most {} other fragments", "views.keyed.key_count:_SAMPLES", 1),
    ],
    "docs/feeds.md": [
        ("every {} to", "options:ReaderOptions.poll_s_min", 1),
        ("to {} seconds (`ReaderOptions`)", "options:ReaderOptions.poll_s_max", 1),
        ("after {} acknowledgements", "views.feed.subscribed:SubscriptionOptions.save_acks_max", 1),
        ("or {} seconds (`SubscriptionOptions`)", "views.feed.subscribed:SubscriptionOptions.save_s_max", 1),
        ("At most {} are kept", "views.feed.subscribed:DEAD_MAX", 1),
        ("Up to {} records or", "views.feed.tail:RECORDS_MAX", 1),
        ("records or {} MiB are kept decoded", "views.feed.tail:BYTES_MAX", MIB),
        ("and {} topics or more match", "format.offset_ranges:RANGES_MAX", 1),
    ],
    "docs/queue.md": [
        ("priority (0 to {}, the smallest first)", "views.queue.operations:PRIORITY_MAX", 1),
        ("A lease lasts {} days at most", "views.queue.operations:LEASE_S_MAX", 86_400),
        ("at most {} s ahead of the store's clock", "options:CLOCK_AHEAD_S_MAX", 1),
        ("when {} fragments were appended", "views.queue.operations:QueueOptions.checkpoint_fragments", 1),
        ("from memory for {} seconds", "views.queue.broker:FENCE_CHECK_S", 1),
        ("Of the other calls, {} are made at a time", "views.queue.delay_queue:_CALLS_MAX", 1),
    ],
    "docs/queue-http.md": [
        ("keeps it open, {} at most", "queue_server.service:QueueServerOptions.queues_max", 1),
        ("waits at most {} s", "queue_server.service:QueueServerOptions.wait_s_max", 1),
        ("the body took over {} s", "queue_server.service:QueueServerOptions.body_s_max", 1),
        ("or has over {} MiB (`--body-bytes-max`)", "queue_server.service:QueueServerOptions.body_bytes_max", MIB),
        ("| connections | {} (5/4", "queue_server.service:QueueServerOptions.connections_max", 1),
        ("values of {} MiB together", "queue_server.service:QueueServerOptions.answer_bytes_max", MIB),
        ("| all bodies at a time | {} MiB", "queue_server.service:QueueServerOptions.held_bytes_max", MIB),
        ("| requests under way | {} (`--requests-max`)", "queue_server.service:QueueServerOptions.requests_max", 1),
        ("| {} (`--waiting-max`)", "queue_server.service:QueueServerOptions.waiting_max", 1),
        ("known token | {} a second", "queue_server.service:QueueServerOptions.requests_per_s", 1),
        ("under way for at most {} s", "queue_server.service:QueueServerOptions.stop_s_max", 1),
    ],
    "docs/spark.md": [
        ("a task for each {} MiB", "spark.jobs:TASK_BYTES", MIB),
        ("A writer knows its last {} writes", "format.named_append:NAMED_APPENDS_MAX", 1),
    ],
    "docs/performance.md": [
        ("one full node of {} pointers", "options:SnapshotOptions.snapshot_pointers_max", 1),
        ("The peak is the {} cached snapshots", "options:SnapshotOptions.loaded_max", 1),
    ],
}


@pytest.mark.parametrize("page", FIGURES)
def test_figures_of_a_page_are_those_of_the_code(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    wrong = []
    for phrase, place, unit in FIGURES[page]:
        number = f"{value(place) / unit:,.10g}"
        shown = phrase.replace("{}", number)
        if shown not in text or ("{}" not in phrase and number != "1"):
            wrong.append(f"{shown} ({place}: {number})")

    assert not wrong


def test_table_of_json_on_the_page_of_commands_has_every_command() -> None:
    table = (ROOT / "docs" / "cli.md").read_text().partition("## JSON")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([a-z -]+)", row)}

    def below(group: click.Group, above: str = "") -> Iterator[str]:
        for name, found in group.commands.items():
            each = imported(name) if group is cli else found
            yield from below(each, f"{name} ") if isinstance(each, click.Group) else [f"{above}{name}"]

    assert not set(below(cli)) - named


def test_each_section_of_performance_names_its_command_and_its_date() -> None:
    sections = re.split(r"^##+ ", (ROOT / "docs" / "performance.md").read_text(), flags=re.MULTILINE)[1:]

    assert len(sections) > 10
    for section in sections:
        assert re.search(r"measured\s+20\d\d-\d\d-\d\d", section, re.IGNORECASE), section[:60]
        assert re.search(r"`(make|python) [^`]+`", section), section[:60]
