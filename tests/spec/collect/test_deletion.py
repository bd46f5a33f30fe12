"""Pruned objects are deleted one interval later, and only those that no manifest and no pin refers to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stores import FaultyStore, damage, life_path, life_store
from tests.world import (
    DAY_S,
    LATER,
    LOG,
    NOW,
    QUICK,
    ClockStore,
    Crashed,
    Later,
    World,
    count_requests,
    crash,
    replant,
    stride,
)
from wal3_core import InvalidRequestError, MemoryStore, PinStore, UnavailableError, pinned_records, scrub
from wal3_core.errors import CollectionRefusedError, CorruptError
from wal3_core.format.garbage import Garbage
from wal3_core.format.paths import hint_path
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter, DeletionPart, DeletionReport
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, ThreadRuntime, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.garbage_store import GarbageStore
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store


def write(store: ObjectStore, garbage: Garbage) -> str:
    """Create a garbage document that no collection wrote."""
    kept = GarbageStore(ManifestStore(log_store(store, LOG), shared_runtime()), shared_runtime(), QUICK)
    assert kept.save(garbage.path, garbage, None) is not None
    return garbage.path


# ---------------------------------------------------------------------- when


def test_nothing_is_deleted_before_the_interval_has_passed_by_the_store_s_clock(store: ObjectStore) -> None:
    """INV-15."""
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    before, pruned_us = world.stored(), clock.now_us
    path = world.prune()

    for passed_s in (0, 1, DAY_S - 2):
        clock.pass_s(passed_s)
        waited_s = (clock.now_us - pruned_us) / US_PER_S
        assert world.delete(path, LATER) == DeletionReport(path=path, wait_s=DAY_S - waited_s)
        assert world.stored() >= before
    clock.pass_s(1)

    done = world.delete(path, LATER)
    assert done.finished
    assert done.num_deleted == len(before - world.reachable())
    assert world.stored() == world.reachable()
    assert world.documents() == []


class LateRuntime(ThreadRuntime):
    """A process whose clock is a year ahead."""

    def now_us(self) -> int:
        return super().now_us() + 365 * 86_400 * US_PER_S


def test_a_process_whose_clock_is_a_year_ahead_waits_as_long_as_any_other(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    before = world.stored()
    path = world.prune()

    with LateRuntime() as runtime:
        done = Deleter(store, LOG, options=LATER, runtime=runtime).delete(path)

    assert done.num_deleted == 0
    assert done.wait_s > DAY_S / 2
    assert world.stored() >= before


def test_interval_begins_when_the_log_is_pruned_and_not_when_that_is_announced(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    path = world.announce()
    clock.pass_s(DAY_S)
    Collector(clock, LOG, options=NOW).prune(path)

    assert world.delete(path, LATER).wait_s == DAY_S

    clock.pass_s(DAY_S / 2)
    Collector(clock, LOG, options=NOW).resume_all()
    assert world.delete(path, LATER).wait_s == DAY_S / 2


def test_objects_that_were_only_announced_are_not_deleted(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    path = world.announce()
    clock.pass_s(2 * DAY_S)

    with pytest.raises(InvalidRequestError, match=f"expected {path} to be pruned before it is deleted"):
        world.delete(path, LATER)

    assert world.offsets() == list(range(1, 21))


def test_nothing_is_deleted_when_the_store_does_not_give_its_time(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.plant(cursor=12)
    path = world.prune()
    faulty = FaultyStore(memory_store)
    faulty.fail("create", "gc/CLOCK", "unknown", times=9)

    with pytest.raises(UnavailableError, match="gc/CLOCK could not be written to learn the store's time"):
        World(faulty).delete(path, LATER)

    assert world.stored() > world.reachable()


def test_store_time_that_could_not_be_refreshed_makes_the_wait_longer(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    Deleter(clock, LOG).store_now_us()
    path = world.prune()
    clock.pass_s(2 * DAY_S)

    clock.fail("replace", "gc/CLOCK", "unknown")
    assert world.delete(path, LATER).wait_s == DAY_S
    assert world.stored() > world.reachable()

    assert world.delete(path, LATER).finished


# ---------------------------------------------------------------------- what


def test_document_that_names_objects_of_the_log_deletes_none_of_them(store: ObjectStore) -> None:
    """INV-16: the document's content is not trusted."""
    world = World(store)
    world.plant(cursor=12)
    manifest, before = world.manifest(), world.stored()
    snapshots = tuple(pointer for pointer in world.pointers(manifest.pointers) if isinstance(pointer, SnapshotPointer))
    lie = Garbage(
        generation=1,
        token="f" * 16,
        writer="w",
        reason="a lie",
        first=manifest.next,
        dropped=manifest.pointers,
        replaced=snapshots,
        orphans=tuple(sorted(before)),
        pruned=True,
    )

    done = world.delete(write(store, lie))

    assert done.num_deleted == 0
    assert done.num_held > 0
    assert not done.finished
    assert world.stored() == before
    assert scrub(store, LOG).sound


