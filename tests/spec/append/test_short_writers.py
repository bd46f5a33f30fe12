"""Writers that live for one append keep the manifest as small as a long-lived one does, and fail no append by it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import World
from wal3_core import LogReader, LogWriter, MemoryStore, WriterOptions
from wal3_core.format.paths import MANIFEST, SNAPSHOT_FOLDER
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

TREE = SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=8)
SHORT = WriterOptions(snapshots=TREE, retry=RetryOptions(attempts_max=2, pause_s_min=0.001, pause_s_max=0.002))
# One more makes enough for a snapshot.
DUE = TREE.fragments_per_snapshot + TREE.fragments_kept - 1
DEADLINE_S = 20.0
# `make kills` runs 10,000.
WRITERS = int(os.environ.get("WAL3_TEST_WRITERS", "1000"))


def append_once(store: ObjectStore, options: WriterOptions | None = None) -> None:
    """Append as a cron job does."""
    with LogWriter.open_or_create(store, "a", options=options) as writer:
        writer.append(b"x")


def snapshots(store: ObjectStore) -> set[str]:
    return {meta.path for meta in life_store(store, "a").list_objects(SNAPSHOT_FOLDER)}


def before_the_commit(store: ObjectStore, act: Callable[[], None]) -> FaultyStore:
    """Return a store that runs an action once, before the first change of the manifest is sent."""
    faulty, pending = FaultyStore(store), [act]

    def interfere(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith(MANIFEST) and pending:
            pending.pop()()

    faulty.before = interfere
    return faulty


@pytest.mark.slow
@pytest.mark.parametrize("count", [600, pytest.param(WRITERS, marks=pytest.mark.repeat)])
def test_writers_of_one_append_write_as_little_as_a_long_lived_one(memory_store: MemoryStore, count: int) -> None:
    """Regression: nothing was ever rolled, and after 1,600 appends each one wrote 1.7 MB."""
    last = 128
    written = {}
    for log in ("long", "short"):
        store = CountingStore(memory_store)
        long = LogWriter.open_or_create(store, log)
        for number in range(count):
            if number == count - last:
                store.written.clear()
                store.requests.clear()
            if log == "long":
                long.append(b"x")
            else:
                with LogWriter.open(store, log) as short:
                    short.append(b"x")
        long.close()
        written[log] = store.written["manifest"] + store.written["snapshot"]

    assert written["short"] <= 1.5 * written["long"]
    # Opening, the fragment, the commit; a snapshot for every sixteenth, and one more where these are rolled in turn.
    rolls = last // SnapshotOptions().fragments_per_snapshot
    assert store.requests["get"] == last
    assert store.requests["replace"] == last
    assert last + rolls <= store.requests["create"] <= last + rolls + 2


def test_manifest_stays_small_at_every_version(store: ObjectStore) -> None:
    for number in range(60):
        append_once(store, SHORT)

        manifest = World(store).manifest()
        assert len(manifest.fragments) <= DUE
        assert len(manifest.snapshots) <= 6
        assert manifest.next.position.offset == number + 2

    assert len(list(LogReader.open(store, "a").records())) == 60


def test_fragments_a_dead_writer_left_unrolled_are_rolled_by_the_next_first_commit(
    store: ObjectStore,
) -> None:
    unrolled = WriterOptions(batch_records_max=1, snapshots=SnapshotOptions(fragments_per_snapshot=1000))
    with LogWriter.open_or_create(store, "a", options=unrolled) as writer:
        futures = [writer.submit(b"x") for _ in range(50)]
    assert [future.result().offset for future in futures] == list(range(1, 51))

    append_once(store, SHORT)

    manifest = World(store).manifest()
    assert len(manifest.fragments) <= DUE
    # No snapshot was written that another one contains.
    assert len(manifest.snapshots) < len(snapshots(store)) < 50 / TREE.fragments_per_snapshot + 5
    assert len(list(LogReader.open(store, "a").records())) == 51


@pytest.mark.parametrize("fault", ["denied", "unavailable", "unknown", "applied-unknown"])
def test_failed_roll_fails_no_append_and_the_next_writer_rolls(memory_store: MemoryStore, fault: str) -> None:
    faulty = FaultyStore(memory_store)
    for _ in range(DUE):
        append_once(faulty, SHORT)
    faulty.fail("create", SNAPSHOT_FOLDER, fault, times=2)

    append_once(faulty, SHORT)
    faulty.heal()
    append_once(faulty, SHORT)

    manifest = World(memory_store).manifest()
    assert faulty.fired[fault]
    assert len(manifest.fragments) < DUE
    assert len(list(LogReader.open(memory_store, "a").records())) == DUE + 2


def test_snapshot_that_is_lost_fails_no_append(memory_store: MemoryStore) -> None:
    """The larger snapshot that needs it cannot be made; those of fragments can."""
    world = World(memory_store)
    for _ in range(25):
        append_once(memory_store, SHORT)
    before = world.manifest()
    assert [pointer.depth for pointer in before.snapshots] == [2, 1]
    life_store(memory_store, "a").delete(before.snapshots[0].path)

    for _ in range(20):
        append_once(memory_store, SHORT)

    manifest = world.manifest()
    assert manifest.next.seq_no == before.next.seq_no + 20
    assert manifest.snapshots[0] == before.snapshots[0]
    assert len(manifest.fragments) <= DUE


def test_hanging_roll_delays_an_append_briefly_and_close_not_at_all(memory_store: MemoryStore) -> None:
    for _ in range(DUE):
        append_once(memory_store, SHORT)
    faulty, answered = FaultyStore(memory_store), threading.Event()

    def hang(kind: str, path: str) -> None:
        if kind == "create" and SNAPSHOT_FOLDER in path:
            answered.wait(DEADLINE_S)

    faulty.before = hang
    ended = threading.Event()

    def append() -> None:
        append_once(faulty, replace(SHORT, snapshots=replace(TREE, wait_s_max=0.05)))
        ended.set()

    appending = threading.Thread(target=append, daemon=True)
    appending.start()
    try:
        assert ended.wait(DEADLINE_S / 2), "the append waits for a snapshot"
    finally:
        answered.set()
        appending.join(DEADLINE_S)

    assert World(memory_store).manifest().next.seq_no == DUE + 2


def test_two_short_writers_at_once_roll_the_same_run_into_one_snapshot(store: ObjectStore) -> None:
    for _ in range(DUE):
        append_once(store, SHORT)

    append_once(before_the_commit(store, lambda: append_once(store, SHORT)), SHORT)

    manifest = World(store).manifest()
    assert {pointer.path for pointer in manifest.snapshots} == snapshots(store)
    assert len(list(LogReader.open(store, "a").records())) == DUE + 2


def test_snapshot_rolled_by_a_short_writer_before_the_fence_moved_is_written_again(store: ObjectStore) -> None:
    """INV-7."""
    world = World(store)
    for _ in range(DUE):
        append_once(store, SHORT)
    marked: set[str] = set()

    def prune_orphans() -> None:
        marked.update(snapshots(store))
        manifests = ManifestStore(log_store(store, "a"), shared_runtime())
        base = manifests.load()
        outcome = manifests.install(replace(base.manifest, fence=base.manifest.fence + 1), base)
        assert isinstance(outcome, Installed)
        # From here on an object marked for deletion can be deleted at any time.
        for path in marked:
            life_store(store, "a").delete(path)

    append_once(before_the_commit(store, prune_orphans), SHORT)

    assert marked
    assert not marked & {pointer.path for pointer in world.manifest().snapshots}
    assert world.manifest().snapshots
    assert len(list(LogReader.open(store, "a").records())) == DUE + 1


def test_long_lived_writer_waits_for_no_snapshot(memory_store: MemoryStore) -> None:
    faulty, waiting = FaultyStore(memory_store), threading.Event()

    def hang(kind: str, path: str) -> None:
        if kind == "create" and SNAPSHOT_FOLDER in path:
            waiting.wait(DEADLINE_S)

    faulty.before = hang
    with LogWriter.open_or_create(faulty, "a", options=SHORT) as writer:
        for number in range(3 * DUE):
            assert writer.append(b"x").offset == number + 1
        assert not World(memory_store).manifest().snapshots
        waiting.set()
