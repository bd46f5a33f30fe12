"""The checks of delay queues: whether items are handed out in time, and how many wait or are dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_orchestration.framework.checks import log_check
from wal3_orchestration.framework.runbook import Section

if TYPE_CHECKING:
    from wal3_orchestration.defs.delay_queues.assets import QueueProbe
    from wal3_orchestration.framework.checks import Value
    from wal3_orchestration.resources import CollectionResource

QUEUE = "delay_queue"
_STATS = ("queue", "stats", "LOG")


def _readable(found: QueueProbe) -> bool:
    return found.refusal is None


def _numbers(found: QueueProbe) -> dict[str, Value]:
    return found.numbers()


@log_check(asset=QUEUE, section=Section.QUEUE_OLD, next_command=_STATS, applies=_readable, details=_numbers)
def oldest_due_within(found: QueueProbe, limits: CollectionResource) -> str | None:
    """No item of a queue has been due for long without being handed out."""
    stats = found.stats
    if stats is None or found.oldest_due_s <= limits.queue_due_s_max:
        return None
    return (
        f"expected each item to be handed out within {limits.queue_due_s_max:,.0f} s of its deadline, found one that"
        f" has been due for {found.oldest_due_s:,.0f} s, of {stats.due:,} due items"
    )


@log_check(asset=QUEUE, section=Section.DEAD_LETTERS, next_command=_STATS, applies=_readable, details=_numbers)
def dead_letters_below(found: QueueProbe, limits: CollectionResource) -> str | None:
    """No queue has more dead letters than it may have."""
    dead = 0 if found.stats is None else found.stats.dead
    if dead <= limits.queue_dead_max:
        return None
    return f"expected at most {limits.queue_dead_max:,} dead letters, found {dead:,}"


@log_check(asset=QUEUE, section=Section.QUEUE_OLD, next_command=_STATS, applies=_readable, details=_numbers)
def depth_below(found: QueueProbe, limits: CollectionResource) -> str | None:
    """Not too many items wait in a queue, due or not."""
    pending = 0 if found.stats is None else found.stats.pending
    if pending <= limits.queue_pending_max:
        return None
    return f"expected at most {limits.queue_pending_max:,} pending items, found {pending:,}"