def test_withdrawn_collection_deletes_nothing_though_its_document_says_pruned(
    store: ObjectStore,
) -> None:
    world = World(store)
    world.plant(cursor=18)
    path = world.announce()
    world.abandon_cursor("late", 12)
    Collector(store, LOG, options=NOW).prune(path)
    [withdrawn] = Deleter(store, LOG).pending()
    world.collect()

    done = world.delete(write(store, replace(withdrawn, token="f" * 16, pruned=True)))

    assert done.num_held > 0
    assert world.offsets() == list(range(12, 21))
    assert world.stored() == world.reachable()


def test_snapshots_are_deleted_after_the_objects_they_hold(store: ObjectStore) -> None:
    """Until then they list what is left to delete."""
    world = World(store)
    world.plant(cursor=18)
    below = {
        pointer.path: {each.path for each in world.pointers([pointer])} - {pointer.path}
        for pointer in world.pointers(world.manifest().pointers)
        if isinstance(pointer, SnapshotPointer)
    }
    dropped = {pointer.path: set(below[pointer.path]) for pointer in world.manifest().pointers[:4]}
    path = world.prune()
    faulty = FaultyStore(store)
    gone: list[str] = []
    inside = life_path(store, LOG, "")
    faulty.before = lambda kind, path: gone.append(path.removeprefix(inside)) if kind == "delete" else None

    World(faulty).delete(path)

    for snapshot, under in below.items():
        if any(snapshot == top or snapshot in held_by for top, held_by in dropped.items()):
            assert under <= set(gone[: gone.index(snapshot)])
    assert gone[-2:] == [path, hint_path(path)]


