"""A collection's steps can each be repeated, resumed, run by two at once, and lose every race without harm."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stores import Fault, FaultyStore, life_store
from tests.world import (
    LATER,
    LOG,
    NOW,
    UNROLLED,
    ClockStore,
    Crashed,
    Later,
    World,
    crash,
    planted,
    replant,
    stride,
)
from wal3_core import LogWriter, MemoryStore, WriterOptions, scrub
from wal3_core.errors import CollectionRefusedError, InvalidRequestError, UnavailableError
from wal3_core.format.garbage import Garbage
from wal3_core.log.collect.collector import Collector, NotPruned, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore


def collector(store: ObjectStore) -> Collector:
    return Collector(store, LOG, options=NOW)


def document(store: ObjectStore) -> Garbage:
    [found] = Deleter(store, LOG).pending()
    return found


def whole(store: ObjectStore) -> bool:
    world = World(store)
    return world.offsets() == list(range(1, 21)) and world.reachable() <= world.stored()


def collected(store: ObjectStore, first: int = 12) -> bool:
    """Whether the log begins where it should and nothing is left over."""
    world = World(store)
    return (
        world.stored() == world.reachable()
        and world.documents() == []
        and world.manifest().announced is None
        and world.offsets() == list(range(first, world.manifest().next.position.offset))
    )


# ---------------------------------------------------------------------- announce


def test_announcing_writes_down_what_will_be_deleted_and_deletes_nothing(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    before = world.manifest()

    path = world.announce()

    after, written = world.manifest(), document(store)
    assert after.announced is not None
    assert (after.announced.garbage, after.announced.first) == (path, collector(store).plan().first)
    assert replace(after, announced=None, generation=0, writer="") == replace(before, generation=0, writer="")
    assert (written.path, written.pruned, written.reason) == (path, False, "cursor reader is at offset 12")
    assert written.num_records == 11
    gone = {pointer.path for pointer in world.pointers(written.dropped)} | {p.path for p in written.replaced}
    assert gone == set(Collector(store, LOG).objects(collector(store).plan()))
    assert whole(store)


def test_document_exists_before_the_announcement_that_names_it(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "denied")

    with pytest.raises(UnavailableError):
        World(faulty).announce()

    assert not document(store).pruned
    assert world.manifest().announced is None


def test_nothing_is_announced_when_its_document_cannot_be_written(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    faulty.fail("create", "/gc/GARBAGE", "unknown", times=9)

    with pytest.raises(UnavailableError, match=r"gc/GARBAGE.* not known to be saved, after 3 tries"):
        World(faulty).announce()

    assert world.manifest().announced is None


def test_later_announcement_replaces_an_earlier_one(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    first = world.announce()
    world.move_cursor(18)
    second = world.announce()

    overtaken = collector(store).prune(first)
    pruned = collector(store).prune(second)

    assert overtaken == NotPruned("another collection was announced, or this one withdrawn")
    assert isinstance(pruned, PrunedGarbage)
    assert world.offsets() == list(range(18, 21))


def test_plan_that_no_longer_fits_the_log_is_not_announced(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    old = collector(store).plan()
    world.move_cursor(18)
    world.collect()

    with pytest.raises(CollectionRefusedError, match="planned to begin at fragment 12, found 18"):
        collector(store).announce(old)

    assert collected(store, 18)


# ---------------------------------------------------------------------- prune


def test_pruning_lets_the_log_begin_at_the_cursor_and_deletes_nothing(store: ObjectStore) -> None:
    """INV-13."""
    world = World(store)
    world.plant(cursor=12)
    before, manifest = world.stored(), world.manifest()

    path = world.announce()
    pruned = collector(store).prune(path)

    after = world.manifest()
    assert pruned == PrunedGarbage(path, document(store))
    assert document(store).pruned
    assert world.stored() >= before
    assert (after.first.seq_no, after.first.position.offset, after.announced) == (12, 12, None)
    assert (after.next, after.setsum, after.epochs, after.fence) == (
        manifest.next,
        manifest.setsum,
        manifest.epochs,
        manifest.fence,
    )
    assert after.pruned == manifest.pruned + document(store).setsum
    assert world.offsets() == list(range(12, 21))
    assert scrub(store, LOG).sound


@pytest.mark.parametrize(("cursor", "written"), [(9, 0), (10, 2), (11, 1), (12, 2), (17, 0), (18, 1), (19, 0), (21, 0)])
def test_cut_through_snapshots_makes_new_ones_for_the_kept_fragments(
    store: ObjectStore, cursor: int, written: int
) -> None:
    world = World(store)
    world.plant(cursor=cursor)
    before = world.stored()
    straddled = {pointer.path for pointer in world.pointers(world.manifest().pointers)}

    world.prune()

    made = world.stored() - before
    assert len(made) == written
    assert all(path.startswith("snapshot/") for path in made)
    assert made <= world.reachable()
    assert {pointer.path for pointer in document(store).replaced} <= straddled - world.reachable()
    assert len(document(store).replaced) == written
    assert world.offsets() == list(range(cursor, 21))
    assert scrub(store, LOG).sound


def test_prune_that_is_repeated_changes_nothing(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    manifest, written = world.manifest(), document(store)

    again = collector(store).prune(path)

    assert again == PrunedGarbage(path, written)
    assert (world.manifest(), document(store)) == (manifest, written)


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "late", "conflict", "unavailable"])
@pytest.mark.parametrize("at", [("replace", "MANIFEST"), ("create", "/gc/"), ("replace", "/gc/"), ("create", "/snap")])
def test_prune_survives_an_answer_that_is_lost(memory_store: MemoryStore, fault: Fault, at: tuple[str, str]) -> None:
    store = memory_store
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    faulty.fail(*at, fault, times=2)

    for _ in range(3):
        try:
            World(faulty).collect()
        except UnavailableError:
            continue
        break
    faulty.heal()
    faulty.arrive()
    world.collect()
    world.collect()

    # The document is replaced once, when it is marked, unless that has to be repeated.
    assert faulty.fired[fault] == 2 or (faulty.fired[fault] == 1 and at == ("replace", "/gc/"))
    assert collected(store)


def test_appends_and_rolls_between_announcing_and_pruning_stay(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.announce()
    before = document(store)
    world.append(4)
    world.roll(SnapshotOptions(fragments_per_snapshot=3, fragments_kept=0, snapshots_per_roll=2))

    assert isinstance(collector(store).prune(path), PrunedGarbage)

    assert document(store).setsum == before.setsum
    assert world.offsets() == list(range(12, 25))
    assert world.delete(path).finished


def test_prune_cuts_the_current_tree_and_writes_that_down(store: ObjectStore) -> None:
    world = World(store)
    world.append(20)
    world.move_cursor(12)
    path = world.announce()
    flat = document(store)
    world.roll()

    collector(store).prune(path)

    deep = document(store)
    assert (flat.num_records, len(flat.dropped), flat.replaced) == (11, 11, ())
    assert (deep.num_records, len(deep.dropped), len(deep.replaced)) == (11, 4, 2)
    assert deep.generation > flat.generation
    world.delete(path)
    world.collect()
    assert collected(store)


def test_prune_loses_to_a_cursor_created_below_and_withdraws(store: ObjectStore) -> None:
    """INV-14: as when the cursor's creator dies before it reads the manifest."""
    world = World(store)
    world.plant(cursor=12)
    path = world.announce()
    world.abandon_cursor("late", 6)

    outcome = collector(store).prune(path)

    assert outcome == NotPruned("kept below offset 12: {'cursor late': 6}")
    assert world.manifest().announced is None
    assert whole(store)
    world.collect()
    assert collected(store, 6)


