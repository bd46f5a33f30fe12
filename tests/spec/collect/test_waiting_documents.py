"""A garbage document that waits for its interval costs a collection nothing: it is listed, and read when it is due."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.stores import CountingStore, life_store
from tests.world import (
    DAY_S,
    LATER,
    LOG,
    NOW,
    ClockStore,
    World,
)
from wal3_core import MemoryStore, PinStore
from wal3_core.format.garbage import Garbage
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CLOCK, deleted_path, fragment_path, garbage_path, hint_path, pass_path
from wal3_core.format.pin import Pin
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.setsum import EMPTY
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.documents.pass_store import note_deleted
from wal3_core.store.object_store import Done, ObjectMeta, ObjectStore

PROMPT = replace(LATER, orphans_max=0)


def pile_up(store: ObjectStore, count: int) -> None:
    """Leave ``count`` waiting documents of one fragment each, and one more fragment to collect."""
    world = World(store)
    world.append(count + 2)
    for offset in range(2, count + 2):
        world.move_cursor(offset)
        world.collect(PROMPT)
    world.move_cursor(count + 2)


def requests(store: ObjectStore) -> Counter[str]:
    counting = CountingStore(store)
    World(counting).collect(LATER)
    return counting.requests


def left_in(store: ObjectStore) -> set[str]:
    """All objects below gc/ but the clock."""
    return {meta.path for meta in life_store(store, LOG).list_objects("gc/")} - {CLOCK}


@pytest.mark.slow
def test_collection_costs_the_same_however_many_documents_wait(store: ObjectStore) -> None:
    world = World(store)
    pile_up(store, 1)
    few = requests(store)
    for offset in range(4, 34):
        world.append(1)
        world.move_cursor(offset - 1)
        world.collect(PROMPT)
    world.append(1)
    world.move_cursor(33)

    many = requests(store)

    assert len(world.documents()) == 32
    # The clock exists by now: it is replaced, not created.
    assert many.total() == few.total()
    assert many["list"] == few["list"]


def test_a_list_of_what_waits_shows_no_empty_object(memory_store: MemoryStore) -> None:
    """Regression: in a bucket, a list asked for each waiting document's mark by a HEAD."""
    pile_up(memory_store, 3)
    objects = life_store(memory_store, LOG)
    token = "0123456789abcdef"
    objects.create(pass_path(token), b"a pass")
    note_deleted(objects, garbage_path(EMPTY, token))

    metas = list(objects.list_objects(""))

    assert {hint_path(path) for path in World(memory_store).documents()} | {deleted_path(token)} <= {
        m.path for m in metas
    }
    assert [meta.path for meta in metas if not meta.size] == []


