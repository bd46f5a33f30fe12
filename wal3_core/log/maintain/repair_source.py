"""The copy that a log is repaired from: it gives a fragment's bytes, or says why it cannot."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import CorruptError, GarbageCollectedError, InvalidRequestError, LogError
from wal3_core.log.maintain.copied_fragment import read_checked
from wal3_core.log.read.reader import LogReader
from wal3_core.model import parquet
from wal3_core.model.paths import check_fragment_path
from wal3_core.options import Limits
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.object_store import log_store
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.log.maintain.copier import LogAt
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.snapshot import Pointer
    from wal3_core.runtime import Runtime

T = TypeVar("T")


class UnrepairableError(LogError):
    """An object cannot be repaired; the message says why, and what helps."""


class RepairSource:
    """A copy of the log, in any fragments."""

    def __init__(self, copy: LogAt, runtime: Runtime) -> None:
        self._reading = replace(copy.reading, verify=True)
        self._reader = LogReader.open(copy.store, copy.log, options=self._reading, runtime=runtime)
        self._manifests = ManifestStore(
            with_retries(log_store(copy.store, copy.log), runtime, copy.reading.retry), runtime
        )
        self.url = self._manifests.url

    def fragment(self, pointer: FragmentPointer) -> bytes:
        """Return the bytes that a pointer of the log names; UnrepairableError when the copy does not give them."""
        own = self._same_file(pointer)
        data = self._encoded(pointer) if own is None else own
        try:
            parquet.decode(data, pointer, expanded_bytes_max=self._reading.fragment_expanded_bytes_max)
        except CorruptError as error:
            message = f"the records in log {self.url} do not give this fragment: {error}"
            raise UnrepairableError(message) from error
        return data

    def pointers(self, pointer: Pointer) -> list[FragmentPointer]:
        """List the copy's fragments of a pointer's range; UnrepairableError when it lacks some of it."""
        return self._within(pointer, self._reader.scan)

    def _same_file(self, pointer: FragmentPointer) -> bytes | None:
        """Return the copy's file at the fragment's path, if it is that fragment's: a full copy has the same files."""
        try:
            return read_checked(
                self._manifests.objects, pointer, expanded_bytes_max=self._reading.fragment_expanded_bytes_max
            )[0]
        except CorruptError:
            return None

    def _encoded(self, pointer: FragmentPointer) -> bytes:
        """Encode the fragment's records as its writer did, under its own number and token."""
        records = self._within(pointer, lambda start, limits: list(self._reader.records(start, limits)))
        if len(records) > pointer.num_records:
            why = f"the log's compaction kept {pointer.num_records} of their {len(records)} records, and which is lost"
            raise self._lacking(pointer, why)
        if len(records) < pointer.num_records:
            raise self._lacking(pointer, f"it has {len(records)} of their {pointer.num_records} records")
        keys = [record.key for record in records]
        source = parquet.FragmentSource(
            start=pointer.start,
            seq_no=pointer.seq_no,
            token=check_fragment_path(pointer.path, pointer.seq_no),
            keys=None if all(key is None for key in keys) else keys,
            bodies=[record.body for record in records],
            timestamps_us=[record.timestamp_us for record in records],
            offsets=[record.offset for record in records],
        )
        made = parquet.encode(source)
        for earlier in parquet.EARLIER_KEY_METADATA:
            if len(made.data) != pointer.num_bytes:
                made = parquet.encode(replace(source, key_metadata=earlier))
        if len(made.data) != pointer.num_bytes:
            # A pass may have arranged it by key.
            made = parquet.encode_arranged(parquet.table_of(records), seq_no=source.seq_no, token=source.token)
        if made.setsum != pointer.setsum:
            otherwise = ", or was compacted otherwise" if pointer.compacted else ""
            message = (
                f"log {self.url} is no copy of this log{otherwise}: expected records of setsum {pointer.setsum}, found"
                f" {made.setsum}"
            )
            raise UnrepairableError(message)
        if len(made.data) != pointer.num_bytes:
            message = (
                f"log {self.url} has the records, but this version of wal3 or pyarrow encodes them in"
                f" {len(made.data)} bytes, not {pointer.num_bytes}: repair with the versions that wrote the log, or"
                f" restore the whole log from the copy"
            )
            raise UnrepairableError(message)
        return bytes(made.data)

    def _within(self, pointer: Pointer, load: Callable[[int, Limits], list[T]]) -> list[T]:
        try:
            return load(pointer.start.offset, Limits(offset=pointer.limit.offset))
        except (GarbageCollectedError, InvalidRequestError, CorruptError) as error:
            raise self._lacking(pointer, f"they cannot be read there: {error}") from error

    def _lacking(self, pointer: Pointer, why: str) -> UnrepairableError:
        """Say which offsets the copy does not give: because it ends before them, or why else."""
        limit = self._reader.manifest().next.position.offset
        why = f"the copy ends at offset {limit - 1}" if limit < pointer.limit.offset else why
        offsets = f"offsets {pointer.start.offset} to {pointer.limit.offset - 1}"
        return UnrepairableError(f"log {self.url}: expected {offsets}, found that {why}")
