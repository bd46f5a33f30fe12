"""What Spark Connect says to a client of its queries' tasks: how many a stage has, and how many of it have ended.

A failed attempt has ended, too. So a stage of which more tasks have ended than it has ran some again.
"""

from __future__ import annotations

from _thread import get_ident
from typing import TYPE_CHECKING, Protocol

from wal3_core.model.retried import Retried

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Stage(Protocol):
    """A stage as Spark Connect reports it."""

    @property
    def num_tasks(self) -> int:
        """How many tasks it has."""
        ...

    @property
    def num_completed_tasks(self) -> int:
        """How many attempts of its tasks have ended."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has ended, once at least."""
        ...


class Progress:
    """Keeps the last that the server has said of each query of the thread that made this."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._last: dict[str | None, Sequence[Stage]] = {}

    def __call__(self, *, stages: Iterable[Stage] | None, operation_id: str | None, **_: object) -> None:
        """Take what the server says; Spark calls this in the thread of the query."""
        if get_ident() == self._thread:
            self._last[operation_id] = list(stages or ())

    def retried(self) -> Retried:
        """Return what ran again, at least; see ``retried_of``."""
        return sum((retried_of(stages) for stages in self._last.values()), Retried(attempts_only=True))


def retried_of(stages: Iterable[Stage]) -> Retried:
    """Return how many more tasks of a query's stages ended than these have, and how many stages ran again in part.

    The last tasks of a query may not have been reported as ended: it is the least that ran again.
    """
    stages = list(stages)
    excess = sum(max(0, each.num_completed_tasks - each.num_tasks) for each in stages)
    # A stage whose results an earlier one has does not run, unless some of them were lost. A stage may also end early
    # because its results are not needed: but then no task has failed.
    in_part = sum(each.done and 0 < each.num_completed_tasks < each.num_tasks for each in stages) if excess else 0
    return Retried(num_tasks=excess, num_stages=in_part, attempts_only=True)
