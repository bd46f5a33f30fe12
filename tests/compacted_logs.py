"""Logs with gaps: what a key compaction leaves, made by hand from any choice of records to drop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from wal3_core import LogReader, LogWriter, Record
from wal3_core.format import parquet
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Epoch
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import Pointer, Snapshot
from wal3_core.log.tree.shape import roll_all
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

# Sixteen fragments make a tree of three levels.
NARROW = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)

# A record before it has an offset: its time, its key, its body.
Timed = tuple[int, bytes | None, bytes | None]


def write_log(store: ObjectStore, log: str, fragments: Sequence[Sequence[Timed]]) -> list[Record]:
    """Make a log of these fragments, in snapshots of every depth; times must not run back. Return its records."""
    LogWriter.create(store, log)
    return _Hand(store, log).append(fragments)


def append_fragments(store: ObjectStore, log: str, fragments: Sequence[Sequence[Timed]]) -> list[Record]:
    """Append fragments to a log; return their records."""
    return _Hand(store, log).append(fragments)


def compact(
    store: ObjectStore,
    log: str,
    drop: Collection[int] = (),
    groups: Iterable[tuple[int, int]] = (),
    *,
    arrange: bool = False,
) -> list[Pointer]:
    """Drop records by offset, and let one fragment stand for each group; return what is replaced.

    Groups are [start, limit) among the log's fragments. A fragment that loses records outside of all groups is
    a group of its own. Something must be left of every group. With ``arrange`` the new ones are arranged by key.
    """
    return _Hand(store, log, arrange=arrange).compact(frozenset(drop), groups)


def delete_objects(store: ObjectStore, log: str, pointers: Iterable[Pointer]) -> None:
    """Delete what a compaction replaced, as happens an interval later."""
    hand = _Hand(store, log)
    for pointer in pointers:
        hand.manifests.objects.delete(pointer.path)


def fragments_of(store: ObjectStore, log: str) -> list[FragmentPointer]:
    """List the fragments of a log."""
    return LogReader.open(store, log).scan()


class _Hand:
    def __init__(self, store: ObjectStore, log: str, *, arrange: bool = False) -> None:
        self._arrange = arrange
        self._reader = LogReader.open(store, log)
        self._runtime = shared_runtime()
        self.manifests = ManifestStore(log_store(store, log), self._runtime)
        self._snapshots = SnapshotStore(self.manifests, self._runtime, loaded_max=0)
        self._replaced: list[Pointer] = []

    def append(self, fragments: Sequence[Sequence[Timed]]) -> list[Record]:
        base = self.manifests.load()
        manifest = base.manifest
        entry = Epoch(manifest.last_epoch + 1, self._runtime.token(), manifest.next.seq_no)
        at, made, pointers = manifest.next.position.offset, [], []
        for number, fragment in enumerate(fragments):
            records = [Record(at + index, *timed) for index, timed in enumerate(fragment)]
            start = LogPosition(at, records[0].timestamp_us)
            at += len(records)
            limit = LogPosition(at, records[-1].timestamp_us)
            seq_no = FragmentSeqNo(manifest.next.seq_no + number)
            pointers.append(self._write(records, (seq_no, seq_no), start, limit, entry.token))
            made += records
        manifest = manifest.apply_fragments(entry, pointers)
        while (rolled := roll_all(manifest, NARROW, self._snapshots.load)) is not None:
            for snapshot in rolled.written:
                self._snapshots.write(snapshot, RetryOptions())
            manifest = manifest.apply_repack(rolled.pointers, rolled.replaced)
        assert isinstance(self.manifests.install(manifest, base), Installed)
        return made

    def compact(self, drop: frozenset[int], groups: Iterable[tuple[int, int]]) -> list[Pointer]:
        base = self.manifests.load()
        fragments = list(self._fragments(base.manifest.pointers))
        token, dropped = self._runtime.token(), EMPTY
        instead: dict[str, FragmentPointer | None] = {}
        for start, limit in _with_losers(fragments, drop, groups):
            run = fragments[start:limit]
            merged = self._merged(run, drop, token)
            dropped += sum((pointer.setsum for pointer in run), EMPTY) - merged.setsum
            instead |= {pointer.path: None for pointer in run}
            instead[run[0].path] = merged
            self._replaced += run
        pointers = self._rebuilt(base.manifest.pointers, instead, base.manifest.fence)
        compaction = base.manifest.compaction.passed(token, 0, 0, swept=0)
        changed = replace(base.manifest, pruned=base.manifest.pruned + dropped, compaction=compaction).holding(pointers)
        assert isinstance(self.manifests.install(changed, base), Installed)
        return self._replaced

    def _merged(self, run: Sequence[FragmentPointer], drop: frozenset[int], token: str) -> FragmentPointer:
        held = [record for pointer in run for record in self._reader.fetch(pointer).records()]
        records = [record for record in held if record.offset not in drop]
        assert records, "a group without survivors"
        return self._write(records, (run[0].first_seq_no, run[-1].seq_no), run[0].start, run[-1].limit, token)

    def _write(
        self,
        records: Sequence[Record],
        seq_nos: tuple[FragmentSeqNo, FragmentSeqNo],
        start: LogPosition,
        limit: LogPosition,
        token: str,
    ) -> FragmentPointer:
        keys = [record.key for record in records]
        encoded = parquet.encode(
            parquet.FragmentSource(
                start=start,
                seq_no=seq_nos[1],
                token=token,
                keys=None if all(key is None for key in keys) else keys,
                bodies=[record.body for record in records],
                timestamps_us=[record.timestamp_us for record in records],
                offsets=[record.offset for record in records],
            )
        )
        if self._arrange:
            encoded = parquet.encode_arranged(parquet.table_of(records), seq_no=seq_nos[1], token=token)
        path = fragment_path(seq_nos[1], token)
        self.manifests.objects.create(path, bytes(encoded.data))
        return FragmentPointer(
            path=path,
            first_seq_no=seq_nos[0],
            seq_no=seq_nos[1],
            start=start,
            limit=limit,
            setsum=encoded.setsum,
            num_bytes=len(encoded.data),
            num_records=len(records),
        )

    def _fragments(self, pointers: Iterable[Pointer]) -> Iterator[FragmentPointer]:
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer):
                yield pointer
            else:
                yield from self._fragments(self._snapshots.load(pointer).pointers)

    def _rebuilt(
        self, pointers: Iterable[Pointer], instead: dict[str, FragmentPointer | None], fence: int
    ) -> list[Pointer]:
        """Replace fragments in a tree; a fragment that stands for several takes the place of the first."""
        made: list[Pointer] = []
        for pointer in pointers:
            if isinstance(pointer, FragmentPointer):
                other = instead.get(pointer.path, pointer)
                made += [] if other is None else [other]
                continue
            below = self._snapshots.load(pointer).pointers
            rebuilt = tuple(self._rebuilt(below, instead, fence))
            if rebuilt == below:
                made.append(pointer)
                continue
            self._replaced.append(pointer)
            if rebuilt:
                made.append(self._snapshots.write(Snapshot(rebuilt, fence, self.manifests.log_id()), RetryOptions()))
        return made


def _with_losers(
    fragments: Sequence[FragmentPointer], drop: frozenset[int], groups: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    wanted = sorted(groups)
    grouped = {index for start, limit in wanted for index in range(start, limit)}
    losers = {
        index
        for index, pointer in enumerate(fragments)
        if any(pointer.start.offset <= offset < pointer.limit.offset for offset in drop)
    }
    return sorted([*wanted, *((index, index + 1) for index in losers - grouped)])
