"""The command's process: its standard streams as they are given, and Ctrl-C at any moment.

A stream may be closed, as by a daemon or ``2>&-``, or of an encoding that lacks characters. Ctrl-C is one line and exit
code 130, and no traceback.

While a command runs, it is a KeyboardInterrupt, so that the command can clean up and report. Before and after, and
when the command does not take it within a second (a request to a silent store cannot be interrupted), the process
ends at once: a log is safe from that as it is from SIGKILL.

A shell starts background programs with SIGINT ignored, and Python keeps it ignored: Ctrl-C is for the foreground
program; a background one is ended by SIGTERM.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

_STANDARD = 3
_EXIT_INTERRUPTED = 130
TAKEN_S_MAX = 1.0
_SHOW_CURSOR = b"\x1b[?25h"
_taken: list[int] = []


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


def leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End the process at once, as a signal handler does."""
    del number, frame
    # A progress bar hides the cursor.
    with suppress(OSError):
        os.write(2, (_SHOW_CURSOR if os.isatty(2) else b"") + b"Interrupted.\n")
    os._exit(_EXIT_INTERRUPTED)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    """Raise KeyboardInterrupt, and note that it was raised."""
    _taken.append(number)
    signal.default_int_handler(number, frame)


@contextmanager
def guarded() -> Iterator[None]:
    """End the process at once on Ctrl-C, within the block and until its end; not if the parent ignores SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, leave)
        sys.unraisablehook = _unraisable
    try:
        yield
    except KeyboardInterrupt:
        leave()
    finally:
        if signal.getsignal(signal.SIGINT) is _raise:
            signal.signal(signal.SIGINT, leave)


@contextmanager
def as_exception() -> Iterator[None]:
    """Raise KeyboardInterrupt on Ctrl-C within the block, where it would end the process at once."""
    if signal.getsignal(signal.SIGINT) is not leave:
        yield
        return
    from wal3_core.runtime.threads import watch_signal  # noqa: PLC0415 - for a quick start

    watch_signal(signal.SIGINT, TAKEN_S_MAX, _is_late, leave)
    signal.signal(signal.SIGINT, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, leave)


def _is_late() -> bool:
    """Whether a signal was to be raised and was not."""
    if _taken:
        _taken.clear()
        return False
    return signal.getsignal(signal.SIGINT) is _raise


def _unraisable(found: sys.UnraisableHookArgs) -> None:
    """Leave where an interrupt cannot be raised, as in a destructor."""
    if issubclass(found.exc_type, KeyboardInterrupt):
        leave()
    sys.__unraisablehook__(found)
