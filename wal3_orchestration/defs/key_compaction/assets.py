"""Key compaction: plan, merge, install. Every step can be repeated, and run by two at once.

A plan is an outline: it reads no keys, so that a sweep costs a few small requests for each log. The merge plans
exactly, and writes the new fragments and the pass's record. The install loads that record by its token, reads the
cursors, the policy and the manifest again, and changes the log by one CAS, or not at all. A run that dies between two
steps leaves orphans, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from dagster import MetadataValue

from wal3_core import LogReader
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.engine import Engine
from wal3_core.compaction.reports import KeyCompactionPlan, Retried, choose
from wal3_core.compaction.verifying import Verification
from wal3_core.errors import KeyCompactionRefusedError, LogError, LogReplacedError, MissingError
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.format.paths import pass_path
from wal3_core.options import KeyCompactorOptions
from wal3_core.spark import SparkEngine
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.key_compaction.checks import (
    FRAGMENTS,
    IDENTITY,
    INSTALLED,
    PLAN,
    can_be_compacted,
    compaction_proof,
    compaction_verified,
    holds,
    note,
    unproven,
    unverified,
)
from wal3_orchestration.framework.assets import LogAsset, LogJob
from wal3_orchestration.framework.checks import CheckResult, LogCheck, Value, judged
from wal3_orchestration.framework.log_records import KnownProblem
from wal3_orchestration.framework.recorder import (
    IDLE,
    LogResult,
    Recorder,
    executed_again,
    fingerprint,
    known_problems,
    latest,
    refused,
    run_of,
    value_of,
)
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.step import HERE, ON_SPARK, Step
from wal3_orchestration.framework.store import map_logs
from wal3_orchestration.framework.triggers import LogSchedule
from wal3_orchestration.resources import CollectionResource

if TYPE_CHECKING:
    # What became of a log's merge, what is wrong with its proof, and what Spark ran again if it was used.
    Merged = tuple[LogResult, str | None, Retried | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A log's plan without its keys; without one, ``refusal`` says why. ``compacted`` is whether its policy asks so."""

    log: str
    plan: KeyCompactionPlan | None = None
    refusal: Refusal | None = None
    compacted: bool = True

    @property
    def problem(self) -> str | None:
        """Why a log whose policy compacts it cannot be outlined."""
        return self.refusal.message if self.refusal is not None and self.compacted else None


def outlines(store: ObjectStore, logs: Iterable[str]) -> list[Outline]:
    """Outline passes over many logs, several at a time, in order. UnavailableError when the store does not answer."""
    return list(map_logs(partial(_outline, store), logs))


def _outline(store: ObjectStore, log: str) -> Outline:
    found = try_log(lambda name: KeyCompactor(store, name).outline(), log)
    if isinstance(found, LogReplacedError):
        # The name has another life since the first request: that one is outlined.
        return _outline(store, log)
    if not isinstance(found, LogError):
        return Outline(log=log, plan=found)
    refusal = Refusal.of(found)
    return Outline(log=log, refusal=refusal, compacted=refusal.kind != KeyCompactionRefusedError.__name__)


def plan_numbers(plan: KeyCompactionPlan) -> dict[str, Value]:
    """Return the numbers of a plan that Dagster plots."""
    return {
        "dirty (%)": plan.dirty_percent,
        "dirty records (%)": plan.dirty_records_percent,
        "dirty_bytes": plan.dirty_bytes,
        "held_bytes": plan.held_bytes,
        "overdue (s)": plan.overdue_s,
        "held back (s)": plan.held_back_s,
    }


