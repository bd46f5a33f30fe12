"""What is known of a pass before any key is read: how dirty the log is, for how long, whether a pass is due. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.compaction.reports import KeyCompactionPlan
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from wal3_core.compaction.scope import Scope
    from wal3_core.model.policy import Policy


def outline(log: str, scope: Scope, policy: Policy) -> KeyCompactionPlan:
    """Return the plan of a pass over a scope, without what only its keys say."""
    limits, extent = policy.compaction_limits, scope.extent
    plan = KeyCompactionPlan(
        log=log,
        log_id=scope.manifest.log_id,
        first=scope.manifest.first.position.offset,
        limit=extent.limit,
        clean_limit=scope.clean_limit,
        expired_below=scope.expired_below,
        bound=scope.bound,
        due=None,
        dirty_bytes=extent.dirty_bytes,
        held_bytes=extent.held_bytes,
        dirty_records=extent.dirty_records,
        held_records=extent.held_records,
        overdue_s=_over_s(extent.dirty_us, scope.now_us, limits.max_compaction_lag_s),
        held_back_s=_over_s(extent.after_us, scope.now_us, limits.max_compaction_lag_s),
        expired=scope.sweeps,
    )
    return replace(plan, due=_due(plan, limits.min_dirty_percent, drops=policy.compacts))


def _over_s(since_us: int | None, now_us: int, lag_s: int | None) -> int:
    """Return for how long a record has been older than the largest lag."""
    if since_us is None or lag_s is None:
        return 0
    return max(0, (now_us - since_us) // US_PER_S - lag_s)


def _due(plan: KeyCompactionPlan, min_dirty_percent: int, *, drops: bool) -> str | None:
    """Return why a pass should run now."""
    if plan.overdue_s:
        return f"its oldest dirty record is {plan.overdue_s} s over the largest lag"
    if plan.dirty_bytes and plan.dirty_percent >= min_dirty_percent:
        return f"{plan.dirty_percent} % of its bytes are dirty"
    # A tombstone has few bytes, whatever the record has that it supersedes: bytes alone never show a drained log.
    if drops and plan.dirty_bytes and plan.dirty_records_percent >= min_dirty_percent:
        return f"{plan.dirty_records_percent} % of its records are dirty"
    if plan.expired:
        return "tombstones have expired"
    return None
