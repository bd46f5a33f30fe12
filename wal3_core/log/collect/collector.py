"""The public API for collecting a log: plan, verify, announce, prune, and resume what other runs began."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, optional, several, text
from wal3_core.errors import StoreDeniedError
from wal3_core.log.collect.planner import Plan, Planner
from wal3_core.log.collect.pruner import Marked, Overtaken, Pruner
from wal3_core.log.log_stores import LogStores
from wal3_core.model.garbage import Garbage
from wal3_core.model.paths import LogId, given_garbage_path, given_token
from wal3_core.options import CollectorOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.storage.object_store import opening, options_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.storage.object_store import ObjectMeta, ObjectStore


class Collector:
    """Collects one log's garbage up to the mark for deletion; ``Deleter`` deletes an interval later.

    Every step may be repeated, resumed, and run by two at once.
    """

    @checked(**opening(options=options_of(CollectorOptions)))
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
