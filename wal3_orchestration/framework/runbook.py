"""What to do about a failed check: links to the runbook, its first steps with a log's name filled in, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from urllib.parse import unquote, urlsplit

from dagster import MetadataValue, TextMetadataValue, UrlMetadataValue

from wal3_core.format.paths import DIRTY
from wal3_orchestration.framework.scope import StoreScope

# Names of cursors have no other characters.
_CURSOR_NAMED = re.compile(r"\bcursor/([A-Za-z0-9_-]+)\.json")


class Section(StrEnum):
    """A section of docs/operations.md, as its anchor."""

    UNSOUND = "a-check-turns-red-the-log-is-unsound"
    MANIFEST = "the-manifest-is-damaged-or-missing"
    COPY = "a-copy-is-cut-short-or-a-pin-is-left"
    GARBAGE = "a-check-turns-red-garbage"
    REFUSED = "a-collection-refuses"
    CURSOR = "a-cursor-is-stuck"
    BAD_CURSOR = "a-cursor-is-damaged"
    DISCOVERY = "discovery-fails-another-store-or-many-logs-gone"
    DIRTY = "a-check-turns-red-dirty-logs"
    PRESSURE = "a-fleet-refuses-appends-back-pressure"
    COMPACTION = "a-check-turns-red-key-compaction"
    QUEUE_OLD = "a-queues-oldest-item-is-old"
    DEAD_LETTERS = "dead-letters"
    SNAPSHOTS = "the-tree-of-snapshots-is-lopsided"


def address(scope: StoreScope, section: Section) -> str:
    """Return where a section is."""
    return f"{scope.runbook}#{section}"


def link(scope: StoreScope, section: Section) -> UrlMetadataValue | TextMetadataValue:
    """Return a section as metadata: something to click on if the runbook has a URL."""
    where = address(scope, section)
    return MetadataValue.url(where) if urlsplit(where).scheme else MetadataValue.text(where)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The steps that a section gives for the problems of a check that match a pattern."""

    check: str
    when: str
    section: Section
    steps: tuple[str, ...]


def _remedies() -> Iterator[Remedy]:
    """Read remedies.md, which is beside this module."""
    text = (files("wal3_orchestration.framework") / "remedies.md").read_text(encoding="utf-8")
    for part in text.split("\n## ")[1:]:
        heading, _, rest = part.partition("\n")
        check, _, section = heading.partition(": ")
        pattern, _, numbered = rest.partition("\n\n") if rest.startswith("    ") else ("", "", rest)
        steps = re.split(r"^\d+\. ", numbered, flags=re.MULTILINE)[1:]
        whole = tuple(" ".join(step.split()) for step in steps)
        yield Remedy(check=check, when=pattern.strip(), section=Section(section), steps=whole)


REMEDIES = tuple(_remedies())


def find_remedy(check: str, problem: str) -> Remedy | None:
    """Return the first remedy of a check that matches a problem; None when the runbook has a table of messages only."""
    matching = (each for each in REMEDIES if each.check == check and re.search(each.when, problem, re.DOTALL))
    return next(matching, None)


def remedy(scope: StoreScope, check: str, log: str, problem: str, file: str | None = None) -> str | None:
    """Return the steps against a check's problem as Markdown, for this log and this file; None when there is none."""
    found = find_remedy(check, problem)
    if found is None:
        return None
    named = _CURSOR_NAMED.search(problem)
    words = {**_places(log), "STORE_URL": scope.store_url, **({} if named is None else {"NAME": named[1]})}
    steps = [re.sub(r"`([^`]+)`", lambda span: f"`{_span(scope, span[1], words, file)}`", step) for step in found.steps]
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    return "\n".join([*numbered, "", f"More: {address(scope, found.section)}"])


def command(scope: StoreScope, words: tuple[str, ...], log: str) -> str:
    """Return a ``wal3`` command on the store, ready for a shell; LOG and SERVER stand for the log's names."""
    places = _places(log)
    return _command(scope, [places.get(word, word) for word in words])


def _command(scope: StoreScope, words: list[str]) -> str:
    store = ("--store", scope.store_url) if scope.store_url else ()
    return shlex.join(["wal3", *store, *words])


def _span(scope: StoreScope, text: str, words: Mapping[str, str], file: str | None) -> str:
    """Replace the placeholders of a command; what names no log or file stays as it is."""
    given = text.split()
    if given[0] == "wal3" and not {"LOG", "SERVER"}.isdisjoint(given):
        filled = [words.get(word, word) for word in given[1:]]
        # A command that names another store is not on this one.
        return shlex.join(["wal3", *filled]) if "--store" in given else _command(scope, filled)
    if file is not None:
        parts = urlsplit(file)
        # A command names a file of a directory by its path.
        named = unquote(parts.path) if parts.scheme == "file" else file
        text = re.sub(r"\bFILE\b", lambda _: shlex.quote(named), text)
    return re.sub(r"\bLOG\b", words["LOG"], text)


def _places(log: str) -> dict[str, str]:
    """Return what stands for a log in commands, and for the server that a dirty log belongs to."""
    return {"LOG": log, "SERVER": log.removeprefix(f"{DIRTY}/")}
