"""Compares key roll-ups with the fragments that they are of."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.log.read.scrub_report import Problem
from wal3_core.model.paths import KEY_ROLLUP_FOLDER, key_rollup_path
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import ReaderOptions
from wal3_core.storage.documents.key_rollup_store import KeyRollupStore
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.object_store import log_store
from wal3_core.storage.retrying import with_retries

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from wal3_core.log.read.reader import LogReader
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Pointer
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore

_REMEDY = "delete this object: it holds no records, and is computed again"


class KeyRollupScrub:
    """Compares the key roll-ups of one life of a log. A log without any costs one request."""

    def __init__(self, store: ObjectStore, log: str, reader: LogReader, manifest: Manifest, runtime: Runtime) -> None:
        self._reader = reader
        self._manifest = manifest
        self._runtime = runtime
        options = ReaderOptions()
        root = with_retries(log_store(store, log), runtime)
        manifests = ManifestStore(root, runtime, log_id=manifest.log_id)
        self._objects = manifests.objects
        self._rollups = KeyRollupStore(manifests, runtime, options.retry)
        self._columns = KeyColumns(manifests.objects, options)

    def problems(self, first: int, limit: int) -> Iterator[Problem]:
        """Report those of the snapshots that end in a range of offsets, so that each is in one of adjoining ranges."""
        snapshots = self._snapshots(self._manifest.pointers, first, limit)
        # Many ranges have none.
        for pointer in snapshots:
            present = {meta.path for meta in self._objects.list_objects(KEY_ROLLUP_FOLDER)}
            if present:
                yield from self._problems(chain((pointer,), snapshots), present)
            return

    def _problems(self, pointers: Iterable[SnapshotPointer], present: Container[str]) -> Iterator[Problem]:
        for pointer in pointers:
            path = key_rollup_path(pointer.path)
            if path in present and (wrong := self._compared(pointer)) is not None:
                yield Problem(path, f"{wrong}: {_REMEDY}")

    def _snapshots(self, pointers: Sequence[Pointer], first: int, limit: int) -> Iterator[SnapshotPointer]:
        """Go through the snapshots of depth 1 that end in a range; unreadable ones are reported elsewhere."""
        for pointer in pointers:
            inside = pointer.start.offset < limit and first < pointer.limit.offset
            if not isinstance(pointer, SnapshotPointer) or not inside:
                continue
            if pointer.depth > 1:
                try:
                    below = self._reader.load_snapshot(pointer).pointers
                except CorruptError:
                    continue
                yield from self._snapshots(below, first, limit)
            elif pointer.limit.offset <= limit:
                yield pointer

    def _compared(self, pointer: SnapshotPointer) -> str | None:
        """Say what is wrong with a key roll-up; None when nothing is, or when it cannot be found out."""
        try:
            found = self._rollups.read(pointer)
        except CorruptError as error:
            return str(error)
        try:
            expected = build_key_rollup(self._reader.load_snapshot(pointer), self._columns, runtime=self._runtime)
        except CorruptError:
            # What is damaged, or was collected, is reported where the records are read.
            return None
        if found is None or found == expected:
            return None
        return f"key roll-up {key_rollup_path(pointer.path)}: expected the keys of its fragments, found others"
