"""Key compaction: plan, merge, install. Every step can be repeated, and run by two at once.

A plan is an outline: it reads no keys, so that a sweep costs a few small requests for each log. The merge plans
exactly, and writes the new fragments and the pass's record. The install loads that record by its token, reads the
cursors, the policy and the manifest again, and changes the log by one CAS, or not at all. A run that dies between two
steps leaves orphans, and nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import Definitions, MetadataValue

from wal3_core.compaction.choice import choose
from wal3_core.errors import KeyCompactionRefusedError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.model.retried import Retried
from wal3_core.spark import SparkEngine
from wal3_orchestration.building import LogAsset, LogCheck
from wal3_orchestration.defs.key_compaction.verified import INSTALLED, VERIFIED, judge_installed
from wal3_orchestration.defs.key_compaction.work import (
    IDENTITY,
    Merged,
    install_log,
    merge_log,
    outlines,
    plan_numbers,
)
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.log_records import LogRecords
from wal3_orchestration.outcomes import (
    HERE,
    IDLE,
    ON_SPARK,
    Outcome,
    Verdict,
    fail_for,
    fail_for_blocked,
    fingerprint,
    latest,
    run_of,
    value_of,
)
from wal3_orchestration.recording import record
from wal3_orchestration.resources import spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.triggers import LogSchedule, build_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import EventLogRecord

    from wal3_core.compaction.engine import Engine
    from wal3_core.compaction.reports import KeyCompactionPlan
    from wal3_orchestration.defs.key_compaction.work import Outline
    from wal3_orchestration.outcomes import Value
    from wal3_orchestration.recording import Event
    from wal3_orchestration.resources import CollectionResource
    from wal3_orchestration.scope import Scope
    from wal3_orchestration.work import Work

PLAN, FRAGMENTS = "compaction_plan", "compacted_fragments"
CHOSEN, RANK = "chosen", "rank"
_IDLE = fingerprint(IDLE)

POSSIBLE = LogCheck(
    name="can_be_compacted",
    asset=PLAN,
    blocking=True,
    description="Each log whose policy compacts it, with its cursors, can be read.",
    section=Section.COMPACTION,
    next_command=("compact", "LOG", "--dry-run"),
)
IN_TIME = LogCheck(
    name="compacted_in_time",
    asset=PLAN,
    description="No log has dirty records that are older than its policy's largest lag.",
    section=Section.COMPACTION,
    next_command=("compact", "LOG", "--dry-run"),
)
PROOF = LogCheck(
    name="compaction_proof",
    asset=FRAGMENTS,
    blocking=True,
    description=(
        "The setsums of each merged pass add up: what it read is what it wrote and what it dropped. A pass that fails"
        " is not installed."
    ),
    section=Section.COMPACTION,
    next_command=("scrub", "LOG"),
)


def plan_compactions(work: Work) -> Iterator[Event]:
    """Outline each log of the step, and choose which of those that are due are compacted first."""
    with retried_only_when_unavailable(work.context):
        found = outlines(work.open(), work.logs)
    # Of logs that someone chose, none waits.
    most = work.limits.compactions_max if work.swept else len(found)
    choice = choose([each.plan for each in found if each.plan is not None], logs_max=most)
    ranks = {plan.log: rank for rank, plan in enumerate(choice.chosen, start=1)}
    planned = [_planned(each, ranks) for each in found if each.plan is not None or not each.compacted]
    verdicts = [verdict for each in found for verdict in _judged(each, work.limits)]
    _, verdicts = yield from record(work, planned, verdicts)
    if work.last or not work.swept:
        fail_for_blocked(work.scope, verdicts, len(work.logs))


def _planned(found: Outline, ranks: Mapping[str, int]) -> Outcome:
    plan = found.plan
    if plan is None:
        assert found.refusal is not None
        return Outcome(log=found.log, state=IDLE, metadata={"due": False, "reason": found.refusal.message})
    rank = ranks.get(plan.log, 0)
    return Outcome(
        log=plan.log,
        state=IDLE if plan.due is None else f"due: {plan.due} {plan.limit} {rank}",
        # The merge of a sweep does what this run has chosen.
        notable=plan.due is not None,
        metadata={
            **plan_numbers(plan),
            "due": plan.due is not None,
            "cause": plan.due or "",
            CHOSEN: bool(rank),
            RANK: rank,
            "reason": plan.bound,
            "clean_limit": plan.clean_limit,
            "limit": plan.limit,
            "plan": MetadataValue.json(plan.to_json()),
        },
    )


def _judged(found: Outline, limits: CollectionResource) -> Iterator[Verdict]:
    refused = found.refusal.message if found.refusal is not None and found.compacted else None
    yield Verdict(check=POSSIBLE, log=found.log, problem=refused, blocking=refused is not None)
    if refused is None:
        late = None if found.plan is None else _late(found.plan, limits.compaction_late_s_max)
        yield Verdict(check=IN_TIME, log=found.log, problem=late)


def _late(plan: KeyCompactionPlan, late_s_max: float) -> str | None:
    if plan.overdue_s > late_s_max:
        return (
            f"expected records to be compacted within {late_s_max:.0f} s of the largest lag, found the oldest dirty one"
            f" {plan.overdue_s} s over it"
        )
    if plan.held_back_s > late_s_max:
        return (
            f"expected records to be compacted within {late_s_max:.0f} s of the largest lag, found one held back"
            f" {plan.held_back_s} s over it: {plan.bound}"
        )
    return None


def merge_compactions(work: Work) -> Iterator[Event]:
    """Merge a pass over each log that was chosen, the most urgent first; nothing leads to the result yet."""
    with retried_only_when_unavailable(work.context):
        opened, refused, plans = work.open(), _refused(work, POSSIBLE), _plans(work)
        done = [
            _merged_before(work, log) or merge_log(opened, log, work.limits, *_engine(work, plans.get(log)))
            for log in _ordered(work, plans)
            if log not in refused
        ]
        verdicts = [
            Verdict(check=PROOF, log=each.outcome.log, problem=each.problem, blocking=each.problem is not None)
            for each in done
            if not _is_transient(each.outcome)
        ]
        judged = {verdict.log for verdict in verdicts} | refused.keys() | plans.keys()
        # What failed before is no longer due: someone else has compacted it.
        verdicts += [Verdict(check=PROOF, log=log, problem=None) for log in work.logs if log not in judged]
        merged = {each.outcome.log: each.outcome for each in done} | refused
        # Nothing is recorded of the others: their last merge stays on their pages.
        outcomes = [merged.get(log) or Outcome(log=log, state=IDLE) for log in work.logs]
        again = [each.retried for each in done if each.retried is not None]
        retried = sum(again, start=Retried()) if again else None
        outcomes, verdicts = yield from record(work, outcomes, verdicts, retried=retried)
        fail_for(work.scope, Section.COMPACTION, [each for each in outcomes if _is_transient(each)])
    if work.last or not work.swept:
        fail_for_blocked(work.scope, verdicts, len(work.logs))
        fail_for(work.scope, Section.COMPACTION, outcomes)


def _plans(work: Work) -> dict[str, EventLogRecord]:
    """Return the newest plan of each log that was due."""
    return {log: found for log in _due(work) for found in latest(work.instance, work.scope.key(PLAN), log, count=1)}


def _due(work: Work) -> list[str]:
    """Return the logs that were due when they were planned last."""
    known = LogRecords(work.scope, work.instance, PLAN).load(work.logs)
    return [log for log, found in known.items() if found.state not in {"", _IDLE}]


def _ordered(work: Work, plans: Mapping[str, EventLogRecord]) -> list[str]:
    """Return the logs to merge in their order: in a sweep those that its plan has chosen, otherwise all."""
    ranks = {log: value_of(found, RANK) for log, found in plans.items() if value_of(found, CHOSEN)}
    ranked = sorted(log for log in work.logs if log in ranks)
    ranked.sort(key=lambda log: int(str(ranks[log])))
    return ranked if work.swept else [*ranked, *(log for log in work.logs if log not in ranks)]


def _merged_before(work: Work, log: str) -> Merged | None:
    """Return what an earlier try of this run has merged."""
    if not work.context.retry_number:
        return None
    for found in latest(work.instance, work.scope.key(FRAGMENTS), log, count=1):
        event = found.asset_materialization
        token = value_of(found, IDENTITY)
        if event is not None and token and run_of(found) == work.context.run_id:
            metadata: dict[str, Value] = dict(event.metadata)  # type: ignore[arg-type]  # what was recorded then
            return Merged(outcome=Outcome(log=log, state=IDLE, metadata=metadata))
    return None


def _engine(work: Work, plan: EventLogRecord | None) -> tuple[Engine | None, str]:
    """Return where a log's keys are compared and its fragments merged, and how that is called."""
    held = 0 if plan is None else value_of(plan, "held_bytes")
    if not isinstance(held, int) or held < work.limits.spark_bytes_min:
        return None, HERE
    return SparkEngine(spark_session(work.scope.spark(work.context))), ON_SPARK