def merge_log(store: ObjectStore, log: str, limits: CollectionResource, engine: Engine | None, done_by: str) -> Merged:
    """Plan and merge a pass over a log if one is due, and check what its record says."""
    compactor = KeyCompactor(store, log, options=options_of(limits), engine=engine)
    try:
        done = compactor.merge()
        record = None if done.token is None else compactor.record(done.token)
    except LogReplacedError:
        return merge_log(store, log, limits, engine, done_by)
    except LogError as error:
        refusal = Refusal.of(error)
        if refusal.kind == KeyCompactionRefusedError.__name__:
            return LogResult(log=log, state=IDLE, metadata={"reason": refusal.message}), None, None
        # A fragment that is not what it was leaves nothing to prove.
        problem = None if refusal.transient else f"{refusal.kind}: {refusal.message}"
        return LogResult(log=log, refusal=refusal), problem, None
    except AssertionError as error:
        refusal = Refusal(kind=AssertionError.__name__, message=str(error))
        return LogResult(log=log, refusal=refusal), f"the library stopped the pass: {error}", None
    plan, moved = done.plan, done.bytes_read + done.bytes_written
    result = LogResult(
        log=log,
        # Each merge is recorded, and nothing else is.
        state=IDLE,
        notable=record is not None,
        metadata={
            **plan_numbers(plan),
            "bytes_read": done.bytes_read,
            "bytes_written": done.bytes_written,
            "amplification": moved / plan.dirty_bytes if plan.dirty_bytes else 0.0,
            "superseded": done.num_superseded,
            "expired": done.num_expired,
            "records_written": done.num_merged,
            "fragments_read": plan.num_rewritten,
            "fragments_written": done.num_written,
            "key_columns_read": plan.num_read,
            "cause": plan.due or "",
            IDENTITY: done.token or "",
            "done_by": done_by,
        },
    )
    return result, None if record is None else record.problem(), done.retried


def install_log(
    store: ObjectStore, log: str, token: str, limits: CollectionResource, *, always: bool = False
) -> tuple[LogResult, Verification | None]:
    """Install a merged pass, once, and verify a log that is small enough; with ``always``, also without a pass.

    Return what the verification found, too, if there was one. A pass that an earlier try has installed is verified as
    well: that try may have ended before. One that was overtaken is no failure: the log stays as dirty as it was, and is
    chosen again.
    """
    compactor = KeyCompactor(store, log, options=options_of(limits))
    try:
        done = compactor.install(token) if token else None
        there = done is not None and done.overtaken is None
        verified = None
        if there or always:
            num_bytes = LogReader.open(store, log).manifest().num_bytes
            verified = compactor.verify() if num_bytes <= limits.compaction_verified_bytes_max else None
    except LogReplacedError as error:
        return _overtaken(log, token, str(error)), None
    except LogError as error:
        if isinstance(error, MissingError) and error.path == pass_path(token):
            return _overtaken(log, token, "what it left was deleted as orphans"), None
        return LogResult(log=log, refusal=Refusal.of(error)), None
    fresh = there and done is not None and not done.repeated
    metadata: dict[str, Value] = {"installed": fresh, IDENTITY: token, "verified": verified is not None}
    if done is not None:
        record = done.record
        metadata |= {
            "pass": record.number,
            "clean_limit": record.limit,
            "superseded": record.num_superseded,
            "expired": record.num_expired,
            "bytes_read": record.bytes_read,
            "bytes_written": record.bytes_written,
            "setsum_before": record.proof.before.hexdigest(),
            "setsum_after": record.proof.after.hexdigest(),
            "setsum_superseded": record.proof.superseded.hexdigest(),
            "setsum_expired": record.proof.expired.hexdigest(),
            "installed_before": done.repeated,
            "overtaken": done.overtaken or "",
            "garbage_documents": len(done.garbage),
        }
    state = f"overtaken {token}" if done is not None and done.overtaken else IDLE
    return LogResult(log=log, notable=there, state=state, metadata=metadata), verified


def _overtaken(log: str, token: str, cause: str) -> LogResult:
    """Return the outcome of a pass that was not installed in time, and is gone by now."""
    metadata: dict[str, Value] = {"installed": False, IDENTITY: token, "verified": False, "overtaken": cause}
    return LogResult(log=log, state=f"overtaken {token}", metadata=metadata)


def options_of(limits: CollectionResource) -> KeyCompactorOptions:
    """Return the library's options."""
    return KeyCompactorOptions(bytes_per_s_max=limits.compaction_bytes_per_s_max or None)


def judge_installed(step: Step, done: Mapping[str, Verification | None]) -> Iterator[CheckResult]:
    """Judge the logs that were verified; of the others, a run that names them repeats what is known.

    What was found in a log that had the name before is dropped.
    """
    before, known = known_problems(step, compaction_verified), unverified(step)
    for log in step.logs:
        found = done.get(log)
        if found is not None:
            more = f"; and {len(found.findings) - 1} more" if len(found.findings) > 1 else ""
            said = None if found.holds else f"pass {found.token} does not hold: {found.findings[0]}{more}"
            details = {"verification": MetadataValue.json(found.to_json())}
            yield replace(compaction_verified.result(log, said), log_id=found.log_id, details=details)
        elif (log in done and not step.swept) or log in before.keys() - known.keys():
            problem = known.get(log)
            checked = compaction_verified.result(log, None if problem is None else problem.problem)
            yield replace(checked, log_id=None if problem is None else problem.log_id)


