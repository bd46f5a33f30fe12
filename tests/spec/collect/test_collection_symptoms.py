"""Regressions of collection: each test rules out one failure seen in the field."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stores import FaultyStore
from tests.world import (
    DAY_S,
    LATER,
    LOG,
    NOW,
    QUICK,
    STRIDE,
    UNROLLED,
    ClockStore,
    Crashed,
    Later,
    World,
    count_requests,
    crash,
    planted,
    replant,
    stride,
)
from wal3_core import (
    CursorConflictError,
    CursorStore,
    GarbageCollectedError,
    LogAt,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    PinStore,
    UnavailableError,
    copy,
    pinned_records,
    scrub,
)
from wal3_core.errors import CollectionRefusedError
from wal3_core.format.snapshot import Snapshot
from wal3_core.log.collect.collector import Collector, NotPruned, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import SnapshotCompactorOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

# ---------------------------------------------------------------------- the collector


def test_collector_that_loses_the_cas_deletes_nothing(store: ObjectStore) -> None:
    """Neither when the manifest keeps changing, nor when another collector overtook it."""
    world = World(store)
    world.plant(cursor=12)
    before = world.stored()
    faulty = FaultyStore(store)
    deleted: list[str] = []

    def note(kind: str, path: str) -> None:
        if kind == "delete":
            deleted.append(path)
        if kind == "replace" and path.endswith("MANIFEST.json") and world.manifest().announced is not None:
            world.append(1)

    faulty.before = note
    with pytest.raises(UnavailableError, match="not pruned: the manifest changed 6 times over"):
        World(faulty).collect(replace(NOW, rebases_max=6))
    following = world.manifest().next.position.offset
    assert following > 22
    assert deleted == []
    assert before <= world.stored()
    assert world.offsets() == list(range(1, following))

    overtaken = world.announce()
    world.announce()
    assert isinstance(Collector(store, LOG, options=NOW).prune(overtaken), NotPruned)
    assert before <= world.stored()
    assert world.offsets() == list(range(1, following))


@pytest.mark.slow
def test_garbage_document_of_a_crashed_run_does_not_stop_the_next(store: ObjectStore) -> None:
    """Whatever its content and however far the run came: later runs with other cutoffs finish and delete it."""
    template, requests = planted()

    for number in range(25, min(requests, 60), STRIDE if stride(store) == STRIDE else 8):
        log = replant(template, store, number)
        world = World(log)
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with pytest.raises(Crashed):
            World(faulty).collect()
        world.append(4)
        world.roll(SnapshotOptions(fragments_per_snapshot=3, fragments_kept=0, snapshots_per_roll=2))
        world.move_cursor(18)
        world.collect()
        world.collect()

        assert world.offsets() == list(range(18, 25)), f"request {number}"
        assert world.documents() == []
        clock = ClockStore(log)
        for _ in range(3):
            World(clock).collect(LATER)
            clock.pass_s(DAY_S)
        assert world.stored() == world.reachable(), f"request {number}"


def test_many_garbage_documents_of_crashed_runs_do_not_stop_the_next(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=2)
    for cursor in (4, 6, 9, 12):
        world.move_cursor(cursor)
        world.announce()
    assert len(world.documents()) == 4

    world.collect()

    assert world.offsets() == list(range(12, 21))
    assert world.documents() == []
    assert world.manifest().announced is None


def test_log_whose_fragments_were_all_rolled_into_snapshots_can_be_appended_to(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.append(8)
    world.roll(SnapshotOptions(fragments_per_snapshot=2, fragments_kept=0, snapshots_per_roll=2))
    assert world.manifest().fragments == ()
    world.move_cursor(6)

    with LogWriter.open(clock, LOG) as writer:
        assert writer.append(b"behind snapshots alone").offset == 9
        world.collect()
        assert writer.append(b"behind the cut").offset == 10
    world.roll(SnapshotOptions(fragments_per_snapshot=1, fragments_kept=0, snapshots_per_roll=100))
    assert world.manifest().fragments == ()
    world.move_cursor(11)
    world.collect()
    world.append(1)
    clock.pass_s(1)
    world.collect()

    assert world.offsets() == [11]
    assert world.stored() == world.reachable()


def test_two_snapshots_with_one_setsum_and_different_content_are_distinguished(store: ObjectStore) -> None:
    """The same records in other snapshots, or under another fence: deleting one must not delete the other."""
    world = World(store)
    world.plant(cursor=1)
    before = world.manifest()
    tops = {pointer.setsum.hexdigest() for pointer in before.snapshots}
    clock = ClockStore(store)
    Collector(clock, LOG, options=LATER).prune_orphans(["snapshot/SNAPSHOT." + "a" * 64 + "." + "b" * 16], "a test")
    rewritten = world.manifest()
    assert rewritten.fence == before.fence + 1
    old = [pointer.path for pointer in before.snapshots]

    rewrite(clock)

    new = [pointer.path for pointer in world.manifest().snapshots]
    assert [path.split(".")[1] for path in new] == [path.split(".")[1] for path in old]
    assert {path.split(".")[1] for path in new} == tops
    assert set(new).isdisjoint(old)
    for _ in range(3):
        clock.pass_s(DAY_S)
        World(clock).collect(LATER)
    assert set(new) <= world.stored()
    assert set(old).isdisjoint(world.stored())
    assert world.offsets() == list(range(1, 21))
    assert scrub(store, LOG).sound


def rewrite(store: ObjectStore) -> None:
    """Replace each snapshot of the manifest by itself, written again under the current fence."""
    runtime = shared_runtime()
    manifests = ManifestStore(log_store(store, LOG), runtime)
    snapshots = SnapshotStore(manifests, runtime, loaded_max=9)
    base = manifests.load()
    manifest = base.manifest
    for pointer in manifest.snapshots:
        replacement = snapshots.write(
            Snapshot(snapshots.load(pointer).pointers, manifest.fence, manifest.log_id), QUICK
        )
        manifest = manifest.apply_snapshot(replacement, [pointer])
    assert isinstance(manifests.install(manifest, base), Installed)


def test_collection_of_every_record_leaves_positions_and_seq_nos_right(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=21)
    before = world.manifest()

    world.collect()

    after = world.manifest()
    assert world.stored() == set()
    assert (after.first, after.next) == (before.next, before.next)
    assert (after.setsum, after.pruned, after.epochs) == (before.setsum, before.setsum, before.epochs)
    assert (after.num_records, after.num_bytes, world.offsets()) == (0, 0, [])
    with LogWriter.open(store, LOG) as writer:
        position = writer.append(b"after everything")
    [pointer] = world.manifest().fragments
    assert (position.offset, pointer.seq_no) == (21, 21)
    assert position.timestamp_us >= before.next.position.timestamp_us
    with pytest.raises(GarbageCollectedError, match="from 21"):
        list(LogReader.open(store, LOG).records(20))
    world.move_cursor(22)
    world.collect()
    world.append(2)
    assert world.offsets() == [22, 23]
    assert world.stored() == world.reachable()
    assert scrub(store, LOG).sound


def test_object_that_becomes_referenced_after_it_was_listed_is_not_deleted(store: ObjectStore) -> None:
    """By a pin made between listing and deleting."""
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=1)
    larger = SnapshotOptions(fragments_per_snapshot=8, fragments_kept=0, snapshots_per_roll=4)
    PinStore(clock, LOG).create("audit", reason="a test")
    repack(clock, larger)
    clock.pass_s(2 * DAY_S)
    PinStore(clock, LOG).delete("audit")
    found = Deleter(clock, LOG, options=LATER).orphans()
    assert found
    marked = Collector(clock, LOG, options=LATER).prune_orphans(found, "a test")
    assert isinstance(marked, PrunedGarbage)
    PinStore(clock, LOG).create("again", reason="a test")
    clock.pass_s(DAY_S)

    world.delete(marked.path, LATER)

    assert [record.offset for record in pinned_records(clock, LOG, "again")] == list(range(1, 21))
    assert world.offsets() == list(range(1, 21))


def repack(store: ObjectStore, options: SnapshotOptions) -> None:
    SnapshotCompactor(store, LOG, options=SnapshotCompactorOptions(snapshots=options, retry=QUICK)).compact()


# ---------------------------------------------------------------------- copies


@pytest.mark.slow
def test_copy_that_races_appends_and_collections_has_no_holes(store: ObjectStore) -> None:
    """The source grows, is rolled, and loses its records, at every one of the copy's requests."""
    template = MemoryStore(shared_runtime())
    World(template).plant(cursor=1)
    counted = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    requests = count_requests(counted, lambda: copy(LogAt(counted, LOG), LogAt(counted, "b")))

    for number in range(1, requests + 1, 4 * stride(store)):
        log = replant(template, store, number)
        world = World(log)
        faulty = FaultyStore(log)
        Later(faulty, number, lambda log=log: churn(log))

        copied = copy(LogAt(faulty, LOG), LogAt(faulty, "b"))

        found = World(log, "b").offsets()
        # Pinned before the source lost records, or after.
        assert found in (list(range(1, 21)), list(range(20, 25))), f"request {number}"
        assert copied.num_records == len(found)
        assert scrub(log, "b").sound
        assert world.offsets() == list(range(20, 25))
        world.collect()
        assert world.stored() == world.reachable(), f"request {number}"


