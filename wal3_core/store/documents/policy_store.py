"""A log's policy on storage: one document, swapped by CAS.

A change writes the policy first and reads the manifest afterwards: an announced collection may have used the
earlier policy, and is withdrawn (INV-14). The manifest is ``keyed`` while the policy has passes go over the log, and
has the policy's ``view``.
Source: docs/protocol/collection.md, "Policies".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from wal3_core.arguments import checked, function, wrong
from wal3_core.errors import InvalidRequestError, UnavailableError
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import POLICY, is_dirty_log
from wal3_core.format.policy import Policy
from wal3_core.store.documents.document_store import DocumentStore, LoadedDocument
from wal3_core.store.documents.manifest_store import Installed, LifeStore
from wal3_core.store.object_store import Unknown

# The tries of a change: enough for two people who change one policy at the same time.
_TRIES_MAX = 16


class PolicyStore(LifeStore):
    """The policy of one life of a log: that of ``log_id``, or else the first one found."""

    def _open(self) -> None:
        log_id = self._manifests.log_id
        self._documents = DocumentStore(
            self._store, self._runtime, self._retry, Policy.from_bytes, bytes_max=Policy.BYTES_MAX, log_id=log_id
        )

    def load(self) -> Policy:
        """Load the policy; the default one when none was ever saved."""
        seen = self._seen()
        return Policy() if seen is None else seen.document

    def saved(self) -> Policy | None:
        """Load the policy; None when none was ever saved. Does not check that the log still exists."""
        seen = self._documents.load(POLICY)
        return None if seen is None else seen.document

    def _seen(self) -> LoadedDocument[Policy] | None:
        seen = self._documents.load(POLICY)
        if seen is None:
            # Perhaps because the log is gone: that is an error.
            self._manifests.load()
        return seen

    @checked(change=function)
    def change(self, change: Callable[[Policy], Policy]) -> Policy:
        """Apply ``change`` to the current policy; InvalidRequestError for a policy that is not valid.

        Everything that the log holds when this returns is collected by the new policy, or not at all. If
        compactions go over the log, an append that begins after this has to have a key; if it has a view, to be its.
        LogReplacedError when the name now leads to another log.
        """
        for _ in range(_TRIES_MAX):
            seen = self._seen()
            before = Policy() if seen is None else seen.document
            wanted = change(before)
            if not isinstance(wanted, Policy):
                raise wrong("change", "a Policy to be returned", wanted)
            changed = replace(wanted, generation=before.generation + 1)
            changed.check()
            self._check_markers_stay(changed)
            saved = self._documents.swap(POLICY, changed, None if seen is None else seen.etag)
            if isinstance(saved, LoadedDocument):
                base = self._manifests.load()
                self._withdraw_announced(base)
                self._set_keyed(saved.document, base)
                return saved.document
            if isinstance(saved, Unknown):
                # The other version may be a change of this one, which must not be made twice.
                raise UnavailableError(
                    f"log {self._manifests.url}: {POLICY}: not known to be changed: {saved.cause}; it has another"
                    f" version now: load it, and change that version if needed"
                )
        message = f"log {self._manifests.url}: {POLICY}: others changed it {_TRIES_MAX} times over: try again"
        raise UnavailableError(message)

    def _check_markers_stay(self, changed: Policy) -> None:
        """Refuse to have a dirty log compacted: a newer marker of a log does not stand for the older ones."""
        if changed.compacts and is_dirty_log(self._log):
            raise InvalidRequestError(
                f"log {self._manifests.url}: policy: cleanup: expected collect, as each marker of a dirty log counts"
                f" until a roll-up has read it, found {changed.cleanup}"
            )

    def _withdraw_announced(self, base: Installed) -> None:
        """Withdraw an announced collection or compaction: it may have read the earlier policy, and is planned again."""

        def withdrawn(manifest: Manifest) -> Manifest | None:
            idle = manifest.announced is None and manifest.compacting is None
            return None if idle else replace(manifest, announced=None, compacting=None)

        self._manifests.change(base, withdrawn)

    def align_keyed(self) -> None:
        """Make the manifest take appends as the policy says: the process that changed the policy may have died."""
        self._set_keyed(self.load(), self._manifests.load())

    def _set_keyed(self, policy: Policy, base: Installed) -> None:
        """Make the manifest take appends as a policy says that was read after the last change.

        Another process may have changed the policy meanwhile, and have found the manifest as that policy wants it.
        """
        for _ in range(_TRIES_MAX):
            if _aligned(base.manifest, policy) is None:
                return
            self._manifests.change(base, partial(_aligned, policy=policy))
            policy, base = self.load(), self._manifests.load()
        message = f"log {self._manifests.url}: {POLICY}: others changed it {_TRIES_MAX} times over: try again"
        raise UnavailableError(message)


def _aligned(manifest: Manifest, policy: Policy) -> Manifest | None:
    wanted = replace(manifest, keyed=policy.has_passes, view=policy.view)
    return None if wanted == manifest else wanted
