"""The manifest's tree as a writer grows it: small commits, one GET to open, every fragment reachable."""

from __future__ import annotations

import threading
import time

import pytest

from tests.stores import CountingStore, FaultyStore
from wal3_core import LogReader, LogWriter, MemoryStore, WriterOptions
from wal3_core.format.manifest import Manifest
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import Versioned

TREE = SnapshotOptions(fragments_per_snapshot=8, fragments_kept=4, snapshots_per_roll=4, snapshot_pointers_max=64)


@pytest.mark.slow
def test_bytes_written_per_commit_stay_flat(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    averages = []
    with LogWriter.open_or_create(store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for _ in range(4):
            store.written.clear()
            for _ in range(256):
                writer.append(b"x")
            averages.append((store.written["manifest"] + store.written["snapshot"]) / 256)

    # Without rolling, the last window would write four times as much as the first.
    assert max(averages) < 2 * averages[0]


@pytest.mark.slow
def test_log_of_many_fragments_opens_with_one_get_and_reads_through_few_snapshots(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for _ in range(300):
            writer.append(b"x")
    store = CountingStore(memory_store)

    reader = LogReader.open(store, "a")
    assert store.requests == {"get": 1}
    found = reader.scan()

    assert [pointer.seq_no for pointer in found] == list(range(1, 301))
    assert store.requests["read"] <= 300 / TREE.fragments_per_snapshot + 5


@pytest.mark.slow
def test_reopened_writer_continues_with_the_existing_tree(memory_store: MemoryStore) -> None:
    for _ in range(10):
        with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(snapshots=TREE)) as writer:
            for _ in range(30):
                writer.append(b"x")

    reader = LogReader.open(memory_store, "a")
    assert len(list(reader.records())) == 300
    assert any(snapshot.depth == 2 for snapshot in reader.manifest().snapshots)
    assert len(reader.manifest().fragments) <= TREE.fragments_per_snapshot + TREE.fragments_kept


@pytest.mark.slow
def test_all_snapshots_that_are_due_are_rolled_at_once(memory_store: MemoryStore) -> None:
    """A commit may carry more fragments than a snapshot holds; one snapshot per commit would never catch up."""
    unrolled = WriterOptions(batch_records_max=1, snapshots=SnapshotOptions(fragments_per_snapshot=1000))
    with LogWriter.open_or_create(memory_store, "a", options=unrolled) as writer:
        for _ in range(300):
            writer.submit(b"x")

    with LogWriter.open(memory_store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        writer.append(b"x")

    manifest = LogReader.open(memory_store, "a").manifest()
    assert [snapshot.depth for snapshot in manifest.snapshots] == [2]
    assert len(manifest.fragments) < TREE.fragments_per_snapshot + TREE.fragments_kept
    assert len(list(LogReader.open(memory_store, "a").records())) == manifest.num_records


def test_generation_grows_with_every_install(memory_store: MemoryStore) -> None:
    generations = []
    with LogWriter.open_or_create(memory_store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for _ in range(30):
            writer.append(b"x")
            found = memory_store.get("a/manifest/MANIFEST.json")
            assert isinstance(found, Versioned)
            generations.append(Manifest.from_bytes(found.data).generation)

    assert generations == list(range(2, 32))


@pytest.mark.slow
def test_snapshot_that_is_ready_too_late_for_one_commit_is_used_by_the_next(memory_store: MemoryStore) -> None:
    """Regression: it was discarded and written again, forever where uploads took as long as commits."""
    store = FaultyStore(memory_store)
    manifest_made, commits, created = threading.Event(), [], []
    rolled_at = TREE.fragments_per_snapshot + TREE.fragments_kept

    def pace(kind: str, path: str) -> None:
        # The snapshot is uploaded after the next manifest is made and before it is installed.
        if kind == "replace" and "MANIFEST" in path:
            commits.append(path)
            if len(commits) > rolled_at + 1:
                manifest_made.set()
                time.sleep(0.1)
        if kind == "create" and "snapshot/" in path:
            manifest_made.wait(5)
            created.append(path)

    store.before = pace
    with LogWriter.open_or_create(store, "a", options=WriterOptions(snapshots=TREE)) as writer:
        for _ in range(rolled_at + 3):
            writer.append(b"x")

    assert len(created) == 1
    assert LogReader.open(memory_store, "a").manifest().snapshots
