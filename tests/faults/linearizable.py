"""Whether a history of concurrent operations could have happened one at a time.

The search of Wing and Gong with Lowe's memory of what was tried. Small histories only: it is
exponential in the number of operations that overlap.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    State = object
    # What the state may be afterwards; none when the operation can not have seen this state.
    Step = Callable[[object], Sequence[object]]

PENDING_S = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    """One operation: it took effect once between its ends, at most once when it has none."""

    what: str
    began_s: float
    ended_s: float
    step: Step


def linearizable(operations: Sequence[Operation], initial: State) -> bool:
    """Tell whether some order of the operations respects real time and every operation's step."""
    ordered = tuple(sorted(operations, key=lambda operation: operation.began_s))
    finished = sum(1 << index for index, operation in enumerate(ordered) if operation.ended_s < PENDING_S)
    tried: set[tuple[int, object]] = set()
    stack: list[tuple[int, object]] = [(0, initial)]
    while stack:
        done, state = stack.pop()
        if done & finished == finished:
            return True
        left = [index for index in range(len(ordered)) if not done >> index & 1]
        first_end_s = min(ordered[index].ended_s for index in left)
        for index in left:
            if ordered[index].began_s > first_end_s:
                break
            for after in ordered[index].step(state):
                reached = done | 1 << index, after
                if reached not in tried:
                    tried.add(reached)
                    stack.append(reached)
    return False
