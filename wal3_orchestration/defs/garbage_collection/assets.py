"""Collection: plan, verify, prune; an interval later, delete. Every step can be repeated, and run by two at once.

The schedule plans for all logs in one run. A sensor then requests runs for the logs with garbage,
which plan again, verify, announce and prune. Another sensor requests the deletion when the
interval is over. Steps share only the store's content, the plan's metadata, and what the plan's check found for
each log; the manifest's CAS keeps them safe, not the order of runs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from dagster import Definitions, MetadataValue

from wal3_core.errors import CollectionRefusedError, UnavailableError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.fleet.survey import Survey, survey_log
from wal3_core.log.collect.planner import Plan
from wal3_core.model import strict_json
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.spark.collect import plan_collections
from wal3_orchestration.at_once import at_once
from wal3_orchestration.building import LogAsset, LogCheck
from wal3_orchestration.defs.garbage_collection.alarms import never_pruned, overdue, stuck_cursors, too_much_garbage
from wal3_orchestration.defs.garbage_collection.work import Due, delete_log, delete_logs, prune_log
from wal3_orchestration.defs.key_compaction.verified import INSTALLED, VERIFIED, unproven, unverified
from wal3_orchestration.failures import Failures, retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.log_records import LogRecord, LogRecords
from wal3_orchestration.outcomes import HERE, ON_SPARK, Outcome, Verdict, latest, value_of
from wal3_orchestration.partitions import COLLECT_TAG
from wal3_orchestration.recording import Recorder
from wal3_orchestration.resources import CollectionResource, spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.triggers import LogSchedule, build_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wal3_core.model.retried import Retried
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.outcomes import Value
    from wal3_orchestration.recording import Event
    from wal3_orchestration.scope import Scope
    from wal3_orchestration.work import Work

_PLAN_BYTES_MAX = 2**20
PLAN = "garbage_plan"

SAFE = LogCheck(
    name="safe_to_collect",
    asset="garbage_plan",
    blocking=True,
    description="Setsums balance, no cursor is below the cutoff, and no more is pruned than is allowed.",
    section=Section.REFUSED,
    next_command=("gc", "LOG", "--dry-run"),
)
FRACTION = LogCheck(
    name="little_garbage",
    asset="garbage_plan",
    description="The garbage is not a large part of the log.",
    section=Section.GARBAGE,
    next_command=("gc", "LOG", "--dry-run"),
)
IN_TIME = LogCheck(
    name="collected_in_time",
    asset="garbage_plan",
    description="Planned and announced garbage is pruned in time, and pruned garbage is deleted in time.",
    section=Section.GARBAGE,
    next_command=("pin", "list", "LOG"),
)
CURSORS_MOVE = LogCheck(
    name="cursors_move",
    asset="garbage_plan",
    description="No cursor stands still while the log grows.",
    section=Section.CURSOR,
    next_command=("cursor", "list", "LOG"),
)


def plan_garbage(work: Work) -> Iterator[Event]:
    """Plan for each log of the step, and judge the plans.

    A refused log fails the step. In a sweep that also prunes, the pruning leaves that log out, and fails.
    """
    recorder, lost = Recorder(work), Failures()
    with retried_only_when_unavailable(work.context):
        opened = work.open()
        for some in work.slices():
            _plan_slice(some, opened, recorder, lost)
        yield from recorder.finish()
        lost.raise_together(len(work.logs))
    if work.last or not work.swept:
        recorder.blocked.raise_together(work.scope, len(work.logs))


def _plan_slice(work: Work, store: ObjectStore, recorder: Recorder, lost: Failures) -> None:
    limits = work.limits
    way, surveys, retried = _surveys(work, store)
    before = LogRecords(work.scope, work.instance, PLAN).load(work.logs)
    collects = COLLECT_TAG in work.context.run.tags or not work.last
    planned: list[Outcome] = []
    verdicts: list[Verdict] = []
    for each in surveys:
        if each.refusal is None or each.unclaimed:
            planned.append(_planned(each, way, collects=collects))
        if each.refusal is not None and each.refusal.transient:
            lost.add(each.log, each.refusal)
        else:
            verdicts += _verdicts(each, limits, _unpruned_s(each, before.get(each.log), limits))
    recorder.add(planned, verdicts, retried=retried)


def _surveys(work: Work, store: ObjectStore) -> tuple[str, Iterable[Survey], Retried | None]:
    logs, limits = list(work.logs), work.limits
    if work.num_logs < limits.spark_logs_min:
        return HERE, at_once(lambda log: survey_log(store, log, limits.options()), logs), None
    spark = spark_session(work.scope.spark(work.context))
    surveys = plan_collections(spark, work.scope.store(work.context).url, logs, limits.options())
    return ON_SPARK, surveys, surveys.retried


def _planned(survey: Survey, way: str, *, collects: bool) -> Outcome:
    plan = survey.plan
    waiting: dict[str, Value] = {
        "garbage_documents": len(survey.documents),
        "due": survey.due,
        "done_by": way,
    }
    if plan is None:
        assert survey.refusal is not None
        return Outcome(log=survey.log, metadata={**waiting, "records": 0, "reason": survey.refusal.message})
    named = (age.name for age in survey.cursors if plan.reason.startswith(f"cursor {age.name} "))
    return Outcome(
        log=survey.log,
        # That there is still nothing to do is not news, however much the log grew.
        state=None if survey.due or plan.num_records else f"nothing to prune, {len(survey.documents)} documents",
        # The pruning sensor looks for plans to carry out, also if yesterday's was the same.
        notable=survey.due and collects,
        due_from=_begin(plan) if survey.due else None,
        metadata={
            **waiting,
            "records": plan.num_records,
            "bytes": plan.num_bytes,
            "fragments": plan.num_fragments,
            "fraction (of bytes)": plan.fraction,
            "setsum": plan.setsum.hexdigest(),
            "reason": plan.reason,
            "cutoff_cursor": next(named, ""),
            "cutoff_offset": plan.first.position.offset,
            "plan": MetadataValue.json(plan.to_json()),
        },
    )


def _begin(plan: Plan) -> str:
    """Name the log's life, and the fragment with which it begins before the plan is carried out."""
    return f"{plan.log_id}/{plan.first.seq_no - plan.num_fragments}"


