"""Installs what a pass merged: announce, read the cursors again, replace the fragments by one CAS.

The order keeps it safe, as in a collection: a process that creates a cursor, or moves one back, writes it first and
then reads the manifest; if that announces a pass above the cursor, it withdraws the announcement. So one of the two
sees the other. Appends go on meanwhile. Keeps INV-41 and INV-44. Source: docs/protocol.md, "Key compaction".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.compaction.scope import cursor_offsets
from wal3_core.errors import InvalidRequestError, UnavailableError
from wal3_core.log.tree.splice import apply_splice, splice
from wal3_core.runtime import US_PER_S, map_ahead
from wal3_core.store.documents.manifest_store import Installed
from wal3_core.store.documents.snapshot_store import SnapshotMissingError
from wal3_core.store.object_store import share_of

if TYPE_CHECKING:
    from wal3_core.compaction.reports import KeyCompactorOptions
    from wal3_core.format.manifest import CompactionAnnouncement, Manifest
    from wal3_core.format.pass_record import PassRecord
    from wal3_core.format.snapshot import Snapshot
    from wal3_core.log.log_stores import LogStores
    from wal3_core.log.tree.splice import Spliced


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

        An announcement that is there already is made again: the clean mark's time counts from it.
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
        # Before the store's time is asked for: the clean mark is never earlier than the install, but for a moment.
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
            # The clean mark would be that much too early: its time is counted from another announcement.
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
