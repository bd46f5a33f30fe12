"""Collects one log's garbage, in steps that may each be repeated, resumed, and run by two at once.

The order keeps it safe, not the clock. The collection is announced in the manifest; then cursors are
read; then the manifest is pruned, by a CAS that succeeds only while the announcement stands. Whoever
creates a cursor or a pin, or moves a cursor back, writes it first and then looks at the manifest. One
of the two sees the other. What was pruned is deleted an interval later, object by object, and only
what no manifest and no pin refers to. Keeps INV-13 to INV-18. Source: docs/protocol.md, "Collection".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, make_plain, optional, several, text
from wal3_core.errors import CollectionRefusedError, CorruptError, LogReplacedError, OutdatedPlanError, UnavailableError
from wal3_core.log.references import References, every_path
from wal3_core.log.retention import first_younger
from wal3_core.model.garbage import Cut, Garbage, cut_below
from wal3_core.model.manifest import Intent, Manifest, Place
from wal3_core.model.paths import LogId, check_log_id, check_log_name, given_garbage_path
from wal3_core.model.setsum import Setsum
from wal3_core.model.snapshot import count_fragments, sum_setsums
from wal3_core.options import CollectorOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.storage.cursor_store import CursorStore
from wal3_core.storage.document_store import Seen
from wal3_core.storage.garbage_store import GarbageStore
from wal3_core.storage.manifest_store import Installed, ManifestStore
from wal3_core.storage.object_store import ObjectStore, log_store
from wal3_core.storage.opening import opening, options_of
from wal3_core.storage.patient import patient
from wal3_core.storage.policy_store import PolicyStore
from wal3_core.storage.retry import until_answered
from wal3_core.storage.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from wal3_core.model.policy import Policy
    from wal3_core.model.strict_json import Fields, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a collection would take, and why: nothing was changed for it.

    ``first`` is what the log would begin with; ``held_bytes`` and ``held_records`` are the log's now.
    """

    log: str
    log_id: LogId
    reason: str
    first: Place
    setsum: Setsum
    num_fragments: int
    num_records: int
    num_bytes: int
    held_records: int
    held_bytes: int

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, log=text, reason=text, first=instance_of(Place), setsum=instance_of(Setsum))
        make_plain(self, num_fragments=integer, num_records=integer, num_bytes=integer)
        make_plain(self, held_records=integer, held_bytes=integer)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take."""
        return self.num_fragments == 0

    @property
    def fraction(self) -> float:
        """The part of the log's bytes that would go."""
        return self.num_bytes / self.held_bytes if self.held_bytes else 0.0

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "log_id": self.log_id,
            "reason": self.reason,
            "first": self.first.to_json(),
            "setsum": self.setsum.hexdigest(),
            "num_fragments": self.num_fragments,
            "num_records": self.num_records,
            "num_bytes": self.num_bytes,
            "held_records": self.held_records,
            "held_bytes": self.held_bytes,
        }

    @classmethod
    def from_json(cls, fields: Fields) -> Plan:
        """Read from a JSON object."""
        plan = cls(
            log=fields.string("log"),
            log_id=check_log_id(fields.string("log_id"), fields.what),
            reason=fields.string("reason"),
            first=Place.from_json(fields.object("first")),
            setsum=Setsum.from_hexdigest(fields.string("setsum")),
            num_fragments=fields.integer("num_fragments"),
            num_records=fields.integer("num_records"),
            num_bytes=fields.integer("num_bytes"),
            held_records=fields.integer("held_records"),
            held_bytes=fields.integer("held_bytes"),
        )
        fields.finish()
        return plan


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
    """Plans and prunes; log/deleter.py deletes what was pruned."""

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
        self._objects, retry = store, self._options.retry
        inside = patient(log_store(store, log), self._runtime, retry)
        self._manifests = ManifestStore(inside, self._runtime, retry, log_id=log_id)
        self._snapshots = SnapshotStore(self._manifests, self._runtime, loaded_max=self._options.snapshots_loaded_max)
        self._documents = GarbageStore(self._manifests, self._runtime, retry)

    @cached_property
    def _cursors(self) -> CursorStore:
        """The cursors of the very log that is collected."""
        log_id, retry = self._manifests.log_id(), self._options.retry
        return CursorStore(self._objects, self.log, runtime=self._runtime, retry=retry, log_id=log_id)

    @cached_property
    def _policies(self) -> PolicyStore:
        log_id, retry = self._manifests.log_id(), self._options.retry
        return PolicyStore(self._objects, self.log, runtime=self._runtime, retry=retry, log_id=log_id)

    # ------------------------------------------------------------------ plan

    @checked(limit_offset=optional(integer))
    def plan(self, limit_offset: int | None = None) -> Plan:
        """Say what may go: all that lies below every cursor and ``limit_offset``, and that the policy lets go.

        Changes nothing. CollectionRefusedError when nothing says what may go, or can not be read.
        """
        policy = self._policy()
        base, cursors = self._stable()
        candidates = self._candidates(base.manifest, policy, cursors)
        if limit_offset is not None:
            candidates["the limit given"] = limit_offset
        allowed = self._allowed(policy, cursors)
        cutoff, reason = self._cutoff(base.manifest, candidates if allowed else {})
        cut = cut_below(base.manifest, cutoff, self._snapshots.load)
        return self._plan(base.manifest, cut, reason)

    @checked(plan=instance_of(Plan))
    def objects(self, plan: Plan) -> Iterator[str]:
        """Name every object that would go with a plan, in log order; each snapshot behind what it holds."""
        cut = self._cut(self._manifests.load().manifest, plan.first)
        yield from every_path(cut.dropped, self._snapshots.load)
        yield from (pointer.path for pointer in cut.replaced)

    def _plan(self, manifest: Manifest, cut: Cut, reason: str) -> Plan:
        return Plan(
            log=self.log,
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

    def _stable(self) -> tuple[Installed, Mapping[str, int]]:
        """Read the cursors the same before and after the manifest."""
        before = self._offsets()
        for _ in range(self._options.rounds_max):
            base = self._manifests.load()
            after = self._offsets()
            if before == after:
                return base, after
            before = after
        message = f"log {self._manifests.url}: cursors moved in each of {self._options.rounds_max} tries to read them"
        raise UnavailableError(message)

    def _offsets(self) -> dict[str, int]:
        try:
            return self._cursors.offsets()
        except CorruptError as error:
            message = f"log {self._manifests.url}: nothing is collected while a cursor can not be read: {error}"
            raise CollectionRefusedError(message) from error

    def _allowed(self, policy: Policy, cursors: Mapping[str, int]) -> bool:
        """Tell whether there is a cursor, or somebody who says that there need be none."""
        return bool(cursors) or self._options.without_cursors or policy.without_cursors

    def _candidates(self, manifest: Manifest, policy: Policy, cursors: Mapping[str, int]) -> dict[str, int]:
        """Say what keeps the log from which offset on."""
        following = manifest.next.position.offset
        candidates = {f"cursor {name}": offset for name, offset in cursors.items()}
        beyond = {name: offset for name, offset in candidates.items() if offset > following}
        if beyond:
            # It was another log's, destroyed since, and says nothing of this one.
            message = (
                f"log {self._manifests.url}: expected cursors up to its end, {following}, found {beyond}:"
                f" delete or move them: nothing is collected while they lie there"
            )
            raise CollectionRefusedError(message)
        if policy.retention_s is not None:
            kept = f"the first record younger than {policy.retention_s} s"
            candidates[kept] = first_younger(
                manifest, policy.retention_s, self._snapshots.load, self._manifests.objects, self._runtime
            )
        return candidates

    def _policy(self) -> Policy:
        try:
            return self._policies.load()
        except CorruptError as error:
            message = f"log {self._manifests.url}: nothing is collected while its policy can not be read: {error}"
            raise CollectionRefusedError(message) from error

    def _cutoff(self, manifest: Manifest, candidates: Mapping[str, int]) -> tuple[int, str]:
        following = manifest.next.position.offset
        if not candidates:
            message = (
                f"log {self._manifests.url}: expected a cursor to say what is not needed any more, found none:"
                " create one, or let the log's policy say that it has none and how long records are kept"
            )
            raise CollectionRefusedError(message)
        reason, offset = min(candidates.items(), key=lambda item: (item[1], item[0]))
        return min(offset, following), f"{reason} is at offset {offset}"

    @checked(plan=instance_of(Plan))
    def verify(self, plan: Plan) -> None:
        """Refuse a plan that takes too much, or whose sums do not add up; CollectionRefusedError says which.

        OutdatedPlanError when the log has changed since: what is refused then may be right once planned anew.
        """
        manifest = self._planned_on(plan).manifest
        fraction_max = max(self._options.fraction_max, (self._policy().percent_max or 0) / 100)
        if plan.fraction > fraction_max:
            message = (
                f"log {self._manifests.url}: expected to collect at most {fraction_max:.0%} of its bytes,"
                f" found {plan.fraction:.1%} ({plan.num_bytes} of {plan.held_bytes}): look why, then allow it"
            )
            raise CollectionRefusedError(message)
        cut = self._cut(manifest, plan.first)
        dropped = sum_setsums(cut.dropped)
        balance = sum_setsums(cut.pointers) + manifest.pruned + dropped
        if balance != manifest.setsum:
            message = (
                f"log {self._manifests.url}: expected {manifest.setsum} in what is kept, pruned and dropped,"
                f" found {balance}"
            )
            raise CollectionRefusedError(message)
        if dropped != plan.setsum:
            message = f"log {self._manifests.url}: planned to drop {plan.setsum}, found {dropped}: collected meanwhile"
            raise OutdatedPlanError(message)
        self._refuse_held(plan.first)

    def _planned_on(self, plan: Plan) -> Installed:
        """Load the manifest of the very log that was planned for; LogReplacedError when it is another one."""
        base = self._manifests.load()
        if base.manifest.log_id != plan.log_id:
            message = (
                f"log {self._manifests.url}: expected log {plan.log_id}, which was planned for, found log"
                f" {base.manifest.log_id}: plan again"
            )
            raise LogReplacedError(message)
        return base

    def _cut(self, manifest: Manifest, first: Place) -> Cut:
        """Cut at the planned place; the same fragments go, in whatever snapshots they are by now."""
        cut = cut_below(manifest, first.position.offset, self._snapshots.load)
        if cut.first.seq_no != first.seq_no:
            message = (
                f"log {self._manifests.url}: planned to begin at fragment {first.seq_no}, found {cut.first.seq_no}"
            )
            raise OutdatedPlanError(message)
        return cut

    def _refuse_held(self, first: Place) -> None:
        for name, offset in self._offsets().items():
            if offset < first.position.offset:
                message = (
                    f"log {self._manifests.url}: planned to begin at offset {first.position.offset},"
                    f" found cursor {name} at {offset}"
                )
                raise OutdatedPlanError(message)

    @checked(plan=instance_of(Plan))
    def announce(self, plan: Plan) -> str:
        """Write down what goes and announce it in the manifest; return the garbage document's path.

        From here on nobody can create a cursor below. A collection announced before is withdrawn.
        OutdatedPlanError when somebody else has collected meanwhile.
        """
        base = self._planned_on(plan)
        cut = self._cut(base.manifest, plan.first)
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

    def _announcing(self, manifest: Manifest, path: str, first: Place) -> Manifest | None:
        if _announced(manifest, path):
            return None
        if manifest.first.seq_no >= first.seq_no:
            message = f"log {self._manifests.url}: planned to begin at fragment {first.seq_no}, found it begin there"
            raise OutdatedPlanError(message)
        return manifest.apply_intent(path, first)

    @checked(orphans=several, reason=text)
    def condemn(self, orphans: Sequence[str], reason: str) -> Pruned | Overtaken:
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
        checked: Intent | None = None
        uploaded: set[str] = set()
        for _ in range(self._options.rebases_max):
            # Document before manifest: who changed it in between is found out when it is saved.
            seen = self._documents.load(path)
            base = self._manifests.load()
            ended = self._ended(path, seen, base)
            if ended is not None:
                return ended
            intent = base.manifest.collecting
            assert seen is not None
            assert intent is not None
            if intent != checked:
                # After the announcement: a cursor created since has seen it. Once: with writers about, the manifest
                # has moved on by the time that cursors are read, and again each time.
                kept = self._kept_below(base.manifest, intent.first)
                if kept is not None:
                    self._withdraw(base, intent)
                    return Overtaken(kept)
                checked = intent
                continue
            try:
                self._prune_onto(base, intent, seen, uploaded)
            except CollectionRefusedError as error:
                # It would stand in the way of every later one.
                self._withdraw(base, intent)
                return Overtaken(str(error))
        message = f"log {self._manifests.url}: not pruned: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)

    def _kept_below(self, manifest: Manifest, first: Place) -> str | None:
        """Tell what keeps a part of what was announced: it may have been planned long ago, and by somebody else."""
        policy, cursors = self._policy(), self._offsets()
        if not self._allowed(policy, cursors):
            return "there is no cursor any more"
        candidates = self._candidates(manifest, policy, cursors)
        below = {name: offset for name, offset in candidates.items() if offset < first.position.offset}
        return f"kept below offset {first.position.offset}: {below}" if below else None

    def _ended(self, path: str, seen: Seen[Garbage] | None, base: Installed) -> Pruned | Overtaken | None:
        """Tell what came of a collection; None while it is announced and not pruned."""
        if seen is None:
            self._withdraw_lost(base)
            return Overtaken(f"{path} is gone")
        first = seen.document.first
        if first is None:
            return self._condemn(path, base, seen)
        if base.manifest.first.seq_no >= first.seq_no:
            return self._mark_pruned(path, seen)
        if not _announced(base.manifest, path):
            return Overtaken("another collection was announced, or this one withdrawn")
        return None

    def _prune_onto(self, base: Installed, intent: Intent, seen: Seen[Garbage], uploaded: set[str]) -> None:
        """Try one CAS, or do what must come before one; the caller looks what came of it."""
        cut = self._cut(base.manifest, intent.first)
        # Snapshots first: the manifest must not refer to what is not there.
        parts = {part.pointer_to(part.to_bytes()).path: part for part in cut.written}
        garbage = replace(seen.document, dropped=cut.dropped, replaced=cut.replaced)
        if parts.keys() <= uploaded and garbage == seen.document:
            self._manifests.install(base.manifest.apply_garbage(intent, cut.pointers), base)
            return
        for path in parts.keys() - uploaded:
            self._snapshots.write(parts[path], self._options.retry)
            uploaded.add(path)
        if garbage != seen.document:
            # What goes in the tree as it is by now.
            self._documents.save(intent.garbage, replace(garbage, generation=garbage.generation + 1), seen)

    def _mark_pruned(self, path: str, seen: Seen[Garbage]) -> Pruned:
        """Say in the document that nothing refers to it any more: its age counts from now."""
        garbage = seen.document
        if not garbage.pruned:
            garbage = replace(garbage, generation=garbage.generation + 1, pruned=True)
            # Somebody else may be as quick, which is as good; or have taken it for one that nobody would announce.
            if self._documents.save(path, garbage, seen) is None and self._documents.load(path) is None:
                self._documents.save(path, garbage, None)
        return Pruned(path, garbage)

    def _condemn(self, path: str, base: Installed, seen: Seen[Garbage]) -> Pruned:
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

    def _withdraw(self, base: Installed, intent: Intent) -> None:
        self._change(base, lambda manifest: manifest.withdraw_intent(intent) if manifest.collecting == intent else None)

    def _change(self, base: Installed, change: Callable[[Manifest], Manifest | None]) -> None:
        """Change the manifest by CAS, until it is done or there is nothing to change any more."""
        for _ in range(self._options.rebases_max):
            changed = change(base.manifest)
            if changed is None or isinstance(self._manifests.install(changed, base), Installed):
                return
            base = until_answered(self._manifests.load, self._options.retry, self._runtime)
        message = f"log {self._manifests.url}: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)

    # ------------------------------------------------------------------ what is there already

    def settle(self) -> list[Pruned]:
        """Finish what other runs began: resume what is announced, forget what never was, list what is pruned."""
        self._withdraw_lost(self._manifests.load())
        pruned = []
        for meta in self._documents.list():
            path, seen = meta.path, self._documents.load(meta.path)
            if seen is None:
                continue
            if seen.document.pruned:
                pruned.append(Pruned(path, seen.document))
                continue
            outcome = self.prune(path)
            if isinstance(outcome, Pruned):
                pruned.append(outcome)
            else:
                # Its snapshots, if it wrote any, are orphans.
                self._documents.delete(path)
        return pruned

    def _withdraw_lost(self, base: Installed) -> None:
        """Withdraw an announcement whose document is gone: nobody can carry it out."""
        intent = base.manifest.collecting
        if intent is not None and self._documents.load(intent.garbage) is None:
            self._withdraw(base, intent)


def _announced(manifest: Manifest, path: str) -> bool:
    return manifest.collecting is not None and manifest.collecting.garbage == path
