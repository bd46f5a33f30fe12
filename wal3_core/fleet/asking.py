"""Asking each of many logs by itself: what is wrong with one of them is its own answer, and hides no other."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import ClosedError, LogError, StoreDeniedError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

A = TypeVar("A")
T = TypeVar("T")


def ask(work: Callable[[A], T], of: A) -> T | LogError:
    """Ask one log, or for one of its objects; what is wrong with it alone is the answer.

    It may be damaged, denied, lost, destroyed, replaced, or not copied to its end. A store that does not
    answer is everybody's: UnavailableError is raised.
    """
    try:
        return work(of)
    except LogError as error:
        if not is_own(error):
            raise
        return error


def is_own(error: LogError) -> bool:
    """Tell whether an error is of the one log that was asked, and says nothing of another one."""
    return isinstance(error, StoreDeniedError) or not isinstance(error, UnavailableError | ClosedError)
