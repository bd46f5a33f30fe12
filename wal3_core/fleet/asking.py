"""Asking each of many logs by itself: an error of one log is its own answer, and hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import ClosedError, LogError, StoreDeniedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

A = TypeVar("A")
T = TypeVar("T")


def ask(work: Callable[[A], T], of: A) -> T | LogError:
    """Ask one log, or for one of its objects; an error that concerns it alone is the answer.

    It may be damaged, denied, lost, destroyed, replaced, or an unfinished copy. A store that does not
    answer concerns every log: UnavailableError is raised.
    """
    try:
        return work(of)
    except LogError as error:
        if not is_own(error):
            raise
        return error


def is_own(error: LogError) -> bool:
    """Return whether an error concerns only the log that was asked."""
    return isinstance(error, StoreDeniedError) or not isinstance(error, UnavailableError | ClosedError)
