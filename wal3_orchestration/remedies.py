"""What to do about a failed check: the first steps of a section of the runbook, for this log and this file.

The sentences are those of docs/operations.md, word by word, so that someone who sees only the UI or an alert
reads the same. In commands, LOG and FILE are replaced.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from wal3_orchestration.runbook import Section, address, command

if TYPE_CHECKING:
    from wal3_orchestration.scope import Scope

AGAIN = "Run `wal3 scrub LOG` once more: damage in transit (a bad cache, a bad NIC) does not repeat."
REPAIR = (
    "Run `wal3 repair LOG --from BACKUP_URL`, where BACKUP_URL is the store of a copy of this log. One run repairs all"
    " damaged and missing files of the log."
)
ROLE = (
    "It needs the policies `writer` on the log's store and `reader` on BACKUP_URL, or `admin`; the policy `maintenance`"
    " cannot write fragments."
)
_CURSOR = (
    "A cursor is damaged, or the file is not a cursor. `wal3 cursor list LOG` names it.",
    (
        "For a damaged cursor: first create another cursor with `wal3 cursor set LOG OTHER N`, where N is the offset"
        " that its owner had reached according to the owner's own data, or `first`."
    ),
    "Then run `wal3 cursor delete LOG NAME`.",
)
_SCRUB = "Then run `wal3 scrub LOG`."
_WITHOUT_COPY = (
    "Without a copy, restore the file `FILE` from an older version of the object, or from a backup of the bucket."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """The steps that a section gives for the problems of a check that match a pattern."""

    check: str
    when: str
    section: Section
    steps: tuple[str, ...]


# The first that matches counts.
REMEDIES = (
    Remedy(
        check="sound",
        when=r"MANIFEST\S* ?.*expected a JSON document|expected manifest/MANIFEST\.json beside",
        section=Section.MANIFEST,
        steps=(
            "Stop the log's writers and readers, and everything that collects.",
            (
                "Copy the folder `LOG/Life=…/` to a directory outside the store, here `saved/` (`cp -r`, or"
                " `aws s3 cp --recursive`)."
            ),
            (
                "If you have an older manifest, restore it: the object `LOG/manifest/MANIFEST.json` from an older"
                " version, if the bucket keeps versions, or from a byte-for-byte backup of this object."
            ),
            _SCRUB,
        ),
    ),
    Remedy(
        check="sound",
        when="found a copy of .* (under way|cut short)",
        section=Section.COPY,
        steps=("If a copy is cut short, run the same command again.",),
    ),
    Remedy(
        check="sound",
        when="this is the file of another copy",
        section=Section.UNSOUND,
        steps=(
            (
                "Someone put the file of a copy there. An update of a copy writes the same records as files of its own,"
                " which fit no other log."
            ),
            REPAIR,
            ROLE,
            _SCRUB,
        ),
    ),
    Remedy(
        check="sound",
        when=r"problems?: fragment \d+ .*expected a file, found none",
        section=Section.UNSOUND,
        steps=(
            AGAIN,
            (
                "The object was deleted. Look for a lifecycle rule, a manual delete, or a restored manifest: an older"
                " manifest names objects that have been collected since."
            ),
            REPAIR,
            ROLE,
            _SCRUB,
            _WITHOUT_COPY,
        ),
    ),
    Remedy(
        check="sound",
        when=r"problems?: fragment \d",
        section=Section.UNSOUND,
        steps=(
            AGAIN,
            "The bytes of that file changed.",
            REPAIR,
            ROLE,
            _SCRUB,
            _WITHOUT_COPY,
        ),
    ),
    Remedy(
        check="sound",
        when="problems?: snapshot ",
        section=Section.UNSOUND,
        steps=(
            AGAIN,
            REPAIR,
            ROLE,
            _SCRUB,
            _WITHOUT_COPY,
        ),
    ),
    Remedy(check="sound", when="cursor/", section=Section.REFUSED, steps=_CURSOR),
    Remedy(check="sound", when="", section=Section.UNSOUND, steps=(AGAIN,)),
    Remedy(
        check="safe_to_collect",
        when="expected a cursor to say what is no longer needed",
        section=Section.REFUSED,
        steps=("Create a cursor (`wal3 cursor set LOG NAME first`), or give the log a policy.",),
    ),
    Remedy(
        check="safe_to_collect",
        when="expected to collect at most",
        section=Section.REFUSED,
        steps=(
            "Run `wal3 gc LOG --dry-run`.",
            "If its output is what you want, run `wal3 gc LOG --fraction-max 1`.",
        ),
    ),
    Remedy(
        check="safe_to_collect",
        when="cursor/",
        section=Section.REFUSED,
        steps=_CURSOR,
    ),
    Remedy(
        check="safe_to_collect",
        when="in what is kept, pruned and dropped",
        section=Section.REFUSED,
        steps=("Run `wal3 scrub LOG`, and collect nothing until it finds no damage.",),
    ),
    Remedy(
        check="little_garbage",
        when="",
        section=Section.GARBAGE,
        steps=(
            "If a reader caught up, or collection was off before: nothing.",
            (
                "Otherwise look at `reason` in the metadata of `garbage_plan`: it names the cursor up to which the log"
                " is collected."
            ),
            "If someone moved that cursor too far, move it back before the log is pruned.",
        ),
    ),
    Remedy(
        check="collected_in_time",
        when="found it announced",
        section=Section.GARBAGE,
        steps=("Run `wal3 gc LOG`: it completes the collection or withdraws the announcement.",),
    ),
    Remedy(
        check="collected_in_time",
        when="expected garbage to be deleted",
        section=Section.GARBAGE,
        steps=(
            "Run `wal3 pin list LOG`.",
            "If a pin keeps the garbage, delete the pin when it is no longer needed.",
            "If not, find out why runs of `deletion_job` fail.",
        ),
    ),
    Remedy(
        check="collected_in_time",
        when="",
        section=Section.GARBAGE,
        steps=("Turn on `daily_collection`, or find out why runs of `collection_job` fail.",),
    ),
    Remedy(
        check="cursors_move",
        when="",
        section=Section.CURSOR,
        steps=(
            "Find its owner. `wal3 cursor list LOG` shows all cursors.",
            (
                "Fix the owner, or, if the records that the cursor keeps are not needed, delete it:"
                " `wal3 cursor delete LOG NAME`."
            ),
        ),
    ),
    Remedy(
        check="few_orphans",
        when="",
        section=Section.GARBAGE,
        steps=("`wal3 inspect LOG` shows whether writers compete for the log.",),
    ),
)


def remedy(scope: Scope, check: str, log: str, problem: str, file: str | None = None) -> str | None:
    """Return the steps against a check's problem as Markdown; None when the runbook has a table of messages only."""
    for found in REMEDIES:
        if found.check == check and re.search(found.when, problem, re.DOTALL):
            steps = [_filled(scope, step, log, file) for step in found.steps]
            numbered = [f"{number}. {step}" for number, step in enumerate(steps, start=1)]
            return "\n".join([*numbered, "", f"More: {address(scope, found.section)}"])
    return None


def _filled(scope: Scope, step: str, log: str, file: str | None) -> str:
    return re.sub(r"`([^`]+)`", lambda span: f"`{_span(scope, span[1], log, file)}`", step)


def _span(scope: Scope, text: str, log: str, file: str | None) -> str:
    """Replace the placeholders of a command; what names no log or file stays as it is."""
    words = text.split()
    if words[0] == "wal3" and "LOG" in words:
        return command(scope, *(log if word == "LOG" else word for word in words[1:]))
    if file is not None:
        text = re.sub(r"\bFILE\b", lambda _: shlex.quote(_place(file)), text)
    return re.sub(r"\bLOG\b", log, text)


def _place(file: str) -> str:
    """Return a file as a command names it: by its path in a directory, by its URL elsewhere."""
    parts = urlsplit(file)
    return unquote(parts.path) if parts.scheme == "file" else file
