"""Shared by the tests of pins: logs that are pinned, collected and reorganised."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.stores import FaultyStore
from tests.world import World
from wal3_core import (
    LogWriter,
    Pin,
)
from wal3_core.format.manifest import Manifest
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter, DeletionReport, References
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

from .copying import FEW, NOW

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001)


def fill(store: ObjectStore, log: str, count: int) -> None:
    """Append fragments of one record each."""
    with LogWriter.open_or_create(store, log, options=FEW) as writer:
        for number in range(count):
            writer.append(b"%d" % number)


def append_until(store: ObjectStore, log: str, done: Callable[[Manifest], bool]) -> int:
    """Append fragments of one record each until the manifest satisfies a condition; return their number."""
    with LogWriter.open_or_create(store, log, options=FEW) as writer:
        for number in range(1, 1000):
            writer.append(b"%d" % number)
            if done(World(store, log).manifest()):
                return number
    pytest.fail("a thousand fragments were not enough")


def grow(store: ObjectStore, log: str) -> int:
    """Make a log whose tree has both depths; return its number of records."""
    return append_until(store, log, lambda manifest: {snapshot.depth for snapshot in manifest.snapshots} == {1, 2})


def roll_up(store: ObjectStore, log: str, before: Manifest) -> None:
    """Append until the manifest no longer contains any of its snapshots."""
    old = {pointer.path for pointer in before.snapshots}
    append_until(store, log, lambda manifest: old.isdisjoint(pointer.path for pointer in manifest.snapshots))


def announce(store: ObjectStore, log: str, offset: int) -> str:
    collector = Collector(store, log, options=NOW)
    return collector.announce(collector.plan(offset))


def prune(store: ObjectStore, log: str, offset: int) -> str:
    """Advance the log's first record to ``offset``; return the path of the garbage document."""
    path = announce(store, log, offset)
    assert isinstance(Collector(store, log, options=NOW).prune(path), PrunedGarbage)
    return path


def collect(store: ObjectStore, log: str, offset: int) -> DeletionReport:
    return Deleter(store, log, options=NOW).delete(prune(store, log, offset))


def collect_orphans(store: ObjectStore, log: str) -> list[str]:
    """Delete the orphans; return their paths."""
    # S3 reports an object's age in whole seconds: an object of the current second is not old enough yet.
    time.sleep(1.1 if store.url.startswith("s3:") else 0)
    deleter = Deleter(store, log, options=NOW)
    orphans = deleter.orphans()
    if orphans:
        marked = Collector(store, log, options=NOW).prune_orphans(orphans, "orphans")
        assert isinstance(marked, PrunedGarbage)
        deleter.delete(marked.path)
    return orphans


def assert_whole(store: ObjectStore, log: str, pin: Pin) -> None:
    """Check that every fragment of a pin is stored and held by it."""
    manifests = ManifestStore(log_store(store, log), shared_runtime())
    snapshots, inside = SnapshotStore(manifests, shared_runtime(), loaded_max=64), manifests.objects
    references = References([pin.manifest.pointers], snapshots.load)
    every = {meta.path for folder in ("log/", "snapshot/") for meta in inside.list_objects(folder)}
    assert sum(references.retains(path) for path in every if path.startswith("log/")) == pin.manifest.num_records


def racing(store: ObjectStore, when: str, race: Callable[[], None], *, times: int = 1) -> FaultyStore:
    """Run ``race`` before the pin is written, or between that and the reading of the manifest."""
    faulty, left, written = FaultyStore(store), [times], [False]

    def before(kind: str, path: str) -> None:
        saves = kind in {"create", "replace"} and "/pin/" in path
        looks = kind == "get" and path.endswith("MANIFEST.json") and written[0]
        written[0] = written[0] or saves
        if left[0] and (saves if when == "before it is written" else looks):
            left[0] -= 1
            race()

    faulty.before = before
    return faulty
