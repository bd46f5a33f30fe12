"""A log's policy on storage: one document, swapped by CAS."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.errors import UnavailableError
from wal3_core.model.paths import POLICY
from wal3_core.model.policy import Policy
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.storage.document_store import DocumentStore
from wal3_core.storage.object_store import ObjectStore, log_store

if TYPE_CHECKING:
    from collections.abc import Callable

# Two people who change one policy at a time.
_TRIES_MAX = 16


class PolicyStore:
    """The policy of one log."""

    def __init__(
        self, store: ObjectStore, log: str, *, runtime: Runtime | None = None, retry: RetryOptions | None = None
    ) -> None:
        self._store = log_store(store, log)
        self._runtime = runtime or shared_runtime()
        self._documents = DocumentStore(
            self._store, self._runtime, retry or RetryOptions(), lambda data, what: Policy.from_bytes(data, what=what)
        )

    def load(self) -> Policy:
        """Load the policy; the default one when none was ever saved."""
        seen = self._documents.load(POLICY)
        return Policy() if seen is None else seen.document

    def change(self, change: Callable[[Policy], Policy]) -> Policy:
        """Change the policy as it is now; InvalidRequestError for one that makes no sense."""
        for _ in range(_TRIES_MAX):
            seen = self._documents.load(POLICY)
            before = Policy() if seen is None else seen.document
            changed = replace(
                change(before),
                generation=before.generation + 1,
                # The token makes the document this call's own: another's is never taken for it.
                writer=f"{self._runtime.process_name()} {self._runtime.token()}",
            )
            changed.check()
            if self._documents.save(POLICY, changed, seen) is not None:
                return changed
        message = f"{self._store.url}/{POLICY}: others changed it {_TRIES_MAX} times over: try again"
        raise UnavailableError(message)