def _is_transient(outcome: Outcome) -> bool:
    return outcome.refusal is not None and outcome.refusal.transient


def install_compactions(work: Work) -> Iterator[Event]:
    """Install each pass that was merged, and verify it."""
    with retried_only_when_unavailable(work.context):
        opened, refused = work.open(), _refused(work, POSSIBLE, PROOF)
        tokens = _tokens(work)
        done = [
            install_log(opened, log, tokens.get(log, ""), work.limits, always=not work.swept)
            for log in work.logs
            if log not in refused and (log in tokens or not work.swept)
        ]
        verdicts = list(judge_installed(work, done))
        installed = {each.outcome.log: each.outcome for each in done} | refused
        outcomes = [installed.get(log) or Outcome(log=log, state=IDLE) for log in work.logs]
        outcomes, verdicts = yield from record(work, outcomes, verdicts)
        fail_for(work.scope, Section.COMPACTION, outcomes)
    fail_for_blocked(work.scope, verdicts, len(work.logs))


def _tokens(work: Work) -> dict[str, str]:
    """Return the pass that was merged last of each log that has one; in a sweep, that this run has merged.

    A run that executes a failed one again from its failed step installs what that one has merged.
    """
    runs = _executed_again(work) if work.swept else set()
    found = {
        log: value_of(each, IDENTITY)
        for log in (_due(work) if work.swept else work.logs)
        for each in latest(work.instance, work.scope.key(FRAGMENTS), log, count=1)
        if not work.swept or run_of(each) in runs
    }
    return {log: str(token) for log, token in found.items() if token}


