"""Pruned objects are deleted one interval later, and only those that no manifest and no pin refers to."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spec.collecting import (
    DAY_S,
    LATER,
    LOG,
    NOW,
    QUICK,
    ClockStore,
    Crashed,
    Later,
    abandon_cursor,
    announce,
    append,
    count_requests,
    crash,
    delete,
    documents,
    every_pointer,
    gather,
    held,
    manifest_of,
    offsets,
    place,
    plant,
    prune,
    reachable,
    replant,
    roll,
    stride,
)
from tests.stores import FaultyStore, damage, life_path, life_store
from wal3_core import InvalidRequestError, MemoryStore, PinStore, UnavailableError, pinned_records, scrub
from wal3_core.errors import CollectionRefusedError, CorruptError
from wal3_core.log.collect.collector import Collector
from wal3_core.log.collect.deleter import Deleter, DeletionPart, DeletionReport
from wal3_core.model.garbage import Garbage
from wal3_core.model.paths import mark_path
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, ThreadRuntime, shared_runtime
from wal3_core.storage.documents.cursor_store import CursorStore
from wal3_core.storage.documents.garbage_store import GarbageStore
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.object_store import log_store

if TYPE_CHECKING:
    from wal3_core.storage.object_store import ObjectStore


def write(store: ObjectStore, garbage: Garbage) -> str:
    """Create a garbage document that no collection wrote."""
    kept = GarbageStore(ManifestStore(log_store(store, LOG), shared_runtime()), shared_runtime(), QUICK)
    assert kept.save(garbage.path, garbage, None) is not None
    return garbage.path


# ---------------------------------------------------------------------- when


def test_nothing_is_deleted_before_the_interval_has_passed_by_the_store_s_clock(store: ObjectStore) -> None:
    """INV-15."""
    clock = ClockStore(store)
    plant(clock, cursor=12)
    before, pruned_us = held(clock), clock.now_us
    path = prune(clock)

    for passed_s in (0, 1, DAY_S - 2):
        clock.pass_s(passed_s)
        waited_s = (clock.now_us - pruned_us) / US_PER_S
        assert delete(clock, path, LATER) == DeletionReport(path=path, wait_s=DAY_S - waited_s)
        assert held(clock) >= before
    clock.pass_s(1)

    done = delete(clock, path, LATER)
    assert done.finished
    assert done.num_deleted == len(before - reachable(clock))
    assert held(clock) == reachable(clock)
    assert documents(clock) == []


class LateRuntime(ThreadRuntime):
    """A process whose clock is a year ahead."""

    def now_us(self) -> int:
        return super().now_us() + 365 * 86_400 * US_PER_S


def test_a_process_whose_clock_is_a_year_ahead_waits_as_long_as_any_other(store: ObjectStore) -> None:
    plant(store, cursor=12)
    before = held(store)
    path = prune(store)

    with LateRuntime() as runtime:
        done = Deleter(store, LOG, options=LATER, runtime=runtime).delete(path)

    assert done.num_deleted == 0
    assert done.wait_s > DAY_S / 2
    assert held(store) >= before


def test_interval_begins_when_the_log_is_pruned_and_not_when_that_is_announced(store: ObjectStore) -> None:
    clock = ClockStore(store)
    plant(clock, cursor=12)
    path = announce(clock)
    clock.pass_s(DAY_S)
    Collector(clock, LOG, options=NOW).prune(path)

    assert delete(clock, path, LATER).wait_s == DAY_S

    clock.pass_s(DAY_S / 2)
    Collector(clock, LOG, options=NOW).resume_all()
    assert delete(clock, path, LATER).wait_s == DAY_S / 2


def test_objects_that_were_only_announced_are_not_deleted(store: ObjectStore) -> None:
    clock = ClockStore(store)
    plant(clock, cursor=12)
    path = announce(clock)
    clock.pass_s(2 * DAY_S)

    with pytest.raises(InvalidRequestError, match=f"expected {path} to be pruned before it is deleted"):
        delete(clock, path, LATER)

    assert offsets(clock) == list(range(1, 21))


def test_nothing_is_deleted_when_the_store_does_not_give_its_time(memory_store: MemoryStore) -> None:
    plant(memory_store, cursor=12)
    path = prune(memory_store)
    faulty = FaultyStore(memory_store)
    faulty.fail("create", "gc/CLOCK", "unknown", times=9)

    with pytest.raises(UnavailableError, match="gc/CLOCK could not be written to learn the store's time"):
        delete(faulty, path, LATER)

    assert held(memory_store) > reachable(memory_store)


def test_store_time_that_could_not_be_refreshed_makes_the_wait_longer(store: ObjectStore) -> None:
    clock = ClockStore(store)
    plant(clock, cursor=12)
    Deleter(clock, LOG).store_now_us()
    path = prune(clock)
    clock.pass_s(2 * DAY_S)

    clock.fail("replace", "gc/CLOCK", "unknown")
    assert delete(clock, path, LATER).wait_s == DAY_S
    assert held(clock) > reachable(clock)

    assert delete(clock, path, LATER).finished


# ---------------------------------------------------------------------- what


def test_document_that_names_objects_of_the_log_deletes_none_of_them(store: ObjectStore) -> None:
    """INV-16: the document's content is not trusted."""
    plant(store, cursor=12)
    manifest, before = manifest_of(store), held(store)
    snapshots = tuple(
        pointer for pointer in every_pointer(store, manifest.pointers) if isinstance(pointer, SnapshotPointer)
    )
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

    done = delete(store, write(store, lie))

    assert done.num_deleted == 0
    assert done.num_held > 0
    assert not done.finished
    assert held(store) == before
    assert scrub(store, LOG).sound


