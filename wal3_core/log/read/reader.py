"""The public API for reading a log: scan, fetch, records, follow; as a table for Arrow, pandas and polars.

Keeps INV-9 (what is read is what was written) and INV-10 (never a gap, never a short list) of
docs/protocol.md. Source: docs/protocol.md, "Read".

``open_pinned`` reads what a pin keeps: the log as it was when the pin was made, whatever was collected since.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa

from wal3_core.arguments import checked, optional, seconds
from wal3_core.errors import CorruptError, InvalidRequestError, MissingError
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.parquet import Fragment
from wal3_core.format.paths import LogId, check_log_name
from wal3_core.format.position import ReadStart
from wal3_core.format.record import Record
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.log.read.following import Following, Source, Waiting, in_thread
from wal3_core.log.read.scan import Loader, Reloading, StoredFile, Walk, first_rows, holds, stored_file, trim, within
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import Runtime, map_ahead, shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store, object_url, share_of
from wal3_core.store.retrying import reread_if_damaged, with_retries

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped,unused-ignore]  # it ships no types
    import polars as pl  # type: ignore[import-not-found,unused-ignore]  # optional


# The columns of ``batches``. Times are times, so that they can be compared with others and shown; binary columns are
# large ones, since a table may hold more than 2 GiB of bodies.
SCHEMA = pa.schema(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("timestamp_us", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("key", pa.large_binary()),
        pa.field("body", pa.large_binary()),
    ]
)


def _typed(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [batch[field.name] for field in SCHEMA]
    try:
        columns[1] = columns[1].cast(pa.int64())
    except pa.ArrowInvalid as error:
        message = f"table: expected times within 64 bits with a sign, found others: use batches(): {error}"
        raise InvalidRequestError(message) from error
    arrays = [column.cast(field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _require(package: str, method: str) -> Any:  # noqa: ANN401 - a module
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        message = f"{method}: expected {package} to be installed, found none: pip install {package}"
        raise ModuleNotFoundError(message, name=package) from error


class FragmentMissingError(MissingError):
    """The fragment's object is gone: collected, replaced, or lost; a fresh manifest shows which."""


def read_part(store: ObjectStore, pointer: FragmentPointer, start: int, limit: int, *, what: str) -> bytes:
    """Read some bytes of a fragment; CorruptError if they show that it is longer or shorter than its pointer says."""
    # One more byte detects a longer file without fetching all of it.
    length = limit - start + (limit == pointer.num_bytes)
    found = store.read(pointer.path, start=start, length=length)
    if found is None:
        raise FragmentMissingError(f"{what}: expected a file, found none", path=pointer.path)
    if len(found) != limit - start:
        more = " or more" if len(found) > limit - start else ""
        raise parquet.changed(what, f"expected {pointer.num_bytes} bytes, found {start + len(found)}{more}")
    return found


def read_fragment(
    store: ObjectStore, pointer: FragmentPointer, *, expanded_bytes_max: int, verify: bool = True
) -> tuple[bytes, Fragment]:
    """Read a fragment of a life of a log, whose objects ``store`` holds: its bytes, and its records.

    CorruptError when they are not what the pointer says, also when they are read once more.
    """
    what = pointer.named(object_url(store, pointer.path))

    def read() -> tuple[bytes, Fragment]:
        data = read_part(store, pointer, 0, pointer.num_bytes, what=what)
        return data, parquet.decode(data, pointer, expanded_bytes_max=expanded_bytes_max, verify=verify, what=what)

    return reread_if_damaged(read, store)


