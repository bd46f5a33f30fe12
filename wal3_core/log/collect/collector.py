"""Collects one log's garbage, in steps that may each be repeated, resumed, and run by two at once.

The order keeps it safe, not the clock. The collection is announced in the manifest; then cursors are
read; then the manifest is pruned, by a CAS that succeeds only while the announcement stands. Whoever
creates a cursor or a pin, or moves a cursor back, writes it first and then looks at the manifest. One
of the two sees the other. What was pruned is deleted an interval later, object by object, and only
what no manifest and no pin refers to. Keeps INV-13 to INV-18. Source: docs/protocol.md, "Collection".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, optional, several, text
from wal3_core.errors import CollectionRefusedError, OutdatedPlanError, UnavailableError
from wal3_core.log.collect.planner import Plan, Planner
from wal3_core.log.collect.references import References
from wal3_core.model.garbage import Garbage
from wal3_core.model.manifest import Announcement, Boundary, Manifest
from wal3_core.model.paths import LogId, check_log_name, given_garbage_path
from wal3_core.options import CollectorOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.storage.documents.document_store import Seen
from wal3_core.storage.documents.garbage_store import GarbageStore
from wal3_core.storage.documents.manifest_store import Installed, ManifestStore
from wal3_core.storage.documents.snapshot_store import SnapshotStore
from wal3_core.storage.object_store import ObjectStore, log_store
from wal3_core.storage.opening import opening, options_of
from wal3_core.storage.patient import patient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from wal3_core.model.manifest import Announcement, Boundary, Manifest
    from wal3_core.storage.object_store import ObjectMeta


@dataclass(frozen=True, slots=True)
class Pruned:
    """The log begins later now; what it held before is in the garbage document at ``path``."""

    path: str
    garbage: Garbage


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Nothing was pruned: a cursor came to lie below the cutoff, or the collection was withdrawn."""

    cause: str


