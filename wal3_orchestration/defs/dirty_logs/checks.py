"""The checks of dirty logs, and of the logs that they mark."""

from __future__ import annotations

from dataclasses import dataclass

from wal3_core.fleet.dirty.rollup_plan import Decision, RollUpPlan
from wal3_orchestration.framework.checks import log_check
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.resources import RollUpResource

DIRTY_LOG, ROLLUP = "dirty_log", "rollup"
_SPOKEN_MAX = 3
_SHOW = ("dirty", "show", "SERVER")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyLogProbe:
    """How many markers wait in a dirty log, and what is decided about the first of them.

    Without a plan, ``problem`` says why it cannot be read; without both, more markers wait than a tick reads.
    ``generation`` is the version of its cursor.
    """

    log: str
    waiting: int = 0
    generation: int = 0
    plan: RollUpPlan | None = None
    problem: str | None = None


def _has_plan(found: DirtyLogProbe) -> bool:
    return found.plan is not None


@log_check(asset=DIRTY_LOG, section=Section.DIRTY, next_command=_SHOW)
def dirty_logs_readable(found: DirtyLogProbe, _limits: RollUpResource) -> str | None:
    """Each dirty log can be read, and every marker was read before it was collected."""
    if found.problem is not None or found.plan is None or not found.plan.marker_range.skipped:
        return found.problem
    skipped = found.plan.marker_range.skipped
    return f"expected every marker to be read before it is collected, found {skipped} that were not"


@log_check(asset=DIRTY_LOG, section=Section.DIRTY, next_command=_SHOW)
def few_markers_wait(found: DirtyLogProbe, limits: RollUpResource) -> str | None:
    """Not many markers wait in a dirty log to be rolled up."""
    if found.waiting <= limits.waiting_max:
        return None
    return f"expected at most {limits.waiting_max:,} markers to wait, found {found.waiting:,}"


@log_check(asset=DIRTY_LOG, section=Section.DIRTY, next_command=_SHOW, applies=_has_plan)
def rolled_up_in_time(found: DirtyLogProbe, limits: RollUpResource) -> str | None:
    """No log has been marked for long without its maintenance being asked for."""
    assert found.plan is not None
    limit_s = limits.due_s + limits.late_s_max
    late = sorted((each for each in found.plan.dirty if each.age_s > limit_s), key=lambda each: -each.age_s)
    if not late:
        return None
    return (
        f"expected maintenance to be asked for within {limit_s:.0f} s of the first mark, found {late[0].log} marked for"
        f" {late[0].age_s:.0f} s{_more(len(late), 1)}"
    )


@log_check(asset=ROLLUP, section=Section.DIRTY, next_command=_SHOW, applies=_has_plan)
def marked_logs_found(found: DirtyLogProbe, _limits: RollUpResource) -> str | None:
    """Each marked log exists and can be read."""
    assert found.plan is not None
    lost = [each for each in found.plan.logs if each.decision in (Decision.GONE, Decision.UNREADABLE)]
    if not lost:
        return None
    named = "; ".join(f"{each.log}: {each.reason}" for each in lost[:_SPOKEN_MAX])
    return f"expected a log for every marker, found {len(lost)} without one: {named}{_more(len(lost), _SPOKEN_MAX)}"


@log_check(
    asset=ROLLUP,
    section=Section.PRESSURE,
    next_command=("cursor", "list", "LOG"),
    # A marked log is judged by itself.
    applies=lambda _found: False,
)
def consumers_keep_up(reason: str, _limits: RollUpResource) -> str | None:
    """No marked log has more unprocessed records than its limit: fleets refuse appends beyond it."""
    return reason


def _more(count: int, spoken: int) -> str:
    return f", and {count - spoken} more" if count > spoken else ""
