"""Compacts one log by key: plan, merge, install, name what was replaced as garbage. Appends go on meanwhile.

The order keeps an install safe, as that of a collection: announce, read the cursors again, replace the fragments by one
CAS. Keeps INV-41 and INV-44. Source: docs/protocol/compaction.md, "Key compaction".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from wal3_core.arguments import checked, flag, function, integer, optional, record_bytes
from wal3_core.compaction.engine import Engine, LocalEngine, Merged, Merging, Work, an_engine
from wal3_core.compaction.reports import KeyCompactionPlan, KeyCompactionReport, KeyInstallReport
from wal3_core.compaction.scope import (
    Group,
    KeyRollups,
    PassLosses,
    PassScope,
    cursor_offsets,
    find_all,
    group,
    leaves_out,
    outline,
    read_scope,
    select_rows,
    within_record,
)
from wal3_core.compaction.verifying import Receipt, Verification, receipt_of, verify_pass
from wal3_core.errors import InvalidRequestError, KeyCompactionRefusedError, MissingError, UnavailableError
from wal3_core.format.manifest import CompactionAnnouncement, Manifest
from wal3_core.format.pass_record import PassRecord, Proof
from wal3_core.format.paths import check_log_name, given_token
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import Snapshot, sum_setsums
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import References
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.scan import select
from wal3_core.log.tree.splice import Spliced, apply_splice, splice
from wal3_core.options import POINTERS_MAX, UNLIMITED, KeyCompactorOptions
from wal3_core.runtime import US_PER_S, Runtime, map_ahead, shared_runtime
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.documents.pass_store import PassStore
from wal3_core.store.documents.snapshot_store import SnapshotMissingError
from wal3_core.store.object_store import ObjectStore, a_store, share_of

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A plan, and what it takes to carry it out.

    There is more to do than one pass can record: ``partial``, behind what it does; ``skips``, before that, too.
    """

    plan: KeyCompactionPlan
    scope: PassScope
    groups: tuple[Group, ...]
    found: PassLosses[Any] | None
    rollups: KeyRollups
    partial: bool = False
    skips: bool = False


