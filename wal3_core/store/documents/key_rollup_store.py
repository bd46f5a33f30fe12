"""The key roll-ups of snapshots on storage: each is created once, can be computed again, and decides nothing.

Keeps INV-39 and INV-40. Source: docs/protocol/compaction.md, "Key roll-ups".
"""

from __future__ import annotations

from wal3_core.errors import CorruptError, StoreDeniedError, UnavailableError
from wal3_core.format.key_rollup import KeyRollup
from wal3_core.format.parquet.key_rollup_file import bytes_max, decode_key_rollup, encode_key_rollup
from wal3_core.format.paths import key_rollup_path
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.documents.document_store import check_readable, put_once
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import Buffer, Done, Etag, Unknown, Versioned, object_url
from wal3_core.store.retrying import attempts, for_store, reread_if_damaged

# One that is longer than it can be is read to its end, for its version, if it is longer by this at most.
_EXTRA_BYTES_MAX = 64 * 2**20


class KeyRollupStore:
    """The key roll-ups of one life of a log."""

    def __init__(self, manifests: ManifestStore, runtime: Runtime, retry: RetryOptions) -> None:
        self._store = manifests.objects
        self._log_id = manifests.log_id
        self._runtime = runtime
        self._retry = retry

    def load(self, pointer: SnapshotPointer) -> KeyRollup | None:
        """Return the key roll-up of a snapshot of depth 1; None when there is none, or a damaged one."""
        try:
            return self.read(pointer)
        except CorruptError as error:
            MAINTAIN.warning("a damaged key roll-up is taken for a missing one, and will be written again: %s", error)
            return None

    def read(self, pointer: SnapshotPointer) -> KeyRollup | None:
        """Return the key roll-up of a snapshot of depth 1, None when there is none; CorruptError when it is damaged."""
        return reread_if_damaged(lambda: self._read(pointer), self._store)

    def write(self, pointer: SnapshotPointer, rollup: KeyRollup) -> None:
        """Make the key roll-up of a snapshot durable; InvalidRequestError if it could not be read back.

        An equal one that is there already is kept; a damaged or different one is replaced, and never deleted: what was
        read may have been damaged on the way. UnavailableError when it could not be written; then it may still appear,
        which does no harm. CorruptError when the object there is far too long to be one.
        """
        path = key_rollup_path(pointer.path)
        data = encode_key_rollup(rollup, pointer, self._log_id())
        check_readable(data, rollup, lambda found, what: self._decoded(found, pointer, what), path)
        cause, wrong = "refused", None
        for tries in attempts(for_store(self._retry, self._store), self._runtime):  # noqa: B007 - in the message
            outcome = put_once(self._store, path, data, wrong)
            if isinstance(outcome, Done):
                return
            cause = outcome.cause if isinstance(outcome, Unknown) else cause
            try:
                equal, wrong = self._stored(pointer, rollup)
            except StoreDeniedError:
                raise
            except UnavailableError:
                continue
            if equal:
                return
        raise UnavailableError(f"{object_url(self._store, path)}: not written in {tries} tries: {cause}")

    def _read(self, pointer: SnapshotPointer) -> KeyRollup | None:
        path = key_rollup_path(pointer.path)
        limit = bytes_max(pointer)
        # One more byte shows that the object is longer.
        data = self._store.read(path, length=limit + 1)
        if data is None:
            return None
        return self._decoded(data, pointer, f"key roll-up {object_url(self._store, path)}")

    def _decoded(self, data: Buffer, pointer: SnapshotPointer, what: str) -> KeyRollup:
        return decode_key_rollup(data, pointer, self._log_id(), what=what)

    def _stored(self, pointer: SnapshotPointer, rollup: KeyRollup) -> tuple[bool, Etag | None]:
        """Tell whether an equal one is there; if not, return the version that stands in its place."""
        path, wrong, etag = key_rollup_path(pointer.path), "", None
        what, limit = f"key roll-up {object_url(self._store, path)}", bytes_max(pointer) + _EXTRA_BYTES_MAX
        # Twice: the difference may be damage in transit.
        for _ in range(2):
            found = self._store.get(path, length_max=limit)
            if not isinstance(found, Versioned):
                return False, None
            etag = found.etag
            try:
                if self._decoded(found.data, pointer, what) == rollup:
                    return True, None
                wrong = f"{what}: another one of the same snapshot"
            except CorruptError as error:
                wrong = str(error)
        MAINTAIN.warning("a key roll-up is replaced: %s", wrong)
        return False, etag
