"""Standard streams as they are given: closed, as by a daemon or ``2>&-``, or of an encoding that lacks characters."""

from __future__ import annotations

import io
import os
import sys

_STANDARD = 3


def replace_closed() -> bool:
    """Discard what goes to a stream that was closed; return whether stdout was.

    Else the next files that are opened take their numbers, and what is written to stderr by number lies in one of them.
    """
    opened = -1
    while opened < _STANDARD:
        opened = os.open(os.devnull, os.O_RDWR)
        os.set_inheritable(opened, opened < _STANDARD)
    os.close(opened)
    closed = sys.stdout is None
    # A closed stdin stays None: commands that read it refuse that.
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    return closed


def escape_what_cannot_be_encoded() -> None:
    """Let a stream of another encoding than UTF-8 (a console, a locale) escape the characters that it lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not has_all(stream.encoding):
            stream.reconfigure(errors="backslashreplace")


def has_all(encoding: str | None) -> bool:
    """Return whether an encoding has all characters."""
    return (encoding or "utf-8").lower().startswith("utf")
