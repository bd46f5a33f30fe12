"""A collection's steps for one log: calls the library, and returns numbers for Dagster to plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core import LogReader
from wal3_core.errors import CollectionRefusedError, CorruptError, LogError, LogReplacedError
from wal3_core.fleet.outcomes import LogDeletion, LogOrphans, Refusal
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter, DeletionReport, DueDocument
from wal3_core.log.collect.pruner import Marked, Overtaken
from wal3_core.model.paths import DATA_FOLDERS
from wal3_core.model.setsum import EMPTY
from wal3_core.spark.collect import delete_objects
from wal3_orchestration.outcomes import IDLE, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from wal3_core.log.collect.planner import Plan
    from wal3_core.model.garbage import Garbage
    from wal3_core.model.retried import Retried
    from wal3_core.options import CollectorOptions
    from wal3_core.storage.object_store import ObjectMeta, ObjectStore
    from wal3_orchestration.outcomes import Value

_NOTHING_TO_PRUNE = "nothing to prune"
_PROBLEMS_SHOWN_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A log's garbage that is due: deleted already, with the result in ``outcome``, or left to Spark (``on_spark``).

    ``waiting`` is the garbage that is not due yet.
    """

    log: str
    garbage: tuple[DueDocument, ...] = ()
    waiting: tuple[DeletionReport, ...] = ()
    outcome: Outcome
    on_spark: bool = False


def prune_log(store: ObjectStore, log: str, plan: Plan | None, options: CollectorOptions) -> Outcome:
    """Finish what other runs began, then announce and prune the plan, unless that is done already."""
    try:
        numbers = _prune(store, log, plan, options)
        pruned = bool(numbers["records"])
        idle = pruned or (numbers["outcome"] == _NOTHING_TO_PRUNE and not numbers["garbage_documents"])
        return Outcome(log=log, metadata=numbers, notable=pruned, state=IDLE if idle else None)
    except LogReplacedError as error:
        # Destroyed and created again since it was planned: of the new log, nothing is planned yet.
        return Outcome(log=log, metadata=_pruned_numbers(Overtaken(str(error))), notable=True, state=IDLE)
    except LogError as error:
        return Outcome(log=log, refusal=Refusal.of(error))


def _prune(store: ObjectStore, log: str, plan: Plan | None, options: CollectorOptions) -> dict[str, Value]:
    collector = Collector(store, log, options=options)
    resumed = collector.resume_unmarked()
    outcome: Marked | Overtaken | None = None
    if plan is not None and not plan.empty:
        outcome = _carry_out(store, collector, plan)
    if isinstance(outcome, Overtaken):
        # A cursor is below the cutoff by now; the next plan sees it.
        resumed = collector.resume_unmarked()
    paths = {meta.path for meta in resumed} | ({outcome.path} if isinstance(outcome, Marked) else set())
    deleter = Deleter(store, log, options=options)
    return {
        **_pruned_numbers(outcome),
        "garbage_documents": len(paths),
        "wait_s": _longest_wait_s(deleter, resumed, outcome),
    }


def _longest_wait_s(deleter: Deleter, resumed: Sequence[ObjectMeta], outcome: Marked | Overtaken | None) -> float:
    """Return how long until all pruned garbage is due; the most recently pruned is due last."""
    newest = max(resumed, key=lambda meta: meta.last_modified_us, default=None)
    path = outcome.path if isinstance(outcome, Marked) else None if newest is None else newest.path
    return 0.0 if path is None else deleter.wait_s(path)


def _carry_out(store: ObjectStore, collector: Collector, plan: Plan) -> Marked | Overtaken | None:
    """Announce and prune; None when the log was already pruned that far and the garbage deleted."""
    try:
        collector.verify(plan)
        return collector.prune(collector.announce(plan))
    except CollectionRefusedError:
        # An earlier or a concurrent run may have carried out this plan.
        if not _begins_there(store, plan):
            raise
    return next((each for each in collector.resume_all() if each.garbage.first == plan.first), None)


