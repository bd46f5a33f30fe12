"""Collects a log: announces a plan and prunes the manifest. Steps may be repeated, resumed, and run by two at once.

The order keeps it safe, not the clock: announce in the manifest, then read the cursors, then prune by a CAS that
succeeds only while the announcement stands. A process that creates a cursor or a pin, or moves a cursor back, writes it
first and then reads the manifest. So one of the two sees the other. Keeps INV-13, INV-14, INV-17 and INV-18. Source:
docs/protocol.md, "Collection".

``collect`` is one whole collection: finish and delete what earlier ones left, mark orphans, plan and prune.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, optional, several, text
from wal3_core.errors import CollectionRefusedError, OutdatedPlanError, StoreDeniedError, UnavailableError
from wal3_core.format.garbage import Garbage
from wal3_core.format.paths import LogId, given_garbage_path, given_token
from wal3_core.log.collect.deleter import Deleter, DeletionReport
from wal3_core.log.collect.planner import Plan, Planner
from wal3_core.log.collect.references import any_retains, references_of
from wal3_core.log.log_stores import LogStores
from wal3_core.options import CollectorOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.store.documents.document_store import LoadedDocument
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.object_store import OPENING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wal3_core.format.manifest import Announcement, Boundary, Manifest
    from wal3_core.store.object_store import ObjectMeta, ObjectStore


@dataclass(frozen=True, slots=True)
class MarkedGarbage:
    """Marked for deletion: nothing refers to what the garbage document at ``path`` names, and nothing will."""

    path: str
    garbage: Garbage


@dataclass(frozen=True, slots=True)
class NotPruned:
    """Nothing was pruned: a cursor is below the cutoff now, or the collection was withdrawn."""

    cause: str


class Collector(Planner):
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
        stores = LogStores(
            store,
            log,
            runtime=runtime or shared_runtime(),
            retry=options.retry,
            snapshots_loaded_max=options.snapshots_loaded_max,
            log_id=log_id,
        )
        super().__init__(stores, options)
        self.log = stores.log
        self._manifests, self._documents = stores.manifests, stores.garbage

    # ------------------------------------------------------------------ announce

    @checked(plan=instance_of(Plan))
    def announce(self, plan: Plan) -> str:
        """Write the garbage document and announce it in the manifest; return the document's path.

        From here on no cursor can be created below the cutoff. An earlier announcement is withdrawn.
        OutdatedPlanError when another collection was faster.
        """
        base = self._planned_on(plan)
        cut = self._cut(base.manifest, plan.first)
        garbage = Garbage(
            generation=1,
            token=self._stores.runtime.token(),
            reason=plan.reason,
            first=cut.first,
            dropped=cut.dropped,
            replaced=cut.replaced,
        )
        path = garbage.path
        # Document first: an announcement must refer to an existing document.
        if self._documents.save(path, garbage, None) is None:
            message = f"log {self._stores.url}: expected {path} to be new, found it"
            raise UnavailableError(message)
        self._change(base, lambda manifest: self._announced_in(manifest, path, cut.first))
        return path

    def _announced_in(self, manifest: Manifest, path: str, first: Boundary) -> Manifest | None:
        if _announces(manifest, path):
            return None
        if manifest.first.seq_no >= first.seq_no:
            message = f"log {self._stores.url}: planned to begin at fragment {first.seq_no}, found that it already does"
            raise OutdatedPlanError(message)
        return manifest.apply_announcement(path, first)

    def _withdraw_lost(self, base: Installed) -> None:
        """Withdraw an announcement whose document is gone: it cannot be carried out."""
        announcement = base.manifest.announced
        if announcement is not None and self._documents.load(announcement.garbage) is None:
            self._withdraw(base, announcement)

    def _withdraw(self, base: Installed, announcement: Announcement) -> None:
        self._manifests.withdraw(base, announcement, rebases_max=self._options.rebases_max)

    # ------------------------------------------------------------------ prune

    @checked(path=given_garbage_path)
    def prune(self, path: str) -> MarkedGarbage | NotPruned:
        """Advance ``first`` to the announced cutoff, unless records below it are kept now; then mark the document.

        A document of orphans is marked once the fence has moved.
        """
        checked_for: Announcement | None = None
        seen: LoadedDocument[Garbage] | None = None
        uploaded: set[str] = set()
        for _ in range(self._options.rebases_max):
            # Document before manifest: a change of the document in between makes its save fail.
            seen = self._documents.load(path, seen)
            base = self._manifests.load()
            done = self._finish(path, seen, base)
            if done is not None:
                return done
            announcement = base.manifest.announced
            assert seen is not None
            assert announcement is not None
            if announcement != checked_for:
                # After the announcement: a cursor created since has seen it. Once per announcement: with active
                # writers the manifest changes each time that cursors are read.
                kept = self._kept_below(base.manifest, announcement.first)
                if kept is not None:
                    self._withdraw(base, announcement)
                    return NotPruned(kept)
                checked_for = announcement
                continue
            try:
                self._prune_onto(base, announcement, seen, uploaded)
            except CollectionRefusedError as error:
                # If it stayed announced, it would block every later collection.
                self._withdraw(base, announcement)
                return NotPruned(str(error))
        message = f"log {self._stores.url}: not pruned: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)

    def _finish(
        self, path: str, seen: LoadedDocument[Garbage] | None, base: Installed
    ) -> MarkedGarbage | NotPruned | None:
        """Do what is left to do where nothing is left to prune; None when the document is announced."""
        manifest = base.manifest
        if seen is None:
            self._withdraw_lost(base)
            return NotPruned(f"{path} is gone")
        first = seen.document.first
        if first is None:
            return self._mark_orphans(path, base, seen)
        if manifest.first.seq_no >= first.seq_no:
            return self._mark(path, seen)
        if _announces(manifest, path):
            return None
        return NotPruned("another collection was announced, or this one withdrawn")

    def _prune_onto(
        self, base: Installed, announcement: Announcement, seen: LoadedDocument[Garbage], uploaded: set[str]
    ) -> None:
        """Try one CAS, or do what must come before it; the caller then loads the manifest to see the outcome."""
        cut = self._cut(base.manifest, announcement.first)
        # Snapshots first: the manifest must not refer to missing objects.
        parts = {part.pointer_to(part.to_bytes()).path: part for part in cut.written}
        garbage = replace(seen.document, dropped=cut.dropped, replaced=cut.replaced)
        if parts.keys() <= uploaded and garbage == seen.document:
            pruned = self._manifests.install(base.manifest.apply_garbage(announcement, cut.pointers), base)
            if isinstance(pruned, Installed):
                self._report(base.manifest, pruned.manifest, announcement)
            return
        # In their order, deepest first: none refers to one that is not uploaded yet.
        for path in [path for path in parts if path not in uploaded]:
            self._stores.snapshots.write(parts[path], self._options.retry)
            uploaded.add(path)
        if garbage != seen.document:
            # The document names what is pruned from the tree as it is now.
            self._documents.save(announcement.garbage, replace(garbage, generation=garbage.generation + 1), seen)

    def _report(self, before: Manifest, after: Manifest, announcement: Announcement) -> None:
        records, num_bytes = before.num_records - after.num_records, before.num_bytes - after.num_bytes
        self._stores.runtime.observer.collected(self._stores.log, records, num_bytes)
        text = "log %s: pruned %d records, %d bytes of fragments: begins at offset %d; %s names what will be deleted"
        begins = after.first.position.offset
        COLLECT.info(text, self._stores.url, records, num_bytes, begins, announcement.garbage)

    # ------------------------------------------------------------------ mark

    def _mark(self, path: str, seen: LoadedDocument[Garbage]) -> MarkedGarbage:
        """Record in the document that nothing refers to what it names: its age counts from now."""
        garbage = seen.document
        if not garbage.pruned:
            garbage = replace(garbage, generation=garbage.generation + 1, pruned=True)
            # Another collector may already have done it; or have deleted it as never announced.
            saved = self._documents.save(path, garbage, seen) or self._documents.load(path)
            saved = saved or self._documents.save(path, garbage, None)
            if saved is None or not saved.document.pruned:
                # Changed once more by a collector that has not seen the prune: the next one that reads it marks it.
                return MarkedGarbage(path, garbage)
            garbage = saved.document
        # After the document: a document with a mark is taken for pruned without being read.
        self._documents.mark(path)
        return MarkedGarbage(path, garbage)

    def _mark_orphans(self, path: str, base: Installed, seen: LoadedDocument[Garbage]) -> MarkedGarbage:
        """Move the fence, so that no upload begun before is linked any more, then mark what is still an orphan."""
        fence = base.manifest.fence
        if seen.document.pruned:
            return self._mark(path, seen)
        self._change(base, lambda manifest: manifest.move_fence() if manifest.fence == fence else None)
        # An object linked before the fence moved is no orphan, nor is that of a pass installed before. If pruned later,
        # it stays an interval for readers.
        references = references_of(self._stores, self._manifests.load().manifest)
        left = tuple(orphan for orphan in seen.document.orphans if not any_retains(references, orphan))
        COLLECT.info("log %s: %d orphans will be deleted; %s names them", self._stores.url, len(left), path)
        return self._mark(path, LoadedDocument(replace(seen.document, orphans=left), seen.etag))

    def _change(self, base: Installed, change: Callable[[Manifest], Manifest | None]) -> None:
        self._manifests.change(base, change, rebases_max=self._options.rebases_max)

    @checked(orphans=several, reason=text, token=optional(given_token))
    def mark_orphans(
        self, orphans: Sequence[str], reason: str, *, token: str | None = None
    ) -> MarkedGarbage | NotPruned:
        """Mark orphans for deletion, after making sure that nothing refers to them and nothing will.

        ``token`` is that of the key compaction that replaced them, if one did.
        """
        token = token or self._stores.runtime.token()
        garbage = Garbage(generation=1, token=token, reason=reason, first=None, orphans=tuple(orphans))
        self._documents.save(garbage.path, garbage, None)
        return self.prune(garbage.path)

    # ------------------------------------------------------------------ resume

    def resume_all(self) -> list[MarkedGarbage]:
        """Finish what other runs began, as ``resume_unmarked`` does; load every document that is marked."""
        loaded = ((meta.path, self._documents.load(meta.path)) for meta in self.resume_unmarked())
        return [MarkedGarbage(path, seen.document) for path, seen in loaded if seen is not None]

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
            self._withdraw_lost(base)
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
        if isinstance(self.prune(path), MarkedGarbage):
            return True
        # Its snapshots, if it wrote any, are orphans.
        self._documents.delete(path)
        return False


def _announces(manifest: Manifest, path: str) -> bool:
    return manifest.announced is not None and manifest.announced.garbage == path


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


@checked(limit_offset=optional(integer))
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
        marked += [orphans.path] if isinstance(orphans, MarkedGarbage) else []
    plan, path = _prune(collector, limit_offset, options.rounds_max)
    marked += [] if path is None else [path]
    for path in marked:
        # An interval of 0 is over at once.
        wait_s = options.interval_s
        deleted[path] = DeletionReport(path=path, wait_s=wait_s) if wait_s else deleter.delete(path, progress=progress)
    return CollectionReport(plan=plan, num_orphans=len(found), deleted=tuple(deleted.values()))


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
            outcome = NotPruned(str(error))
        match outcome:
            case MarkedGarbage(path):
                return plan, path
            case NotPruned(cause):
                COLLECT.info("log %s: not pruned, to be planned again: %s", collector.log, cause)
                collector.resume_all()
    message = f"log {collector.log}: not pruned in {rounds_max} tries: {cause}"
    raise UnavailableError(message)
