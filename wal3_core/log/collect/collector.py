"""Collects a log: plans, announces the plan and prunes. Steps may be repeated, resumed, and run by two at once.

The order keeps it safe, not the clock: announce in the manifest, then read the cursors, then prune by a CAS that
succeeds only while the announcement stands. Keeps INV-13, INV-14, INV-17 and INV-18. Source:
docs/protocol/collection.md, "Collection".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, optional, several, text
from wal3_core.errors import (
    CollectionRefusedError,
    CorruptError,
    LogReplacedError,
    OutdatedPlanError,
    StoreDeniedError,
    UnavailableError,
)
from wal3_core.format.garbage import Garbage
from wal3_core.format.manifest import Announcement, Boundary, Manifest
from wal3_core.format.paths import LOG_ID, WRITER_CURSOR, LogId, given_garbage_path, given_token
from wal3_core.format.policy import Policy
from wal3_core.format.position import AtTime
from wal3_core.format.setsum import SETSUM, Setsum
from wal3_core.format.snapshot import Snapshot, SnapshotPointer, count_fragments, sum_setsums
from wal3_core.format.strict_json import INTEGER, TEXT, Stored, member, nested
from wal3_core.log.collect.deleter import Deleter, DeletionReport, GarbageWork, any_retains, every_path, references_of
from wal3_core.log.read.scan import select
from wal3_core.log.tree.splice import Cut, cut_below
from wal3_core.options import UNLIMITED, CollectorOptions
from wal3_core.runtime import US_PER_S, Runtime, shared_runtime
from wal3_core.runtime.loggers import COLLECT
from wal3_core.store.documents.document_store import LoadedDocument
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.object_store import ObjectMeta, ObjectStore

if TYPE_CHECKING:
    from wal3_core.log.log_stores import LogStores

ONLY_COMPACTED = "its policy compacts it, and does not let collections prune it"
KEPT_WHOLE = "its policy keeps everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Stored):
    """What a collection would delete, and why; nothing was changed for it.

    ``first`` is where the log would begin; ``held_bytes`` and ``held_records`` are the log's now.
    """

    log: str
    log_id: LogId
    reason: str
    first: Boundary
    setsum: Setsum
    num_fragments: int
    num_records: int
    num_bytes: int
    held_records: int
    held_bytes: int

    MEMBERS = (
        member("log", TEXT),
        member("log_id", LOG_ID),
        member("reason", TEXT),
        member("first", nested(Boundary)),
        member("setsum", SETSUM),
        *(
            member(name, INTEGER)
            for name in ("num_fragments", "num_records", "num_bytes", "held_records", "held_bytes")
        ),
    )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to delete."""
        return self.num_fragments == 0

    @property
    def fraction(self) -> float:
        """The fraction of the log's bytes that would be deleted."""
        return self.num_bytes / self.held_bytes if self.held_bytes else 0.0