def test_announcement_whose_document_is_lost_is_withdrawn(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.announce()
    life_store(store, "a").delete(path)

    outcome = collector(store).prune(path)

    assert outcome == NotPruned(f"{path} is gone")
    assert world.manifest().announced is None
    world.announce()
    life_store(store, "a").delete(world.documents()[0])
    assert collector(store).resume_all() == []
    assert world.manifest().announced is None
    assert whole(store)


def test_manifest_that_keeps_changing_is_an_error_and_no_loss(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.announce()
    faulty = FaultyStore(store)
    faulty.before = lambda kind, path: world.append(1) if (kind, path[-13:]) == ("replace", "MANIFEST.json") else None

    with pytest.raises(UnavailableError, match="not pruned: the manifest changed 6 times over"):
        Collector(faulty, LOG, options=replace(NOW, rebases_max=6)).prune(path)

    following = world.manifest().next.position.offset
    assert following > 22
    assert world.offsets() == list(range(1, following))
    assert isinstance(collector(store).prune(path), PrunedGarbage)
    assert world.offsets() == list(range(12, following))


# ---------------------------------------------------------------------- resume


def test_resuming_finishes_announced_collections_and_deletes_other_documents(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=18)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        World(faulty).announce()
    forgotten = world.documents()
    world.move_cursor(12)
    announced = world.announce()

    resumed = collector(store).resume_all()

    assert [each.path for each in resumed] == [announced]
    assert world.documents() == [announced]
    assert forgotten != [announced]
    assert resumed[0].garbage.pruned
    assert world.offsets() == list(range(12, 21))
    assert [each.path for each in collector(store).resume_all()] == [announced]


def test_resuming_where_nothing_was_begun_does_nothing(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    before = world.manifest()

    assert collector(store).resume_all() == []
    assert world.manifest() == before


# ---------------------------------------------------------------------- at every request


@pytest.mark.slow
def test_collection_that_dies_before_any_request_is_finished_by_the_next(store: ObjectStore) -> None:
    template, requests = planted()
    assert requests > 60

    # Where clocks tick in whole seconds, an object is too young to be an orphan, which saves a request or two.
    for number in range(1, requests - 10, stride(store)):
        log = replant(template, store, number)
        world = World(log)
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with pytest.raises(Crashed):
            World(faulty).collect()
        assert world.offsets() in (list(range(1, 21)), list(range(12, 21))), f"request {number}"
        world.collect()
        world.collect()
        assert collected(log), f"request {number}"


@pytest.mark.slow
def test_collection_that_dies_again_and_again_gets_done(memory_store: MemoryStore) -> None:
    """Each run gets a little further; none goes back."""
    template, requests = planted()
    log, runs = replant(template, memory_store, 0), 0

    for number in range(1, requests + 40):
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        try:
            World(faulty).collect()
        except Crashed:
            runs += 1
            continue
        break

    assert runs > 10
    World(log).collect()
    assert collected(log)


def two_at_once(store: ObjectStore, first: Callable[[ClockStore], object]) -> list[str]:
    """Run a whole collection before each request of another; return the failures of the other one."""
    template, requests = planted(LATER)
    failures = []
    for number in range(1, requests + 1, stride(store)):
        clock = ClockStore(replant(template, store, number))
        world = World(clock)
        clock.changed_us = {meta.path: clock.now_us for meta in clock.inner.list_objects("")}
        other = ClockStore(clock.inner, now_us=clock.now_us, changed_us=clock.changed_us)
        Later(clock, number, lambda other=other: first(other))
        try:
            world.collect(LATER)
        except (CollectionRefusedError, InvalidRequestError) as error:
            failures.append(f"request {number}: {error}")
        clock.before = lambda _kind, _path: None
        assert world.offsets() == list(range(12, 21)), f"request {number}"
        for _ in range(3):
            clock.pass_s(LATER.interval_s)
            world.collect(LATER)
        assert collected(clock), f"request {number}"
    return failures


@pytest.mark.slow
def test_two_collectors_at_once_lose_nothing_and_leave_nothing(store: ObjectStore) -> None:
    two_at_once(store, lambda other: World(other).collect(LATER))


@pytest.mark.slow
def test_of_two_collectors_at_once_neither_fails(memory_store: MemoryStore) -> None:
    """The second finds nothing left to do; that is not an error."""
    assert two_at_once(memory_store, lambda other: World(other).collect(LATER)) == []


@pytest.mark.slow
def test_announced_collection_gets_done_although_another_collector_dies_anywhere(memory_store: MemoryStore) -> None:
    template, requests = planted()

    for number in range(1, requests + 1, 3):
        log = replant(template, memory_store, number)
        world = World(log)
        path = world.announce()
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with contextlib.suppress(Crashed):
            World(faulty).collect()
        collector(log).prune(path)
        world.collect()
        world.collect()
        assert collected(log), f"request {number}"


# ---------------------------------------------------------------------- writers


@pytest.mark.parametrize("at", ["create", "replace"])
def test_no_append_in_flight_fails_when_the_log_is_pruned(store: ObjectStore, at: str) -> None:
    """Pruned before the upload, and between the upload and the commit."""
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)
    place_at = {"create": "/log/", "replace": "MANIFEST"}[at]

    with LogWriter.open(faulty, LOG, options=UNROLLED) as writer:
        lock, left = threading.Lock(), [1]

        def before(kind: str, path: str) -> None:
            with lock:
                now = kind == at and place_at in path and left.pop() if left else False
            if now:
                world.prune()

        faulty.before = before
        futures = [writer.submit(b"%d" % number) for number in range(12)]
        positions = [future.result().offset for future in futures]

    assert positions == list(range(21, 33))
    assert world.offsets() == list(range(12, 33))
    world.collect()
    assert collected(store)


def test_no_append_fails_while_collections_run_concurrently(store: ObjectStore) -> None:
    world = World(store)
    world.append(1)
    world.move_cursor(1)
    few = WriterOptions(
        batch_records_max=1,
        snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2),
    )
    with LogWriter.open(store, LOG, options=few) as writer:
        for begin in range(2, 62, 10):
            futures = [writer.submit(b"%d" % number) for number in range(10)]
            world.move_cursor(begin)
            world.collect(LATER)
            assert [future.result().offset for future in futures] == list(range(begin, begin + 10))

    assert world.offsets() == list(range(52, 62))
    assert scrub(store, LOG).sound