def test_withdrawn_collection_deletes_nothing_though_its_document_says_pruned(
    store: ObjectStore,
) -> None:
    plant(store, cursor=18)
    path = announce(store)
    abandon_cursor(store, "late", 12)
    Collector(store, LOG, options=NOW).prune(path)
    [withdrawn] = Deleter(store, LOG).pending()
    gather(store)

    done = delete(store, write(store, replace(withdrawn, token="f" * 16, pruned=True)))

    assert done.num_held > 0
    assert offsets(store) == list(range(12, 21))
    assert held(store) == reachable(store)


def test_snapshots_are_deleted_after_the_objects_they_hold(store: ObjectStore) -> None:
    """Until then they list what is left to delete."""
    plant(store, cursor=18)
    below = {
        pointer.path: {each.path for each in every_pointer(store, [pointer])} - {pointer.path}
        for pointer in every_pointer(store, manifest_of(store).pointers)
        if isinstance(pointer, SnapshotPointer)
    }
    dropped = {pointer.path: set(below[pointer.path]) for pointer in manifest_of(store).pointers[:4]}
    path = prune(store)
    faulty = FaultyStore(store)
    gone: list[str] = []
    inside = life_path(store, LOG, "")
    faulty.before = lambda kind, path: gone.append(path.removeprefix(inside)) if kind == "delete" else None

    delete(faulty, path)

    for snapshot, under in below.items():
        if any(snapshot == top or snapshot in held_by for top, held_by in dropped.items()):
            assert under <= set(gone[: gone.index(snapshot)])
    assert gone[-2:] == [path, mark_path(path)]