def churn(log: ObjectStore) -> None:
    world = World(log)
    world.append(4)
    world.roll()
    world.move_cursor(20)
    world.collect()


# ---------------------------------------------------------------------- cursors and pins created meanwhile

# For the orphans, for the plan, and for its verification.
CURSOR_LISTINGS = 3


def at_every_request(store: ObjectStore, come: Callable[[ObjectStore], int | None]) -> None:
    """Before each request of a collection up to 12, let another process come to rely on a position.

    If its call succeeded, everything from there can be read after this collection and after the next.
    """
    template, requests = planted()
    outcomes = set()
    for number in range(1, requests + 1, stride(store)):
        log = replant(template, store, number)
        world = World(log)
        faulty, relied = FaultyStore(log), list[int | None]()
        Later(faulty, number, lambda log=log, relied=relied: relied.append(come(log)))
        with contextlib.suppress(CollectionRefusedError):
            World(faulty).collect()
        for _ in range(2):
            outcomes.add(bool(relied and relied[0]))
            first = world.manifest().first.position.offset
            assert world.offsets() == list(range(first, 21)), f"request {number}"
            if relied and relied[0]:
                assert first <= relied[0], f"request {number}: {relied[0]} was promised to be held, found {first}"
            assert world.stored() >= world.reachable()
            world.collect()
    if stride(store) == STRIDE:
        assert outcomes == {True, False}, "some come in time, and some too late"