def test_empty_marks_of_earlier_versions_count(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    path = world.prune(LATER)
    life_store(clock, LOG).delete(hint_path(path))
    assert isinstance(life_store(clock, LOG).create(hint_path(path), b""), Done)
    asked = CountingStore(clock)

    assert [each.wait_s for each in World(asked).collect(PROMPT).deleted] == [DAY_S]
    clock.pass_s(DAY_S)
    world.collect(PROMPT)
    assert left_in(store) == set()


def test_many_due_documents_are_deleted_after_one_check_of_references(store: ObjectStore) -> None:
    world = World(store)
    clock = ClockStore(store)
    clock_world = World(clock)
    pile_up(clock, 12)
    clock.pass_s(DAY_S)
    asked, life = Counter[tuple[str, str]](), f"Life={clock_world.manifest().log_id}"
    clock.before = lambda kind, path: asked.update([(kind, path.rpartition(f"{life}/")[2])])

    done = clock_world.collect(PROMPT)

    assert sum(deleted.num_deleted for deleted in done.deleted) == 12
    # To delete; to plan, to verify, and for the announced collection.
    assert asked["list", "cursor/"] == 4
    assert asked["list", "pin/"] == 1
    assert (asked["list", "gc/"], asked["head", "gc/CLOCK"]) == (1, 1)
    clock.pass_s(DAY_S)
    clock_world.collect(LATER)
    assert left_in(store) == set()
    assert world.stored() == world.reachable()


def test_document_without_its_mark_is_read_and_gets_one(store: ObjectStore) -> None:
    """The collector died between marking the document and creating its mark."""
    world = World(store)
    clock = ClockStore(store)
    clock_world = World(clock)
    clock_world.plant(cursor=12)
    path = clock_world.prune(LATER)
    life_store(clock, LOG).delete(hint_path(path))

    done = clock_world.collect(PROMPT)

    assert [(deleted.path, deleted.wait_s) for deleted in done.deleted] == [(path, DAY_S)]
    assert left_in(store) == {path, hint_path(path)}
    clock.pass_s(DAY_S)
    clock_world.collect(LATER)
    assert left_in(store) == set()
    assert world.stored() == world.reachable()


def test_mark_left_behind_by_its_document_is_removed(store: ObjectStore) -> None:
    """The mark arrived late, or the deleter died after deleting the document and before deleting the mark."""
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    Deleter(store, LOG, options=NOW).delete(path)
    assert isinstance(life_store(store, LOG).create(hint_path(path), b""), Done)

    world.collect()

    assert left_in(store) == set()


def test_mark_beside_an_unmarked_document_is_read_once_and_deletes_nothing(store: ObjectStore) -> None:
    world = World(store)
    clock = ClockStore(store)
    clock_world = World(clock)
    clock_world.plant(cursor=12)
    path = clock_world.announce(LATER)
    assert isinstance(life_store(clock, LOG).create(hint_path(path), b""), Done)
    clock.pass_s(2 * DAY_S)
    before = clock_world.stored()

    done = clock_world.collect(PROMPT)
    [problem] = [problem for deleted in done.deleted for problem in deleted.problems]
    assert f"expected {path} to be pruned before it is deleted, found it was not: collect again" in problem
    assert clock_world.stored() >= before

    for _ in range(3):
        clock_world.collect(LATER)
        clock.pass_s(DAY_S)
    assert left_in(store) == set()
    assert world.stored() == world.reachable()


def test_document_marked_after_the_listing_waits_from_then(store: ObjectStore) -> None:
    """Its collector died days ago, just after the prune; two others find it at the same time."""
    world = World(store)
    clock = ClockStore(store)
    clock_world = World(clock)
    clock_world.plant(cursor=12)
    path = clock_world.prune(LATER)
    [garbage] = Deleter(clock, LOG).pending()
    life_store(clock, LOG).delete(path)
    life_store(clock, LOG).delete(hint_path(path))
    clock.changed_us.clear()
    assert isinstance(life_store(clock, LOG).create(path, replace(garbage, pruned=False).to_bytes()), Done)
    clock.pass_s(3 * DAY_S)
    before, listed = world.stored(), list[str]()

    def other(kind: str, _path: str) -> None:
        if kind == "get" and _path.endswith(path) and not listed:
            listed.append(path)
            Collector(clock, LOG, options=LATER).resume_all()

    clock.before = other
    done = clock_world.collect(PROMPT)

    assert listed == [path]
    assert [(deleted.num_deleted, deleted.wait_s) for deleted in done.deleted] == [(0, DAY_S)]
    assert world.stored() == before


class StaleListings(ClockStore):
    """A store whose listings report every garbage document as days older than it is."""

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        for meta in super().list_objects(folder, start_after=start_after):
            changed_us = meta.last_modified_us - 3 * int(DAY_S) * 10**6 if "GARBAGE" in meta.path else None
            yield meta if changed_us is None else replace(meta, last_modified_us=changed_us)


def test_age_reported_only_by_the_listing_deletes_nothing(store: ObjectStore) -> None:
    """A document may be marked between two pages of a listing, so its own age is read before anything is deleted."""
    world = World(store)
    clock_world = World(StaleListings(store))
    clock_world.plant(cursor=12)
    clock_world.prune(LATER)
    before = world.stored()

    done = clock_world.collect(PROMPT)

    assert world.stored() == before
    assert [deleted.wait_s for deleted in done.deleted] == [DAY_S]


def test_waiting_documents_are_read_no_further_than_an_old_object_requires(store: ObjectStore) -> None:
    """The oldest documents name the oldest objects. For an object named by none, all of them are read, once."""
    clock = ClockStore(store)
    world = World(clock)
    world.append(4)
    clock.pass_s(0.75 * DAY_S)
    for offset in (3, 5, 6, 7):
        if offset == 6:
            world.append(4)
        world.move_cursor(offset)
        world.collect(PROMPT)
        clock.pass_s(1)
    clock.pass_s(0.5 * DAY_S)
    read = Counter[str]()
    clock.before = lambda kind, path: read.update([path]) if kind == "get" and "GARBAGE" in path else None

    assert world.collect(LATER).num_orphans == 0
    assert read.total() == 2
    abandoned = fragment_path(FragmentSeqNo(1), "a" * 16)
    assert isinstance(life_store(store, LOG).create(abandoned, b"never committed"), Done)
    clock.changed_us[f"{LOG}/Life={world.manifest().log_id}/{abandoned}"] = 0
    assert world.collect(LATER).num_orphans == 1
    # Now all of them, and those that a collection of orphans writes and marks.
    assert read.total() > 2 + 4


@pytest.mark.parametrize("damaged", [False, True])
def test_missing_snapshot_of_waiting_documents_is_requested_once(store: ObjectStore, *, damaged: bool) -> None:
    """Not once per listed object: a document and an unfinished pin both lead to it."""
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=18)
    top = world.manifest().pointers[0]
    assert isinstance(top, SnapshotPointer)
    manifest = world.manifest()
    world.prune(LATER)
    PinStore(clock, LOG).create("dead", reason="its maker dies")
    _unfinished(clock, manifest)
    inside = life_store(store, LOG)
    inside.delete(top.path)
    if damaged:
        inside.create(top.path, b"not what it was")
    clock.pass_s(0.9 * DAY_S)
    asked = Counter[bool]()
    clock.before = lambda kind, path: asked.update([kind == "read" and path.endswith(top.path)])

    deleter = Deleter(clock, LOG, options=replace(LATER, interval_s=0.5 * DAY_S))
    deleter.orphans(deleter.pending())

    # Once for the document and once for the pin; damage is read a second time before it is reported.
    assert asked[True] == (4 if damaged else 2)


def _unfinished(store: ObjectStore, manifest: Manifest) -> None:
    """Leave the pin as its creator would have, had it died before finishing it."""
    inside, path = life_store(store, LOG), "pin/dead.json"
    data = inside.read(path)
    assert data is not None
    pin = replace(Pin.from_bytes(data, what=path), complete=False, manifest=manifest)
    inside.delete(path)
    assert isinstance(inside.create(path, pin.to_bytes()), Done)


def test_prune_reads_its_document_again_before_each_step_and_decodes_it_once(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reads are on purpose: the document comes before the manifest. The bytes of the same version say the same."""
    World(memory_store).plant(cursor=12)
    counted = CountingStore(memory_store)
    path = World(counted).announce()
    decoded = list[str]()
    decode = Garbage.from_bytes

    def counting(data: bytes, what: str) -> Garbage:
        decoded.append(what)
        return decode(data, what=what)

    monkeypatch.setattr(Garbage, "from_bytes", counting)
    before = counted.requests["get"]

    assert isinstance(Collector(counted, LOG, options=NOW).prune(path), PrunedGarbage)

    # Each try reads the document and the manifest.
    assert counted.requests["get"] - before >= 6
    # Once when it was loaded, and once when its mark was written.
    assert len(decoded) == 2