def test_nothing_is_deleted_while_a_cursor_lies_below_the_log_s_first_record(store: ObjectStore) -> None:
    """Either its creation is unfinished or something is wrong, so an operator must look before anything is lost."""
    world = World(store)
    world.plant(cursor=12)
    path = world.announce()
    faulty = FaultyStore(store)

    def before(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith("MANIFEST.json"):
            faulty.before = lambda _kind, _path: None
            world.abandon_cursor("late", 6)

    faulty.before = before
    Collector(faulty, LOG, options=NOW).prune(path)
    pruned = world.stored()
    assert world.manifest().first.seq_no == 12

    with pytest.raises(CollectionRefusedError, match="while cursors lie below its first offset, 12: {'late': 6}"):
        world.delete(path)
    assert world.stored() == pruned

    CursorStore(store, LOG).delete("late")
    assert world.delete(path).finished
    assert world.stored() == world.reachable()


@pytest.mark.parametrize("path", ["cursor/reader.json", "pin/audit.json"])
def test_nothing_is_deleted_while_a_cursor_or_a_pin_cannot_be_read(store: ObjectStore, path: str) -> None:
    world = World(store)
    world.plant(cursor=12)
    PinStore(store, LOG).create("audit", reason="a test")
    garbage = world.prune()
    PinStore(store, LOG).delete("audit")
    PinStore(store, LOG).create("audit", reason="a test")
    damage(life_store(store, "a"), path)
    before = world.stored()

    with pytest.raises((CorruptError, CollectionRefusedError), match=path):
        world.delete(garbage)

    assert world.stored() == before


# ---------------------------------------------------------------------- pins


def test_pinned_objects_are_held_and_deleted_after_the_pin_is_removed(
    store: ObjectStore,
) -> None:
    world = World(store)
    world.plant(cursor=6)
    world.collect()
    pinned = world.reachable()
    PinStore(store, LOG).create("audit", reason="a test")
    world.move_cursor(18)

    first = world.collect()
    second = world.collect()

    assert world.stored() == pinned | world.reachable()
    assert sum(each.num_held for each in first.deleted) > 0
    assert [each.num_deleted for each in second.deleted] == [0]
    assert [record.offset for record in pinned_records(store, LOG, "audit")] == list(range(6, 21))
    assert len(world.documents()) == 1

    PinStore(store, LOG).delete("audit")
    third = world.collect()

    assert sum(each.num_held for each in third.deleted) == 0
    assert world.stored() == world.reachable()
    assert world.documents() == []


def test_snapshot_stays_as_long_as_a_pin_holds_a_fragment_below_it(store: ObjectStore) -> None:
    """The pin does not refer to the snapshot, but without it nothing lists what is left to delete."""
    world = World(store)
    world.append(20)
    PinStore(store, LOG).create("audit", reason="before the fragments went into snapshots")
    world.roll()
    world.move_cursor(18)
    before = {pointer.path for pointer in world.manifest().snapshots}
    path = world.prune()

    first = world.delete(path)

    assert first.num_held > 0
    assert {pointer.path for pointer in world.manifest().snapshots}.isdisjoint(before)
    assert len(before & world.stored()) == len(before) - 1
    PinStore(store, LOG).delete("audit")
    assert world.delete(path).finished
    assert world.stored() == world.reachable()


def test_pin_holds_its_own_objects_and_no_others(store: ObjectStore) -> None:
    world = World(store)
    world.plant()
    PinStore(store, LOG).create("audit", reason="a test")
    pinned = world.reachable()
    world.append(10)
    world.move_cursor(29)

    world.collect()

    assert world.stored() == pinned | world.reachable()
    assert world.offsets() == [29, 30]


# ---------------------------------------------------------------------- again


@pytest.mark.slow
def test_deletion_that_dies_before_any_request_is_finished_by_the_next(store: ObjectStore) -> None:
    template = MemoryStore(shared_runtime())
    template_world = World(template)
    template_world.plant(cursor=18)
    path = template_world.prune()
    counted = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    requests = count_requests(counted, lambda: World(counted).delete(path))
    assert requests > 40

    for number in range(1, requests + 1, stride(store)):
        log = replant(template, store, number)
        log_world = World(log)
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with pytest.raises(Crashed):
            World(faulty).delete(path)
        assert log_world.stored() >= log_world.reachable()
        # The rest of it is not treated as orphans, though part of what leads to it is gone.
        deleter = Deleter(log, LOG, options=NOW)
        assert deleter.orphans(deleter.pending()) == []
        assert log_world.delete(path).finished
        assert log_world.stored() == log_world.reachable(), f"request {number}"
        assert log_world.documents() == []


@pytest.mark.slow
def test_two_deletions_at_once_finish_both(store: ObjectStore) -> None:
    template = MemoryStore(shared_runtime())
    template_world = World(template)
    template_world.plant(cursor=18)
    path = template_world.prune()
    counted = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    requests = count_requests(counted, lambda: World(counted).delete(path))

    for number in range(1, requests + 1, stride(store)):
        log = replant(template, store, number)
        log_world = World(log)
        faulty = FaultyStore(log)
        Later(faulty, number, lambda log=log: World(log).delete(path))
        done = World(faulty).delete(path)
        assert done.finished, f"request {number}"
        assert log_world.stored() == log_world.reachable()
        assert log_world.documents() == []


def test_deletion_that_is_repeated_finds_nothing(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    assert world.delete(path).num_deleted > 0

    assert world.delete(path) == DeletionReport(path=path)
    assert Deleter(store, LOG).wait_s(path) == CollectorOptions().interval_s


def test_document_stays_until_all_its_parts_are_done(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    deleter = Deleter(store, LOG, options=NOW)
    garbage = deleter.due(path)
    assert isinstance(garbage, Garbage)
    whole = DeletionPart.whole(garbage)
    PinStore(store, LOG).create("late", reason="of what is left, which is none of this")

    first = deleter.delete_part(path, replace(whole, dropped=whole.dropped[:1], replaced=()))
    assert first.num_deleted == 7
    assert world.documents() == [path]
    second = deleter.delete_part(path, replace(whole, dropped=whole.dropped[1:]))
    done = deleter.finish(path, [first, second])

    assert done.finished
    assert done.num_deleted == first.num_deleted + second.num_deleted
    assert world.stored() == world.reachable()
    assert world.documents() == []


def test_documents_are_distinguished_from_the_clock_and_a_foreign_file_is_an_error(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    Deleter(store, LOG).store_now_us()

    assert [garbage.path for garbage in Deleter(store, LOG).pending()] == world.documents() == [path]

    life_store(store, "a").create("gc/notes.txt", b"not ours")
    with pytest.raises(CorruptError, match=r"gc/notes\.txt.*: expected gc/GARBAGE"):
        world.collect()
