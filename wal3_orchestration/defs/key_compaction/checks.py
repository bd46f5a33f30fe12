"""The checks of key compaction, and what the verification of each log's last pass has found.

That stands until a later verification, or until the log is another. Until then no other pass is made: it would be
verified alone, and what the one before it has replaced be deleted. The name of a log that was destroyed may lead to
another one: that its predecessor's pass did not hold keeps nothing of the new log from being deleted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_orchestration.framework.checks import log_check
from wal3_orchestration.framework.log_records import NOTHING, KnownProblem, LogRecords
from wal3_orchestration.framework.recorder import known_problems, latest, value_of
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.step import Step
from wal3_orchestration.framework.store import read_manifests
from wal3_orchestration.resources import CollectionResource

if TYPE_CHECKING:
    from wal3_orchestration.defs.key_compaction.assets import Outline

PLAN, FRAGMENTS, INSTALLED = "compaction_plan", "merged_fragments", "installed_manifest"
# The label of the token of a merged pass.
IDENTITY = "token"
_DRY_RUN = ("compact", "LOG", "--dry-run")


@log_check(asset=PLAN, section=Section.COMPACTION, next_command=_DRY_RUN, blocking=True)
def can_be_compacted(found: Outline, _limits: CollectionResource) -> str | None:
    """Each log whose policy compacts it, with its cursors, can be read."""
    return found.problem


@log_check(
    asset=PLAN,
    section=Section.COMPACTION,
    next_command=_DRY_RUN,
    applies=lambda found: found.problem is None,
)
def compacted_in_time(found: Outline, limits: CollectionResource) -> str | None:
    """No log has dirty records that are older than its policy's largest lag."""
    plan, late_s_max = found.plan, limits.compaction_late_s_max
    if plan is not None and plan.overdue_s > late_s_max:
        return (
            f"expected records to be compacted within {late_s_max:.0f} s of the largest lag, found the oldest dirty one"
            f" {plan.overdue_s} s over it"
        )
    if plan is not None and plan.held_back_s > late_s_max:
        return (
            f"expected records to be compacted within {late_s_max:.0f} s of the largest lag, found one held back"
            f" {plan.held_back_s} s over it: {plan.bound}"
        )
    return None


@log_check(asset=FRAGMENTS, section=Section.COMPACTION, next_command=("scrub", "LOG"), blocking=True)
def compaction_proof(problem: str | None, _limits: object) -> str | None:
    """The setsums of each merged pass add up: what it read is what it wrote and what it dropped.

    A pass that fails is not installed.
    """
    return problem


@log_check(asset=INSTALLED, section=Section.COMPACTION, next_command=("compact", "LOG", "--verify"), blocking=True)
def compaction_verified(problem: str | None, _limits: object) -> str | None:
    """The last pass of each log holds, derived again from storage alone.

    While it does not, garbage of the log is not deleted: what the pass replaced is among it.
    """
    return problem


def holds(step: Step, log: str, token: str) -> bool:
    """Return whether a pass was installed, verified and found to hold, as what was recorded last of the log says."""
    recorded = latest(step.instance, step.scope.key(INSTALLED), log, count=1)
    verified = any(value_of(each, IDENTITY) == token and value_of(each, "verified") for each in recorded)
    return verified and log not in known_problems(replace(step, logs=[log]), compaction_verified)


def unverified(step: Step) -> dict[str, KnownProblem]:
    """Return the logs whose last pass does not hold, each with what is wrong: what it replaced must not be deleted.

    Without those of which the name has another log by now. One that cannot be read counts as the same.
    """
    known = known_problems(step, compaction_verified)
    now = {log: manifest.log_id for log, manifest in read_manifests(step.open(), known)} if known else {}
    return {log: each for log, each in known.items() if each.log_id in {None, now.get(log, each.log_id)}}


def unproven(step: Step) -> dict[str, KnownProblem]:
    """Return the logs whose last pass a run has installed, and not verified yet: it is about to, or it has died."""
    begun = {log: record.unproven for log, record in step.records(INSTALLED).items() if record.unproven}
    # If the log has another pass by now, or the name another log, this one was never installed, or is not the last.
    now = {log: found.compaction.token for log, found in read_manifests(step.open(), begun)} if begun else {}
    return {
        log: KnownProblem(
            problem=f"expected pass {token} to be verified, found it installed only; if its run has ended, launch"
            f" {step.scope.named('compaction_job')} for the log"
        )
        for log, token in begun.items()
        if now.get(log, token) == token
    }


def note(step: Step, log: str, token: str) -> None:
    """Remember the pass that is about to be installed, or with an empty token that it has been verified, if it can be.

    So a run that dies in between leaves a pass that is known to be unproven.
    """
    records = LogRecords(step.scope, step.instance, INSTALLED)
    known = records.load([log]).get(log, NOTHING)
    records.save({log: replace(known, unproven=token)})