class Collector:
    """Plans (log/planner.py) and prunes; log/deleter.py deletes what was pruned."""

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
        self.log = check_log_name(log)
        self._runtime = runtime or shared_runtime()
        self._options = options or CollectorOptions()
        retry = self._options.retry
        self._manifests = ManifestStore(
            patient(log_store(store, log), self._runtime, retry), self._runtime, retry, log_id=log_id
        )
        self._snapshots = SnapshotStore(self._manifests, self._runtime, loaded_max=self._options.snapshots_loaded_max)
        self._documents = GarbageStore(self._manifests, self._runtime, retry)
        self._planner = Planner(
            store,
            log,
            options=self._options,
            runtime=self._runtime,
            manifests=self._manifests,
            snapshots=self._snapshots,
        )

    @checked(limit_offset=optional(integer))
    def plan(self, limit_offset: int | None = None) -> Plan:
        """Say what may go: all that lies below every cursor and ``limit_offset``, and that the policy lets go.

        Changes nothing. CollectionRefusedError when nothing says what may go, or can not be read.
        """
        return self._planner.plan(limit_offset)

    @checked(plan=instance_of(Plan))
    def objects(self, plan: Plan) -> Iterator[str]:
        """Name every object that would go with a plan, in log order; each snapshot behind what it holds."""
        return self._planner.objects(plan)

    @checked(plan=instance_of(Plan))
    def verify(self, plan: Plan) -> None:
        """Refuse a plan that takes too much, or whose sums do not add up; CollectionRefusedError says which.

        OutdatedPlanError when the log has changed since: what is refused then may be right once planned anew.
        """
        self._planner.verify(plan)

    @checked(plan=instance_of(Plan))
    def announce(self, plan: Plan) -> str:
        """Write down what goes and announce it in the manifest; return the garbage document's path.

        From here on nobody can create a cursor below. A collection announced before is withdrawn.
        OutdatedPlanError when somebody else has collected meanwhile.
        """
        base = self._planner.planned_on(plan)
        cut = self._planner.cut(base.manifest, plan.first)
        garbage = Garbage(
            generation=1,
            token=self._runtime.token(),
            reason=plan.reason,
            first=cut.first,
            dropped=cut.dropped,
            replaced=cut.replaced,
        )
        path = garbage.path
        # Document first: an announcement must lead to what it means.
        if self._documents.save(path, garbage, None) is None:
            message = f"log {self._manifests.url}: expected {path} to be new, found it"
            raise UnavailableError(message)
        self._change(base, lambda manifest: self._announcing(manifest, path, cut.first))
        return path

    def _announcing(self, manifest: Manifest, path: str, first: Boundary) -> Manifest | None:
        if _announced(manifest, path):
            return None
        if manifest.first.seq_no >= first.seq_no:
            message = f"log {self._manifests.url}: planned to begin at fragment {first.seq_no}, found it begin there"
            raise OutdatedPlanError(message)
        return manifest.apply_announcement(path, first)

    @checked(orphans=several, reason=text)
    def mark_orphans(self, orphans: Sequence[str], reason: str) -> Pruned | Overtaken:
        """Write down objects that nothing refers to, so that nothing ever will, and that they may be deleted."""
        garbage = Garbage(
            generation=1,
            token=self._runtime.token(),
            reason=reason,
            first=None,
            orphans=tuple(orphans),
        )
        self._documents.save(garbage.path, garbage, None)
        return self.prune(garbage.path)

    @checked(path=given_garbage_path)
    def prune(self, path: str) -> Pruned | Overtaken:
        """Let the manifest begin where the announced collection says, unless a cursor lies below by now."""
        checked: Announcement | None = None
        uploaded: set[str] = set()
        for _ in range(self._options.rebases_max):
            # Document before manifest: who changed it in between is found out when it is saved.
            seen = self._documents.load(path)
            base = self._manifests.load()
            ended = self._ended(path, seen, base)
            if ended is not None:
                return ended
            announcement = base.manifest.announced
            assert seen is not None
            assert announcement is not None
            if announcement != checked:
                # After the announcement: a cursor created since has seen it. Once: with writers about, the manifest
                # has moved on by the time that cursors are read, and again each time.
                kept = self._planner.kept_below(base.manifest, announcement.first)
                if kept is not None:
                    self._withdraw(base, announcement)
                    return Overtaken(kept)
                checked = announcement
                continue
            try:
                self._prune_onto(base, announcement, seen, uploaded)
            except CollectionRefusedError as error:
                # It would stand in the way of every later one.
                self._withdraw(base, announcement)
                return Overtaken(str(error))
        message = f"log {self._manifests.url}: not pruned: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)

    def _ended(self, path: str, seen: Seen[Garbage] | None, base: Installed) -> Pruned | Overtaken | None:
        """Tell what came of a collection; None while it is announced and not pruned."""
        if seen is None:
            self._withdraw_lost(base)
            return Overtaken(f"{path} is gone")
        first = seen.document.first
        if first is None:
            return self._mark_orphans(path, base, seen)
        if base.manifest.first.seq_no >= first.seq_no:
            return self._mark_pruned(path, seen)
        if not _announced(base.manifest, path):
            return Overtaken("another collection was announced, or this one withdrawn")
        return None

    def _prune_onto(self, base: Installed, announcement: Announcement, seen: Seen[Garbage], uploaded: set[str]) -> None:
        """Try one CAS, or do what must come before one; the caller looks what came of it."""
        cut = self._planner.cut(base.manifest, announcement.first)
        # Snapshots first: the manifest must not refer to what is not there.
        parts = {part.pointer_to(part.to_bytes()).path: part for part in cut.written}
        garbage = replace(seen.document, dropped=cut.dropped, replaced=cut.replaced)
        if parts.keys() <= uploaded and garbage == seen.document:
            self._manifests.install(base.manifest.apply_garbage(announcement, cut.pointers), base)
            return
        # In their order, deepest first: none leads to what is not there yet.
        for path in [path for path in parts if path not in uploaded]:
            self._snapshots.write(parts[path], self._options.retry)
            uploaded.add(path)
        if garbage != seen.document:
            # What goes in the tree as it is by now.
            self._documents.save(announcement.garbage, replace(garbage, generation=garbage.generation + 1), seen)

    def _mark_pruned(self, path: str, seen: Seen[Garbage]) -> Pruned:
        """Say in the document that nothing refers to it any more: its age counts from now."""
        garbage = seen.document
        if not garbage.pruned:
            garbage = replace(garbage, generation=garbage.generation + 1, pruned=True)
            # Somebody else may be as quick, which is as good; or have taken it for one that nobody would announce.
            saved = self._documents.save(path, garbage, seen) or self._documents.load(path)
            saved = saved or self._documents.save(path, garbage, None)
            if saved is None or not saved.document.pruned:
                # Changed once more by one that has not seen the prune: whoever reads it next marks it.
                return Pruned(path, garbage)
            garbage = saved.document
        # After the document: what has a mark is taken for pruned unread.
        self._documents.mark(path)
        return Pruned(path, garbage)

    def _mark_orphans(self, path: str, base: Installed, seen: Seen[Garbage]) -> Pruned:
        """Move the fence: no upload begun before is linked any more, so what nothing refers to stays so."""
        fence = base.manifest.fence
        if seen.document.pruned:
            return self._mark_pruned(path, seen)
        self._change(base, lambda manifest: replace(manifest, fence=fence + 1) if manifest.fence == fence else None)
        # One that was linked before the fence moved is no orphan, and not one once the log lets it go: readers have an
        # interval from then.
        references = References([self._manifests.load().manifest.pointers], self._snapshots.load)
        left = tuple(orphan for orphan in seen.document.orphans if not references.hold(orphan))
        return self._mark_pruned(path, Seen(replace(seen.document, orphans=left), seen.etag))

    def _withdraw(self, base: Installed, announcement: Announcement) -> None:
        self._manifests.withdraw(base, announcement, rebases_max=self._options.rebases_max)

    def _change(self, base: Installed, change: Callable[[Manifest], Manifest | None]) -> None:
        self._manifests.change(base, change, rebases_max=self._options.rebases_max)

    # ------------------------------------------------------------------ what is there already

    def resume_all(self) -> list[Pruned]:
        """Finish what other runs began, as ``settle_unmarked`` does; load all that is pruned."""
        loaded = ((meta.path, self._documents.load(meta.path)) for meta in self.resume_unmarked())
        return [Pruned(path, seen.document) for path, seen in loaded if seen is not None]

    def resume_unmarked(self) -> list[ObjectMeta]:
        """Finish what other runs began: resume what is announced, forget what never was; describe what is pruned.

        What has its mark is not read: the cost is one listing, whatever waits for its interval.
        """
        self._withdraw_lost(self._manifests.load())
        listed = self._documents.survey()
        for path in listed.left:
            self._documents.delete(path)
        pruned = [meta for meta in listed.documents if meta.path in listed.marked]
        for meta in listed.documents:
            # It may have been marked since it was listed: its age counts from then.
            if meta.path not in listed.marked and self._resume(meta.path):
                changed = self._documents.describe(meta.path)
                pruned += [] if changed is None else [changed]
        return pruned

    def _resume(self, path: str) -> bool:
        """Finish one collection that has no mark; tells whether it is pruned."""
        seen = self._documents.load(path)
        if seen is None:
            return False
        if seen.document.pruned:
            self._documents.mark(path)
            return True
        if isinstance(self.prune(path), Pruned):
            return True
        # Its snapshots, if it wrote any, are orphans.
        self._documents.delete(path)
        return False

    def _withdraw_lost(self, base: Installed) -> None:
        """Withdraw an announcement whose document is gone: nobody can carry it out."""
        announcement = base.manifest.announced
        if announcement is not None and self._documents.load(announcement.garbage) is None:
            self._withdraw(base, announcement)


def _announced(manifest: Manifest, path: str) -> bool:
    return manifest.announced is not None and manifest.announced.garbage == path
