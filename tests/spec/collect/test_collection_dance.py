"""A collection's steps can each be repeated, resumed, run by two at once, and lose every race without harm."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spec.collecting import (
    LATER,
    LOG,
    NOW,
    UNROLLED,
    ClockStore,
    Crashed,
    Later,
    abandon_cursor,
    announce,
    append,
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
    planted,
    prune,
    reachable,
    replant,
    roll,
    stride,
)
from tests.stores import FaultyStore, life_store
from wal3_core import LogWriter, WriterOptions, scrub
from wal3_core.errors import CollectionRefusedError, InvalidRequestError, UnavailableError
from wal3_core.log.collect.collector import Collector, MarkedGarbage, NotPruned
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import SnapshotOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.stores import Fault
    from wal3_core import MemoryStore
    from wal3_core.model.garbage import Garbage
    from wal3_core.storage.object_store import ObjectStore


def collector(store: ObjectStore) -> Collector:
    return Collector(store, LOG, options=NOW)


def document(store: ObjectStore) -> Garbage:
    [found] = Deleter(store, LOG).pending()
    return found


def whole(store: ObjectStore) -> bool:
    return offsets(store) == list(range(1, 21)) and reachable(store) <= held(store)


def collected(store: ObjectStore, first: int = 12) -> bool:
    """Whether the log begins where it should and nothing is left over."""
    return (
        held(store) == reachable(store)
        and documents(store) == []
        and manifest_of(store).announced is None
        and offsets(store) == list(range(first, manifest_of(store).next.position.offset))
    )


# ---------------------------------------------------------------------- announce


def test_announcing_writes_down_what_will_be_deleted_and_deletes_nothing(store: ObjectStore) -> None:
    plant(store, cursor=12)
    before = manifest_of(store)

    path = announce(store)

    after, written = manifest_of(store), document(store)
    assert after.announced is not None
    assert (after.announced.garbage, after.announced.first) == (path, collector(store).plan().first)
    assert replace(after, announced=None, generation=0, writer="") == replace(before, generation=0, writer="")
    assert (written.path, written.pruned, written.reason) == (path, False, "cursor reader is at offset 12")
    assert written.num_records == 11
    gone = {pointer.path for pointer in every_pointer(store, written.dropped)} | {p.path for p in written.replaced}
    assert gone == set(Collector(store, LOG).objects(collector(store).plan()))
    assert whole(store)


def test_document_exists_before_the_announcement_that_names_it(store: ObjectStore) -> None:
    plant(store, cursor=12)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "denied")

    with pytest.raises(UnavailableError):
        announce(faulty)

    assert not document(store).pruned
    assert manifest_of(store).announced is None


def test_nothing_is_announced_when_its_document_cannot_be_written(store: ObjectStore) -> None:
    plant(store, cursor=12)
    faulty = FaultyStore(store)
    faulty.fail("create", "/gc/GARBAGE", "unknown", times=9)

    with pytest.raises(UnavailableError, match=r"gc/GARBAGE.* not known to be saved, after 3 tries"):
        announce(faulty)

    assert manifest_of(store).announced is None


def test_later_announcement_replaces_an_earlier_one(store: ObjectStore) -> None:
    plant(store, cursor=12)
    first = announce(store)
    place(store, 18)
    second = announce(store)

    overtaken = collector(store).prune(first)
    pruned = collector(store).prune(second)

    assert overtaken == NotPruned("another collection was announced, or this one withdrawn")
    assert isinstance(pruned, MarkedGarbage)
    assert offsets(store) == list(range(18, 21))


def test_plan_that_no_longer_fits_the_log_is_not_announced(store: ObjectStore) -> None:
    plant(store, cursor=12)
    old = collector(store).plan()
    place(store, 18)
    gather(store)

    with pytest.raises(CollectionRefusedError, match="planned to begin at fragment 12, found 18"):
        collector(store).announce(old)

    assert collected(store, 18)


# ---------------------------------------------------------------------- prune


def test_pruning_lets_the_log_begin_at_the_cursor_and_deletes_nothing(store: ObjectStore) -> None:
    """INV-13."""
    plant(store, cursor=12)
    before, manifest = held(store), manifest_of(store)

    path = announce(store)
    pruned = collector(store).prune(path)

    after = manifest_of(store)
    assert pruned == MarkedGarbage(path, document(store))
    assert document(store).pruned
    assert held(store) >= before
    assert (after.first.seq_no, after.first.position.offset, after.announced) == (12, 12, None)
    assert (after.next, after.setsum, after.epochs, after.fence) == (
        manifest.next,
        manifest.setsum,
        manifest.epochs,
        manifest.fence,
    )
    assert after.pruned == manifest.pruned + document(store).setsum
    assert offsets(store) == list(range(12, 21))
    assert scrub(store, LOG).sound


@pytest.mark.parametrize(("cursor", "written"), [(9, 0), (10, 2), (11, 1), (12, 2), (17, 0), (18, 1), (19, 0), (21, 0)])
def test_cut_through_snapshots_makes_new_ones_for_the_kept_fragments(
    store: ObjectStore, cursor: int, written: int
) -> None:
    plant(store, cursor=cursor)
    before = held(store)
    straddled = {pointer.path for pointer in every_pointer(store, manifest_of(store).pointers)}

    prune(store)

    made = held(store) - before
    assert len(made) == written
    assert all(path.startswith("snapshot/") for path in made)
    assert made <= reachable(store)
    assert {pointer.path for pointer in document(store).replaced} <= straddled - reachable(store)
    assert len(document(store).replaced) == written
    assert offsets(store) == list(range(cursor, 21))
    assert scrub(store, LOG).sound


def test_prune_that_is_repeated_changes_nothing(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = prune(store)
    manifest, written = manifest_of(store), document(store)

    again = collector(store).prune(path)

    assert again == MarkedGarbage(path, written)
    assert (manifest_of(store), document(store)) == (manifest, written)


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "late", "conflict", "unavailable"])
@pytest.mark.parametrize("at", [("replace", "MANIFEST"), ("create", "/gc/"), ("replace", "/gc/"), ("create", "/snap")])
def test_prune_survives_an_answer_that_is_lost(memory_store: MemoryStore, fault: Fault, at: tuple[str, str]) -> None:
    store = memory_store
    plant(store, cursor=12)
    faulty = FaultyStore(store)
    faulty.fail(*at, fault, times=2)

    for _ in range(3):
        try:
            gather(faulty)
        except UnavailableError:
            continue
        break
    faulty.heal()
    faulty.arrive()
    gather(store)
    gather(store)

    # The document is replaced once, when it is marked, unless that has to be repeated.
    assert faulty.fired[fault] == 2 or (faulty.fired[fault] == 1 and at == ("replace", "/gc/"))
    assert collected(store)


def test_appends_and_rolls_between_announcing_and_pruning_stay(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = announce(store)
    before = document(store)
    append(store, 4)
    roll(store, SnapshotOptions(fragments_per_snapshot=3, fragments_kept=0, snapshots_per_roll=2))

    assert isinstance(collector(store).prune(path), MarkedGarbage)

    assert document(store).setsum == before.setsum
    assert offsets(store) == list(range(12, 25))
    assert delete(store, path).finished


def test_prune_cuts_the_current_tree_and_writes_that_down(store: ObjectStore) -> None:
    append(store, 20)
    place(store, 12)
    path = announce(store)
    flat = document(store)
    roll(store)

    collector(store).prune(path)

    deep = document(store)
    assert (flat.num_records, len(flat.dropped), flat.replaced) == (11, 11, ())
    assert (deep.num_records, len(deep.dropped), len(deep.replaced)) == (11, 4, 2)
    assert deep.generation > flat.generation
    delete(store, path)
    gather(store)
    assert collected(store)


def test_prune_loses_to_a_cursor_created_below_and_withdraws(store: ObjectStore) -> None:
    """INV-14: as when the cursor's creator dies before it reads the manifest."""
    plant(store, cursor=12)
    path = announce(store)
    abandon_cursor(store, "late", 6)

    outcome = collector(store).prune(path)

    assert outcome == NotPruned("kept below offset 12: {'cursor late': 6}")
    assert manifest_of(store).announced is None
    assert whole(store)
    gather(store)
    assert collected(store, 6)