def test_cursor_created_between_planning_and_verifying_makes_it_plan_again(store: ObjectStore) -> None:
    """As it would for a cursor created a moment later."""
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    listed: list[str] = []

    def before(kind: str, path: str) -> None:
        if kind == "list" and path.endswith("/cursor/"):
            listed.append(path)
            if len(listed) == CURSOR_LISTINGS:
                world.move_cursor(6, "late")

    faulty.before = before
    World(faulty).collect()

    assert len(listed) >= CURSOR_LISTINGS
    assert world.offsets() == list(range(6, 21))


@pytest.mark.slow
def test_cursor_created_during_a_collection_never_points_at_deleted_records(store: ObjectStore) -> None:
    """INV-14."""

    def come(log: ObjectStore) -> int | None:
        try:
            return CursorStore(log, LOG, retry=QUICK).create("late", LogPosition(6, 0)).cursor.position.offset
        except GarbageCollectedError:
            return None

    at_every_request(store, come)


@pytest.mark.slow
def test_cursor_moved_back_during_a_collection_never_points_at_deleted_records(store: ObjectStore) -> None:
    def come(log: ObjectStore) -> int | None:
        cursors = CursorStore(log, LOG, retry=QUICK)
        witness = cursors.load("reader")
        assert witness is not None
        try:
            return cursors.save("reader", LogPosition(6, 0), witness).cursor.position.offset
        except (GarbageCollectedError, CursorConflictError):
            left = cursors.load("reader")
            assert left is not None
            assert left.cursor.position.offset == 12
            return None

    at_every_request(store, come)


@pytest.mark.slow
def test_pin_made_during_a_collection_holds_everything_it_names(store: ObjectStore) -> None:
    template, requests = planted()

    for number in range(1, requests + 1, stride(store)):
        log = replant(template, store, number)
        world = World(log)
        faulty = FaultyStore(log)
        Later(faulty, number, lambda log=log: PinStore(log, LOG).create("audit", reason="a test"))
        World(faulty).collect()
        world.collect()

        pin = PinStore(log, LOG).load("audit")
        if pin is not None:
            first = pin.manifest.first.position.offset
            found = [record.offset for record in pinned_records(log, LOG, "audit")]
            assert found == list(range(first, 21)), f"request {number}"
        assert world.offsets() == list(range(12, 21))


@pytest.mark.slow
def test_collection_while_a_cursor_is_created_deletes_no_records_promised_to_it(store: ObjectStore) -> None:
    """The reverse: a collection, up to each of its steps, at each request of the cursor's creation."""
    template = MemoryStore(shared_runtime())
    World(template).plant(cursor=12)
    counted = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    requests = count_requests(counted, lambda: World(counted).move_cursor(6, "late"))
    assert requests >= 4

    for index, action in enumerate((World.announce, World.prune, World.collect)):
        for number in range(1, requests + 1):
            log = replant(template, store, 100 * index + number)
            world = World(log)
            faulty = FaultyStore(log)
            happening = Later(faulty, number, lambda log=log, action=action: action(World(log)))
            held_back = True
            try:
                World(faulty).move_cursor(6, "late")
            except GarbageCollectedError:
                held_back = False
            assert happening.happened
            world.collect()
            world.collect()
            first = 6 if held_back else 12
            assert world.offsets() == list(range(first, 21)), f"{action.__name__} at request {number}"
            assert world.stored() == world.reachable()


@pytest.mark.slow
def test_append_acknowledged_during_a_collection_is_kept(store: ObjectStore) -> None:
    template, requests = planted()

    for number in range(1, requests + 1, 2 * stride(store)):
        log = replant(template, store, number)
        world = World(log)
        faulty = FaultyStore(log)
        with LogWriter.open(log, LOG, options=UNROLLED) as writer:
            Later(faulty, number, lambda writer=writer: writer.append(b"during"))
            World(faulty).collect()
            after = writer.append(b"after").offset
        assert world.offsets() == list(range(12, after + 1)), f"request {number}"
        world.collect()
        assert world.stored() == world.reachable()
