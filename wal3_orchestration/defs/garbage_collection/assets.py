"""Collection: plan, verify, prune; an interval later, delete. Every step can be repeated, and run by two at once.

The schedule plans for all logs in one run. A sensor then requests runs for the logs with garbage,
which plan again, verify, announce and prune. Another sensor requests the deletion when the
interval is over. Steps share only the store's content, the plan's metadata, and what the plan's check found for
each log; the manifest's CAS keeps them safe, not the order of runs. Orphans, which no manifest names, are marked for
deletion as well.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dagster import MetadataValue

from wal3_core import LogReader
from wal3_core.errors import CollectionRefusedError, CorruptError, LogError, LogReplacedError, UnavailableError
from wal3_core.fleet.outcomes import LogDeletion, LogOrphans, Refusal
from wal3_core.fleet.survey import Survey, survey_log
from wal3_core.format import strict_json
from wal3_core.format.garbage import Garbage
from wal3_core.format.paths import DATA_FOLDERS
from wal3_core.format.setsum import EMPTY
from wal3_core.log.collect.collector import Collector, NotPruned, Plan, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter, DeletionReport, DueDocument
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.spark.maintenance import delete_objects, list_orphans, plan_collections
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.checks import ORPHANS, PLAN, PlannedLog, few_orphans, safe_to_collect
from wal3_orchestration.defs.key_compaction.checks import INSTALLED, compaction_verified, unproven, unverified
from wal3_orchestration.framework.assets import LogAsset, LogJob
from wal3_orchestration.framework.checks import CheckResult, Value, judged
from wal3_orchestration.framework.log_records import LogRecord
from wal3_orchestration.framework.recorder import IDLE, LogResult, Recorder, known_problems, latest, refused, value_of
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.scope import COLLECT_TAG
from wal3_orchestration.framework.step import Step
from wal3_orchestration.framework.triggers import LogSchedule
from wal3_orchestration.resources import CollectionResource

_NOTHING_TO_PRUNE = "nothing to prune"
_PROBLEMS_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DueGarbage:
    """A log's garbage that is due: deleted already, with its ``result``, or left to Spark (``on_spark``).

    ``waiting`` is the garbage that is not due yet.
    """

    log: str
    garbage: tuple[DueDocument, ...] = ()
    waiting: tuple[DeletionReport, ...] = ()
    result: LogResult
    on_spark: bool = False


def prune_log(store: ObjectStore, log: str, plan: Plan | None, options: CollectorOptions) -> LogResult:
    """Finish what other runs began, then announce and prune the plan, unless that is done already."""
    try:
        numbers = _prune(store, log, plan, options)
        pruned = bool(numbers["records"])
        idle = pruned or (numbers["outcome"] == _NOTHING_TO_PRUNE and not numbers["garbage_documents"])
        return LogResult(log=log, metadata=numbers, notable=pruned, state=IDLE if idle else None)
    except LogReplacedError as error:
        # Destroyed and created again since it was planned: of the new log, nothing is planned yet.
        return LogResult(log=log, metadata=_pruned_numbers(NotPruned(str(error))), notable=True, state=IDLE)
    except LogError as error:
        return LogResult(log=log, refusal=Refusal.of(error))


def _prune(store: ObjectStore, log: str, plan: Plan | None, options: CollectorOptions) -> dict[str, Value]:
    collector = Collector(store, log, options=options)
    resumed = collector.resume_unpruned()
    outcome: PrunedGarbage | NotPruned | None = None
    if plan is not None and not plan.empty:
        outcome = _carry_out(store, collector, plan)
    if isinstance(outcome, NotPruned):
        # A cursor is below the cutoff by now; the next plan sees it.
        resumed = collector.resume_unpruned()
    paths = [meta.path for meta in sorted(resumed, key=lambda meta: meta.last_modified_us)]
    paths += [outcome.path] if isinstance(outcome, PrunedGarbage) else []
    return {
        **_pruned_numbers(outcome),
        "garbage_documents": len(set(paths)),
        # What was pruned last is due last.
        "wait_s": Deleter(store, log, options=options).wait_s(paths[-1]) if paths else 0.0,
    }


def _carry_out(store: ObjectStore, collector: Collector, plan: Plan) -> PrunedGarbage | NotPruned | None:
    """Announce and prune; None when the log was already pruned that far and the garbage deleted."""
    try:
        collector.verify(plan)
        return collector.prune(collector.announce(plan))
    except CollectionRefusedError:
        # An earlier or a concurrent run may have carried out this plan.
        if LogReader.open(store, plan.log).manifest().first.seq_no < plan.first.seq_no:
            raise
    return next((each for each in collector.resume_all() if each.garbage.first == plan.first), None)


def _pruned_numbers(outcome: PrunedGarbage | NotPruned | None) -> dict[str, Value]:
    match outcome:
        case None:
            return {"outcome": _NOTHING_TO_PRUNE, "records": 0, "bytes": 0, "fragments": 0}
        case NotPruned(cause):
            return {"outcome": f"not pruned: {cause}", "records": 0, "bytes": 0, "fragments": 0}
        case PrunedGarbage(path, garbage):
            return {
                "outcome": "pruned",
                "garbage": path,
                "records": garbage.num_records,
                "bytes": garbage.num_bytes,
                "fragments": garbage.num_fragments,
                "setsum": garbage.setsum.hexdigest(),
                "reason": garbage.reason,
                "cutoff_offset": _cutoff_offset([garbage]),
            }


def _cutoff_offset(collected: Sequence[Garbage]) -> int:
    return max((garbage.first.position.offset for garbage in collected if garbage.first is not None), default=0)


def delete_log(
    store: ObjectStore,
    log: str,
    options: CollectorOptions,
    *,
    objects_max: int,
    keep: Callable[[str], LogResult | None],
) -> DueGarbage:
    """Delete a log's due garbage, unless it is ``objects_max`` objects or more; finish what other runs began.

    ``keep`` is asked right before something is deleted: with an outcome, nothing is.
    """
    try:
        documents = Collector(store, log, options=options).resume_unpruned()
        deleter = Deleter(store, log, options=options)
        found = list(deleter.look(documents, deleter.store_now_us())) if documents else []
        waiting = tuple(each for each in found if isinstance(each, DeletionReport))
        due = tuple(each for each in found if not isinstance(each, DeletionReport))
        if sum(each.garbage.num_fragments + len(each.garbage.orphans) for each in due) >= objects_max:
            return DueGarbage(log=log, garbage=due, waiting=waiting, result=LogResult(log=log), on_spark=True)
        if due and (kept := keep(log)) is not None:
            return DueGarbage(log=log, result=kept)
        done = [LogDeletion(log=log, deleted=deleted) for deleted in deleter.delete_due(due)]
        return DueGarbage(log=log, garbage=due, waiting=waiting, result=_deleted(log, due, waiting, done))
    except LogReplacedError:
        # The name has another life since the first request: the garbage of that one is deleted.
        return delete_log(store, log, options, objects_max=objects_max, keep=keep)
    except LogError as error:
        return DueGarbage(log=log, result=LogResult(log=log, refusal=Refusal.of(error)))


def _deleted(
    log: str, due: Sequence[DueDocument], waiting: Sequence[DeletionReport], done: Sequence[LogDeletion]
) -> LogResult:
    refusal = next((each.refusal for each in done if each.refusal is not None), None)
    problems = [problem for each in done for problem in each.deleted.problems]
    if problems and refusal is None:
        refusal = Refusal(kind=CorruptError.__name__, message="; ".join(problems[:_PROBLEMS_SHOWN_MAX]))
    finished = [each.garbage for each, what in zip(due, done, strict=True) if what.deleted.finished]
    waits_s = [each.wait_s for each in (*waiting, *(each.deleted for each in done))]
    objects = sum(each.deleted.num_deleted for each in done)
    return LogResult(
        log=log,
        refusal=refusal,
        notable=objects > 0,
        metadata={
            "objects": objects,
            "records": sum(garbage.num_records for garbage in finished),
            "bytes": sum(garbage.num_bytes for garbage in finished),
            "fragments": sum(garbage.num_fragments for garbage in finished),
            "orphans": sum(len(garbage.orphans) for garbage in finished),
            "setsum": sum((garbage.setsum for garbage in finished), EMPTY).hexdigest(),
            "reason": "; ".join(garbage.reason for garbage in finished),
            "cutoff_offset": _cutoff_offset(finished),
            "documents_finished": len(finished),
            "documents_left": len(done) - len(finished) + sum(not each.finished for each in waiting),
            "objects_held_by_pins": sum(each.deleted.num_held for each in done),
            "wait_s": max(waits_s, default=0.0),
        },
    )


def orphans_of(store: ObjectStore, log: str, options: CollectorOptions) -> LogOrphans:
    """List a log's orphans without Spark."""
    deleter = Deleter(store, log, options=options)
    try:
        pending = deleter.load(deleter.documents())
        objects = deleter.orphans_below(DATA_FOLDERS, pending)
    except LogReplacedError:
        return orphans_of(store, log, options)
    except LogError as error:
        return LogOrphans(log=log, refusal=Refusal.of(error))
    return LogOrphans(log=log, objects=tuple(objects))


