"""Writes and loads snapshots, and caches those used last: they never change."""

from __future__ import annotations

from wal3_core.errors import CorruptError, MissingError
from wal3_core.format.snapshot import BYTES_MAX, Snapshot, SnapshotPointer
from wal3_core.options import RetryOptions
from wal3_core.runtime import Cache, Runtime
from wal3_core.store.documents.document_store import check_readable, encoded, write_immutable
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.retrying import reread_if_damaged


class SnapshotMissingError(MissingError):
    """The snapshot's object is gone: collected, replaced, or lost; a fresh manifest shows which."""


class SnapshotStore:
    """The snapshots of one life of a log; ``loaded_max`` of them are cached."""

    def __init__(self, manifests: ManifestStore, runtime: Runtime, *, loaded_max: int) -> None:
        self._store = manifests.objects
        self._log_id = manifests.log_id
        self._runtime = runtime
        # Of one byte each, so that they are counted.
        self._loaded: Cache[Snapshot] = Cache(runtime, loaded_max, lambda _: 1)

    def load(self, pointer: SnapshotPointer) -> Snapshot:
        """Return the snapshot, checked against its pointer; SnapshotMissingError when it is gone."""
        self._runtime.check_process()
        known = self.held(pointer)
        if known is not None:
            return known
        snapshot = reread_if_damaged(lambda: self._read(pointer), self._store)
        self._loaded.keep(pointer.path, snapshot)
        return snapshot

    def held(self, pointer: SnapshotPointer) -> Snapshot | None:
        """Return the snapshot if it is cached; no request."""
        return self._loaded.get(pointer.path)

    def _read(self, pointer: SnapshotPointer) -> Snapshot:
        data = self._store.read(pointer.path, length=BYTES_MAX + 1)
        if data is None:
            message = f"snapshot {pointer.path}: expected in {self._store.url}, found none"
            raise SnapshotMissingError(message, path=pointer.path)
        snapshot = Snapshot.from_bytes(data, pointer)
        if snapshot.log_id != self._log_id():
            message = f"snapshot {pointer.path}: expected one of log {self._log_id()}, found one of {snapshot.log_id}"
            raise CorruptError(message)
        return snapshot

    def write(self, snapshot: Snapshot, retry: RetryOptions) -> SnapshotPointer:
        """Make the snapshot durable and return its pointer; InvalidRequestError if it could not be read back."""
        assert snapshot.log_id == self._log_id()
        data = encoded(snapshot.to_bytes, "snapshot")
        pointer = snapshot.pointer_to(data)
        check_readable(data, snapshot, lambda found, _: Snapshot.from_bytes(found, pointer), pointer.path)
        write_immutable(self._store, pointer.path, data, retry, self._runtime)
        self._loaded.keep(pointer.path, snapshot)
        return pointer
