"""Large logs, grown by the library's own steps with many fragments to a change of the manifest, and what they lead to.

What a writer does one fragment at a time is done here in bulk: encode and write the fragments, apply
them to the manifest, roll its pointers into snapshots, swap it in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice

from tests.stores import life_store
from wal3_core import LogWriter
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Epoch, Manifest
from wal3_core.format.parquet import FragmentSource, encode
from wal3_core.format.paths import MANIFEST, fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import Setsum
from wal3_core.log.tree.shape import build_snapshot, plan_roll
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

STEP_US = 1_000_000
_FRAGMENTS_PER_STEP = 16
_SETSUM = Setsum.of([b"x"])


class Grower:
    """Grows a log by fragments of one record, one a second; without ``real`` ones only their pointers are made."""

    def __init__(
        self, store: ObjectStore, log: str = "a", *, tree: SnapshotOptions | None = None, real: bool = True
    ) -> None:
        self._runtime = shared_runtime()
        root = log_store(store, log)
        self._tree = tree or SnapshotOptions()
        self._manifests = ManifestStore(root, self._runtime)
        self._inside = self._manifests.objects
        self._snapshots = SnapshotStore(self._manifests, self._runtime, loaded_max=self._tree.loaded_max)
        self._real = real
        if root.head(MANIFEST) is None:
            LogWriter.create(store, log)

    def grow(self, count: int, *, per_step: int = _FRAGMENTS_PER_STEP, per_change: int = 8192) -> None:
        """Append so many fragments, ``per_step`` between looks for what to roll, ``per_change`` to a manifest."""
        left = count
        while left:
            base = self._manifests.load()
            number = min(left, per_change)
            outcome = self._manifests.install(self._grown(base.manifest, number, per_step), base)
            assert isinstance(outcome, Installed)
            left -= number

    def _grown(self, manifest: Manifest, count: int, per_step: int) -> Manifest:
        entry = Epoch(manifest.last_epoch + 1, self._runtime.token(), manifest.next.seq_no)
        pointers = islice(self._pointers(entry, manifest.next), count)
        while run := list(islice(pointers, per_step)):
            manifest = self._rolled(manifest.apply_fragments(entry, run))
        return manifest

    def _rolled(self, manifest: Manifest) -> Manifest:
        while (roll := plan_roll(manifest, self._tree)) is not None:
            snapshot = build_snapshot(roll, manifest, self._snapshots.load)
            manifest = manifest.apply_snapshot(self._snapshots.write(snapshot, RetryOptions()), roll)
        return manifest

    def _pointers(self, entry: Epoch, place: Boundary) -> Iterator[FragmentPointer]:
        while True:
            start = LogPosition(place.position.offset, place.position.timestamp_us + STEP_US)
            yield self._written(entry, place.seq_no, start) if self._real else made_up(entry, place.seq_no, start)
            place = Boundary(FragmentSeqNo(place.seq_no + 1), LogPosition(start.offset + 1, start.timestamp_us))

    def _written(self, entry: Epoch, seq_no: FragmentSeqNo, start: LogPosition) -> FragmentPointer:
        body = b"%d" % start.offset
        encoded = encode(FragmentSource(start=start, seq_no=seq_no, token=entry.token, keys=None, bodies=[body]))
        write_immutable(self._inside, fragment_path(seq_no, entry.token), encoded.data, RetryOptions(), self._runtime)
        return _pointer(entry, seq_no, start, setsum=encoded.setsum, num_bytes=len(encoded.data))


def made_up(entry: Epoch, seq_no: FragmentSeqNo, start: LogPosition) -> FragmentPointer:
    return _pointer(entry, seq_no, start, setsum=_SETSUM, num_bytes=1000)


def _pointer(
    entry: Epoch, seq_no: FragmentSeqNo, start: LogPosition, *, setsum: Setsum, num_bytes: int
) -> FragmentPointer:
    return FragmentPointer(
        path=fragment_path(seq_no, entry.token),
        first_seq_no=seq_no,
        seq_no=seq_no,
        start=start,
        limit=LogPosition(start.offset + 1, start.timestamp_us),
        setsum=setsum,
        num_bytes=num_bytes,
        num_records=1,
    )


def reachable(store: ObjectStore, log: str = "a") -> set[str]:
    """Name the fragments and snapshots that the manifest leads to, found with a JSON parser alone."""
    found: set[str] = set()
    manifest = _document(store, f"{log}/{MANIFEST}")
    waiting = [*manifest["snapshots"], *manifest["fragments"]]
    while waiting:
        path = waiting.pop()["path"]
        found.add(path)
        if path.startswith("snapshot/"):
            waiting += _document(life_store(store, log), path)["pointers"]
    return found


def _document(store: ObjectStore, path: str) -> dict[str, list[dict[str, str]]]:
    data = store.read(path)
    assert data is not None, path
    document: dict[str, list[dict[str, str]]] = json.loads(data)
    return document


def stored(store: ObjectStore, log: str = "a") -> dict[str, int]:
    """Size of each fragment and snapshot that lies on storage, by its path."""
    inside = life_store(store, log)
    return {meta.path: meta.size for folder in ("log/", "snapshot/") for meta in inside.list_objects(folder)}
