"""The checks of collections: what a plan takes, garbage that stays, cursors that stand still, orphans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wal3_core.fleet.survey import Survey
from wal3_core.format.paths import DIRTY, QUEUE_CURSOR
from wal3_core.log.collect.collector import ONLY_COMPACTED
from wal3_orchestration.framework.checks import Value, log_check
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.resources import CollectionResource

PLAN, ORPHANS = "garbage_plan", "marked_orphans"
_DRY_RUN = ("gc", "LOG", "--dry-run")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedLog:
    """A survey of a log, and for how long its garbage has been planned without being pruned, if for long."""

    survey: Survey
    unpruned_s: float | None = None

    def cutoff(self) -> dict[str, Value]:
        """Return up to where the plan prunes."""
        plan = self.survey.plan
        return {} if plan is None else {"cutoff_offset": plan.first.position.offset}


@log_check(asset=PLAN, section=Section.REFUSED, next_command=_DRY_RUN, blocking=True, details=PlannedLog.cutoff)
def safe_to_collect(found: PlannedLog, _limits: CollectionResource) -> str | None:
    """Setsums balance, no cursor is below the cutoff, and no more is pruned than is allowed.

    A log without a cursor keeps everything, as it should: `without_cursor` of the plans counts these.
    """
    survey = found.survey
    return None if survey.refusal is None or survey.unclaimed else survey.refusal.message


@log_check(asset=PLAN, section=Section.GARBAGE, next_command=_DRY_RUN, details=PlannedLog.cutoff)
def little_garbage(found: PlannedLog, limits: CollectionResource) -> str | None:
    """The garbage is not a large part of the log."""
    plan = found.survey.plan
    # A dirty log is always collected almost whole.
    if plan is None or plan.fraction <= limits.fraction_alarm or found.survey.log.startswith(f"{DIRTY}/"):
        return None
    return (
        f"expected at most {limits.fraction_alarm:.0%} of the log to be garbage, found {plan.fraction:.0%}"
        f" ({plan.num_bytes} of {plan.held_bytes} bytes): collect it more often, or find out why"
    )


@log_check(asset=PLAN, section=Section.GARBAGE, next_command=("pin", "list", "LOG"))
def collected_in_time(found: PlannedLog, limits: CollectionResource) -> str | None:
    """Planned and announced garbage is pruned in time, and pruned garbage is deleted in time."""
    survey, age_s_max = found.survey, limits.intervals_max * limits.waiting_s
    announced = survey.announced
    if announced is not None and announced.age_s > limits.announced_s_max:
        return (
            f"expected collection {announced.path} to prune within {limits.announced_s_max:.0f} s, found it announced"
            f" for {announced.age_s} s, preventing new cursors below it: run the collection again"
        )
    late = [document for document in survey.documents if document.age_s > age_s_max]
    if late:
        oldest = max(late, key=lambda document: document.age_s)
        return (
            f"expected garbage to be deleted within {age_s_max:.0f} s, found {len(late)} documents left, {oldest.path}"
            f" for {oldest.age_s} s: check for pins that hold it, and for failed runs of deletion_job"
        )
    if found.unpruned_s is None or not survey.due:
        return None
    return (
        f"expected garbage planned {found.unpruned_s:.0f} s ago to be pruned, found it was not:"
        " turn on the schedule daily_collection, or check for failed runs of collection_job"
    )


@log_check(asset=PLAN, section=Section.CURSOR, next_command=("cursor", "list", "LOG"))
def cursors_move(found: PlannedLog, limits: CollectionResource) -> str | None:
    """No cursor stands still while the log grows."""
    survey = found.survey
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


@log_check(asset=ORPHANS, section=Section.GARBAGE, next_command=("inspect", "LOG"))
def few_orphans(counts: Sequence[int], limits: CollectionResource) -> str | None:
    """There are few uncommitted uploads, and their number does not keep rising."""
    # The newest listing comes first.
    newest = counts[0]
    if newest >= limits.orphans_max:
        return (
            f"expected fewer than {limits.orphans_max} orphans, found {newest}: check for uploads that fail to commit"
        )
    rising = len(counts) > 2 and counts[0] > counts[1] > counts[2]  # noqa: PLR2004 - twice in a row takes three
    if rising and newest >= limits.orphans_min:
        return f"expected orphans not to rise twice in a row, found {counts[2]}, {counts[1]}, {newest}"
    return None