def _unpruned_s(survey: Survey, before: LogRecord | None, limits: CollectionResource) -> float | None:
    """Return for how long garbage has been planned without the log being pruned; None when not for long."""
    if before is None or not before.due_s or survey.plan is None or _begin(survey.plan) != before.due_from:
        return None
    age_s = shared_runtime().now_us() / US_PER_S - before.due_s
    return age_s if age_s > limits.planned_s_max else None


def _verdicts(survey: Survey, limits: CollectionResource, unpruned_s: float | None) -> Iterator[Verdict]:
    refusal, log = survey.refusal, survey.log
    # A log without cursors keeps everything, as it should.
    blocking = refusal is not None and not survey.unclaimed
    plan = survey.plan
    cutoff: dict[str, Value] = {} if plan is None else {"cutoff_offset": plan.first.position.offset}
    refused = None if refusal is None else refusal.message
    yield Verdict(check=SAFE, log=log, problem=refused, blocking=blocking, details=cutoff)
    yield Verdict(check=FRACTION, log=log, problem=too_much_garbage(survey, limits), details=cutoff)
    yield Verdict(check=IN_TIME, log=log, problem=overdue(survey, limits) or never_pruned(survey, unpruned_s))
    yield Verdict(check=CURSORS_MOVE, log=log, problem=stuck_cursors(survey, limits))


def prune(work: Work) -> Iterator[Event]:
    """Finish what other runs left half done, then announce each log's plan and advance the manifest's `first`."""
    recorder = Recorder(work)
    with retried_only_when_unavailable(work.context):
        opened, options = work.open(), work.limits.options()
        for some in work.slices():
            refused = _refused(some)
            recorder.add(
                [
                    refused[log] if log in refused else prune_log(opened, log, _plan(work, log), options)
                    for log in some.logs
                ]
            )
        yield from recorder.finish()
        recorder.fail(Section.REFUSED)


def _refused(work: Work) -> dict[str, Outcome]:
    """Return the logs whose newest plan is not safe to carry out: they are left alone, and fail the step."""
    planned = LogRecords(work.scope, work.instance, PLAN).load(work.logs)
    found = {log: record.problems[SAFE.name] for log, record in planned.items() if SAFE.name in record.problems}
    return {
        log: Outcome(
            log=log,
            refusal=Refusal(kind=CollectionRefusedError.__name__, message=f"{SAFE.name}: {known.problem}"),
        )
        for log, known in found.items()
        if known.blocking
    }


def _plan(work: Work, log: str) -> Plan | None:
    """Read the plan that was checked; None when nothing was planned."""
    for planned in latest(work.instance, work.scope.key(PLAN), log, count=1):
        value = value_of(planned, "plan")
        if value is not None:
            text = json.dumps(value).encode()
            return Plan.from_json(strict_json.load(text, what=f"log {log}: plan", bytes_max=_PLAN_BYTES_MAX))
    return None


