"""The public face of reading a log: scan, fetch, records, follow.

Keeps INV-9 (what is read is what was written) and INV-10 (never a gap, never a short list) of
docs/protocol.md. Source: docs/protocol.md, "Read".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, optional, seconds
from wal3_core.errors import CorruptError, MissingError, UnavailableError
from wal3_core.log.scan import check_start, clip, select, trim
from wal3_core.model import parquet
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.paths import check_log_name
from wal3_core.model.position import read_start
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import Runtime, a_runtime, ahead, shared_runtime
from wal3_core.storage.manifest_store import Installed, ManifestStore
from wal3_core.storage.object_store import a_store, log_store, share_of
from wal3_core.storage.retry import reread_if_damaged
from wal3_core.storage.snapshot_store import SnapshotMissingError, SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.parquet import Fragment
    from wal3_core.model.paths import LogId
    from wal3_core.model.position import ReadStart
    from wal3_core.model.record import Record
    from wal3_core.model.snapshot import Snapshot
    from wal3_core.storage.object_store import ObjectStore


class FragmentMissingError(MissingError):
    """The fragment's object is gone: collected, replaced, or lost; a fresh manifest tells which."""


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
        self._manifests = ManifestStore(log_store(store, check_log_name(log)), runtime, log_id=log_id)
        self._store = self._manifests.objects
        self._snapshots = SnapshotStore(self._manifests, runtime, loaded_max=options.snapshots_loaded_max)
        self._known: Installed | None = None

    @classmethod
    @checked(
        store=a_store, log=check_log_name, options=optional(instance_of(ReaderOptions)), runtime=optional(a_runtime)
    )
    def open(
        cls,
        store: ObjectStore,
        log: str,
        *,
        options: ReaderOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a log for reading: one GET. LogNotFoundError when it was never initialized."""
        reader = cls(store, log, options=options or ReaderOptions(), runtime=runtime or shared_runtime())
        reader.manifest()
        return reader

    def manifest(self) -> Manifest:
        """Return the newest manifest: one GET, cheap when nothing has changed.

        LogReplacedError when the name leads to another log than the one that was opened.
        """
        # Another thread may set what is known to an older one meanwhile: this one's answer is its own.
        known = self._manifests.load(self._known)
        self._known = known
        return known.manifest

    @checked(pointer=instance_of(SnapshotPointer))
    def load_snapshot(self, pointer: SnapshotPointer) -> Snapshot:
        """Return a snapshot of the manifest's tree, checked."""
        return self._snapshots.load(pointer)

    @checked(start=read_start, limits=instance_of(Limits))
    def scan(self, start: ReadStart = None, limits: Limits = UNLIMITED) -> list[FragmentPointer]:
        """List the fragments that hold the records from ``start`` to the limits, in order.

        Takes one GET of the manifest, and one per snapshot that the range touches and that is not
        known yet. Raises GarbageCollectedError when the start is gone, InvalidRequestError when it
        lies beyond the end.
        """
        return self._plan(self.manifest(), start, limits)

    def _plan(self, manifest: Manifest, start: ReadStart, limits: Limits) -> list[FragmentPointer]:
        missing = ""
        for _ in range(self._options.reloads_max):
            check_start(manifest, start)
            try:
                return list(clip(select(manifest.pointers, start, limits, self._snapshots.load), start, limits))
            except SnapshotMissingError as error:
                # Maintenance may have replaced it by now; if the newest manifest names it still, it is lost.
                if error.path == missing:
                    raise
                missing, manifest = error.path, self.manifest()
        raise self._unsettled()

    def _unsettled(self) -> UnavailableError:
        return UnavailableError(
            f"log {self._manifests.url}: maintenance replaced what was to be read"
            f" {self._options.reloads_max} times over"
        )

    @checked(pointer=instance_of(FragmentPointer))
    def fetch(self, pointer: FragmentPointer) -> Fragment:
        """Read one fragment's records: one GET. CorruptError when they are not what the pointer says."""
        return reread_if_damaged(lambda: self._fetch(pointer))

    def _fetch(self, pointer: FragmentPointer) -> Fragment:
        what = f"fragment {pointer.seq_no} ({self._store.url}/{pointer.path})"
        # One byte more tells a longer file without fetching all of it.
        data = self._store.read(pointer.path, length=pointer.num_bytes + 1)
        if data is None:
            message = f"{what}: expected a file, found none"
            raise FragmentMissingError(message, path=pointer.path)
        if len(data) != pointer.num_bytes:
            more = " or more" if len(data) > pointer.num_bytes else ""
            message = f"{what}: expected {pointer.num_bytes} bytes, found {len(data)}{more}"
            raise CorruptError(message)
        return parquet.decode(
            data,
            pointer,
            expanded_bytes_max=self._options.fragment_expanded_bytes_max,
            verify=self._options.verify,
        )

    @checked(start=read_start, limits=instance_of(Limits))
    def fragments(self, start: ReadStart = None, limits: Limits = UNLIMITED) -> Iterator[tuple[Fragment, ReadStart]]:
        """Fetch the fragments that hold a range, in order, a few ahead of the caller; each with where to read it from.

        A missing one is looked up in a fresh manifest: collected, then GarbageCollectedError;
        replaced, then the replacement is read, from where the caller had come to; named still, then
        it is lost: CorruptError.
        """
        yield from self._fragments(self.manifest(), start, limits)

    @checked(start=read_start, limits=instance_of(Limits))
    def batches(self, start: ReadStart = None, limits: Limits = UNLIMITED) -> Iterator[pa.RecordBatch]:
        """Go through the log as Arrow batches (offset, timestamp_us, key, body), to its end as of now."""
        manifest = self.manifest()
        # What maintenance makes the reader load again may end later; the read still ends here.
        end = manifest.next.position.offset
        limits = replace(limits, offset=end if limits.offset is None else min(end, limits.offset))
        left = limits.records
        for fragment, begin in self._fragments(manifest, start, limits):
            for batch in trim(fragment.table, begin, limits).to_batches():
                taken = batch if left is None else batch.slice(0, left)
                if len(taken):
                    yield taken
                left = None if left is None else left - len(taken)

    @checked(start=read_start, limits=instance_of(Limits))
    def records(self, start: ReadStart = None, limits: Limits = UNLIMITED) -> Iterator[Record]:
        """Go through the log's records, to its end as of now."""
        for batch in self.batches(start, limits):
            yield from parquet.records_of(batch)

    @checked(start=read_start, idle_s=optional(seconds))
    def follow(self, start: ReadStart = None, *, idle_s: float | None = None) -> Iterator[Record]:
        """Go through the log's records and then wait for more, for ever or until none came for ``idle_s`` seconds.

        Waiting costs one conditional GET a poll, ever rarer while there is no news; an append by a
        writer in this process wakes it at once.
        """
        topic, version = self._manifests.url, self._runtime.await_topic(self._manifests.url, -1, 0.0)
        pause_s = self._options.poll_s_min
        quiet_since_s = self._runtime.monotonic_s()
        while True:
            for record in self.records(start):
                start = record.offset + 1
                yield record
                quiet_since_s, pause_s = self._runtime.monotonic_s(), self._options.poll_s_min
            left_s = None if idle_s is None else quiet_since_s + idle_s - self._runtime.monotonic_s()
            if left_s is not None and left_s <= 0:
                return
            version = self._runtime.await_topic(topic, version, pause_s if left_s is None else min(pause_s, left_s))
            pause_s = min(pause_s * 2, self._options.poll_s_max)

    def _fragments(self, manifest: Manifest, start: ReadStart, limits: Limits) -> Iterator[tuple[Fragment, ReadStart]]:
        missing, reloads = "", 0
        count, share = max(1, self._options.prefetch_fragments), share_of(self._store)
        while reloads <= self._options.reloads_max:
            try:
                planned = self._plan(manifest, start, limits)
                for fragment in ahead(self._runtime, self.fetch, planned, count=count, share=share):
                    yield fragment, start
                    start, reloads = fragment.pointer.limit.offset, 0
                    limits = limits.without(fragment.pointer.num_bytes)
            except FragmentMissingError as error:
                if error.path == missing:
                    raise
                missing, manifest = error.path, self.manifest()
                reloads += 1
            else:
                return
        raise self._unsettled()