class Planner(GarbageWork):
    """Plans the collection of one life of a log."""

    @checked(limit_offset=optional(integer))
    def plan(self, limit_offset: int | None = None) -> Plan:
        """Plan to delete all that is below every cursor and ``limit_offset``, and that the policy does not keep.

        Changes nothing. The plan is empty when the policy only compacts the log. CollectionRefusedError when neither
        cursor nor policy says what can be deleted, or one cannot be read.
        """
        # Cursors before the manifest: they follow the log's end, which never moves back. A cursor that is moved below
        # the cutoff later is found by verify and prune; one that moves on makes the plan delete less than it could.
        policy, cursors = self._policy(), self._offsets()
        manifest = self._stores.manifests.load().manifest
        if not policy.collects:
            nothing = cut_below(manifest, manifest.first.position.offset, self._stores.snapshots.load)
            return self._plan(manifest, nothing, _uncollected(policy))
        candidates = self._candidates(manifest, policy, cursors)
        if limit_offset is not None:
            candidates["the limit given"] = limit_offset
        allowed = self._allowed(policy, cursors)
        cutoff, reason = self._cutoff(manifest, candidates if allowed else {})
        return self._plan(manifest, cut_below(manifest, cutoff, self._stores.snapshots.load), reason)

    @checked(plan=instance_of(Plan))
    def objects(self, plan: Plan) -> Iterator[str]:
        """Name every object that a plan deletes, in log order; each snapshot after what it holds."""
        cut = self._cut(self._stores.manifests.load().manifest, plan.first)
        yield from every_path(cut.dropped, self._stores.snapshots.load)
        yield from (pointer.path for pointer in cut.replaced)

    def _plan(self, manifest: Manifest, cut: Cut, reason: str) -> Plan:
        return Plan(
            log=self._stores.log,
            log_id=manifest.log_id,
            reason=reason,
            first=cut.first,
            setsum=sum_setsums(cut.dropped),
            num_fragments=count_fragments(cut.dropped),
            num_records=sum(pointer.num_records for pointer in cut.dropped),
            num_bytes=sum(pointer.num_bytes for pointer in cut.dropped),
            held_records=manifest.num_records,
            held_bytes=manifest.num_bytes,
        )

    def _offsets(self) -> dict[str, int]:
        try:
            return self._stores.cursors.offsets()
        except CorruptError as error:
            message = f"log {self._stores.url}: nothing is collected while a cursor cannot be read: {error}"
            raise CollectionRefusedError(message) from error

    def _allowed(self, policy: Policy, cursors: Mapping[str, int]) -> bool:
        """Tell whether a cursor says what was read, or the options or the policy allow that none does."""
        return is_consumed(cursors) or self._options.without_cursors or policy.without_cursors

    def _candidates(self, manifest: Manifest, policy: Policy, cursors: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets from which on the log is kept, by what keeps it."""
        following = manifest.next.position.offset
        candidates = {f"cursor {name}": offset for name, offset in cursors.items()}
        beyond = {name: offset for name, offset in candidates.items() if offset > following}
        if beyond:
            # An older manifest was restored, or the cursor was copied here: what it allows to collect is not known.
            raise CollectionRefusedError(
                f"log {self._stores.url}: expected cursors up to its end, {following}, found {beyond}:"
                f" delete or move them: nothing is collected until then"
            )
        if policy.retention_s is not None:
            kept = f"the first record younger than {policy.retention_s} s"
            candidates[kept] = first_younger(manifest, policy.retention_s, self._stores)
        return candidates

    def _policy(self) -> Policy:
        try:
            return self._stores.policies.load()
        except CorruptError as error:
            message = f"log {self._stores.url}: nothing is collected while its policy cannot be read: {error}"
            raise CollectionRefusedError(message) from error

    def _cutoff(self, manifest: Manifest, candidates: Mapping[str, int]) -> tuple[int, str]:
        following = manifest.next.position.offset
        if not candidates:
            message = (
                f"log {self._stores.url}: expected a cursor to say what is no longer needed, found none of a consumer:"
                " create one, or give the log a policy by which age alone decides, or one that keeps everything"
            )
            raise CollectionRefusedError(message, unclaimed=True)
        reason, offset = min(candidates.items(), key=lambda item: (item[1], item[0]))
        return min(offset, following), f"{reason} is at offset {offset}"

    @checked(plan=instance_of(Plan))
    def verify(self, plan: Plan) -> None:
        """Refuse a plan that deletes too much, or whose sums do not add up; CollectionRefusedError says which.

        Too much is more than ``fraction_max``, or the policy's ``percent_max``, of a log without a consumer's cursor.
        OutdatedPlanError when the log has changed since: plan again.
        """
        manifest = self._planned_on(plan).manifest
        fraction_max = max(self._options.fraction_max, (self._policy().percent_max or 0) / 100)
        if plan.fraction > fraction_max and not is_consumed(self._offsets()):
            raise CollectionRefusedError(
                f"log {self._stores.url}: expected to collect at most {fraction_max:.0%} of its bytes, as no consumer's"
                f" cursor says that they were read, found {plan.fraction:.1%} ({plan.num_bytes} of {plan.held_bytes}):"
                f" find out why, then allow it"
            )
        cut = self._cut(manifest, plan.first)
        dropped = sum_setsums(cut.dropped)
        balance = sum_setsums(cut.pointers) + manifest.pruned + dropped
        if balance != manifest.setsum:
            raise CollectionRefusedError(
                f"log {self._stores.url}: expected {manifest.setsum} in what is kept, pruned and dropped,"
                f" found {balance}"
            )
        if dropped != plan.setsum:
            raise OutdatedPlanError(
                f"log {self._stores.url}: planned to drop {plan.setsum}, found {dropped}: collected meanwhile, or"
                f" compacted"
            )
        for name, offset in self._offsets().items():
            if offset < plan.first.position.offset:
                raise OutdatedPlanError(
                    f"log {self._stores.url}: planned to begin at offset {plan.first.position.offset},"
                    f" found cursor {name} at {offset}"
                )

    def _planned_on(self, plan: Plan) -> Installed:
        """Load the manifest of the log that was planned for; LogReplacedError when another has its name."""
        base = self._stores.manifests.load()
        if base.manifest.log_id != plan.log_id:
            raise LogReplacedError(
                f"log {self._stores.url}: expected log {plan.log_id}, which was planned for, found log"
                f" {base.manifest.log_id}: plan again"
            )
        return base

    def _cut(self, manifest: Manifest, first: Boundary) -> Cut:
        """Cut at the planned place: the same fragments, in whatever snapshots they are now."""
        cut = cut_below(manifest, first.position.offset, self._stores.snapshots.load)
        if cut.first.seq_no != first.seq_no:
            message = f"log {self._stores.url}: planned to begin at fragment {first.seq_no}, found {cut.first.seq_no}"
            raise OutdatedPlanError(message)
        return cut

    def _kept_below(self, manifest: Manifest, first: Boundary) -> str | None:
        """Return what keeps records below an announced cutoff, None if nothing does. The plan may be long outdated."""
        policy, cursors = self._policy(), self._offsets()
        if not policy.collects:
            return _uncollected(policy)
        if not self._allowed(policy, cursors):
            return "no consumer has a cursor any more"
        if any(offset > manifest.next.position.offset for offset in cursors.values()):
            # A cursor has moved on since that manifest was read, onto records appended meanwhile.
            manifest = self._stores.manifests.load().manifest
        candidates = self._candidates(manifest, policy, cursors)
        below = {name: offset for name, offset in candidates.items() if offset < first.position.offset}
        return f"kept below offset {first.position.offset}: {below}" if below else None


def is_consumed(cursors: Iterable[str]) -> bool:
    """Tell whether a cursor says that all below it was read; that of a writer that repeats appends does not."""
    return not all(name.startswith(WRITER_CURSOR) for name in cursors)


def _uncollected(policy: Policy) -> str:
    """Say why collections prune nothing of a log."""
    return ONLY_COMPACTED if policy.compacts else KEPT_WHOLE


def first_younger(manifest: Manifest, retention_s: int, stores: LogStores) -> int:
    """Return the offset from which on records are younger than ``retention_s``.

    The store is asked for its time only when something is old by the process's clock.
    """
    load = stores.snapshots.load
    own_us, age_us = stores.runtime.now_us(), retention_s * US_PER_S
    offset = _first_after(manifest, own_us - age_us, load)
    if offset <= manifest.first.position.offset:
        return offset
    # A clock that is ahead would let records be deleted too early.
    store_us = stores.store_now_us()
    return offset if own_us <= store_us else _first_after(manifest, store_us - age_us, load)


def _first_after(manifest: Manifest, timestamp_us: int, load: Callable[[SnapshotPointer], Snapshot]) -> int:
    young = next(select(manifest.pointers, AtTime(max(0, timestamp_us)), UNLIMITED, load), None)
    return manifest.next.position.offset if young is None else young.start.offset


# ---------------------------------------------------------------------- announce, prune


@dataclass(frozen=True, slots=True)
class PrunedGarbage:
    """Pruned: nothing refers to what the garbage document at ``path`` names, and nothing will."""

    path: str
    garbage: Garbage


@dataclass(frozen=True, slots=True)
class NotPruned:
    """Nothing was pruned: a cursor is below the cutoff now, or the collection was withdrawn."""

    cause: str


class Collector(Planner):
    """Collects one log's garbage up to its prune; ``Deleter`` deletes an interval later.

    Every step may be repeated, resumed, and run by two at once.
    """

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
            raise UnavailableError(f"log {self._stores.url}: expected {path} to be new, found it")
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
        self._stores.manifests.withdraw(base, announcement, rebases_max=self._options.rebases_max)

    # ------------------------------------------------------------------ prune

    @checked(path=given_garbage_path)
    def prune(self, path: str) -> PrunedGarbage | NotPruned:
        """Advance ``first`` to the announced cutoff, unless records below it are kept now; note it in the document.

        Orphans are pruned once the fence has moved.
        """
        checked_for: Announcement | None = None
        seen: LoadedDocument[Garbage] | None = None
        uploaded: set[str] = set()
        for _ in range(self._options.rebases_max):
            # Document before manifest: a change of the document in between makes its save fail.
            seen = self._documents.load(path, seen)
            base = self._stores.manifests.load()
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
    ) -> PrunedGarbage | NotPruned | None:
        """Do what is left to do where nothing is left to prune; None when the document is announced."""
        manifest = base.manifest
        if seen is None:
            self._withdraw_lost(base)
            return NotPruned(f"{path} is gone")
        first = seen.document.first
        if first is None:
            return self._prune_orphans(path, base, seen)
        if manifest.first.seq_no >= first.seq_no:
            return self._set_pruned(path, seen)
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
            pruned = self._stores.manifests.install(base.manifest.apply_garbage(announcement, cut.pointers), base)
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

    # ------------------------------------------------------------------ set pruned

    def _set_pruned(self, path: str, seen: LoadedDocument[Garbage]) -> PrunedGarbage:
        """Record in the document that nothing refers to what it names: its age counts from now."""
        garbage = seen.document
        if not garbage.pruned:
            garbage = replace(garbage, generation=garbage.generation + 1, pruned=True)
            # Another collector may already have done it; or have deleted it as never announced.
            saved = self._documents.save(path, garbage, seen) or self._documents.load(path)
            saved = saved or self._documents.save(path, garbage, None)
            if saved is None or not saved.document.pruned:
                # Changed once more by a collector that has not seen the prune: the next one that reads it notes it.
                return PrunedGarbage(path, garbage)
            garbage = saved.document
        # After the document: a document with a hint is taken for pruned without being read.
        self._documents.hint(path)
        return PrunedGarbage(path, garbage)

    def _prune_orphans(self, path: str, base: Installed, seen: LoadedDocument[Garbage]) -> PrunedGarbage:
        """Move the fence, so that no upload begun before is linked any more, then prune what is still an orphan."""
        fence = base.manifest.fence
        if seen.document.pruned:
            return self._set_pruned(path, seen)
        self._change(base, lambda manifest: manifest.move_fence() if manifest.fence == fence else None)
        # An object linked before the fence moved is no orphan, nor is that of a pass installed before. If pruned later,
        # it stays an interval for readers.
        references = references_of(self._stores, self._stores.manifests.load().manifest)
        left = tuple(orphan for orphan in seen.document.orphans if not any_retains(references, orphan))
        COLLECT.info("log %s: %d orphans will be deleted; %s names them", self._stores.url, len(left), path)
        return self._set_pruned(path, LoadedDocument(replace(seen.document, orphans=left), seen.etag))

    def _change(self, base: Installed, change: Callable[[Manifest], Manifest | None]) -> None:
        self._stores.manifests.change(base, change, rebases_max=self._options.rebases_max)

    @checked(orphans=several, reason=text, token=optional(given_token))
    def prune_orphans(
        self, orphans: Sequence[str], reason: str, *, token: str | None = None
    ) -> PrunedGarbage | NotPruned:
        """Have orphans deleted an interval later, after making sure that nothing refers to them and nothing will.

        ``token`` is that of the key compaction that replaced them, if one did.
        """
        token = token or self._stores.runtime.token()
        garbage = Garbage(generation=1, token=token, reason=reason, first=None, orphans=tuple(orphans))
        self._documents.save(garbage.path, garbage, None)
        return self.prune(garbage.path)

    # ------------------------------------------------------------------ resume

    def resume_all(self) -> list[PrunedGarbage]:
        """Finish what other runs began, as ``resume_unpruned`` does; load every document that is pruned."""
        loaded = ((meta.path, self._documents.load(meta.path)) for meta in self.resume_unpruned())
        return [PrunedGarbage(path, seen.document) for path, seen in loaded if seen is not None]

    def resume_unpruned(self) -> list[ObjectMeta]:
        """Finish what other runs began: prune what is announced, delete the documents that never were.

        Returns the documents that are pruned. Those with a hint are not read: the cost is one listing. If the store
        denies what is to be finished, only these are returned: their deletion makes the space that it may need.
        """
        base, listed = self._stores.manifests.load(), self._documents.survey()
        for path in listed.left:
            self._documents.delete(path)
        pruned = [meta for meta in listed.documents if meta.path in listed.hinted]
        try:
            self._withdraw_lost(base)
            for meta in listed.documents:
                # It may have been pruned since it was listed: its age counts from then.
                if meta.path not in listed.hinted and self._resume(meta.path):
                    changed = self._documents.describe(meta.path)
                    pruned += [] if changed is None else [changed]
        except StoreDeniedError as error:
            if not pruned:
                raise
            COLLECT.warning("log %s: an earlier collection is not finished yet: %s", self.log, error)
        return pruned

    def _resume(self, path: str) -> bool:
        """Finish one collection that has no hint; return whether it is pruned now."""
        seen = self._documents.load(path)
        if seen is None:
            return False
        if seen.document.pruned:
            self._documents.hint(path)
            return True
        if isinstance(self.prune(path), PrunedGarbage):
            return True
        # Its snapshots, if it wrote any, are orphans.
        self._documents.delete(path)
        return False


def _announces(manifest: Manifest, path: str) -> bool:
    return manifest.announced is not None and manifest.announced.garbage == path


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionReport:
    """What a collection did: what it pruned, how many orphans, and what was deleted or waits."""

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
    documents = sorted(collector.resume_unpruned(), key=lambda meta: (meta.last_modified_us, meta.path))
    # Before anything is written: on a full disk, nothing else makes space.
    now_us = deleter.store_now_us() if options.interval_s and (documents or options.orphans_max) else None
    due = deleter.look(documents, now_us or 0)
    deleted = {each.path: each for each in deleter.delete_due(due, progress=progress)}
    waiting = (meta for meta in documents if not deleted[meta.path].finished)
    found = deleter.orphans(deleter.load(waiting), now_us=now_us)
    pruned = []
    if found:
        orphans = collector.prune_orphans(found, f"{len(found)} objects that nothing refers to")
        pruned += [orphans.path] if isinstance(orphans, PrunedGarbage) else []
    plan, path = _prune(collector, limit_offset, options.rounds_max)
    pruned += [] if path is None else [path]
    for path in pruned:
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
            case PrunedGarbage(path):
                return plan, path
            case NotPruned(cause):
                COLLECT.info("log %s: not pruned, to be planned again: %s", collector.log, cause)
                collector.resume_all()
    raise UnavailableError(f"log {collector.log}: not pruned in {rounds_max} tries: {cause}")
