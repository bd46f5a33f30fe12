"""What to do about a failed check, for this log and this file: the steps of its remedy, with its commands filled in."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from wal3_core.model.paths import DIRTY
from wal3_orchestration.remedy_table import REMEDIES
from wal3_orchestration.runbook import Section, address, command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal3_orchestration.building import LogCheck
    from wal3_orchestration.remedy_table import Remedy
    from wal3_orchestration.scope import Scope

# Names of cursors have no other characters.
_CURSOR_NAMED = re.compile(r"\bcursor/([A-Za-z0-9_-]+)\.json")


def remedy(scope: Scope, check: str, log: str, problem: str, file: str | None = None) -> str | None:
    """Return the steps against a check's problem as Markdown; None when the runbook has a table of messages only."""
    found = _found(check, problem)
    if found is None:
        return None
    named = _CURSOR_NAMED.search(problem)
    words = {**_places(log), "STORE_URL": scope.store_url, **({} if named is None else {"NAME": named[1]})}
    steps = [_filled(scope, step, words, file) for step in found.steps]
    numbered = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
    return "\n".join([*numbered, "", f"More: {address(scope, found.section)}"])


def section_of(check: LogCheck, problem: str) -> Section:
    """Return the section of the runbook on a check's problem: that of its remedy, if it has one."""
    found = _found(check.name, problem)
    return check.section if found is None else found.section


def _found(check: str, problem: str) -> Remedy | None:
    matching = (each for each in REMEDIES if each.check == check and re.search(each.when, problem, re.DOTALL))
    return next(matching, None)


def next_command(scope: Scope, check: LogCheck, log: str) -> str:
    """Return the command that a check's failure begins with, for a log."""
    words = _places(log)
    return command(scope, *(words.get(word, word) for word in check.next_command))


def _filled(scope: Scope, step: str, words: Mapping[str, str], file: str | None) -> str:
    return re.sub(r"`([^`]+)`", lambda span: f"`{_span(scope, span[1], words, file)}`", step)


def _span(scope: Scope, text: str, words: Mapping[str, str], file: str | None) -> str:
    """Replace the placeholders of a command; what names no log or file stays as it is."""
    given = text.split()
    if given[0] == "wal3" and not {"LOG", "SERVER"}.isdisjoint(given):
        filled = [words.get(word, word) for word in given[1:]]
        # A command that names another store is not on this one.
        return shlex.join(["wal3", *filled]) if "--store" in given else command(scope, *filled)
    if file is not None:
        text = re.sub(r"\bFILE\b", lambda _: shlex.quote(_place(file)), text)
    return re.sub(r"\bLOG\b", words["LOG"], text)


def _places(log: str) -> dict[str, str]:
    """Return what stands for a log in commands, and for the server that a dirty log belongs to."""
    return {"LOG": log, "SERVER": log.removeprefix(f"{DIRTY}/")}


def _place(file: str) -> str:
    """Return a file as a command names it: by its path in a directory, by its URL elsewhere."""
    parts = urlsplit(file)
    return unquote(parts.path) if parts.scheme == "file" else file
