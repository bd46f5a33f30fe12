"""Key compaction: plan, merge, install. Every step can be repeated, and run by two at once.

A plan is an outline: it reads no keys, so that a sweep costs a few small requests for each log. The merge plans
exactly, and writes the new fragments and the pass's record. The install loads that record by its token, reads the
cursors, the policy and the manifest again, and changes the log by one CAS, or not at all. A run that dies between two
steps leaves orphans, and nothing else.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from dagster import Definitions, MetadataValue

from wal3_core.compaction.reports import choose
from wal3_core.errors import KeyCompactionRefusedError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.spark import SparkEngine
from wal3_orchestration.building import LogAsset, LogCheck
from wal3_orchestration.defs.key_compaction.verified import (
    INSTALLED,
    VERIFIED,
    holds,
    judge_installed,
    note,
    unproven,
    unverified,
)
from wal3_orchestration.defs.key_compaction.work import (
    IDENTITY,
    Merged,
    install_log,
    merge_log,
    outlines,
    plan_numbers,
)
from wal3_orchestration.failures import Failures, retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.log_records import LogRecords
from wal3_orchestration.outcomes import (
    HERE,
    IDLE,
    ON_SPARK,
    Outcome,
    Verdict,
    executed_again,
    fingerprint,
    latest,
    run_of,
    value_of,
)
from wal3_orchestration.recording import Recorder
from wal3_orchestration.resources import spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.triggers import LogSchedule, build_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster import EventLogRecord

    from wal3_core.compaction.engine import Engine
    from wal3_core.compaction.reports import KeyCompactionPlan
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.defs.key_compaction.work import Outline
    from wal3_orchestration.log_records import KnownProblem
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
    recorder = Recorder(work)
    # Of logs that someone chose, none waits.
    most = work.limits.compactions_max if work.swept else len(work.logs)
    with retried_only_when_unavailable(work.context):
        chosen: list[Outline] = []
        opened = work.open()
        for some in work.slices():
            chosen, others = _most_urgent([*chosen, *outlines(opened, some.logs)], most)
            recorder.add(*_recorded(work, [(each, 0) for each in others]))
    recorder.add(*_recorded(work, [(each, rank) for rank, each in enumerate(chosen, start=1)]))
    yield from recorder.finish()
    if work.last or not work.swept:
        recorder.blocked.raise_together(work.scope, len(work.logs))


def _most_urgent(found: Sequence[Outline], logs_max: int) -> tuple[list[Outline], list[Outline]]:
    """Return the outlines of the most urgent logs that are due, in their order, and the others."""
    by_log = {each.log: each for each in found}
    choice = choose([each.plan for each in found if each.plan is not None], logs_max=logs_max)
    chosen = [by_log.pop(plan.log) for plan in choice.chosen]
    return chosen, list(by_log.values())


def _recorded(work: Work, found: Sequence[tuple[Outline, int]]) -> tuple[list[Outcome], list[Verdict]]:
    """Return what is recorded of outlines: with the rank of a log that is chosen, and 0 of one that is not."""
    planned = [_planned(each, rank) for each, rank in found if each.plan is not None or not each.compacted]
    return planned, [verdict for each, _ in found for verdict in _judged(each, work.limits)]


def _planned(found: Outline, rank: int) -> Outcome:
    plan = found.plan
    if plan is None:
        assert found.refusal is not None
        return Outcome(log=found.log, state=IDLE, metadata={"due": False, "reason": found.refusal.message})
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
    recorder, transient = Recorder(work), Failures()
    with retried_only_when_unavailable(work.context):
        opened, ordered = work.open(), _ordered(work)
        to_merge = replace(work, logs=list(ordered))
        # A pass over one that may not hold would be verified in its place, and what that has replaced be deleted.
        refused, unsure = _refused(to_merge, POSSIBLE), {**unproven(to_merge), **unverified(to_merge)}
        for log, held_bytes in ordered.items():
            if log not in refused and log not in unsure:
                done = _merged_before(work, log) or merge_log(opened, log, work.limits, *_engine(work, held_bytes))
                # Recorded at once: a step that dies later does not merge the log again.
                recorder.add([done.outcome], _proven(done), retried=done.retried)
                if done.outcome.refusal is not None and done.outcome.refusal.transient:
                    transient.add(log, done.outcome.refusal)
        merged = ordered.keys() - refused.keys() - unsure.keys()
        for some in work.slices():
            recorder.add(*_not_merged(some, [log for log in some.logs if log not in merged], unsure))
        yield from recorder.finish()
        transient.raise_together(len(work.logs))
    if work.last or not work.swept:
        recorder.blocked.raise_together(work.scope, len(work.logs))
        recorder.fail(Section.COMPACTION)


def _proven(done: Merged) -> list[Verdict]:
    if done.outcome.refusal is not None and done.outcome.refusal.transient:
        return []
    return [Verdict(check=PROOF, log=done.outcome.log, problem=done.problem, blocking=done.problem is not None)]


def _not_merged(
    work: Work, others: Sequence[str], unsure: Mapping[str, KnownProblem]
) -> tuple[list[Outcome], list[Verdict]]:
    """Return what is known of logs that were not merged: nothing is recorded, their last merge stays on their pages."""
    refused, due = _refused(work, POSSIBLE), set(_due(work))
    # What failed before is no longer due: someone else has compacted it. An unsure log is for the next step.
    judged = [log for log in others if log not in refused and (log not in due or log in unsure)]
    why = {log: {"reason": f"{VERIFIED.name}: {known.problem}"} for log, known in unsure.items()}
    outcomes = [refused.get(log) or Outcome(log=log, state=IDLE, metadata=why.get(log, {})) for log in others]
    return outcomes, [Verdict(check=PROOF, log=log, problem=None) for log in judged]


def _due(work: Work) -> list[str]:
    """Return the logs that were due when they were planned last."""
    known = LogRecords(work.scope, work.instance, PLAN).load(work.logs)
    return [log for log, found in known.items() if found.state not in {"", _IDLE}]


def _ordered(work: Work) -> dict[str, int]:
    """Return the logs to merge in their order, each with its bytes when it was planned.

    In a sweep those that its plan has chosen; otherwise all.
    """
    planned = [
        (int(str(value_of(plan, RANK))) if value_of(plan, CHOSEN) else None, log, _held_bytes(plan))
        for some in work.slices()
        for log in _due(some)
        for plan in latest(work.instance, work.scope.key(PLAN), log, count=1)
    ]
    ranked = sorted((rank, log, held_bytes) for rank, log, held_bytes in planned if rank is not None)
    ordered = {log: held_bytes for _, log, held_bytes in ranked}
    if work.swept:
        return ordered
    held = {log: held_bytes for _, log, held_bytes in planned}
    return {**ordered, **{log: held.get(log, 0) for log in work.logs if log not in ordered}}


def _held_bytes(plan: EventLogRecord) -> int:
    held = value_of(plan, "held_bytes")
    return held if isinstance(held, int) else 0


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


def _engine(work: Work, held_bytes: int) -> tuple[Engine | None, str]:
    """Return where a log's keys are compared and its fragments merged, and how that is called."""
    if held_bytes < work.limits.spark_bytes_min:
        return None, HERE
    return SparkEngine(spark_session(work.scope.spark(work.context))), ON_SPARK