def test_nothing_is_deleted_while_a_cursor_lies_below_the_log_s_first_record(store: ObjectStore) -> None:
    """Either its creation is unfinished or something is wrong, so an operator must look before anything is lost."""
    plant(store, cursor=12)
    path = announce(store)
    faulty = FaultyStore(store)

    def before(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith("MANIFEST.json"):
            faulty.before = lambda _kind, _path: None
            abandon_cursor(store, "late", 6)

    faulty.before = before
    Collector(faulty, LOG, options=NOW).prune(path)
    pruned = held(store)
    assert manifest_of(store).first.seq_no == 12

    with pytest.raises(CollectionRefusedError, match="while cursors lie below its first offset, 12: {'late': 6}"):
        delete(store, path)
    assert held(store) == pruned

    CursorStore(store, LOG).delete("late")
    assert delete(store, path).finished
    assert held(store) == reachable(store)


@pytest.mark.parametrize("path", ["cursor/reader.json", "pin/audit.json"])
def test_nothing_is_deleted_while_a_cursor_or_a_pin_cannot_be_read(store: ObjectStore, path: str) -> None:
    plant(store, cursor=12)
    PinStore(store, LOG).create("audit", reason="a test")
    garbage = prune(store)
    PinStore(store, LOG).delete("audit")
    PinStore(store, LOG).create("audit", reason="a test")
    damage(life_store(store, "a"), path)
    before = held(store)

    with pytest.raises((CorruptError, CollectionRefusedError), match=path):
        delete(store, garbage)

    assert held(store) == before


# ---------------------------------------------------------------------- pins


def test_pinned_objects_are_held_and_deleted_after_the_pin_is_removed(
    store: ObjectStore,
) -> None:
    plant(store, cursor=6)
    gather(store)
    pinned = reachable(store)
    PinStore(store, LOG).create("audit", reason="a test")
    place(store, 18)

    first = gather(store)
    second = gather(store)

    assert held(store) == pinned | reachable(store)
    assert sum(each.num_held for each in first.deleted) > 0
    assert [each.num_deleted for each in second.deleted] == [0]
    assert [record.offset for record in pinned_records(store, LOG, "audit")] == list(range(6, 21))
    assert len(documents(store)) == 1

    PinStore(store, LOG).delete("audit")
    third = gather(store)

    assert sum(each.num_held for each in third.deleted) == 0
    assert held(store) == reachable(store)
    assert documents(store) == []


def test_snapshot_stays_as_long_as_a_pin_holds_a_fragment_below_it(store: ObjectStore) -> None:
    """The pin does not refer to the snapshot, but without it nothing lists what is left to delete."""
    append(store, 20)
    PinStore(store, LOG).create("audit", reason="before the fragments went into snapshots")
    roll(store)
    place(store, 18)
    before = {pointer.path for pointer in manifest_of(store).snapshots}
    path = prune(store)

    first = delete(store, path)

    assert first.num_held > 0
    assert {pointer.path for pointer in manifest_of(store).snapshots}.isdisjoint(before)
    assert len(before & held(store)) == len(before) - 1
    PinStore(store, LOG).delete("audit")
    assert delete(store, path).finished
    assert held(store) == reachable(store)


def test_pin_holds_its_own_objects_and_no_others(store: ObjectStore) -> None:
    plant(store)
    PinStore(store, LOG).create("audit", reason="a test")
    pinned = reachable(store)
    append(store, 10)
    place(store, 29)

    gather(store)

    assert held(store) == pinned | reachable(store)
    assert offsets(store) == [29, 30]


# ---------------------------------------------------------------------- again


@pytest.mark.slow
def test_deletion_that_dies_before_any_request_is_finished_by_the_next(store: ObjectStore) -> None:
    template = MemoryStore(shared_runtime())
    plant(template, cursor=18)
    path = prune(template)
    counted = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    requests = count_requests(counted, lambda: delete(counted, path))
    assert requests > 40

    for number in range(1, requests + 1, stride(store)):
        log = replant(template, store, number)
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with pytest.raises(Crashed):
            delete(faulty, path)
        assert held(log) >= reachable(log)
        # The rest of it is not treated as orphans, though part of what leads to it is gone.
        deleter = Deleter(log, LOG, options=NOW)
        assert deleter.orphans(deleter.pending()) == []
        assert delete(log, path).finished
        assert held(log) == reachable(log), f"request {number}"
        assert documents(log) == []


@pytest.mark.slow
def test_two_deletions_at_once_finish_both(store: ObjectStore) -> None:
    template = MemoryStore(shared_runtime())
    plant(template, cursor=18)
    path = prune(template)
    counted = FaultyStore(replant(template, MemoryStore(shared_runtime()), 0))
    requests = count_requests(counted, lambda: delete(counted, path))

    for number in range(1, requests + 1, stride(store)):
        log = replant(template, store, number)
        faulty = FaultyStore(log)
        Later(faulty, number, lambda log=log: delete(log, path))
        done = delete(faulty, path)
        assert done.finished, f"request {number}"
        assert held(log) == reachable(log)
        assert documents(log) == []


def test_deletion_that_is_repeated_finds_nothing(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = prune(store)
    assert delete(store, path).num_deleted > 0

    assert delete(store, path) == DeletionReport(path=path)
    assert Deleter(store, LOG).wait_s(path) == CollectorOptions().interval_s


def test_document_stays_until_all_its_parts_are_done(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = prune(store)
    deleter = Deleter(store, LOG, options=NOW)
    garbage = deleter.due(path)
    assert isinstance(garbage, Garbage)
    whole = DeletionPart.whole(garbage)
    PinStore(store, LOG).create("late", reason="of what is left, which is none of this")

    first = deleter.delete_part(path, replace(whole, dropped=whole.dropped[:1], replaced=()))
    assert first.num_deleted == 7
    assert documents(store) == [path]
    second = deleter.delete_part(path, replace(whole, dropped=whole.dropped[1:]))
    done = deleter.finish(path, [first, second])

    assert done.finished
    assert done.num_deleted == first.num_deleted + second.num_deleted
    assert held(store) == reachable(store)
    assert documents(store) == []


def test_documents_are_distinguished_from_the_clock_and_a_foreign_file_is_an_error(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = prune(store)
    Deleter(store, LOG).store_now_us()

    assert [garbage.path for garbage in Deleter(store, LOG).pending()] == documents(store) == [path]

    life_store(store, "a").create("gc/notes.txt", b"not ours")
    with pytest.raises(CorruptError, match=r"gc/notes\.txt.*: expected gc/GARBAGE"):
        gather(store)


# ---------------------------------------------------------------------- damage


def leaf_of(store: ObjectStore, path: str) -> tuple[str, str]:
    """A dropped depth-1 snapshot, and the depth-2 snapshot that holds it."""
    found = life_store(store, "a").read(path)
    assert found is not None
    top = Garbage.from_bytes(found, what=path).dropped[0]
    assert isinstance(top, SnapshotPointer)
    leaf = next(each for each in every_pointer(store, [top]) if isinstance(each, SnapshotPointer) and each.depth == 1)
    return leaf.path, top.path


def test_damaged_snapshot_is_reported_and_the_rest_is_deleted(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = prune(store)
    leaf, _ = leaf_of(store, path)
    damage(life_store(store, "a"), leaf)

    done = delete(store, path)

    [problem] = done.problems
    assert leaf in problem
    assert not done.finished
    assert documents(store) == [path]
    assert leaf in held(store)
    assert len([each for each in held(store) - reachable(store) if each.startswith("log/")]) == 2


def test_damaged_snapshot_is_reported_as_long_as_it_is_stored(store: ObjectStore) -> None:
    """Its holder stays: without it, the next run would consider everything below gone and delete the document."""
    plant(store, cursor=12)
    path = prune(store)
    leaf, top = leaf_of(store, path)
    damage(life_store(store, "a"), leaf)

    first, second = delete(store, path), delete(store, path)

    assert top in held(store)
    assert second.problems == first.problems
    assert documents(store) == [path]


def test_objects_below_a_lost_snapshot_are_found_as_orphans(store: ObjectStore) -> None:
    clock = ClockStore(store)
    plant(clock, cursor=12)
    path = prune(clock)
    leaf, _ = leaf_of(clock, path)
    life_store(clock, "a").delete(leaf)

    assert delete(clock, path).finished
    assert len(held(clock) - reachable(clock)) == 2
    gather(clock)

    assert held(clock) == reachable(clock)


def test_deletion_whose_pause_is_over_while_it_looks_at_the_clock_goes_on(memory_store: MemoryStore) -> None:
    class Stepping(ThreadRuntime):
        """Its clock passes 0.7 s with each look."""

        looks = 0

        def monotonic_s(self) -> float:
            self.looks += 1
            return self.looks * 0.7

        def sleep(self, seconds: float) -> None:
            assert seconds >= 0

    plant(memory_store, cursor=12)
    path = prune(memory_store)
    with Stepping() as runtime:
        options = CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1, retry=QUICK)
        deleted = Deleter(memory_store, LOG, options=options, runtime=runtime).delete(path)

    assert deleted.finished
    assert deleted.num_deleted > 1
