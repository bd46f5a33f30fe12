"""Stages records: encodes and uploads them as fragments that no manifest names yet, for another process to install.

So many processes can prepare one append, and none of it is in the log unless one of them decides so. A fragment is
encoded as if it came next in the log; ``installing`` encodes it again where it does not. What is never installed
is an orphan, as the fragments of a writer that died, and is collected as one.
Source: docs/protocol.md, "Staged appends".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from wal3_core.arguments import checked, instance_of
from wal3_core.errors import InvalidRequestError, KeyRequiredError
from wal3_core.format.manifest import Boundary
from wal3_core.format.parquet.encoding import encode_table
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.log.write.columns import check_each, lengths_of
from wal3_core.log.write.in_flight import pointer_to, view_required
from wal3_core.options import WriterOptions
from wal3_core.runtime import shared_runtime, wall_us
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import OPENING, log_store
from wal3_core.store.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.paths import LogId
    from wal3_core.log.write.columns import Lengths
    from wal3_core.runtime import Runtime
    from wal3_core.store.object_store import ObjectStore

MESSAGE_SCHEMA = pa.schema([("key", pa.large_binary()), ("body", pa.large_binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedFragment:
    """A fragment that waits to be installed in one life of a log.

    It was encoded for the place in its pointer, under that fence. ``num_bytes`` are those of keys and bodies.
    ``keyless``: one of its records has no key. ``log_end`` is the offset at which the log ended when staging began.
    """

    pointer: FragmentPointer
    log_id: LogId
    fence: int
    num_bytes: int
    keyless: bool
    log_end: int


class Stager:
    """Stages records of one append to one log, in order. Not safe to share between threads."""

    @checked(**OPENING)
    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: WriterOptions | None = None,
        runtime: Runtime | None = None,
        log_id: LogId | None = None,
    ) -> None:
        """Open the log: one GET. LogNotFoundError when it was never created."""
        self._runtime = runtime or shared_runtime()
        self._options = options or WriterOptions()
        inside = with_retries(log_store(store, log), self._runtime, self._options.retry)
        self._manifests = ManifestStore(inside, self._runtime, self._options.retry, log_id=log_id)
        manifest = self._manifests.load().manifest
        if not manifest.is_of(self._options.view):
            raise view_required(self._manifests.url, manifest.view, self._options.view)
        self._keyed, self._fence, self._log_id = manifest.keyed, manifest.fence, manifest.log_id
        self._place = manifest.next
        self._log_end = manifest.next.position.offset
        # One for all that it stages: an append whose fragments are installed as they are has one time.
        self._time_us = max(wall_us(self._runtime), self._place.position.timestamp_us)
        # A new one for each stager, as for each writer term: paths are never used again.
        self._token = self._runtime.token()

    @checked(table=instance_of(pa.Table))
    def stage(self, table: pa.Table) -> list[StagedFragment]:
        """Upload records, given as the columns key and body of ``MESSAGE_SCHEMA``; they are durable when this returns.

        InvalidRequestError names a row that cannot be a record; then nothing of the table is staged. UnavailableError
        when the store does not answer.
        """
        if table.schema != MESSAGE_SCHEMA:
            message = f"stage: expected columns {_named(MESSAGE_SCHEMA)}, found {_named(table.schema)}"
            raise InvalidRequestError(message)
        if not len(table):
            return []
        sizes = self._sizes(table)
        return [self._stage(table.slice(low, high - low), int(sizes[low:high].sum())) for low, high in self._cut(sizes)]

    def _sizes(self, table: pa.Table) -> Lengths:
        """Return the rows' sizes in bytes, after checking each row."""
        sizes = {name: lengths_of(name, table[name]) for name in MESSAGE_SCHEMA.names}
        missing = {name: table[name].is_null().to_numpy() for name in MESSAGE_SCHEMA.names}
        check_each("stage: row", sizes, missing, self._options.record_bytes_max)
        if self._keyed and missing["key"].any():
            # The policy may have been changed since.
            self._keyed = self._manifests.load().manifest.keyed
            if self._keyed:
                raise key_required(self._manifests.url)
        return sizes["key"] + sizes["body"]

    def _cut(self, sizes: Lengths) -> Iterator[tuple[int, int]]:
        """Cut rows into fragments of the options' size; each has at least one row."""
        ends, low = sizes.cumsum(), 0
        while low < len(sizes):
            before = int(ends[low - 1]) if low else 0
            fits = int(np.searchsorted(ends, before + self._options.batch_bytes_max, side="right"))
            high = min(len(sizes), low + self._options.batch_records_max, max(low + 1, fits))
            yield low, high
            low = high

    def _stage(self, table: pa.Table, num_bytes: int) -> StagedFragment:
        place = self._place
        start = LogPosition(place.position.offset, self._time_us)
        pointer = write_fragment(
            self._manifests.objects,
            place_records(table, start),
            place.seq_no,
            self._token,
            self._options,
            self._runtime,
        )
        self._place = Boundary(FragmentSeqNo(pointer.seq_no + 1), pointer.limit)
        keyless = table["key"].null_count > 0
        return StagedFragment(
            pointer=pointer,
            log_id=self._log_id,
            fence=self._fence,
            num_bytes=num_bytes,
            keyless=keyless,
            log_end=self._log_end,
        )


def place_records(table: pa.Table, start: LogPosition) -> pa.Table:
    """Give the records of a table, with the columns key and body, their offsets and one timestamp."""
    count = len(table)
    offsets = np.arange(start.offset, start.offset + count, dtype=np.uint64)
    timestamps_us = np.full(count, start.timestamp_us, dtype=np.uint64)
    columns = [pa.array(offsets), pa.array(timestamps_us), table["key"], table["body"]]
    return pa.table(columns, names=["offset", "timestamp_us", "key", "body"])


def write_fragment(
    store: ObjectStore, table: pa.Table, seq_no: FragmentSeqNo, token: str, options: WriterOptions, runtime: Runtime
) -> FragmentPointer:
    """Encode records that have their places, and make them durable; nothing names them yet."""
    encoded = encode_table(table, seq_no=seq_no, token=token)
    start = LogPosition(table["offset"][0].as_py(), table["timestamp_us"][0].as_py())
    pointer = pointer_to(encoded, seq_no, token, start, len(table))
    write_immutable(store, pointer.path, encoded.data, options.retry, runtime)
    return pointer


def key_required(url: str) -> KeyRequiredError:
    """Return the error of a log that takes no record without a key."""
    message = (
        f"log {url}: expected a key in each row, found none in some: the log is keyed, since its policy compacts it"
    )
    return KeyRequiredError(message)


def _named(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