def _executed_again(work: Work) -> set[str]:
    """Return the ids of this run and of those that it executes again."""
    _, runs = work.instance.get_run_group(work.context.run_id) or ("", [])
    return {work.context.run_id, *(run.run_id for run in runs)}


def _refused(work: Work, *checks: LogCheck) -> dict[str, Outcome]:
    """Return the logs that an earlier step of a sweep has found bad: they are left alone, and fail the last step."""
    if not work.swept:
        # That step has failed, or someone wants it tried again.
        return {}
    found = {}
    for check in checks:
        for log, known in LogRecords(work.scope, work.instance, check.asset).load(work.logs).items():
            problem = known.problems.get(check.name)
            if problem is not None and problem.blocking:
                refusal = Refusal(kind=KeyCompactionRefusedError.__name__, message=f"{check.name}: {problem.problem}")
                found[log] = Outcome(log=log, refusal=refusal)
    return found


PLANNED = LogAsset(
    name=PLAN,
    step=plan_compactions,
    description=(
        "How dirty a log is, for how long, what keeps the rest from being compacted, and whether a pass is due. No keys"
        " are read, and nothing is changed. In a sweep, the most urgent logs are chosen."
    ),
    deps=("manifest", "rollup"),
    uses=("store", "collection"),
    section=Section.COMPACTION,
    checks=(POSSIBLE, IN_TIME),
)
MERGED = LogAsset(
    name=FRAGMENTS,
    step=merge_compactions,
    description=(
        "The fragments that a pass wrote, without superseded records and expired tombstones, and its record with the"
        " proof. Nothing leads to them until they are installed."
    ),
    deps=(PLAN,),
    uses=("store", "spark", "collection"),
    pool="wal3_key_compaction",
    section=Section.COMPACTION,
    checks=(PROOF,),
)
COMPACTED = LogAsset(
    name=INSTALLED,
    step=install_compactions,
    description=(
        "A log's manifest after a merged pass was installed by one change of it, and verified; or why it was overtaken."
        " What it replaced is deleted an interval later."
    ),
    deps=(FRAGMENTS,),
    uses=("store", "collection"),
    section=Section.COMPACTION,
    checks=(VERIFIED,),
)
ASSETS = (PLANNED, MERGED, COMPACTED)
JOB = LogJob(
    name="compaction",
    assets=ASSETS,
    description="Keeps the newest record of every key: plans, merges, installs and verifies.",
)
DAILY = LogSchedule(
    name="daily_key_compaction",
    job=JOB,
    cron="0 2 * * *",
    description=(
        "Outlines every log, and compacts those that are due, the most urgent first, in one run. Also finds logs that"
        " became overdue, or whose tombstones expired, without an append. Off until turned on: it drops records."
    ),
)


def workflow(scope: Scope) -> Definitions:
    """Return the assets with their checks, their jobs, and the schedule."""
    return Definitions.merge(
        build_jobs(scope, [JOB]),
        Definitions(assets=[each.build(scope) for each in ASSETS], schedules=[build_schedule(scope, DAILY)]),
    )
