"""One whole collection of one log: finish and delete what earlier ones left, mark orphans, plan and prune."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, function, instance_of, integer, optional
from wal3_core.errors import OutdatedPlanError, UnavailableError
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter, DeletionReport
from wal3_core.log.collect.pruner import Marked, Overtaken
from wal3_core.model.paths import check_log_name
from wal3_core.options import CollectorOptions
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.storage.object_store import a_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.log.collect.planner import Plan
    from wal3_core.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """What a collection did: what it pruned, how many orphans it marked, and what was deleted or waits."""

    plan: Plan
    num_orphans: int
    deleted: tuple[DeletionReport, ...]

    @property
    def wait_s(self) -> float:
        """Seconds until the last of what waits can be deleted; 0 when nothing waits."""
        return max((deleted.wait_s for deleted in self.deleted), default=0.0)


@checked(
    store=a_store,
    log=check_log_name,
    limit_offset=optional(integer),
    options=optional(instance_of(CollectorOptions)),
    runtime=optional(a_runtime),
    progress=function,
)
def collect(
    store: ObjectStore,
    log: str,
    *,
    limit_offset: int | None = None,
    options: CollectorOptions | None = None,
    runtime: Runtime | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> CollectionReport:
    """Collect a log's garbage without waiting: what is pruned now is deleted by a collection an interval later.

    Looking for orphans lists every object of the log; with ``orphans_max`` 0 the cost is that of what is deleted,
    and does not depend on what waits.
    CollectionRefusedError when collecting would not be safe; what earlier collections decided is finished first.
    """
    options, runtime = options or CollectorOptions(), runtime or shared_runtime()
    collector = Collector(store, log, options=options, runtime=runtime)
    deleter = Deleter(store, log, options=options, runtime=runtime)
    # The oldest first, both to delete what is due and to look up old objects.
    documents = sorted(collector.resume_unmarked(), key=lambda meta: (meta.last_modified_us, meta.path))
    # Before anything is written: on a full disk, nothing else makes space.
    now_us = deleter.store_now_us() if options.interval_s and (documents or options.orphans_max) else None
    due = deleter.look(documents, now_us or 0)
    deleted = {each.path: each for each in deleter.delete_due(due, progress=progress)}
    waiting = (meta for meta in documents if not deleted[meta.path].finished)
    found = deleter.orphans(deleter.load(waiting), now_us=now_us)
    marked = []
    if found:
        orphans = collector.mark_orphans(found, f"{len(found)} objects that nothing refers to")
        marked += [orphans.path] if isinstance(orphans, Marked) else []
    plan, path = _prune(collector, limit_offset, options.rounds_max)
    marked += [] if path is None else [path]
    deleted |= {path: _delete_marked(deleter, path, options.interval_s, progress) for path in marked}
    return CollectionReport(plan=plan, num_orphans=len(found), deleted=tuple(deleted.values()))


def _delete_marked(deleter: Deleter, path: str, interval_s: float, progress: Callable[[int], None]) -> DeletionReport:
    """Delete what a document that was marked just now names, if the interval is 0."""
    return DeletionReport(path=path, wait_s=interval_s) if interval_s > 0 else deleter.delete(path, progress=progress)


def _prune(collector: Collector, limit_offset: int | None, rounds_max: int) -> tuple[Plan, str | None]:
    """Plan, verify and prune; again when overtaken by a cursor or another collection."""
    cause = ""
    for _ in range(rounds_max):
        plan = collector.plan(limit_offset)
        if plan.empty:
            return plan, None
        try:
            collector.verify(plan)
            outcome = collector.prune(collector.announce(plan))
        except OutdatedPlanError as error:
            outcome = Overtaken(str(error))
        match outcome:
            case Marked(path):
                return plan, path
            case Overtaken(cause):
                COLLECT.info("log %s: not pruned, to be planned again: %s", collector.log, cause)
                collector.resume_all()
    message = f"log {collector.log}: not pruned in {rounds_max} tries: {cause}"
    raise UnavailableError(message)
