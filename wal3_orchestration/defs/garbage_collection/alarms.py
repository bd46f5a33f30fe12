"""Warnings about a log's garbage, derived from one survey of it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.log.collect.planner import ONLY_COMPACTED
from wal3_core.model.paths import DIRTY, QUEUE_CURSOR

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.fleet.survey import Survey
    from wal3_orchestration.resources import CollectionResource


def too_much_garbage(survey: Survey, limits: CollectionResource) -> str | None:
    """Warn about a plan that takes a large part of the log; a dirty log is always collected almost whole."""
    plan = survey.plan
    if plan is None or plan.fraction <= limits.fraction_alarm or survey.log.startswith(f"{DIRTY}/"):
        return None
    return (
        f"expected at most {limits.fraction_alarm:.0%} of the log to be garbage, found {plan.fraction:.0%}"
        f" ({plan.num_bytes} of {plan.held_bytes} bytes): collect it more often, or find out why"
    )


def overdue(survey: Survey, limits: CollectionResource) -> str | None:
    """Warn about garbage that was pruned or announced long ago and is not deleted."""
    age_s_max = limits.intervals_max * limits.waiting_s
    announced = survey.announced
    if announced is not None and announced.age_s > limits.announced_s_max:
        return (
            f"expected collection {announced.path} to prune within {limits.announced_s_max:.0f} s, found it announced"
            f" for {announced.age_s} s, preventing new cursors below it: run the collection again"
        )
    late = [standing for standing in survey.documents if standing.age_s > age_s_max]
    if late:
        oldest = max(late, key=lambda standing: standing.age_s)
        return (
            f"expected garbage to be deleted within {age_s_max:.0f} s, found {len(late)} documents left, {oldest.path}"
            f" for {oldest.age_s} s: check for pins that hold it, and for failed runs of deletion_job"
        )
    return None


def never_pruned(survey: Survey, planned_s: float | None) -> str | None:
    """Warn about garbage that a plan found ``planned_s`` seconds ago and that was not pruned since."""
    if planned_s is None or not survey.due:
        return None
    return (
        f"expected garbage planned {planned_s:.0f} s ago to be pruned, found it was not:"
        " turn on the schedule daily_collection, or check for failed runs of collection_job"
    )


def stuck_cursors(survey: Survey, limits: CollectionResource) -> str | None:
    """Warn about cursors that do not move while the log grows: they prevent collection."""
    # A queue's own cursor is where its checkpoint is: no reader's, and nothing waits for it to be collected.
    only_compacted = survey.plan is not None and survey.plan.reason == ONLY_COMPACTED
    cursors = [age for age in survey.cursors if not (only_compacted and age.name == QUEUE_CURSOR)]
    stuck = [age for age in cursors if age.idle_s > limits.cursor_idle_s_max and age.lag >= limits.lag_min]
    if not stuck:
        return None
    named = ", ".join(f"{age.name} for {age.idle_s} s, {age.lag} records behind" for age in stuck)
    return (
        f"expected cursors to move within {limits.cursor_idle_s_max:.0f} s while the log grows, found {named}:"
        " check their readers, or delete unused cursors"
    )


def many_orphans(counts: Sequence[int], limits: CollectionResource) -> str | None:
    """Warn about many or rising orphans; ``counts`` are the newest listings', newest first."""
    newest = counts[0]
    if newest >= limits.orphans_max:
        return (
            f"expected fewer than {limits.orphans_max} orphans, found {newest}: check for uploads that fail to commit"
        )
    rising = len(counts) > 2 and counts[0] > counts[1] > counts[2]  # noqa: PLR2004 - twice in a row takes three
    if rising and newest >= limits.orphans_min:
        return f"expected orphans not to rise twice in a row, found {counts[2]}, {counts[1]}, {newest}"
    return None
