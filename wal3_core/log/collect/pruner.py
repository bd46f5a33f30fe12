"""Announces a collection and prunes the manifest: steps that may each be repeated, resumed, and run by two at once.

The order keeps it safe, not the clock: announce in the manifest, then read the cursors, then prune by a CAS that
succeeds only while the announcement stands. A process that creates a cursor or a pin, or moves a cursor back, writes it
first and then reads the manifest. So one of the two sees the other. Keeps INV-13, INV-14, INV-17 and INV-18. Source:
docs/protocol.md, "Collection".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, assert_never

from wal3_core.errors import CollectionRefusedError, OutdatedPlanError, UnavailableError
from wal3_core.log.collect.references import hold_any, references_of
from wal3_core.model.garbage import Garbage
from wal3_core.runtime.loggers import COLLECT
from wal3_core.storage.documents.document_store import LoadedDocument
from wal3_core.storage.documents.manifest_store import Installed

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.log.collect.planner import Plan, Planner
    from wal3_core.log.log_stores import LogStores
    from wal3_core.model.manifest import Announcement, Boundary, Manifest
    from wal3_core.options import CollectorOptions


@dataclass(frozen=True, slots=True)
class Marked:
    """Marked for deletion: nothing refers to what the garbage document at ``path`` names, and nothing will."""

    path: str
    garbage: Garbage


@dataclass(frozen=True, slots=True)
class Overtaken:
    """Nothing was pruned: a cursor is below the cutoff now, or the collection was withdrawn."""

    cause: str


class _State(Enum):
    """The state of a collection, by its garbage document and the manifest."""

    GONE = auto()
    ORPHANS = auto()
    PRUNED = auto()
    ANNOUNCED = auto()
    OVERTAKEN = auto()


class Pruner:
    """Carries out one log's collections up to their mark; log/collect/deleter.py deletes what is marked."""

    def __init__(self, stores: LogStores, planner: Planner, options: CollectorOptions) -> None:
        self._stores = stores
        self._manifests = stores.manifests
        self._documents = stores.garbage
        self._planner = planner
        self._options = options

    # ------------------------------------------------------------------ announce

    def announce(self, plan: Plan) -> str:
        """Write the garbage document and announce it in the manifest; return the document's path.

        OutdatedPlanError when the log begins there already.
        """
        base = self._planner.planned_on(plan)
        cut = self._planner.cut(base.manifest, plan.first)
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

    def withdraw_lost(self, base: Installed) -> None:
        """Withdraw an announcement whose document is gone: it cannot be carried out."""
        announcement = base.manifest.announced
        if announcement is not None and self._documents.load(announcement.garbage) is None:
            self._withdraw(base, announcement)

    def _withdraw(self, base: Installed, announcement: Announcement) -> None:
        self._manifests.withdraw(base, announcement, rebases_max=self._options.rebases_max)

    # ------------------------------------------------------------------ prune

    def prune(self, path: str) -> Marked | Overtaken:
        """Advance ``first`` to the announced cutoff unless a cursor is below it now, then mark the document.

        A document of orphans is marked once the fence has moved.
        """
        checked: Announcement | None = None
        seen: LoadedDocument[Garbage] | None = None
        uploaded: set[str] = set()
        for _ in range(self._options.rebases_max):
            # Document before manifest: a change of the document in between makes its save fail.
            seen = self._documents.load(path, seen)
            base = self._manifests.load()
            state = _state(path, seen, base.manifest)
            if state is not _State.ANNOUNCED:
                return self._finish(state, path, seen, base)
            announcement = base.manifest.announced
            assert seen is not None
            assert announcement is not None
            if announcement != checked:
                # After the announcement: a cursor created since has seen it. Once per announcement: with active
                # writers the manifest changes each time that cursors are read.
                kept = self._planner.kept_below(base.manifest, announcement.first)
                if kept is not None:
                    self._withdraw(base, announcement)
                    return Overtaken(kept)
                checked = announcement
                continue
            try:
                self._prune_onto(base, announcement, seen, uploaded)
            except CollectionRefusedError as error:
                # If it stayed announced, it would block every later collection.
                self._withdraw(base, announcement)
                return Overtaken(str(error))
        message = f"log {self._stores.url}: not pruned: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)

    def _finish(
        self, state: _State, path: str, seen: LoadedDocument[Garbage] | None, base: Installed
    ) -> Marked | Overtaken:
        """Do what is left to do in a state where nothing is left to prune."""
        match state:
            case _State.GONE:
                self.withdraw_lost(base)
                return Overtaken(f"{path} is gone")
            case _State.OVERTAKEN:
                return Overtaken("another collection was announced, or this one withdrawn")
            case _State.PRUNED:
                assert seen is not None
                return self._mark(path, seen)
            case _State.ORPHANS:
                assert seen is not None
                return self._mark_orphans(path, base, seen)
            case _State.ANNOUNCED:
                raise AssertionError(state)
            case _:
                assert_never(state)

    def _prune_onto(
        self, base: Installed, announcement: Announcement, seen: LoadedDocument[Garbage], uploaded: set[str]
    ) -> None:
        """Try one CAS, or do what must come before it; the caller then loads the manifest to see the outcome."""
        cut = self._planner.cut(base.manifest, announcement.first)
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

    def _mark(self, path: str, seen: LoadedDocument[Garbage]) -> Marked:
        """Record in the document that nothing refers to what it names: its age counts from now."""
        garbage = seen.document
        if not garbage.pruned:
            garbage = replace(garbage, generation=garbage.generation + 1, pruned=True)
            # Another collector may already have done it; or have deleted it as never announced.
            saved = self._documents.save(path, garbage, seen) or self._documents.load(path)
            saved = saved or self._documents.save(path, garbage, None)
            if saved is None or not saved.document.pruned:
                # Changed once more by a collector that has not seen the prune: the next one that reads it marks it.
                return Marked(path, garbage)
            garbage = saved.document
        # After the document: a document with a mark is taken for pruned without being read.
        self._documents.mark(path)
        return Marked(path, garbage)

    def _mark_orphans(self, path: str, base: Installed, seen: LoadedDocument[Garbage]) -> Marked:
        """Move the fence, so that no upload begun before is linked any more, then mark what is still an orphan."""
        fence = base.manifest.fence
        if seen.document.pruned:
            return self._mark(path, seen)
        self._change(base, lambda manifest: manifest.move_fence() if manifest.fence == fence else None)
        # An object linked before the fence moved is no orphan, nor is that of a pass installed before. If pruned later,
        # it stays an interval for readers.
        references = references_of(self._stores, self._manifests.load().manifest)
        left = tuple(orphan for orphan in seen.document.orphans if not hold_any(references, orphan))
        COLLECT.info("log %s: %d orphans will be deleted; %s names them", self._stores.url, len(left), path)
        return self._mark(path, LoadedDocument(replace(seen.document, orphans=left), seen.etag))

    def _change(self, base: Installed, change: Callable[[Manifest], Manifest | None]) -> None:
        self._manifests.change(base, change, rebases_max=self._options.rebases_max)


def _state(path: str, seen: LoadedDocument[Garbage] | None, manifest: Manifest) -> _State:
    if seen is None:
        return _State.GONE
    first = seen.document.first
    if first is None:
        return _State.ORPHANS
    if manifest.first.seq_no >= first.seq_no:
        return _State.PRUNED
    return _State.ANNOUNCED if _announces(manifest, path) else _State.OVERTAKEN


def _announces(manifest: Manifest, path: str) -> bool:
    return manifest.announced is not None and manifest.announced.garbage == path
