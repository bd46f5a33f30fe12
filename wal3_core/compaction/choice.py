"""Which logs are compacted first, of many whose passes are outlined. Pure.

Times were promised, ratios were not: a log over its largest lag comes before one whose tombstones have expired, and
that one before any ratio. A pass ends both states, so none of them keeps the dirtiest logs waiting for long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.compaction.reports import KeyCompactionPlan
    from wal3_core.model.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The logs to compact now, those that are due and have to wait, the most urgent first, and those that are not."""

    chosen: tuple[KeyCompactionPlan, ...]
    waiting: tuple[KeyCompactionPlan, ...]
    idle: tuple[KeyCompactionPlan, ...]


def choose(plans: Iterable[KeyCompactionPlan], *, logs_max: int) -> Choice:
    """Choose up to ``logs_max`` of the logs that are due.

    The most overdue first, then those with expired tombstones, then by the share that is dirty, of bytes or of records,
    largest first.
    """
    plans = list(plans)
    due = sorted((plan for plan in plans if plan.due is not None), key=_urgency)
    idle = tuple(plan for plan in plans if plan.due is None)
    return Choice(chosen=tuple(due[:logs_max]), waiting=tuple(due[logs_max:]), idle=idle)


def _urgency(plan: KeyCompactionPlan) -> tuple[int, bool, float, int, str]:
    share = max(_share(plan.dirty_bytes, plan.held_bytes), _share(plan.dirty_records, plan.held_records))
    return -plan.overdue_s, not plan.expired, -share, -plan.dirty_bytes, plan.log


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def may_be_due(manifest: Manifest) -> bool:
    """Return whether a log has anything that a pass could ever do as it is; its outline says whether one is due.

    The manifest does not say whether passes drop records: one that only arranges the log leaves none of it clean.
    """
    compaction = manifest.compaction
    dirty = manifest.next.position.offset > max(compaction.clean_limit, manifest.first.position.offset)
    return manifest.keyed and (dirty or (compaction.clean_limit > compaction.swept and not _is_swept(manifest)))


def _is_swept(manifest: Manifest) -> bool:
    """Whether only the last record is left to sweep, which stays as long as nothing is behind it."""
    last = manifest.pointers[-1] if manifest.pointers else None
    return last is not None and last.num_records == 1 and last.start.offset <= manifest.compaction.swept