def install_compactions(work: Work) -> Iterator[Event]:
    """Install each pass that was merged, and verify it; the last pass again where it does not hold or may not."""
    recorder = Recorder(work)
    with retried_only_when_unavailable(work.context):
        opened = work.open()
        for some in work.slices():
            _install_slice(some, opened, recorder)
        yield from recorder.finish()
        recorder.fail(Section.COMPACTION)
    recorder.blocked.raise_together(work.scope, len(work.logs))


def _install_slice(work: Work, store: ObjectStore, recorder: Recorder) -> None:
    refused, bad = _refused(work, POSSIBLE, PROOF), unverified(work)
    unsure = {**unproven(work), **bad}
    tokens = dict.fromkeys(unsure if work.swept else work.logs, "")
    tokens |= {log: token for log, token in _tokens(work).items() if log not in bad}
    installed = [log for log in work.logs if log not in refused and log in tokens]
    for log in installed:
        if tokens[log]:
            note(work, log, tokens[log])
        done = install_log(store, log, tokens[log], work.limits, always=not work.swept or log in unsure)
        # Recorded at once: a step that dies later keeps what was found about the pass.
        recorder.add([done.outcome], list(judge_installed(replace(work, logs=[log]), [done])))
        if done.outcome.refusal is None:
            note(work, log, "")
    others = replace(work, logs=[log for log in work.logs if log not in set(installed)])
    recorder.add(
        [refused.get(log) or Outcome(log=log, state=IDLE) for log in others.logs], list(judge_installed(others, []))
    )


def _tokens(work: Work) -> dict[str, str]:
    """Return the pass that was merged last of each log that has one; in a sweep, that this run has merged.

    A run that executes a failed one again from its failed step installs what that one has merged. An earlier try of
    the step may have installed some; those that it found to hold are left out.
    """
    runs = executed_again(work.instance, work.context.run_id) if work.swept else set()
    found = {
        log: value_of(each, IDENTITY)
        for log in (_due(work) if work.swept else work.logs)
        for each in latest(work.instance, work.scope.key(FRAGMENTS), log, count=1)
        if not work.swept or run_of(each) in runs
    }
    tokens = {log: str(token) for log, token in found.items() if token}
    return {log: token for log, token in tokens.items() if not work.swept or not holds(work, log, token)}


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