def prune_orphans(store: ObjectStore, orphans: LogOrphans, options: CollectorOptions) -> LogResult:
    """Mark a log's orphans for deletion: nothing refers to them from then on."""
    log, paths, path = orphans.log, [meta.path for meta in orphans.objects], ""
    if orphans.refusal is not None:
        return LogResult(log=log, refusal=orphans.refusal)
    if paths:
        try:
            pruned = Collector(store, log, options=options).prune_orphans(
                paths, f"{len(paths)} objects nothing refers to"
            )
        except LogError as error:
            return LogResult(log=log, refusal=Refusal.of(error))
        path = pruned.path if isinstance(pruned, PrunedGarbage) else ""
    num_bytes = sum(meta.size for meta in orphans.objects)
    return LogResult(
        log=log, notable=bool(paths), metadata={"orphans": len(paths), "bytes": num_bytes, "garbage": path}
    )


_PLAN_BYTES_MAX = 2**20


def plan_garbage(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Plan for each log of the step, and judge the plans.

    A refused log fails the step. In a sweep that also prunes, the pruning leaves that log out, and fails.
    """
    limits, options = step.limits, step.limits.options()
    before = step.records(PLAN)
    surveys = step.each_log(lambda log: survey_log(store, log, options), partial(plan_collections, options=options))
    collects = COLLECT_TAG in step.context.run.tags or not step.last
    planned: list[LogResult] = []
    results: list[CheckResult] = []
    for each, done_by in surveys:
        if each.refusal is None or each.unclaimed:
            planned.append(_planned(each, done_by, collects=collects))
        if each.refusal is not None and each.refusal.transient:
            recorder.failures.add(each.log, each.refusal)
        else:
            unpruned_s = _unpruned_s(each, before.get(each.log), limits)
            results += judged(PLAN, each.log, PlannedLog(survey=each, unpruned_s=unpruned_s), limits)
    recorder.add(planned, results)


def _planned(survey: Survey, done_by: str, *, collects: bool) -> LogResult:
    plan = survey.plan
    waiting: dict[str, Value] = {
        "garbage_documents": len(survey.documents),
        "due": survey.due,
        "done_by": done_by,
    }
    if plan is None:
        assert survey.refusal is not None
        why: dict[str, Value] = {"records": 0, "without_cursor": 1, "reason": survey.refusal.message}
        return LogResult(log=survey.log, metadata={**waiting, **why})
    named = (age.name for age in survey.cursors if plan.reason.startswith(f"cursor {age.name} "))
    return LogResult(
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


def prune(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Finish what other runs left half done, then announce each log's plan and advance the manifest's `first`."""
    options = step.limits.options()
    unsafe = {log: known for log, known in known_problems(step, safe_to_collect).items() if known.blocking}
    recorder.add(
        [
            refused(log, safe_to_collect, unsafe[log], CollectionRefusedError)
            if log in unsafe
            else prune_log(store, log, _plan(step, log), options)
            for log in step.logs
        ]
    )


def _plan(step: Step, log: str) -> Plan | None:
    """Read the plan that was checked; None when nothing was planned."""
    for planned in latest(step.instance, step.scope.key(PLAN), log, count=1):
        value = value_of(planned, "plan")
        if value is not None:
            text = json.dumps(value).encode()
            return Plan.from_json(strict_json.load(text, what=f"log {log}: plan", bytes_max=_PLAN_BYTES_MAX))
    return None


def delete(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Delete what was marked an interval ago; younger garbage waits and is counted."""
    limits, options, kept = step.limits, step.limits.options(), _kept(step)

    def kept_now(log: str) -> LogResult | None:
        # The step may have begun hours ago.
        return _kept(replace(step, logs=[log])).get(log)

    large: list[DueGarbage] = []
    others = list(kept.values())
    for log in (log for log in step.logs if log not in kept):
        due = delete_log(store, log, options, objects_max=limits.spark_objects_min, keep=kept_now)
        if due.on_spark:
            large.append(due)
        elif due.result.notable:
            # Recorded at once: what a sweep has deleted is known although it dies later.
            recorder.add([due.result])
        else:
            others.append(due.result)
    bad = {each.log: refusal for each in large if (refusal := kept_now(each.log)) is not None}
    recorder.add([*others, *bad.values()])
    if large := [each for each in large if each.log not in bad]:
        documents = [(due.log, each.path) for due in large for each in due.garbage]
        done = delete_objects(*step.spark(), documents, options)
        parts = ((due, [each for each in done if each.log == due.log]) for due in large)
        results = [_deleted(due.log, due.garbage, due.waiting, part) for due, part in parts]
        step.work.add_spark(len(large), done.retried)
        recorder.add(results)


def _kept(step: Step) -> dict[str, LogResult]:
    """Refuse to delete what may be needed to repair a log that was compacted by key.

    A pass that is not verified yet may be so in a moment.
    """
    waiting, bad = unproven(step), unverified(step)
    return {log: refused(log, compaction_verified, known, UnavailableError) for log, known in waiting.items()} | {
        log: refused(log, compaction_verified, known, CollectionRefusedError) for log, known in bad.items()
    }


def mark(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Mark objects of each log of the step that nothing refers to, so that they are deleted an interval later."""
    options = step.limits.options()
    found = step.each_log(lambda log: orphans_of(store, log, options), partial(list_orphans, options=options))
    # Marked as they are found: a log may have thousands.
    results = [prune_orphans(store, each, options) for each, _ in found]
    checked = [
        few_orphans.result(each.log, _counts(step, each), step.limits) for each in results if each.refusal is None
    ]
    recorder.add(results, checked)


def _counts(step: Step, found: LogResult) -> list[int]:
    """Return how many orphans this listing of a log and the last two that were recorded found, newest first."""
    count = found.metadata["orphans"]
    assert isinstance(count, int)
    if not count:
        return [0]
    # A sweep leaves zeros out.
    before = (value_of(each, "orphans") or 0 for each in latest(step.instance, step.key, found.log, count=2))
    return [count, *(each for each in before if isinstance(each, int))]


PLANNED = LogAsset(
    name=PLAN,
    group="garbage_collection",
    do=plan_garbage,
    description=(
        "What can be pruned from a log, up to which cursor, and why. Planning changes nothing; the checks judge"
        " the plan."
    ),
    deps=("manifest", "rollup"),
    uses=("store", "spark", "collection"),
    section=Section.GARBAGE,
)
PRUNED = LogAsset(
    name="pruned_manifest",
    group="garbage_collection",
    do=prune,
    description=(
        "A log's manifest after its garbage was pruned: collections that others left half done are finished, then"
        " the plan is announced and the manifest's `first` advanced."
    ),
    deps=(PLAN,),
    uses=("store", "collection"),
    pool="wal3_pruning",
    section=Section.REFUSED,
)
DELETED = LogAsset(
    name="deleted_garbage",
    group="garbage_collection",
    do=delete,
    description="The garbage and orphans deleted: those marked an interval ago. Younger ones wait and are counted.",
    deps=("pruned_manifest", ORPHANS, INSTALLED),
    uses=("store", "spark", "collection"),
    pool="wal3_deletion",
    section=Section.REFUSED,
)
MARKED = LogAsset(
    name=ORPHANS,
    group="garbage_collection",
    do=mark,
    description="Objects of a log that nothing refers to, marked so that they are deleted an interval later.",
    deps=("manifest",),
    uses=("store", "spark", "collection"),
    pool="wal3_orphans",
    section=Section.GARBAGE,
)
ASSETS = (PLANNED, PRUNED, DELETED, MARKED)
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
ORPHANS_JOB = LogJob(name="orphans", assets=(MARKED,), description="Lists whole logs and marks orphans for deletion.")
JOBS = (PLANNING, COLLECTION, DELETION, ORPHANS_JOB)
DAILY = LogSchedule(
    name="daily_collection",
    job=PLANNING,
    cron="0 4 * * *",
    description=(
        "Plans for every log in one run, and lets the pruning sensor collect them. Off until turned on: it deletes."
    ),
    tags={COLLECT_TAG: "true"},
)
WEEKLY = LogSchedule(
    name="weekly_orphans",
    job=ORPHANS_JOB,
    cron="0 5 * * 0",
    description="Looks for orphans in every log, all in one run. Off until turned on: it lists the whole store.",
)
SCHEDULES = (DAILY, WEEKLY)
