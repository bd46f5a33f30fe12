"""Orphans: lists objects that nothing refers to, and marks them for deletion an interval later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster import DagsterInstance, Definitions

from wal3_core.spark.collect import list_orphans
from wal3_orchestration.at_once import at_once
from wal3_orchestration.building import LogAsset, LogCheck
from wal3_orchestration.defs.garbage_collection.alarms import many_orphans
from wal3_orchestration.defs.garbage_collection.work import mark_orphans, orphans_of
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.outcomes import Outcome, Verdict, latest, value_of
from wal3_orchestration.recording import Recorder
from wal3_orchestration.resources import CollectionResource, spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.triggers import LogSchedule, build_schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.fleet.outcomes import LogOrphans
    from wal3_core.model.retried import Retried
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.recording import Event
    from wal3_orchestration.scope import Scope
    from wal3_orchestration.work import Work

FEW = LogCheck(
    name="few_orphans",
    asset="marked_orphans",
    description="There are few uncommitted uploads, and their number does not keep rising.",
    section=Section.GARBAGE,
    next_command=("inspect", "LOG"),
)


def mark(work: Work) -> Iterator[Event]:
    """Mark objects of each log of the step that nothing refers to, so that they are deleted an interval later."""
    recorder, limits = Recorder(work), work.limits
    with retried_only_when_unavailable(work.context):
        opened, options = work.open(), limits.options()
        for some in work.slices():
            found, retried = _orphans(some, opened)
            # Marked as they are found: a log may have thousands.
            outcomes = [mark_orphans(opened, each, options) for each in found]
            verdicts = [
                _verdict(each, _counts(work.scope, work.instance, each), limits)
                for each in outcomes
                if each.refusal is None
            ]
            recorder.add(outcomes, verdicts, retried=retried)
        yield from recorder.finish()
        recorder.fail(Section.REFUSED)


def _orphans(work: Work, store: ObjectStore) -> tuple[Iterable[LogOrphans], Retried | None]:
    logs, limits = list(work.logs), work.limits
    if work.num_logs < limits.spark_logs_min:
        return at_once(lambda log: orphans_of(store, log, limits.options()), logs), None
    spark = spark_session(work.scope.spark(work.context))
    found = list_orphans(spark, work.scope.store(work.context).url, logs, limits.options())
    return found, found.retried


def _counts(scope: Scope, instance: DagsterInstance, found: Outcome) -> list[int]:
    """Return how many orphans the log's last recorded listings found, newest first; none when none are found now."""
    if not found.metadata["orphans"]:
        return []
    # A sweep leaves zeros out.
    counts = (value_of(each, "orphans") or 0 for each in latest(instance, scope.key(FEW.asset), found.log, count=2))
    return [count for count in counts if isinstance(count, int)]


def _verdict(outcome: Outcome, before: Sequence[int], limits: CollectionResource) -> Verdict:
    count = outcome.metadata["orphans"]
    assert isinstance(count, int)
    return Verdict(check=FEW, log=outcome.log, problem=many_orphans([count, *before], limits))


MARKED = LogAsset(
    name="marked_orphans",
    step=mark,
    description="Objects of a log that nothing refers to, marked so that they are deleted an interval later.",
    deps=("manifest",),
    uses=("store", "spark", "collection"),
    pool="wal3_orphans",
    section=Section.GARBAGE,
    checks=(FEW,),
)
JOB = LogJob(name="orphans", assets=(MARKED,), description="Lists whole logs and marks orphans for deletion.")
WEEKLY = LogSchedule(
    name="weekly_orphans",
    job=JOB,
    cron="0 5 * * 0",
    description="Looks for orphans in every log, all in one run. Off until turned on: it lists the whole store.",
)


def workflow(scope: Scope) -> Definitions:
    """Return the asset with its check, its job and its schedule."""
    return Definitions.merge(
        build_jobs(scope, [JOB]),
        Definitions(assets=[MARKED.build(scope)], schedules=[build_schedule(scope, WEEKLY)]),
    )
