"""The public API for collecting a log: plan, verify, announce, prune, and resume what other runs began.

``collect`` is one whole collection: finish and delete what earlier ones left, mark orphans, plan and prune.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, function, instance_of, integer, optional, several, text
from wal3_core.errors import OutdatedPlanError, StoreDeniedError, UnavailableError
from wal3_core.log.collect.deleter import Deleter, DeletionReport
from wal3_core.log.collect.planner import Plan, Planner
from wal3_core.log.collect.pruner import Marked, Overtaken, Pruner
from wal3_core.log.log_stores import LogStores
from wal3_core.model.garbage import Garbage
from wal3_core.model.paths import LogId, check_log_name, given_garbage_path, given_token
from wal3_core.options import CollectorOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.storage.object_store import OPENING, a_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wal3_core.storage.object_store import ObjectMeta, ObjectStore


class Collector:
    """Collects one log's garbage up to the mark for deletion; ``Deleter`` deletes an interval later.

    Every step may be repeated, resumed, and run by two at once.
    """

    @checked(**OPENING)
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: CollectorOptions | None = None,
        runtime: Runtime | None = None,
        log_id: LogId | None = None,
    ) -> None:
        options = options or CollectorOptions()
        self._runtime = runtime or shared_runtime()
        stores = LogStores(
            store,
            log,
            runtime=self._runtime,
            retry=options.retry,
            snapshots_loaded_max=options.snapshots_loaded_max,
            log_id=log_id,
        )
        self.log = stores.log
        self._manifests = stores.manifests
        self._documents = stores.garbage
        self._planner = Planner(stores, options)
        self._pruner = Pruner(stores, self._planner, options)

    @checked(limit_offset=optional(integer))
    def plan(self, limit_offset: int | None = None) -> Plan:
        """Plan to delete all that is below every cursor and ``limit_offset``, and that the policy does not keep.

        Changes nothing. CollectionRefusedError when neither cursor nor policy says what can be deleted, or one
        cannot be read.
        """
        return self._planner.plan(limit_offset)

    @checked(plan=instance_of(Plan))
    def objects(self, plan: Plan) -> Iterator[str]:
        """Name every object that a plan deletes, in log order; each snapshot after what it holds."""
        return self._planner.objects(plan)

    @checked(plan=instance_of(Plan))
    def verify(self, plan: Plan) -> None:
        """Refuse a plan that deletes too much, or whose sums do not add up; CollectionRefusedError says which.

        OutdatedPlanError when the log has changed since: plan again.
        """
        self._planner.verify(plan)

    @checked(plan=instance_of(Plan))
    def announce(self, plan: Plan) -> str:
        """Write the garbage document and announce it in the manifest; return the document's path.

        From here on no cursor can be created below the cutoff. An earlier announcement is withdrawn.
        OutdatedPlanError when another collection was faster.
        """
        return self._pruner.announce(plan)

    @checked(path=given_garbage_path)
    def prune(self, path: str) -> Marked | Overtaken:
        """Advance ``first`` to the announced cutoff unless a cursor is below it now, and mark what was pruned."""
        return self._pruner.prune(path)

    @checked(orphans=several, reason=text, token=optional(given_token))
    def mark_orphans(self, orphans: Sequence[str], reason: str, *, token: str | None = None) -> Marked | Overtaken:
        """Mark orphans for deletion, after making sure that nothing refers to them and nothing will.

        ``token`` is that of the key compaction that replaced them, if one did.
        """
        token = token or self._runtime.token()
        garbage = Garbage(generation=1, token=token, reason=reason, first=None, orphans=tuple(orphans))
        self._documents.save(garbage.path, garbage, None)
        return self._pruner.prune(garbage.path)

    # ------------------------------------------------------------------ resume

    def resume_all(self) -> list[Marked]:
        """Finish what other runs began, as ``resume_unmarked`` does; load every document that is marked."""
        loaded = ((meta.path, self._documents.load(meta.path)) for meta in self.resume_unmarked())
        return [Marked(path, seen.document) for path, seen in loaded if seen is not None]

    def resume_unmarked(self) -> list[ObjectMeta]:
        """Finish what other runs began: prune what is announced, delete the documents that never were.

        Returns the documents that are marked. Those marked before are not read: the cost is one listing. If the store
        denies what is to be finished, only these are returned: their deletion makes the space that it may need.
        """
        base, listed = self._manifests.load(), self._documents.survey()
        for path in listed.left:
            self._documents.delete(path)
        marked = [meta for meta in listed.documents if meta.path in listed.marked]
        try:
            self._pruner.withdraw_lost(base)
            for meta in listed.documents:
                # It may have been marked since it was listed: its age counts from then.
                if meta.path not in listed.marked and self._resume(meta.path):
                    changed = self._documents.describe(meta.path)
                    marked += [] if changed is None else [changed]
        except StoreDeniedError as error:
            if not marked:
                raise
            COLLECT.warning("log %s: an earlier collection is not finished yet: %s", self.log, error)
        return marked

    def _resume(self, path: str) -> bool:
        """Finish one collection that has no mark; return whether it has one now."""
        seen = self._documents.load(path)
        if seen is None:
            return False
        if seen.document.pruned:
            self._documents.mark(path)
            return True
        if isinstance(self.prune(path), Marked):
            return True
        # Its snapshots, if it wrote any, are orphans.
        self._documents.delete(path)
        return False


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


@checked(store=a_store, log=check_log_name, limit_offset=optional(integer), progress=function)
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
