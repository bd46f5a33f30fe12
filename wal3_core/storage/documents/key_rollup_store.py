"""The key roll-ups of snapshots on storage: each is created once, can be computed again, and decides nothing.

Keeps INV-39 and INV-40. Source: docs/protocol.md, "Key roll-ups".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, InvalidRequestError, StoreDeniedError, UnavailableError
from wal3_core.model.parquet.key_rollup_file import bytes_max, decode_key_rollup, encode_key_rollup
from wal3_core.model.paths import key_rollup_path
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.storage.object_store import Done, Unknown, object_url
from wal3_core.storage.retry import attempts, for_store, reread_if_damaged

if TYPE_CHECKING:
    from wal3_core.model.key_rollup import KeyRollup
    from wal3_core.model.snapshot import SnapshotPointer
    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.manifest_store import ManifestStore


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

        An equal one that is there already is kept. A damaged or different one is deleted first. UnavailableError
        when it could not be written; then it may still appear, which does no harm.
        """
        path = key_rollup_path(pointer.path)
        data = encode_key_rollup(rollup, pointer, self._log_id())
        self._check_readable(data, pointer, rollup)
        cause = "refused"
        for tries in attempts(for_store(self._retry, self._store), self._runtime):
            try:
                outcome = self._store.create(path, data)
            except StoreDeniedError:
                raise
            except UnavailableError as error:
                outcome = Unknown(str(error))
            if isinstance(outcome, Done) or self._settled(pointer, rollup):
                return
            cause = outcome.cause if isinstance(outcome, Unknown) else cause
            message = f"{object_url(self._store, path)}: not written in {tries} tries: {cause}"
        raise UnavailableError(message)

    def _read(self, pointer: SnapshotPointer) -> KeyRollup | None:
        path = key_rollup_path(pointer.path)
        limit = bytes_max(pointer)
        # One more byte shows that the object is longer.
        data = self._store.read(path, length=limit + 1)
        if data is None:
            return None
        return decode_key_rollup(data, pointer, self._log_id(), what=f"key roll-up {object_url(self._store, path)}")

    def _check_readable(self, data: memoryview, pointer: SnapshotPointer, rollup: KeyRollup) -> None:
        path = key_rollup_path(pointer.path)
        try:
            found = decode_key_rollup(data, pointer, self._log_id())
        except CorruptError as error:
            message = f"{path}: not written, since it could not be read back: {error}"
            raise InvalidRequestError(message) from error
        if found != rollup:
            message = f"{path}: not written, since it would be read back as another"
            raise InvalidRequestError(message)

    def _settled(self, pointer: SnapshotPointer, rollup: KeyRollup) -> bool:
        """Tell whether an equal one is there; delete any other, so that the next try can succeed."""
        path = key_rollup_path(pointer.path)
        try:
            found = self.read(pointer)
        except StoreDeniedError:
            raise
        except UnavailableError:
            return False
        except CorruptError as error:
            MAINTAIN.warning("a damaged key roll-up is written again: %s", error)
        else:
            if found is None or found == rollup:
                return found is not None
            MAINTAIN.warning("%s: another key roll-up of the same snapshot is replaced", object_url(self._store, path))
        self._store.delete(path)
        return False