def test_announcement_whose_document_is_lost_is_withdrawn(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = announce(store)
    life_store(store, "a").delete(path)

    outcome = collector(store).prune(path)

    assert outcome == NotPruned(f"{path} is gone")
    assert manifest_of(store).announced is None
    announce(store)
    life_store(store, "a").delete(documents(store)[0])
    assert collector(store).resume_all() == []
    assert manifest_of(store).announced is None
    assert whole(store)


def test_manifest_that_keeps_changing_is_an_error_and_no_loss(store: ObjectStore) -> None:
    plant(store, cursor=12)
    path = announce(store)
    faulty = FaultyStore(store)
    faulty.before = lambda kind, path: append(store, 1) if (kind, path[-13:]) == ("replace", "MANIFEST.json") else None

    with pytest.raises(UnavailableError, match="not pruned: the manifest changed 6 times over"):
        Collector(faulty, LOG, options=replace(NOW, rebases_max=6)).prune(path)

    following = manifest_of(store).next.position.offset
    assert following > 22
    assert offsets(store) == list(range(1, following))
    assert isinstance(collector(store).prune(path), MarkedGarbage)
    assert offsets(store) == list(range(12, following))


# ---------------------------------------------------------------------- resume


def test_resuming_finishes_announced_collections_and_deletes_other_documents(store: ObjectStore) -> None:
    plant(store, cursor=18)
    faulty = FaultyStore(store)
    faulty.fail("replace", "MANIFEST", "denied")
    with pytest.raises(UnavailableError):
        announce(faulty)
    forgotten = documents(store)
    place(store, 12)
    announced = announce(store)

    resumed = collector(store).resume_all()

    assert [each.path for each in resumed] == [announced]
    assert documents(store) == [announced]
    assert forgotten != [announced]
    assert resumed[0].garbage.pruned
    assert offsets(store) == list(range(12, 21))
    assert [each.path for each in collector(store).resume_all()] == [announced]


def test_resuming_where_nothing_was_begun_does_nothing(store: ObjectStore) -> None:
    plant(store, cursor=12)
    before = manifest_of(store)

    assert collector(store).resume_all() == []
    assert manifest_of(store) == before


# ---------------------------------------------------------------------- at every request


@pytest.mark.slow
def test_collection_that_dies_before_any_request_is_finished_by_the_next(store: ObjectStore) -> None:
    template, requests = planted()
    assert requests > 60

    # Where clocks tick in whole seconds, an object is too young to be an orphan, which saves a request or two.
    for number in range(1, requests - 10, stride(store)):
        log = replant(template, store, number)
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with pytest.raises(Crashed):
            gather(faulty)
        assert offsets(log) in (list(range(1, 21)), list(range(12, 21))), f"request {number}"
        gather(log)
        gather(log)
        assert collected(log), f"request {number}"


def test_collection_that_dies_again_and_again_gets_done(memory_store: MemoryStore) -> None:
    """Each run gets a little further; none goes back."""
    template, requests = planted()
    log, runs = replant(template, memory_store, 0), 0

    for number in range(1, requests + 40):
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        try:
            gather(faulty)
        except Crashed:
            runs += 1
            continue
        break

    assert runs > 10
    gather(log)
    assert collected(log)


def two_at_once(store: ObjectStore, first: Callable[[ClockStore], object]) -> list[str]:
    """Run a whole collection before each request of another; return the failures of the other one."""
    template, requests = planted(LATER)
    failures = []
    for number in range(1, requests + 1, stride(store)):
        clock = ClockStore(replant(template, store, number))
        clock.changed_us = {meta.path: clock.now_us for meta in clock.inner.list_objects("")}
        other = ClockStore(clock.inner, now_us=clock.now_us, changed_us=clock.changed_us)
        Later(clock, number, lambda other=other: first(other))
        try:
            gather(clock, LATER)
        except (CollectionRefusedError, InvalidRequestError) as error:
            failures.append(f"request {number}: {error}")
        clock.before = lambda _kind, _path: None
        assert offsets(clock) == list(range(12, 21)), f"request {number}"
        for _ in range(3):
            clock.pass_s(LATER.interval_s)
            gather(clock, LATER)
        assert collected(clock), f"request {number}"
    return failures


@pytest.mark.slow
def test_two_collectors_at_once_lose_nothing_and_leave_nothing(store: ObjectStore) -> None:
    two_at_once(store, lambda other: gather(other, LATER))


@pytest.mark.slow
def test_of_two_collectors_at_once_neither_fails(memory_store: MemoryStore) -> None:
    """The second finds nothing left to do; that is not an error."""
    assert two_at_once(memory_store, lambda other: gather(other, LATER)) == []


@pytest.mark.slow
def test_announced_collection_gets_done_although_another_collector_dies_anywhere(memory_store: MemoryStore) -> None:
    template, requests = planted()

    for number in range(1, requests + 1, 3):
        log = replant(template, memory_store, number)
        path = announce(log)
        faulty = FaultyStore(log)
        Later(faulty, number, crash)
        with contextlib.suppress(Crashed):
            gather(faulty)
        collector(log).prune(path)
        gather(log)
        gather(log)
        assert collected(log), f"request {number}"


# ---------------------------------------------------------------------- writers


@pytest.mark.parametrize("at", ["create", "replace"])
def test_no_append_in_flight_fails_when_the_log_is_pruned(store: ObjectStore, at: str) -> None:
    """Pruned before the upload, and between the upload and the commit."""
    plant(store, cursor=12)
    faulty = FaultyStore(store)
    place_at = {"create": "/log/", "replace": "MANIFEST"}[at]

    with LogWriter.open(faulty, LOG, options=UNROLLED) as writer:
        lock, left = threading.Lock(), [1]

        def before(kind: str, path: str) -> None:
            with lock:
                now = kind == at and place_at in path and left.pop() if left else False
            if now:
                prune(store)

        faulty.before = before
        futures = [writer.submit(b"%d" % number) for number in range(12)]
        positions = [future.result().offset for future in futures]

    assert positions == list(range(21, 33))
    assert offsets(store) == list(range(12, 33))
    gather(store)
    assert collected(store)


def test_no_append_fails_while_collections_run_concurrently(store: ObjectStore) -> None:
    append(store, 1)
    place(store, 1)
    few = WriterOptions(
        batch_records_max=1,
        snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=2, snapshots_per_roll=2),
    )
    with LogWriter.open(store, LOG, options=few) as writer:
        for begin in range(2, 62, 10):
            futures = [writer.submit(b"%d" % number) for number in range(10)]
            place(store, begin)
            gather(store, LATER)
            assert [future.result().offset for future in futures] == list(range(begin, begin + 10))

    assert offsets(store) == list(range(52, 62))
    assert scrub(store, LOG).sound
