"""Cutting work into tasks of about equal cost. Pure.

A task costs tens of milliseconds whatever it does, so there is one for each core, a few where there is much to do, and
never one for each fragment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

TASK_COST_MIN = 4 * 2**20
# Beside so much work a task costs little of its own, and a few on each core even out cores that are slow or busy.
TASK_COST_AMPLE = 256 * 2**20
TASKS_PER_CORE = 4
# Of tiny objects, a task of so many bytes' cost would be over before Python has started in its executor.
REQUESTS_RATIO = 4
# A request's cost besides its bytes, in bytes that could be read meanwhile.
REQUEST_COST = 256 * 2**10


def cost(num_bytes: int, *, requests: int = 1) -> int:
    """Estimate the cost of reading objects, in bytes."""
    return num_bytes + REQUEST_COST * requests


def count_tasks(costs: Sequence[int], *, cores: int, task_bytes: int, num_bytes: int | None = None) -> int:
    """Return how many tasks to cut the work into: by ``task_bytes``, or by less when cores would idle.

    ``num_bytes`` says how much of the costs is bytes, all by default: a task may have more requests than bytes.
    """
    total = sum(costs)
    a_core = max(TASK_COST_MIN, -(-total // cores))
    ample = max(TASK_COST_AMPLE, -(-total // (cores * TASKS_PER_CORE)))
    by_cost = -(-total // min(REQUESTS_RATIO * task_bytes, a_core, ample))
    return max(by_cost, -(-(total if num_bytes is None else num_bytes) // task_bytes))


def group(items: Sequence[T], costs: Sequence[int], count: int) -> list[list[T]]:
    """Cut items into at most ``count`` runs of adjacent ones, about equal in cost; none is empty."""
    total, before = sum(costs), 0
    groups: dict[int, list[T]] = {}
    for item, each in zip(items, costs, strict=True):
        # The run that the item's middle falls into.
        groups.setdefault((2 * before + each) * count // (2 * total), []).append(item)
        before += each
    return list(groups.values())