def delete(work: Work) -> Iterator[Event]:
    """Delete what was marked an interval ago; younger garbage waits and is counted."""
    recorder = Recorder(work)
    with retried_only_when_unavailable(work.context):
        opened = work.open()
        for some in work.slices():
            _delete_slice(some, opened, recorder)
        yield from recorder.finish()
        recorder.fail(Section.REFUSED)


def _delete_slice(work: Work, opened: ObjectStore, recorder: Recorder) -> None:
    limits, options, kept = work.limits, work.limits.options(), _kept(work)
    large: list[Due] = []
    others = list(kept.values())
    for log in (log for log in work.logs if log not in kept):
        due = delete_log(opened, log, options, objects_max=limits.spark_objects_min, keep=partial(_kept_now, work))
        if due.on_spark:
            large.append(due)
        elif due.outcome.notable:
            # Recorded at once: what a sweep has deleted is known although it dies later.
            recorder.add([due.outcome])
        else:
            others.append(due.outcome)
    bad = {each.log: refused for each in large if (refused := _kept_now(work, each.log)) is not None}
    recorder.add([*others, *bad.values()])
    if large := [each for each in large if each.log not in bad]:
        spark, url = spark_session(work.scope.spark(work.context)), work.scope.store(work.context).url
        outcomes, retried = delete_logs(spark, url, large, options)
        recorder.add([outcomes[each.log] for each in large], retried=retried)


def _kept_now(work: Work, log: str) -> Outcome | None:
    """Return the refusal to delete a log's garbage, if there is one by now: the step may have begun hours ago."""
    return _kept(replace(work, logs=[log])).get(log)


def _kept(work: Work) -> dict[str, Outcome]:
    """Refuse to delete what may be needed to repair a log that was compacted by key.

    A pass that is not verified yet may be so in a moment.
    """
    waiting = {log: (UnavailableError, known) for log, known in unproven(work).items()}
    bad = {log: (CollectionRefusedError, known) for log, known in unverified(work).items()}
    return {
        log: Outcome(log=log, refusal=Refusal(kind=kind.__name__, message=f"{VERIFIED.name}: {known.problem}"))
        for log, (kind, known) in {**waiting, **bad}.items()
    }


PLANNED = LogAsset(
    name=PLAN,
    step=plan_garbage,
    description=(
        "What can be pruned from a log, up to which cursor, and why. Planning changes nothing; the checks judge"
        " the plan."
    ),
    deps=("manifest", "rollup"),
    uses=("store", "spark", "collection"),
    section=Section.GARBAGE,
    checks=(SAFE, FRACTION, IN_TIME, CURSORS_MOVE),
)
PRUNED = LogAsset(
    name="pruned_manifest",
    step=prune,
    description=(
        "A log's manifest after its garbage was pruned: collections that others left half done are finished, then"
        " the plan is announced and the manifest's `first` advanced."
    ),
    deps=(PLAN,),
    uses=("store", "collection"),
    section=Section.REFUSED,
)
DELETED = LogAsset(
    name="deleted_garbage",
    step=delete,
    description="The garbage and orphans deleted: those marked an interval ago. Younger ones wait and are counted.",
    deps=("pruned_manifest", "marked_orphans", INSTALLED),
    uses=("store", "spark", "collection"),
    section=Section.REFUSED,
)
ASSETS = (PLANNED, PRUNED, DELETED)
PLANNING = LogJob(
    name="garbage_plan",
    assets=(PLANNED,),
    description="Plans what can be pruned from logs, and checks the plans.",
)
COLLECTION = LogJob(
    name="collection",
    assets=(PLANNED, PRUNED),
    description="Plans, verifies and prunes; the deletion sensor starts the deletion.",
)
DELETION = LogJob(name="deletion", assets=(DELETED,), description="Deletes garbage that was pruned an interval ago.")
DAILY = LogSchedule(
    name="daily_collection",
    job=PLANNING,
    cron="0 4 * * *",
    description=(
        "Plans for every log in one run, and lets the pruning sensor collect them. Off until turned on: it deletes."
    ),
    tags={COLLECT_TAG: "true"},
)


def workflow(scope: Scope) -> Definitions:
    """Return the assets with their checks, their jobs, and the schedule that begins a collection."""
    return Definitions.merge(
        build_jobs(scope, [PLANNING, COLLECTION, DELETION]),
        Definitions(assets=[each.build(scope) for each in ASSETS], schedules=[build_schedule(scope, DAILY)]),
    )
