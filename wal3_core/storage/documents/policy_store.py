"""A log's policy on storage: one document, swapped by CAS.

Whoever changes it writes it first and looks at the manifest afterwards: a collection that is announced may have
been let go by the policy as it was, and is withdrawn (INV-14). Source: docs/protocol.md, "Policies".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, function, wrong
from wal3_core.errors import UnavailableError
from wal3_core.model.paths import POLICY
from wal3_core.model.policy import BYTES_MAX, Policy
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.storage.documents.document_store import DocumentStore, Seen
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.object_store import ObjectStore, Unknown, log_store
from wal3_core.storage.opening import opening, options_of
from wal3_core.storage.patient import patient

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.model.paths import LogId

# Two people who change one policy at a time.
_TRIES_MAX = 16


class PolicyStore:
    """The policy of one life of a log: that of ``log_id``, or else the one that is found first."""

    @checked(**opening(retry=options_of(RetryOptions)))
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        runtime: Runtime | None = None,
        retry: RetryOptions | None = None,
        log_id: LogId | None = None,
    ) -> None:
        self._runtime, self._retry = runtime or shared_runtime(), retry or RetryOptions()
        inside = patient(log_store(store, log), self._runtime, self._retry)
        self._manifests = ManifestStore(inside, self._runtime, self._retry, log_id=log_id)
        self._documents = DocumentStore(
            self._manifests.objects,
            self._runtime,
            self._retry,
            lambda data, what: Policy.from_bytes(data, what=what),
            bytes_max=BYTES_MAX,
            log_id=self._manifests.log_id,
        )

    def load(self) -> Policy:
        """Load the policy; the default one when none was ever saved."""
        seen = self._seen()
        return Policy() if seen is None else seen.document

    def _seen(self) -> Seen[Policy] | None:
        seen = self._documents.load(POLICY)
        if seen is None:
            # None at all, or none any more, because the log is gone.
            self._manifests.load()
        return seen

    @checked(change=function)
    def change(self, change: Callable[[Policy], Policy]) -> Policy:
        """Change the policy as it is now; InvalidRequestError for one that makes no sense.

        What the log holds when this returns is collected by the new policy, or not at all. LogReplacedError when
        the name has come to lead to another log meanwhile.
        """
        for _ in range(_TRIES_MAX):
            seen = self._seen()
            before = Policy() if seen is None else seen.document
            wanted = change(before)
            if not isinstance(wanted, Policy):
                raise wrong("change", "to be given back a Policy", wanted)
            changed = replace(wanted, generation=before.generation + 1)
            changed.check()
            saved = self._documents.swap(POLICY, changed, None if seen is None else seen.etag)
            if isinstance(saved, Seen):
                self._withdraw_announced()
                return saved.document
            if isinstance(saved, Unknown):
                # What stands there may be a change of this one, which is not to be made twice.
                message = (
                    f"log {self._manifests.url}: {POLICY}: not known to be changed: {saved.cause}; another version"
                    f" stands there by now: load it, and change that if need be"
                )
                raise UnavailableError(message)
        message = f"log {self._manifests.url}: {POLICY}: others changed it {_TRIES_MAX} times over: try again"
        raise UnavailableError(message)

    def _withdraw_announced(self) -> None:
        """Let who announced a collection plan it anew: the policy may have been read before it was changed."""
        base = self._manifests.load()
        if base.manifest.announced is not None:
            self._manifests.withdraw(base, base.manifest.announced)