def _begins_there(store: ObjectStore, plan: Plan) -> bool:
    return LogReader.open(store, plan.log).manifest().first.seq_no >= plan.first.seq_no


def _pruned_numbers(outcome: Marked | Overtaken | None) -> dict[str, Value]:
    match outcome:
        case None:
            return {"outcome": _NOTHING_TO_PRUNE, "records": 0, "bytes": 0, "fragments": 0}
        case Overtaken(cause):
            return {"outcome": f"not pruned: {cause}", "records": 0, "bytes": 0, "fragments": 0}
        case Marked(path, garbage):
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
    keep: Callable[[str], Outcome | None],
) -> Due:
    """Delete a log's due garbage, unless it is ``objects_max`` objects or more; finish what other runs began.

    ``keep`` is asked right before something is deleted: with an outcome, nothing is.
    """
    try:
        documents = Collector(store, log, options=options).resume_unmarked()
        deleter = Deleter(store, log, options=options)
        looked = list(deleter.look(documents, deleter.store_now_us())) if documents else []
        waiting = tuple(each for each in looked if isinstance(each, DeletionReport))
        due = tuple(each for each in looked if not isinstance(each, DeletionReport))
        if sum(each.garbage.num_fragments + len(each.garbage.orphans) for each in due) >= objects_max:
            return Due(log=log, garbage=due, waiting=waiting, outcome=Outcome(log=log), on_spark=True)
        if due and (kept := keep(log)) is not None:
            return Due(log=log, outcome=kept)
        done = [LogDeletion(log=log, deleted=deleted) for deleted in deleter.delete_due(due)]
        return Due(log=log, garbage=due, waiting=waiting, outcome=_deleted(log, due, waiting, done))
    except LogReplacedError:
        # The name has another life since the first request: the garbage of that one is deleted.
        return delete_log(store, log, options, objects_max=objects_max, keep=keep)
    except LogError as error:
        return Due(log=log, outcome=Outcome(log=log, refusal=Refusal.of(error)))


def delete_logs(
    spark: SparkSession, store_url: str, large: Sequence[Due], options: CollectorOptions
) -> tuple[dict[str, Outcome], Retried]:
    """Delete the garbage of logs that have much of it, in one Spark job; say what Spark ran again."""
    documents = [(due.log, each.path) for due in large for each in due.garbage]
    done = delete_objects(spark, store_url, documents, options)
    outcomes = {
        due.log: _deleted(due.log, due.garbage, due.waiting, [each for each in done if each.log == due.log])
        for due in large
    }
    return outcomes, done.retried


def _deleted(
    log: str, due: Sequence[DueDocument], waiting: Sequence[DeletionReport], done: Sequence[LogDeletion]
) -> Outcome:
    refusal = next((each.refusal for each in done if each.refusal is not None), None)
    problems = [problem for each in done for problem in each.deleted.problems]
    if problems and refusal is None:
        refusal = Refusal(kind=CorruptError.__name__, message="; ".join(problems[:_PROBLEMS_SHOWN_MAX]))
    finished = [each.garbage for each, what in zip(due, done, strict=True) if what.deleted.finished]
    waits_s = [each.wait_s for each in (*waiting, *(each.deleted for each in done))]
    objects = sum(each.deleted.num_deleted for each in done)
    return Outcome(
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


def mark_orphans(store: ObjectStore, orphans: LogOrphans, options: CollectorOptions) -> Outcome:
    """Mark a log's orphans for deletion: nothing refers to them from then on."""
    log, paths, path = orphans.log, [meta.path for meta in orphans.objects], ""
    if orphans.refusal is not None:
        return Outcome(log=log, refusal=orphans.refusal)
    if paths:
        try:
            marked = Collector(store, log, options=options).mark_orphans(
                paths, f"{len(paths)} objects nothing refers to"
            )
        except LogError as error:
            return Outcome(log=log, refusal=Refusal.of(error))
        path = marked.path if isinstance(marked, Marked) else ""
    num_bytes = sum(meta.size for meta in orphans.objects)
    return Outcome(log=log, notable=bool(paths), metadata={"orphans": len(paths), "bytes": num_bytes, "garbage": path})