CHOSEN, RANK = "chosen", "rank"
_IDLE = fingerprint(IDLE)


def plan_compactions(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Outline each log of the step, and choose which of those that are due are compacted first."""
    # Logs that someone chose are all compacted.
    logs_max = step.limits.compactions_max if step.swept else len(step.logs)
    chosen: list[Outline] = []
    for some in step.slices():
        found = {each.log: each for each in [*chosen, *outlines(store, some.logs)]}
        plans = [each.plan for each in found.values() if each.plan is not None]
        chosen = [found.pop(plan.log) for plan in choose(plans, logs_max=logs_max).chosen]
        recorder.add(*_recorded(step, [(each, 0) for each in found.values()]))
    recorder.add(*_recorded(step, [(each, rank) for rank, each in enumerate(chosen, start=1)]))


def _recorded(step: Step, found: Sequence[tuple[Outline, int]]) -> tuple[list[LogResult], list[CheckResult]]:
    """Return what is recorded of outlines: with the rank of a log that is chosen, and 0 of one that is not."""
    planned = [_planned(each, rank) for each, rank in found if each.plan is not None or not each.compacted]
    return planned, [checked for each, _ in found for checked in judged(PLAN, each.log, each, step.limits)]


def _planned(found: Outline, rank: int) -> LogResult:
    plan = found.plan
    if plan is None:
        assert found.refusal is not None
        return LogResult(log=found.log, state=IDLE, metadata={"due": False, "reason": found.refusal.message})
    return LogResult(
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


def merge_compactions(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Merge a pass over each log that was chosen, the most urgent first; nothing leads to the result yet."""
    ordered = _ordered(step)
    to_merge = replace(step, logs=list(ordered))
    # A pass over one that may not hold would be verified in its place, and what that has replaced be deleted.
    unreadable, unsure = _refused(to_merge, can_be_compacted), {**unproven(to_merge), **unverified(to_merge)}
    for log, held_bytes in ordered.items():
        if log not in unreadable and log not in unsure:
            before = _merged_before(step, log)
            result, problem, retried = before or merge_log(store, log, step.limits, *_engine(step, held_bytes))
            transient = result.refusal is not None and result.refusal.transient
            checked = [] if transient else [compaction_proof.result(log, problem)]
            if retried is not None:
                step.work.add_spark(1, retried)
            # Recorded at once: a step that dies later does not merge the log again.
            recorder.add([result], checked)
    merged = ordered.keys() - unreadable.keys() - unsure.keys()
    for some in step.slices():
        recorder.add(*_not_merged(some, [log for log in some.logs if log not in merged], unsure))


def _not_merged(
    step: Step, others: Sequence[str], unsure: Mapping[str, KnownProblem]
) -> tuple[list[LogResult], list[CheckResult]]:
    """Return what is known of logs that were not merged: nothing is recorded, their last merge stays on their pages."""
    unreadable, due = _refused(step, can_be_compacted), set(_due(step))
    # What failed before is no longer due: someone else has compacted it. An unsure log is for the next step.
    good = [log for log in others if log not in unreadable and (log not in due or log in unsure)]
    why = {log: {"reason": f"{compaction_verified.name}: {known.problem}"} for log, known in unsure.items()}
    outcomes = [unreadable.get(log) or LogResult(log=log, state=IDLE, metadata=why.get(log, {})) for log in others]
    return outcomes, [compaction_proof.result(log, None) for log in good]


def _due(step: Step) -> list[str]:
    """Return the logs that were due when they were planned last."""
    return [log for log, found in step.records(PLAN).items() if found.state not in {"", _IDLE}]


def _ordered(step: Step) -> dict[str, int]:
    """Return the logs to merge in their order, each with its bytes when it was planned.

    In a sweep those that its plan has chosen; otherwise all.
    """
    held: dict[str, int] = {}
    ranked: list[tuple[int, str]] = []
    for some in step.slices():
        for log in _due(some):
            for plan in latest(step.instance, step.scope.key(PLAN), log, count=1):
                held[log] = int(str(value_of(plan, "held_bytes") or 0))
                if value_of(plan, CHOSEN):
                    ranked.append((int(str(value_of(plan, RANK))), log))
    logs = dict.fromkeys(log for _, log in sorted(ranked))
    return {log: held.get(log, 0) for log in (logs if step.swept else {**logs, **dict.fromkeys(step.logs)})}


def _merged_before(step: Step, log: str) -> Merged | None:
    """Return what an earlier try of this run has merged."""
    if not step.context.retry_number:
        return None
    for found in latest(step.instance, step.scope.key(FRAGMENTS), log, count=1):
        event = found.asset_materialization
        token = value_of(found, IDENTITY)
        if event is not None and token and run_of(found) == step.context.run_id:
            metadata: dict[str, Value] = dict(event.metadata)  # type: ignore[arg-type]  # what was recorded then
            return LogResult(log=log, state=IDLE, metadata=metadata), None, None
    return None


def _engine(step: Step, held_bytes: int) -> tuple[Engine | None, str]:
    """Return where a log's keys are compared and its fragments merged, and how that is called."""
    if held_bytes < step.limits.spark_bytes_min:
        return None, HERE
    spark, _ = step.spark()
    return SparkEngine(spark), ON_SPARK


def install_compactions(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Install each pass that was merged, and verify it; the last pass again where it does not hold or may not."""
    left_alone, bad = _refused(step, can_be_compacted, compaction_proof), unverified(step)
    unsure = {**unproven(step), **bad}
    tokens = dict.fromkeys(unsure if step.swept else step.logs, "")
    tokens |= {log: token for log, token in _tokens(step).items() if log not in bad}
    installed = [log for log in step.logs if log not in left_alone and log in tokens]
    for log in installed:
        if tokens[log]:
            note(step, log, tokens[log])
        result, verified = install_log(store, log, tokens[log], step.limits, always=not step.swept or log in unsure)
        # Recorded at once: a step that dies later keeps what was found about the pass.
        recorder.add([result], list(judge_installed(replace(step, logs=[log]), {log: verified})))
        if result.refusal is None:
            note(step, log, "")
    others = replace(step, logs=[log for log in step.logs if log not in set(installed)])
    results = [left_alone.get(log) or LogResult(log=log, state=IDLE) for log in others.logs]
    recorder.add(results, list(judge_installed(others, {})))


def _tokens(step: Step) -> dict[str, str]:
    """Return the pass that was merged last of each log that has one; in a sweep, that this run has merged.

    A run that executes a failed one again from its failed step installs what that one has merged. An earlier try of
    the step may have installed some; those that it found to hold are left out.
    """
    runs = executed_again(step.instance, step.context.run_id) if step.swept else set()
    found = {
        log: value_of(each, IDENTITY)
        for log in (_due(step) if step.swept else step.logs)
        for each in latest(step.instance, step.scope.key(FRAGMENTS), log, count=1)
        if not step.swept or run_of(each) in runs
    }
    tokens = {log: str(token) for log, token in found.items() if token}
    return {log: token for log, token in tokens.items() if not step.swept or not holds(step, log, token)}


def _refused(step: Step, *checks: LogCheck) -> dict[str, LogResult]:
    """Return the logs that an earlier step of a sweep has found bad: they are left alone, and fail the last step."""
    if not step.swept:
        # That step has failed, or someone wants it tried again.
        return {}
    return {
        log: refused(log, check, known, KeyCompactionRefusedError)
        for check in checks
        for log, known in known_problems(step, check).items()
        if known.blocking
    }


PLANNED = LogAsset(
    name=PLAN,
    group="key_compaction",
    do=plan_compactions,
    whole=True,
    description=(
        "How dirty a log is, for how long, what keeps the rest from being compacted, and whether a pass is due. No keys"
        " are read, and nothing is changed. In a sweep, the most urgent logs are chosen."
    ),
    deps=("manifest", "rollup"),
    uses=("store", "collection"),
    section=Section.COMPACTION,
)
MERGED = LogAsset(
    name=FRAGMENTS,
    group="key_compaction",
    do=merge_compactions,
    whole=True,
    description=(
        "The fragments that a pass wrote, without superseded records and expired tombstones, and its record with the"
        " proof. Nothing leads to them until they are installed."
    ),
    deps=(PLAN,),
    uses=("store", "spark", "collection"),
    pool="wal3_key_compaction",
    section=Section.COMPACTION,
)
COMPACTED = LogAsset(
    name=INSTALLED,
    group="key_compaction",
    do=install_compactions,
    description=(
        "A log's manifest after a merged pass was installed by one change of it, and verified; or why it was overtaken."
        " What it replaced is deleted an interval later."
    ),
    deps=(FRAGMENTS,),
    uses=("store", "collection"),
    pool="wal3_key_compaction",
    section=Section.COMPACTION,
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
