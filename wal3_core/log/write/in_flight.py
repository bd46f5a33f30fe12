"""A fragment on its way to the store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.log.write.columns import join
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.parquet import FragmentSource, encode
from wal3_core.model.paths import fragment_path
from wal3_core.model.position import LogPosition
from wal3_core.storage.documents.document_store import write_immutable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from concurrent.futures import Future

    from wal3_core.log.write.batch import Entry
    from wal3_core.log.write.commit import WriterTerm
    from wal3_core.log.write.stats import Meter
    from wal3_core.model.position import FragmentSeqNo
    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore


def keyless(flights: Iterable[InFlightFragment]) -> bool:
    """Whether a record of some fragments has no key."""
    return any(entry.keyless for flight in flights for entry in flight.entries)


@dataclass(slots=True, eq=False)
class InFlightFragment:
    """A fragment in flight: uploading until it has a pointer or an error."""

    entries: list[Entry]
    start: LogPosition
    seq_no: FragmentSeqNo
    term: WriterTerm
    pointer: FragmentPointer | None = None
    error: BaseException | None = None
    mark: Future[None] | None = None
    # Until when its append waits for the mark, once it is committed.
    mark_until_s: float = 0.0

    @property
    def num_records(self) -> int:
        """How many records it holds."""
        return sum(entry.columns.num_records for entry in self.entries)

    @property
    def oldest_s(self) -> float:
        """When its first append was accepted."""
        return self.entries[0].accepted_s

    def upload(self, store: ObjectStore, retry: RetryOptions, runtime: Runtime, meter: Meter) -> None:
        """Encode the fragment and make it durable; a failure is kept as its ``error``."""
        began_s = runtime.monotonic_s()
        try:
            self.pointer = self._write(store, retry, runtime, meter.retried)
            meter.upload_took(runtime.monotonic_s() - began_s)
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            self.error = error

    def _write(
        self, store: ObjectStore, retry: RetryOptions, runtime: Runtime, retried: Callable[[], None]
    ) -> FragmentPointer:
        columns = join([entry.columns for entry in self.entries])
        source = FragmentSource(
            start=self.start,
            seq_no=self.seq_no,
            token=self.term.entry.token,
            keys=columns.keys,
            bodies=columns.bodies,
        )
        encoded = encode(source)
        path = fragment_path(self.seq_no, source.token)
        # Fragment first: an orphan is garbage, a dangling pointer is loss.
        write_immutable(store, path, encoded.data, retry, runtime, retried)
        return FragmentPointer(
            path=path,
            first_seq_no=self.seq_no,
            seq_no=self.seq_no,
            start=self.start,
            limit=LogPosition(self.start.offset + columns.num_records, self.start.timestamp_us),
            setsum=encoded.setsum,
            num_bytes=len(encoded.data),
            num_records=columns.num_records,
        )
