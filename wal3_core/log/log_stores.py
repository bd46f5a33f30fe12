"""The stores that maintenance of one log works on: its manifest, snapshots, documents and data objects."""

from __future__ import annotations

from functools import cached_property
from typing import TypeVar

from wal3_core.errors import UnavailableError
from wal3_core.format.paths import LogId, check_log_name
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.garbage_store import GarbageStore
from wal3_core.store.documents.key_rollup_store import KeyRollupStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store, store_now_us
from wal3_core.store.retrying import with_retries

S = TypeVar("S", CursorStore, PinStore, PolicyStore)

# A walk along the tree needs few at a time.
SNAPSHOTS_LOADED_MAX = 64


class LogStores:
    """All stores of one life of a log. Reads are retried until ``retry`` gives up.

    The life is that of ``log_id``, or of the manifest that is loaded first.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        runtime: Runtime,
        retry: RetryOptions | None = None,
        snapshots_loaded_max: int = SNAPSHOTS_LOADED_MAX,
        log_id: LogId | None = None,
    ) -> None:
        self.log = check_log_name(log)
        self.runtime = runtime
        self.retry = retry = retry or RetryOptions()
        self._store = store
        root = with_retries(log_store(store, log), runtime, retry)
        self.manifests = ManifestStore(root, runtime, retry, log_id=log_id)
        self.objects = self.manifests.objects
        # The log's address, for messages, and that of the whole store, which other processes open.
        self.url, self.store_url = self.manifests.url, store.url
        self.snapshots = SnapshotStore(self.manifests, runtime, loaded_max=snapshots_loaded_max)
        self.key_rollups = KeyRollupStore(self.manifests, runtime, retry)
        self.garbage = GarbageStore(self.manifests, runtime, retry)

    def store_now_us(self) -> int:
        """Return the store's time: the modification time of an object written just now.

        If it cannot be written now, its time is an earlier one, which only makes waits longer. Requires a store whose
        clock does not run back.
        """
        try:
            return store_now_us(self.objects, self.runtime)
        except UnavailableError:
            # Perhaps its log is gone: then this raises the error that says so.
            self.manifests.load()
            raise

    @cached_property
    def cursors(self) -> CursorStore:
        """The cursors of this life."""
        return self._opened(CursorStore)

    @cached_property
    def pins(self) -> PinStore:
        """The pins of this life."""
        return self._opened(PinStore)

    @cached_property
    def policies(self) -> PolicyStore:
        """The policy of this life."""
        return self._opened(PolicyStore)

    def _opened(self, kind: type[S]) -> S:
        return kind(self._store, self.log, runtime=self.runtime, retry=self.retry, log_id=self.manifests.log_id())