class KeyCompactor:
    """Keeps the newest record of every key of one log, or arranges its records by key, or both: as its policy says."""

    @checked(store=a_store, log=check_log_name, engine=optional(an_engine))
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: KeyCompactorOptions | None = None,
        runtime: Runtime | None = None,
        engine: Engine | None = None,
    ) -> None:
        self.log = check_log_name(log)
        self._store = store
        self._runtime = runtime or shared_runtime()
        self._options = options = options or KeyCompactorOptions()
        self._stores = LogStores(
            store, log, runtime=self._runtime, retry=options.retry, snapshots_loaded_max=options.snapshots_loaded_max
        )
        self._passes = PassStore(self._stores.manifests, self._runtime, options.retry)
        self._engine: Engine = engine or LocalEngine()

    # ------------------------------------------------------------------ plan

    @checked(limit_offset=optional(integer), force=flag)
    def plan(self, *, limit_offset: int | None = None, force: bool = False) -> KeyCompactionPlan:
        """Return what a pass would do now, in exact numbers of records; changes nothing.

        A pass that is not due is planned no further than that, unless ``force`` is set. KeyCompactionRefusedError when
        the log's policy does not compact, or a cursor cannot be read.
        """

        def planned() -> KeyCompactionPlan:
            with self._engine.open(self._stores, self._options) as work:
                return self._prepare(work, limit_offset, force=force).plan

        return self._again(planned)

    @checked(limit_offset=optional(integer))
    def outline(self, *, limit_offset: int | None = None) -> KeyCompactionPlan:
        """Return what is known of a plan before any key is read: a few requests, whether or not a pass is due.

        Raises what ``plan`` raises.
        """
        return outline(self.log, read_scope(self._stores, limit_offset))

    def _prepare(self, work: Work[Any, Any], limit_offset: int | None, *, force: bool) -> _Prepared:
        scope = read_scope(self._stores, limit_offset)
        rollups = KeyRollups(self._stores, self._options)
        plan = outline(self.log, scope)
        if plan.due is None and force and plan.limit > plan.first:
            plan = replace(plan, due="it is forced")
        if plan.due is None:
            return _Prepared(plan, scope, (), None, rollups)
        # A forced pass looks for what an earlier version recorded as swept, too.
        scope = replace(scope.with_leaves(self._stores.snapshots.load), sweeps=scope.sweeps or force)
        selected = select_rows(scope, work, rollups)
        found = find_all(scope, selected, work, rollups.columns)
        target = scope.policy.compaction_limits.compacted_fragment_bytes
        every = tuple(group(scope.fragments, found.counts, bytes_target=target, arranged_limit=scope.arranged_limit))
        groups = tuple(within_record(every))
        members = [member for each in groups for member in each.members]
        plan = replace(
            plan,
            num_fragments=sum(len(leaf.fragments) for leaf in scope.leaves),
            num_read=selected.num_read,
            num_superseded=sum(part.lost.superseded for each in groups for part in each.parts),
            num_expired=sum(part.lost.expired for each in groups for part in each.parts),
            num_groups=len(groups),
            num_rewritten=len(members),
            bytes_rewritten=sum(member.num_bytes for member in members),
        )
        skips = leaves_out(groups, found.counts)
        return _Prepared(plan, scope, groups, found, rollups, partial=len(groups) < len(every), skips=skips)

    # ------------------------------------------------------------------ pass

    @checked(limit_offset=optional(integer), force=flag, dry_run=flag, progress=function)
    def compact(
        self,
        *,
        limit_offset: int | None = None,
        force: bool = False,
        dry_run: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> KeyCompactionReport:
        """Run a pass if one is due, or if ``force`` is set; ``limit_offset`` keeps it below an offset.

        ``dry_run`` reads and merges all the same, but writes nothing. ``progress`` gets the number of groups merged and
        of all. KeyCompactionRefusedError when the log's policy does not compact, or a cursor cannot be read;
        UnavailableError when others get in the way too often. Whatever fails, the log stays as it was or has the whole
        result, and may be compacted again at once.
        """
        if not dry_run:
            self._stores.policies.align_keyed()
        cause, overtaken = "", 0
        for _ in range(self._options.plans_max):
            work = partial(self._pass, limit_offset, force=force, write=not dry_run, progress=progress)
            report, record, rollups = self._again(work)
            report = replace(report, num_overtaken=overtaken)
            if record is None:
                return report
            installed = self._install(record, rollups)
            if installed.overtaken is None:
                return replace(report, installed=True, garbage=installed.garbage)
            cause, overtaken = installed.overtaken, overtaken + 1
            MAINTAIN.info("log %s: not compacted, to be planned again: %s", self._stores.url, cause)
        raise UnavailableError(f"log {self._stores.url}: not compacted in {overtaken} tries: {cause}")

    @checked(limit_offset=optional(integer), force=flag, progress=function)
    def merge(
        self,
        *,
        limit_offset: int | None = None,
        force: bool = False,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> KeyCompactionReport:
        """Do what ``compact`` does before it changes the log; ``install`` does the rest, given the report's token.

        The log holds the pass's record by then. Until it is installed nothing leads to what was written: a pass that is
        dropped leaves orphans.
        """
        self._stores.policies.align_keyed()
        return self._again(partial(self._pass, limit_offset, force=force, write=True, progress=progress))[0]

    @checked(token=given_token)
    def install(self, token: str) -> KeyInstallReport:
        """Install a merged pass, in this process or another one, now or later; once, however often this is called.

        It is overtaken if anything changed that it depends on: a cursor, the policy, another pass, or orphans that were
        marked for deletion. Then it is merged again. MissingError when there is no such pass, or when it was not
        installed for so long that a collection has deleted what it left.
        """
        record = self._passes.load(token)
        if not self._passes.is_installed(record):
            return self._install(record, KeyRollups(self._stores, self._options))
        replaced = tuple(member.path for each in record.replacements for member in each.members)
        # The process that installed it may have died before it named these as garbage.
        garbage = () if not replaced or self._passes.is_pruned(token) else self._write_garbage(replaced, token)
        return KeyInstallReport(log=self.log, record=record, repeated=True, garbage=garbage)

    def _install(self, record: PassRecord, rollups: KeyRollups) -> KeyInstallReport:
        installer = Installer(self._stores, self._options, record)
        outcome = installer.install()
        if isinstance(outcome, str):
            return KeyInstallReport(log=self.log, record=record, overtaken=outcome)
        rollups.leave(outcome, record.limit)
        return KeyInstallReport(
            log=self.log, record=record, garbage=self._write_garbage([*installer.replaced], record.token)
        )

    def _pass(
        self, limit_offset: int | None, *, force: bool, write: bool, progress: Callable[[int, int], None]
    ) -> tuple[KeyCompactionReport, PassRecord | None, KeyRollups]:
        """Plan and merge, and write the record if anything is to be installed."""
        with self._engine.open(self._stores, self._options) as work:
            prepared = self._prepare(work, limit_offset, force=force)
            if prepared.plan.due is None:
                return KeyCompactionReport(plan=prepared.plan, proof=Proof()), None, prepared.rollups
            token = self._runtime.token()
            merging = Merging(token=token, write=write, arrange=prepared.scope.policy.arrange_by_key)
            assert prepared.found is not None
            merged: list[Merged] = []
            groups = work.merge(prepared.groups, prepared.found.losses, merging)
            for number, replacements in enumerate(groups, start=1):
                merged += replacements
                progress(number, len(prepared.groups))
        report = replace(_report(prepared, merged), retried=work.retried)
        if not write:
            return report, None, prepared.rollups
        record = _record(prepared, merged, report, token)
        self._passes.write(record)
        return replace(report, token=token), record, prepared.rollups

    def _again(self, work: Callable[[], T]) -> T:
        """Do work, again each time that an object which it was to read was replaced meanwhile."""
        cause = ""
        for _ in range(self._options.plans_max):
            try:
                return work()
            except MissingError as error:
                cause = self._why_gone(error)
                MAINTAIN.info("log %s: to be planned again: %s", self._stores.url, cause)
        raise UnavailableError(f"log {self._stores.url}: not planned in {self._options.plans_max} tries: {cause}")

    def _why_gone(self, error: MissingError) -> str:
        """Return why an object that was to be read is gone; raises the error if the log still leads to the object.

        Collections and other passes may replace what a plan read, and delete it an interval later.
        """
        manifest = self._stores.manifests.load().manifest
        if References([manifest.pointers], self._stores.snapshots.load, partly_deleted=True).retains(error.path):
            raise error
        return f"what it read was replaced meanwhile: {error}"

    # ------------------------------------------------------------------ afterwards

    def verify(self) -> Verification | None:
        """Verify the last pass from storage, independently of what it computed; None when there was none."""
        # Of this version of the log, whichever passes are installed meanwhile: a later one may have dropped what says
        # why this one dropped a record.
        manifest = self._stores.manifests.load().manifest
        record = self._passes.last_of(manifest)
        if record is None:
            return None
        held = [
            pointer
            for pointer in select(manifest.pointers, None, UNLIMITED, self._stores.snapshots.load)
            if pointer.start.offset < record.limit
        ]
        bytes_max = self._options.fragment_expanded_bytes_max
        return verify_pass(self._stores.objects, self.log, record, held, expanded_bytes_max=bytes_max)

    @checked(token=given_token)
    def record(self, token: str) -> PassRecord:
        """Load the record of a pass that was merged, or installed. MissingError when there is no such pass."""
        return self._passes.load(token)

    @checked(key=record_bytes)
    def erased(self, key: bytes) -> Receipt:
        """Say which records of a key were dropped, as far as is known, and what became of their objects."""
        return receipt_of(self._stores.objects, self._passes, self._stores.manifests.load().manifest.compaction, key)

    def _write_garbage(self, replaced: Sequence[str], token: str) -> tuple[str, ...]:
        """Name what was replaced in garbage documents, for deletion; what a failure leaves out is found as orphans."""
        collector = Collector(self._store, self.log, runtime=self._runtime, log_id=self._stores.manifests.log_id())
        parts = [replaced[at : at + POINTERS_MAX] for at in range(0, len(replaced), POINTERS_MAX)]
        pruned = []
        for number, part in enumerate(parts, start=1):
            reason = f"replaced by key compaction, pass {token}"
            # By its token the last document, and so the end of them all, is recognised when it is deleted.
            last = token if number == len(parts) else None
            try:
                outcome = collector.prune_orphans(part, reason, token=last)
            except UnavailableError as error:
                MAINTAIN.warning("log %s: replaced objects are left as orphans: %s", self._stores.url, error)
                break
            pruned += [outcome.path] if isinstance(outcome, PrunedGarbage) else []
        return tuple(pruned)


def _report(prepared: _Prepared, merged: Sequence[Merged]) -> KeyCompactionReport:
    written = sum_setsums(each.replacement.pointer for each in merged)
    replaced = {member.path for each in merged for member in each.replacement.members}
    left = sum_setsums(pointer for pointer in prepared.scope.fragments if pointer.path not in replaced)
    proof = Proof(
        before=sum_setsums(prepared.scope.fragments),
        after=left + written,
        superseded=sum((each.superseded for each in merged), start=EMPTY),
        expired=sum((each.expired for each in merged), start=EMPTY),
        merged=written,
    )
    found = (sum(each.num_superseded for each in merged), sum(each.num_expired for each in merged))
    wanted = (prepared.plan.num_superseded, prepared.plan.num_expired) if prepared.scope.policy.compacts else (0, 0)
    if not proof.holds or found != wanted:
        # A record that stays, too, would be believed to be gone: each key would have one below a clean prefix.
        message = f"log {prepared.plan.log}: nothing was changed: expected to drop {wanted}, found {found}, {proof}"
        raise KeyCompactionRefusedError(message)
    return KeyCompactionReport(
        plan=prepared.plan,
        proof=proof,
        num_superseded=found[0],
        num_expired=found[1],
        num_merged=sum(each.replacement.pointer.num_records for each in merged),
        num_written=len(merged),
        bytes_read=sum(member.num_bytes for each in merged for member in each.replacement.members),
        bytes_written=sum(each.replacement.pointer.num_bytes for each in merged),
    )


def _record(prepared: _Prepared, merged: Sequence[Merged], report: KeyCompactionReport, token: str) -> PassRecord:
    scope, found = prepared.scope, prepared.found
    assert found is not None
    return PassRecord(
        log_id=scope.manifest.log_id,
        number=scope.manifest.compaction.passes + 1,
        token=token,
        before=scope.manifest.compaction.token,
        timestamp_us=scope.now_us,
        first=scope.manifest.first.position.offset,
        limit=scope.limit,
        clean_limit=scope.clean_limit,
        expired_below=found.swept,
        num_superseded=report.num_superseded,
        num_expired=report.num_expired,
        fence=scope.manifest.fence,
        policy=scope.policy.digest,
        proof=report.proof,
        replacements=tuple(each.replacement for each in merged),
        partial=prepared.partial or prepared.skips,
        arranged=_arranged(prepared),
        keeps_all=not scope.policy.compacts,
    )


def _arranged(prepared: _Prepared) -> int:
    """Return the offset below which everything will be arranged by key; 0 if the pass does not arrange."""
    scope = prepared.scope
    if scope.arranged_limit is None or prepared.skips:
        return scope.arranged_limit or 0
    # All before the last group that fits is arranged, or is so by it.
    done = prepared.groups[-1].members[-1].limit.offset if prepared.partial else scope.limit
    return max(scope.arranged_limit, done)


# ---------------------------------------------------------------------- install

# Correct clocks differ by less while a pass is installed.
_CLOCKS_APART_S = 60


class Installer:
    """Installs one pass, of which the log holds the record."""

    def __init__(self, stores: LogStores, options: KeyCompactorOptions, record: PassRecord) -> None:
        self._stores = stores
        self._manifests = stores.manifests
        self._options = options
        self._record = record
        self._token = record.token
        self._uploaded: set[str] = set()
        # What nothing leads to any more, once it is installed: an ordered set of paths.
        self.replaced: dict[str, None] = {}
        # The announcement after which cursors and policy were read.
        self._checked: CompactionAnnouncement | None = None
        self._announced_us = 0
        # When it was announced, by this process's clocks.
        self._since_s = 0.0
        self._since_us = 0

    def install(self) -> Manifest | str:
        """Install the replacements, and that everything below the pass's limit is clean, or arranged by key.

        Returns the manifest with that, or why nothing was installed, and nothing ever will be.
        """
        cause = self._announce()
        if cause is not None:
            return cause
        for _ in range(self._options.rebases_max):
            base = self._manifests.load()
            if base.manifest.compaction.token == self._token:
                # A CAS of ours without an answer was applied.
                return base.manifest
            cause = self._hindrance(base.manifest)
            if cause is not None:
                return self._withdrawn(base, cause)
            try:
                installed = self._try(base)
            except InvalidRequestError as error:
                return self._withdrawn(base, str(error))
            if installed is not None:
                return installed.manifest
        message = f"log {self._stores.url}: not compacted: the manifest changed {self._options.rebases_max} times over"
        raise UnavailableError(message)

    # ------------------------------------------------------------------ announce

    def _announce(self) -> str | None:
        """Announce the install; return the cause if it will never be done.

        An announcement that is there already is made again: the clean prefix's time counts from it.
        """
        # No cursor needs to withdraw what drops nothing: one of a writer is only ever put at the log's end.
        limit = 0 if self._record.keeps_all else self._record.limit
        base = self._manifests.load()
        cause = self._outdated(base.manifest)
        if cause is not None:
            # Announced, it would withdraw a pass that can still be installed.
            return cause
        rebases_max = self._options.rebases_max
        self._manifests.change(
            base, lambda manifest: manifest.announce_compaction(self._token, limit), rebases_max=rebases_max
        )
        # Before the store's time is asked for: the clean prefix is never earlier than the install, but for a moment.
        self._since_s, self._since_us = self._stores.runtime.monotonic_s(), self._stores.runtime.now_us()
        self._announced_us = self._manifests.changed_us()
        return None

    def _forbidden(self) -> str | None:
        limit = self._record.limit
        cursors = cursor_offsets(self._stores, keeps_all=self._record.keeps_all)
        below = {name: offset for name, offset in cursors.items() if offset < limit}
        if below:
            return f"cursors below offset {limit}: {below}"
        if self._stores.policies.load().digest != self._record.policy:
            return "the policy was changed"
        return None

    def _hindrance(self, manifest: Manifest) -> str | None:
        """Return why the result cannot be installed on this version."""
        announced = manifest.compacting
        if announced is None or announced.token != self._token:
            return self._outdated(manifest) or "a new cursor, a changed policy or another pass withdrew it"
        cause = self._outdated(manifest)
        if cause is None and announced != self._checked:
            # After the announcement: a cursor created since has seen it. Another process may have made this one, after
            # a cursor withdrew ours.
            cause, self._checked = self._forbidden(), announced
        return cause

    def _outdated(self, manifest: Manifest) -> str | None:
        """Return why the result will never be installed."""
        record, compaction = self._record, manifest.compaction
        if manifest.log_id != record.log_id:
            return "another log has its name now"
        if (compaction.passes + 1, compaction.token) != (record.number, record.before):
            return "another pass was installed"
        if manifest.fence != record.fence:
            # What nothing referred to may be deleted: the new fragments were among it.
            return "orphans were marked for deletion"
        return None

    def _withdrawn(self, base: Installed, cause: str) -> str:
        def withdraw(manifest: Manifest) -> Manifest | None:
            ours = manifest.compacting is not None and manifest.compacting.token == self._token
            return manifest.withdraw_compaction() if ours else None

        self._manifests.change(base, withdraw, rebases_max=self._options.rebases_max)
        return cause

    # ------------------------------------------------------------------ install

    def _try(self, base: Installed) -> Installed | None:
        """Try one CAS; None when it was not done, or has no answer."""
        if self._was_suspended():
            # The clean prefix would be that much too early: its time is counted from another announcement.
            self._announce()
            return None
        record, replacements = self._record, self._record.replacements
        try:
            spliced = splice(base.manifest, replacements, self._options.snapshots, self._stores.snapshots.load)
        except SnapshotMissingError as missing:
            self._manifests.load_newer(base, missing)
            return None
        # Snapshots first: the manifest must not refer to missing objects.
        self._upload(spliced)
        # What was tried before may be what was applied: whatever nothing leads to in the end is deleted.
        self.replaced |= dict.fromkeys(spliced.replaced)
        limit, swept = (0, 0) if record.partial or record.keeps_all else (record.limit, record.expired_below)
        compaction = base.manifest.compaction.passed(
            self._token, limit, self._now_us(), swept=swept, arranged=record.arranged
        )
        changed = apply_splice(base.manifest, spliced, replacements, compaction)
        outcome = self._manifests.install(changed, base)
        return outcome if isinstance(outcome, Installed) else None

    def _now_us(self) -> int:
        """Return the store's time: that of the announcement, and what has passed since."""
        return self._announced_us + self._passed_us()

    def _passed_us(self) -> int:
        return int((self._stores.runtime.monotonic_s() - self._since_s) * US_PER_S)

    def _was_suspended(self) -> bool:
        """Tell whether the monotonic clock seems to have stood still since then; or the other one was set."""
        own_us = self._stores.runtime.now_us() - self._since_us
        return abs(own_us - self._passed_us()) > _CLOCKS_APART_S * US_PER_S

    def _upload(self, spliced: Spliced) -> None:
        def write(snapshot: Snapshot) -> str:
            return self._stores.snapshots.write(snapshot, self._options.retry).path

        # Those of a busy log's earlier tries are the same, but for those beside its newest fragments.
        new = [each for each in spliced.written if each.pointer_to(each.to_bytes()).path not in self._uploaded]
        share = share_of(self._stores.objects)
        count = self._options.requests_ahead
        self._uploaded.update(map_ahead(self._stores.runtime, write, new, count=count, share=share))
