"""Errors as the command reports them: one line on stderr, and an exit code."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Mapping
from typing import IO, Any, NoReturn

import click

from wal3_core.errors import (
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    KeyRequiredError,
    LogError,
    NotDurableError,
    SealedError,
    StoreDeniedError,
    UnknownDurabilityError,
    ViewRequiredError,
)
from wal3_core.format.paths import CURSOR_FOLDER

# Advice that the library's messages give a program, and the commands that do it.
_CREATE = re.compile(r"\(`wal3 init (\S+)`, or LogWriter\.create\)")
_NEW_LOG = r"(`wal3 init \1`, or `wal3 append --create \1`; `wal3 ls` lists the logs)"
_COMMANDS = {
    "give the log a policy by which age alone decides": (
        "`wal3 cursor set LOG NAME first`, `wal3 policy LOG --retention 7d --without-cursors`, or"
        " `wal3 policy LOG --keep-everything`"
    ),
    "find out why, then allow it": "`--fraction-max 1`, or `wal3 policy LOG --percent-max 100`",
    "remove them, or say that they go, too": "`wal3 pin delete LOG NAME`, or `wal3 destroy LOG --also-pinned`",
}

# A word longer than any path in a store.
_LONG = re.compile(r"(\S{80})\S{1200,}")

_RUNBOOK = "docs/operations.md"
_UNSOUND, _CURSORS = "a-check-turns-red-the-log-is-unsound", "a-cursor-is-damaged"

# Key of a context's ``meta`` under which it has the log that the command names.
NAMED_LOG = "wal3.log"

EXIT_UNSOUND = 1
# Exit code of `wal3 exercise`, where 1 says that the store could not be used.
EXIT_FINDINGS = 3
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143


def readable(text: str) -> str:
    """Make a message of one line; a word that only a mistake makes so long is cut."""
    return plain(_LONG.sub(r"\1…", " ".join(text.split())))


def plain(text: str) -> str:
    """Replace unprintable characters: stored text must not control the terminal."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


class Failure(click.ClickException):
    """Ends the command with a line on stderr, a second one if there is a ``hint``, and exit code 1."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(readable(message))
        self.hint = hint

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the lines."""
        super().show(file)
        if self.hint:
            click.echo(f"  next: {self.hint}", file=file, err=file is None)


class InvalidFailure(Failure):
    """Ends it with exit code 2: the request is invalid."""

    exit_code = 2


class InterruptedFailure(Failure):
    """Ends it as Ctrl-C does."""

    exit_code = EXIT_INTERRUPTED


class TerminatedFailure(Failure):
    """Ends it as SIGTERM does."""

    exit_code = EXIT_TERMINATED


def leave(failure: Failure) -> NoReturn:
    """End the process with a failure at once, without waiting for its workers."""
    failure.show()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(failure.exit_code)


def failure(error: LogError, log: str = "LOG") -> Failure:
    """Turn a library error into a failure with its exit code; ``log`` is that of the command."""
    if isinstance(error, CorruptError):
        hint = f"`{shlex.join(['wal3', 'scrub', log])}` shows all that is damaged; {section_of(str(error))}"
        return Failure(explain(error), hint=hint)
    # An offset that the log no longer holds is a mistake like one that it does not hold yet, and a bucket that is not
    # there one like a directory.
    no_bucket = isinstance(error, StoreDeniedError) and error.no_bucket
    is_mistake = no_bucket or isinstance(error, InvalidRequestError | GarbageCollectedError)
    return (InvalidFailure if is_mistake else Failure)(explain(error))


def unreadable(found: Mapping[str, object]) -> Failure:
    """Make the failure that names what could not be read, and why; the rest was shown."""
    return Failure(f"{len(found)} unreadable: {'; '.join(f'{name}: {why}' for name, why in found.items())}")


def exit_unless(sound: bool) -> None:
    """End the command with exit code 1 if what it found is unsound."""
    if not sound:
        click.get_current_context().exit(EXIT_UNSOUND)


def section_of(damaged: str) -> str:
    """Return the section of the runbook on an object that is damaged, by its path or by what is said of it."""
    return f"{_RUNBOOK}#{_CURSORS if CURSOR_FOLDER in damaged else _UNSOUND}"


def explain(error: LogError) -> str:
    """Describe an error; for a failed append, say what became of its records and what to do."""
    match error:
        case UnknownDurabilityError():
            return f"unknown whether the records are in the log: {error}; read the log before appending them again"
        case NotDurableError():
            return f"the records are not in the log: {error}; {again(error)}"
        case _:
            return with_commands(str(error))


def again(error: LogError) -> str:
    """Say what to do with records that are not in the log."""
    if isinstance(error, KeyRequiredError):
        return "give every record a key, or let the log be collected only: `wal3 policy LOG --cleanup collect`"
    if isinstance(error, ViewRequiredError):
        return "append them as that view does, or to another log"
    if not isinstance(error, SealedError):
        return "they can be appended again"
    if error.successor:
        return f"append them to {error.successor}: `wal3 append {error.successor}`"
    return "the seal names no successor: append them to another log"


def with_commands(message: str) -> str:
    """Name the commands that do what the message advises."""
    message = _CREATE.sub(_NEW_LOG, message)
    commands = next((commands for words, commands in _COMMANDS.items() if words in message), None)
    return message if commands is None else f"{message} ({commands})"
