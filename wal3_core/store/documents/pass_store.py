"""The records of a log's passes of key compaction. None is ever changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from wal3_core.errors import CorruptError, MissingError
from wal3_core.format.manifest import Manifest
from wal3_core.format.pass_record import PassRecord
from wal3_core.format.paths import deleted_path, garbage_path, garbage_token, pass_path
from wal3_core.format.setsum import EMPTY
from wal3_core.options import RetryOptions
from wal3_core.runtime import Runtime
from wal3_core.store.documents.document_store import readable, write_immutable
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import PRESENT, ObjectStore, object_url
from wal3_core.store.retrying import reread_if_damaged


class PassStore:
    """The records of one life of a log."""

    def __init__(self, manifests: ManifestStore, runtime: Runtime, retry: RetryOptions) -> None:
        self._manifests = manifests
        self._objects = manifests.objects
        self._runtime = runtime
        self._retry = retry

    def write(self, record: PassRecord) -> None:
        """Make a record durable; InvalidRequestError if it could not be read back."""
        path = pass_path(record.token)
        data = readable(record, PassRecord.from_bytes, path)
        write_immutable(self._objects, path, data, self._retry, self._runtime)

    def load(self, token: str) -> PassRecord:
        """Load a pass's record; MissingError when there is none, CorruptError when it is damaged."""
        return reread_if_damaged(lambda: self._read(token), self._objects)

    def _read(self, token: str) -> PassRecord:
        path = pass_path(token)
        what = object_url(self._objects, path)
        data = self._objects.read(path, length=PassRecord.BYTES_MAX + 1)
        if data is None:
            raise MissingError(f"{what}: expected the record of a pass, found none", path=path)
        record = PassRecord.from_bytes(data, what=what)
        if (record.log_id, record.token) != (self._manifests.log_id(), token):
            raise CorruptError(
                f"{what}: expected the pass {token} of log {self._manifests.log_id()}, found {record.token} of"
                f" {record.log_id}"
            )
        return record

    def last_of(self, manifest: Manifest) -> PassRecord | None:
        """Load the record of the last pass that a manifest has; None when there was none, or its record is gone."""
        return next(self.back_from(manifest.compaction.token), None)

    def newest_first(self) -> Iterator[PassRecord]:
        """Load the records of all installed passes, from the newest on; ends where one is gone."""
        return self.back_from(self._manifests.load().manifest.compaction.token)

    def back_from(self, token: str) -> Iterator[PassRecord]:
        """Load the record of an installed pass, and of those before it; ends where one is gone."""
        while token:
            try:
                record = self.load(token)
            except MissingError:
                return
            yield record
            token = record.before

    def is_installed(self, record: PassRecord) -> bool:
        """Return whether a pass was installed, now or long ago."""
        compaction = self._manifests.load().manifest.compaction
        if compaction.token == record.token or compaction.passes < record.number:
            return compaction.token == record.token
        since = takewhile(lambda each: each.number >= record.number, self.newest_first())
        return any(each.token == record.token for each in since)

    def is_pruned(self, token: str) -> bool:
        """Return whether all that a pass replaced was marked for deletion, or is deleted."""
        return any(self._objects.head(path) is not None for path in (garbage_path(EMPTY, token), deleted_path(token)))

    def deleted_us(self, token: str) -> int | None:
        """Return the store's time at which what a pass replaced was deleted; None while that is not known."""
        found = self._objects.head(deleted_path(token))
        return None if found is None else found.last_modified_us


def note_deleted(objects: ObjectStore, garbage: str) -> None:
    """Note that all is deleted that a garbage document names, if it is the document of a pass."""
    token = garbage_token(garbage)
    if objects.head(pass_path(token)) is not None:
        objects.create(deleted_path(token), PRESENT)
