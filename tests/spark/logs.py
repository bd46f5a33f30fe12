"""Logs for the tests, and maintenance steps on them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq

from tests.stores import life_store
from wal3_core import LogReader, LogWriter, Message, WriterOptions
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Manifest
from wal3_core.format.paths import fragment_path
from wal3_core.options import SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import Done, ObjectStore, log_store

PER_FRAGMENT = 10
# A tree of two levels after a few dozen fragments.
TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)


def fill(store: ObjectStore, log: str, *, fragments: int, snapshots: SnapshotOptions | None = None) -> None:
    """Append ten records per fragment; every third has a key, every ninth is a tombstone."""
    options = WriterOptions(snapshots=snapshots or SnapshotOptions())
    with LogWriter.open_or_create(store, log, options=options) as writer:
        for fragment in range(fragments):
            numbers = range(fragment * PER_FRAGMENT, (fragment + 1) * PER_FRAGMENT)
            writer.append_many([message(log, number) for number in numbers])


def message(log: str, number: int) -> Message:
    """Message number ``number`` that ``fill`` appends."""
    body = f"{log} {number}".encode()
    return Message(None if number % 9 == 0 else body, b"%d" % number if number % 3 == 0 else None)


def pointers(store: ObjectStore, log: str) -> list[FragmentPointer]:
    """The log's fragments."""
    return LogReader.open(store, log).scan()


def collect(store: ObjectStore, log: str, count: int) -> None:
    """Prune and delete the first fragments, as garbage collection does."""
    manifests, found = _load(store, log)
    gone, kept = found.manifest.fragments[:count], found.manifest.fragments[count:]
    pruned = found.manifest.pruned
    for pointer in gone:
        pruned += pointer.setsum
    first = Boundary(kept[0].first_seq_no, kept[0].start)
    _install(manifests, found, replace(_counted(found.manifest, kept), pruned=pruned, first=first))
    for pointer in gone:
        life_store(store, log).delete(pointer.path)


def merge(store: ObjectStore, log: str, at: int) -> None:
    """Replace two fragments by one and delete them, as compaction does."""
    manifests, found = _load(store, log)
    fragments = found.manifest.fragments
    first, second = fragments[at : at + 2]
    reader = LogReader.open(store, log)
    sink = pa.BufferOutputStream()
    table = pa.concat_tables([reader.fetch(first).table, reader.fetch(second).table])
    pq.write_table(table.replace_schema_metadata(None), sink)
    data = sink.getvalue().to_pybytes()
    path = fragment_path(second.seq_no, "0123456789abcdef")
    assert isinstance(life_store(store, log).create(path, data), Done)
    merged = replace(
        second,
        path=path,
        first_seq_no=first.first_seq_no,
        start=first.start,
        setsum=first.setsum + second.setsum,
        num_bytes=len(data),
        num_records=first.num_records + second.num_records,
    )
    _install(manifests, found, _counted(found.manifest, (*fragments[:at], merged, *fragments[at + 2 :])))
    for pointer in (first, second):
        life_store(store, log).delete(pointer.path)


def _load(store: ObjectStore, log: str) -> tuple[ManifestStore, Installed]:
    manifests = ManifestStore(log_store(store, log), shared_runtime())
    return manifests, manifests.load()


def _counted(manifest: Manifest, fragments: tuple[FragmentPointer, ...]) -> Manifest:
    return replace(
        manifest,
        fragments=fragments,
        num_bytes=sum(pointer.num_bytes for pointer in fragments),
        num_records=sum(pointer.num_records for pointer in fragments),
    )


def _install(manifests: ManifestStore, found: Installed, changed: Manifest) -> None:
    assert isinstance(manifests.install(changed, found), Installed)