class LogReader:
    """Reads one log; never blocks a writer. Safe to share between threads; owns no thread.

    Everything read is checked against the manifest's positions, counts and setsums unless
    ``ReaderOptions.verify`` is off.
    """

    def __init__(
        self,
        store: ObjectStore,
        log: str,
        *,
        options: ReaderOptions,
        runtime: Runtime,
        log_id: LogId | None = None,
    ) -> None:
        self._options = options
        self._runtime = runtime
        inside = with_retries(log_store(store, check_log_name(log)), runtime, options.retry)
        self._manifests = ManifestStore(inside, runtime, log_id=log_id)
        self._store = self._manifests.objects
        self._snapshots = SnapshotStore(self._manifests, runtime, loaded_max=options.snapshots_loaded_max)
        self._known: Installed | None = None

    @classmethod
    def open(
        cls,
        store: ObjectStore,
        log: str,
        *,
        options: ReaderOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a log for reading: one GET. LogNotFoundError when it was never begun, CorruptError when damaged."""
        reader = cls(store, log, options=options or ReaderOptions(), runtime=runtime or shared_runtime())
        reader._known = reader._manifests.open()
        return reader

    def manifest(self) -> Manifest:
        """Return the newest manifest: one GET, cheap when nothing has changed.

        LogReplacedError when the name leads to another log than the one that was opened.
        """
        # Another thread may set ``_known`` to an older manifest meanwhile: return the one loaded here.
        known = self._manifests.load(self._known)
        self._known = known
        return known.manifest

    def load_snapshot(self, pointer: SnapshotPointer) -> Snapshot:
        """Return a snapshot of the manifest's tree, checked."""
        return self._snapshots.load(pointer)

    def is_current(self, manifest: Manifest) -> bool:
        """Tell whether a manifest is the log's newest still: one GET, cheap when it is the one loaded last."""
        return self.manifest() == manifest

    def scan(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> list[FragmentPointer]:
        """List the fragments that hold the records from ``start`` to the limits, in order; see ``pointers``."""
        return list(self.pointers(start, limits, manifest=manifest))

    def pointers(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> Iterator[FragmentPointer]:
        """Go through the fragments that hold the records from ``start`` to the limits, in order.

        Takes one GET of the manifest, unless one is given, and one per snapshot that the range
        touches and that is not known yet; the first comes after as many round trips as the tree is
        deep, and one. Memory does not grow with the range. Raises GarbageCollectedError when the
        start is gone, InvalidRequestError when it lies beyond the end. A start that is not an offset is
        fixed by the manifest: what is collected after that one was loaded is never silently skipped.
        """
        manifest = manifest or self.manifest()
        yield from (
            pointer for pointer, _ in self._reloading().steps(manifest, start, limits, iter, lambda pointer: pointer)
        )

    def files(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> Iterator[StoredFile]:
        """Go through the stored files that hold a range, in order; without a range, exactly the log's records.

        The first and last file of a range may hold records outside it. A collection may delete the files later:
        open the reader by ``open_pinned`` where they must stay.
        """
        for pointer in self.pointers(start, limits, manifest=manifest):
            yield stored_file(self._store.url, pointer)

    def fetch(self, pointer: FragmentPointer) -> Fragment:
        """Read one fragment's records: one GET. CorruptError when they are not what the pointer says."""
        options = self._options
        most, verify = options.fragment_expanded_bytes_max, options.verify
        return read_fragment(self._store, pointer, expanded_bytes_max=most, verify=verify)[1]

    def fragments(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> Iterator[tuple[Fragment, ReadStart]]:
        """Fetch the fragments that hold a range, in order, a few ahead of the caller; each with its read start.

        The range ends where the manifest does, the newest one unless one is given. A missing object is
        looked up in a fresh manifest. If it was collected: GarbageCollectedError, also before the first
        fragment, or if records of the range may have been compacted away since. If it was replaced, the replacement is
        read, from where the caller had come to. If it is still named, it is lost: CorruptError.
        """
        yield from self._fragments(start, limits, manifest or self.manifest(), exact=True)

    def _fragments(
        self, start: ReadStart, limits: Limits, manifest: Manifest, *, exact: bool
    ) -> Iterator[tuple[Fragment, ReadStart]]:
        reading, found = self._reloading(exact=exact), False
        while True:
            reached = None
            for fragment, begin in reading.steps(manifest, start, limits, self._fetched, lambda each: each.pointer):
                found = found or holds(fragment.table, begin)
                reached = fragment.pointer.limit.offset
                yield fragment, begin
            # Records may be missing at a fragment's end: one that gives none does not count for the limits.
            if found or reached is None:
                return
            start = reached

    def batches(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Go through the log as Arrow batches (offset, timestamp_us, key, body), to its end as of now.

        With a ``manifest``, as it was when that was loaded: what was collected since is an error, and so is what was
        compacted, once the objects that it replaced are gone.
        """
        yield from self._batches(start, limits, manifest or self.manifest(), exact=True)

    def _batches(
        self, start: ReadStart, limits: Limits, manifest: Manifest, *, exact: bool
    ) -> Iterator[pa.RecordBatch]:
        limits, left = within(limits, manifest), limits.records
        for fragment, begin in self._fragments(start, limits, manifest, exact=exact):
            for batch in trim(fragment.table, begin, limits).to_batches():
                taken = first_rows(batch, left)
                if len(taken):
                    yield taken
                left = None if left is None else left - len(taken)
            if left == 0:
                return

    def to_arrow(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> pa.Table:
        """Return the range's records as a ``pyarrow.Table``.

        Its columns are offset (uint64), timestamp_us (timestamp[us, UTC]), key and body (binary; null where a record
        has none). It holds all records in memory, and about twice that while it is made: give limits, or go through
        ``batches`` where the log may be larger. Everything is checked as in ``records``, and belongs to one manifest.
        """
        batches = [_typed(batch) for batch in self.batches(start, limits, manifest=manifest)]
        return pa.Table.from_batches(batches, schema=SCHEMA)

    def to_pandas(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> pd.DataFrame:
        """Return ``to_arrow`` as a pandas DataFrame; ModuleNotFoundError where pandas is not installed."""
        _require("pandas", "to_pandas")
        return self.to_arrow(start, limits, manifest=manifest).to_pandas()

    def to_polars(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> pl.DataFrame:
        """Return ``to_arrow`` as a polars DataFrame; ModuleNotFoundError where polars is not installed."""
        polars = _require("polars", "to_polars")
        return cast("pl.DataFrame", polars.from_arrow(self.to_arrow(start, limits, manifest=manifest)))

    def records(
        self, start: ReadStart = None, limits: Limits = UNLIMITED, *, manifest: Manifest | None = None
    ) -> Iterator[Record]:
        """Go through the log's records, to its end as of now, or as of the ``manifest`` given.

        The first comes after as many round trips as the tree is deep, and two, however long the log.
        """
        for batch in self.batches(start, limits, manifest=manifest):
            yield from parquet.records_of(batch)

    @checked(idle_s=optional(seconds))
    def follow(self, start: ReadStart = None, *, idle_s: float | None = None) -> Iterator[Record]:
        """Go through the log's records, then wait for more, forever or until none came for ``idle_s`` seconds.

        Ends after the last record of a log that is sealed, or is sealed meanwhile (``follow_across``
        continues in its successor). The first look at the log fixes the start; from then on nothing is
        skipped: a record that is collected before it was read is a GarbageCollectedError. Waiting costs
        one conditional GET per poll, with growing pauses while nothing is appended; an append by a writer
        in this process ends the pause at once.
        """
        yield from self.following(start, Waiting(self._runtime, self._options, idle_s=idle_s)).records()

    @checked(idle_s=optional(seconds))
    def follow_async(self, start: ReadStart = None, *, idle_s: float | None = None) -> AsyncGenerator[Record, None]:
        """Follow from asyncio: as ``follow``, read in a thread that ends when the generator is closed or cancelled."""
        return in_thread(self.following(start, Waiting(self._runtime, self._options, idle_s=idle_s)))

    def following(self, start: ReadStart = None, waiting: Waiting | None = None) -> Following:
        """Return what ``follow`` goes through, for callers that want to know why it ended."""
        waiting = waiting or Waiting(self._runtime, self._options, idle_s=None)
        log = share_of(self._store).log.rstrip("/")
        source = Source(self.manifest, self._followed, self._snapshots.load)
        return Following(source, self._runtime, waiting, topic=self._manifests.url, log=log, start=start)

    def _followed(self, start: ReadStart, manifest: Manifest) -> Iterator[Record]:
        """Go through a manifest's records for a follower, which comes to all that replaces a record."""
        for batch in self._batches(start, UNLIMITED, manifest, exact=False):
            yield from parquet.records_of(batch)

    def walk(
        self,
        manifest: Manifest,
        start: ReadStart,
        limits: Limits,
        *,
        on_damage: Callable[[SnapshotPointer, CorruptError], None] | None = None,
    ) -> Walk:
        """Return a walk along one manifest's tree; it does not look up missing objects in a newer one."""
        share = share_of(self._store)
        loader = Loader(self._runtime, self._snapshots.load, self._options.prefetch_snapshots, share)
        return Walk(manifest.pointers, start, limits, loader=loader, on_damage=on_damage)

    def _fetched(self, walk: Walk) -> Iterator[Fragment]:
        count = max(1, self._options.prefetch_fragments)
        share = share_of(self._store)
        return map_ahead(self._runtime, self.fetch, walk, count=count, share=share, ready=lambda: walk.ready)

    def _reloading(self, *, exact: bool = True) -> Reloading:
        return Reloading(
            load=self.manifest,
            walk=self.walk,
            url=self._manifests.url,
            log_id=self._manifests.log_id(),
            reloads_max=self._options.reloads_max,
            exact=exact,
        )


def pinned_records(
    store: ObjectStore,
    log: str,
    name: str,
    start: ReadStart = None,
    limits: Limits = UNLIMITED,
    *,
    runtime: Runtime | None = None,
) -> Iterator[Record]:
    """Go through the records that a pin keeps; InvalidRequestError when there is no finished pin of that name."""
    yield from open_pinned(store, log, name, runtime=runtime).records(start, limits)


def open_pinned(
    store: ObjectStore,
    log: str,
    name: str,
    *,
    options: ReaderOptions | None = None,
    runtime: Runtime | None = None,
) -> LogReader:
    """Open what a pin keeps for reading; InvalidRequestError when there is no finished pin of that name."""
    runtime, options = runtime or shared_runtime(), options or ReaderOptions()
    pin = PinStore(store, log, runtime=runtime).load(name)
    if pin is None:
        raise InvalidRequestError(f"log {log}: expected a pin {name}, found none")
    if not pin.complete:
        raise InvalidRequestError(f"log {log}: expected pin {name} to be finished, found it unfinished: pin it again")
    reader = _PinnedReader(store, log, options=options, runtime=runtime, log_id=pin.log_id)
    reader.pinned = pin.manifest
    return reader


class _PinnedReader(LogReader):
    """Reads what a pin holds as if nothing came after it: a missing object is lost, since the pin keeps it."""

    pinned: Manifest

    def manifest(self) -> Manifest:
        return self.pinned
