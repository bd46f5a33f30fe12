"""A lopsided tree is repacked concurrently with appends, collections and other compactors, and no fragment is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from tests.stores import CountingStore, FaultyStore, life_store
from tests.world import ClockStore, World
from wal3_core import LogReader, LogWriter, MemoryStore, WriterOptions
from wal3_core.errors import CorruptError, StoreDeniedError, UnavailableError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.snapshot import Pointer, Snapshot
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.tree.shape import build_snapshot, plan_roll
from wal3_core.options import CollectorOptions, RetryOptions, SnapshotCompactorOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

# The snapshot options the log was written with, and those it is repacked to.
BEFORE = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2, snapshot_pointers_max=4)
AFTER = SnapshotOptions(fragments_per_snapshot=8, fragments_kept=4, snapshots_per_roll=4, snapshot_pointers_max=64)
# Rolls nothing.
UNROLLED = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=1000))
COUNT = 40


def compactor(store: ObjectStore) -> SnapshotCompactor:
    # The smallest steps possible: each changes the manifest.
    return SnapshotCompactor(store, "a", options=SnapshotCompactorOptions(snapshots=AFTER, pointers_per_step_max=1))


def write(store: ObjectStore) -> None:
    """Make a log with the tree that a writer with the old options would have left."""
    with LogWriter.open_or_create(store, "a", options=UNROLLED) as writer:
        for body in written():
            writer.append(body)
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    trees = SnapshotStore(manifests, shared_runtime(), loaded_max=64)
    base = manifests.load()
    manifest = base.manifest
    while (roll := plan_roll(manifest, BEFORE)) is not None:
        snapshot = trees.write(build_snapshot(roll, manifest, trees.load), RetryOptions())
        manifest = manifest.apply_snapshot(snapshot, roll)
    assert isinstance(manifests.install(manifest, base), Installed)


def written(count: int = COUNT) -> list[bytes]:
    return [b"%d" % number for number in range(1, count + 1)]


def snapshots(store: ObjectStore) -> dict[str, Snapshot]:
    """All snapshots that the manifest refers to, by path."""
    reader = LogReader.open(store, "a")

    def below(pointers: Sequence[Pointer]) -> Iterator[tuple[str, Snapshot]]:
        for pointer in pointers:
            if not isinstance(pointer, FragmentPointer):
                snapshot = reader.load_snapshot(pointer)
                yield pointer.path, snapshot
                yield from below(snapshot.pointers)

    return dict(below(reader.manifest().pointers))


def stored_snapshots(store: ObjectStore) -> set[str]:
    return {meta.path for meta in life_store(store, "a").list_objects("snapshot/")}


def once_before_the_manifest_changes(store: ObjectStore, action: Callable[[], object]) -> FaultyStore:
    """Return a store that runs the action before the first change of the manifest is sent."""
    faulty, pending = FaultyStore(store), [action]

    def interfere(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path and pending:
            pending.pop()()

    faulty.before = interfere
    return faulty


def move_fence(store: ObjectStore) -> None:
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    base = manifests.load()
    outcome = manifests.install(replace(base.manifest, fence=base.manifest.fence + 1), base)
    assert isinstance(outcome, Installed)


def test_lopsided_log_is_repacked_and_reads_as_before_through_fewer_snapshots(store: ObjectStore) -> None:
    write(store)
    before = snapshots(store)
    setsum = LogReader.open(store, "a").manifest().setsum
    progress: list[tuple[int, int | None]] = []
    lopsided = compactor(store).shape(exact=True)

    done = compactor(store).compact(lambda packed, total: progress.append((packed, total)))

    after = snapshots(store)
    assert World(store).bodies() == written()
    assert LogReader.open(store, "a").manifest().setsum == setsum
    assert (lopsided.needs_compaction, done.after.needs_compaction, done.num_overtaken) == (True, False, 0)
    assert done.num_steps > 1
    assert len(after) < len(before) / 2
    assert (
        max(len(snapshot.pointers) for snapshot in after.values() if snapshot.depth == 1)
        == AFTER.fragments_per_snapshot
    )
    assert [packed for packed, _ in progress] == sorted({packed for packed, _ in progress})
    assert progress[-1] == (done.num_pointers, None)


def test_compacting_a_well_shaped_log_costs_one_read_per_upper_snapshot(
    memory_store: MemoryStore,
) -> None:
    write(memory_store)
    compactor(memory_store).compact()
    store = CountingStore(memory_store)
    manifest = LogReader.open(memory_store, "a").manifest()

    done = compactor(store).compact()

    assert (done.num_steps, done.num_written, done.num_bytes) == (0, 0, 0)
    deep = [snapshot for snapshot in snapshots(memory_store).values() if snapshot.depth > 1]
    assert deep
    assert store.requests == {"get": 1, "read": len(deep)}
    assert LogReader.open(memory_store, "a").manifest() == manifest


def test_plan_says_what_and_why_and_writes_nothing(store: ObjectStore) -> None:
    write(store)
    counting = CountingStore(store)

    plan = compactor(counting).plan()

    assert set(counting.requests) <= {"get", "read"}
    assert plan.shape.exact
    assert plan.shape.needs_compaction
    assert not plan.empty
    assert all(finding.num_nodes > 1 and finding.num_pointers > 1 for finding in plan.findings)
    compactor(store).compact()
    assert compactor(store).plan().empty


def test_appends_never_fail_while_snapshots_are_repacked(store: ObjectStore) -> None:
    write(store)
    options = WriterOptions(snapshots=AFTER)
    with LogWriter.open(store, "a", options=options) as writer:
        futures, ended = [], threading.Event()

        def append() -> None:
            number = COUNT
            while not ended.is_set() and number < COUNT + 200:
                number += 1
                futures.append(writer.append(b"%d" % number))

        appending = threading.Thread(target=append)
        appending.start()
        try:
            done = compactor(store).compact()
        finally:
            ended.set()
            appending.join(60)

    assert done.num_steps > 1
    assert World(store).bodies() == written(COUNT + len(futures))
    assert compactor(store).shape(exact=True).levels[0].num_wasted <= 1


def test_append_between_upload_and_change_costs_no_second_upload(store: ObjectStore) -> None:
    write(store)

    def append() -> None:
        with LogWriter.open(store, "a", options=UNROLLED) as writer:
            writer.append(b"%d" % (COUNT + 1))

    before = stored_snapshots(store)
    done = compactor(once_before_the_manifest_changes(store, append)).compact()

    assert World(store).bodies() == written(COUNT + 1)
    assert done.num_overtaken == 0
    assert len(stored_snapshots(store) - before) == done.num_written


def test_two_compactors_at_once_do_no_harm(store: ObjectStore) -> None:
    write(store)

    # The other compactor packs everything when the first is about to change the manifest.
    first = compactor(once_before_the_manifest_changes(store, lambda: compactor(store).compact())).compact()

    assert World(store).bodies() == written()
    assert (first.num_steps, first.num_overtaken) == (0, 1)
    assert not first.after.needs_compaction
    assert compactor(store).plan().empty


def test_racing_compactors_terminate(store: ObjectStore) -> None:
    write(store)
    outcomes = []

    def compact() -> None:
        outcomes.append(compactor(store).compact())

    racing = [threading.Thread(target=compact) for _ in range(3)]
    for thread in racing:
        thread.start()
    for thread in racing:
        thread.join(60)

    assert len(outcomes) == 3
    assert World(store).bodies() == written()
    assert compactor(store).plan().empty


def test_snapshots_uploaded_before_the_fence_moved_are_written_again_under_new_names(store: ObjectStore) -> None:
    """INV-7."""
    write(store)
    before = stored_snapshots(store)
    marked: set[str] = set()

    def prune_orphans() -> None:
        marked.update(stored_snapshots(store) - before)
        move_fence(store)
        # From here on an object marked for deletion can be deleted at any time.
        for path in marked:
            life_store(store, "a").delete(path)

    done = compactor(once_before_the_manifest_changes(store, prune_orphans)).compact()

    assert marked
    assert done.num_overtaken == 1
    assert World(store).bodies() == written()
    assert not marked & stored_snapshots(store)
    assert compactor(store).plan().empty


def test_compaction_gives_up_when_the_fence_keeps_moving_and_changes_nothing(
    memory_store: MemoryStore,
) -> None:
    write(memory_store)
    store, moving = FaultyStore(memory_store), []

    def interfere(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            moving.append(path)
            move_fence(memory_store)

    store.before = interfere
    before = LogReader.open(memory_store, "a").manifest().pointers

    with pytest.raises(UnavailableError, match="changed 16 times over"):
        compactor(store).compact()

    assert len(moving) == 16
    assert LogReader.open(memory_store, "a").manifest().pointers == before


def test_compaction_does_not_give_up_when_a_step_is_overtaken_occasionally(memory_store: MemoryStore) -> None:
    write(memory_store)
    store, changes = FaultyStore(memory_store), []

    def interfere(kind: str, path: str) -> None:
        if kind == "replace" and "MANIFEST" in path:
            changes.append(path)
            if len(changes) in {1, 4, 7}:
                move_fence(memory_store)

    store.before = interfere
    options = SnapshotCompactorOptions(snapshots=AFTER, pointers_per_step_max=1, plans_max=2)

    done = SnapshotCompactor(store, "a", options=options).compact()

    assert done.num_overtaken >= 2
    assert World(memory_store).bodies() == written()


def test_crash_between_upload_and_change_leaves_orphans_and_the_next_run_continues(store: ObjectStore) -> None:
    write(store)
    manifest, before = LogReader.open(store, "a").manifest(), stored_snapshots(store)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "denied")

    with pytest.raises(StoreDeniedError):
        compactor(faulty).compact()
    orphans = stored_snapshots(store) - before
    assert orphans
    assert LogReader.open(store, "a").manifest() == manifest

    done = compactor(store).compact()

    assert World(store).bodies() == written()
    assert len(stored_snapshots(store) - before) == done.num_written, "what was uploaded before is used"


def test_unanswered_change_that_was_applied_counts_as_a_step(store: ObjectStore) -> None:
    write(store)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "applied-unknown", times=2)

    done = compactor(faulty).compact()

    assert faulty.fired["applied-unknown"] == 2
    assert done.num_overtaken == 0
    assert World(store).bodies() == written()


def test_collection_between_upload_and_change_is_not_undone(store: ObjectStore) -> None:
    write(store)
    start = 18
    record = next(LogReader.open(store, "a").records(start))
    position = replace(LogReader.open(store, "a").manifest().first.position, offset=start)
    CursorStore(store, "a").create("reader", replace(position, timestamp_us=record.timestamp_us))

    def collect() -> None:
        collector = Collector(store, "a")
        collector.prune(collector.announce(collector.plan()))

    compactor(once_before_the_manifest_changes(store, collect)).compact()

    assert LogReader.open(store, "a").manifest().first.position.offset == start
    assert World(store).bodies() == written()[start - 1 :]
    assert compactor(store).plan().empty


def test_replaced_snapshots_are_collected_as_orphans_and_nothing_else_is(store: ObjectStore) -> None:
    write(store)
    compactor(store).compact()
    before = stored_snapshots(store)
    options = CollectorOptions(interval_s=0)
    # Some stores' clocks tick in seconds.
    clock = ClockStore(store)
    collector, deleter = Collector(clock, "a", options=options), Deleter(clock, "a", options=options)

    needed = set(snapshots(store))
    orphans = deleter.orphans()
    marked = collector.prune_orphans(orphans, "replaced by a compaction")
    deleter.delete(marked.path)

    assert set(orphans) == before - needed != set()
    assert stored_snapshots(store) == needed
    assert World(store).bodies() == written()


def test_lost_snapshot_stops_the_compaction_and_nothing_is_changed(memory_store: MemoryStore) -> None:
    write(memory_store)
    manifest = LogReader.open(memory_store, "a").manifest()
    life_store(memory_store, "a").delete(manifest.snapshots[0].path)

    with pytest.raises(CorruptError, match="expected in .*, found none"):
        compactor(memory_store).compact()

    assert LogReader.open(memory_store, "a").manifest() == manifest
