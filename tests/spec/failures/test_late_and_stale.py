"""Requests that arrive late and values that became stale: announcements, policies, cursors, pins, copies, lives."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.stores import FaultyStore, damage, life_path, life_store
from tests.world import (
    LOG,
    NOW,
    QUICK,
    Crashed,
    World,
)
from wal3_core import (
    CollectionRefusedError,
    CursorStore,
    Deleter,
    GarbageCollectedError,
    InvalidRequestError,
    LogAt,
    LogError,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogReplacedError,
    MemoryStore,
    PinStore,
    PolicyStore,
    StoreDeniedError,
    copy,
    destroy,
    records_across,
    seal,
)
from wal3_core.format.cursor import Cursor
from wal3_core.format.paths import MANIFEST
from wal3_core.format.policy import Policy
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.store.object_store import ObjectStore

ALL_GOES = Policy(retention_s=0, without_cursors=True)


def once(store: ObjectStore, kind: str, path: str, act: Callable[[], object]) -> FaultyStore:
    """Run an action just before the first matching request."""
    faulty = FaultyStore(store)

    def before(asked: str, at: str) -> None:
        if asked == kind and path in at:
            faulty.before = lambda _kind, _path: None
            act()

    faulty.before = before
    return faulty


def crash() -> None:
    raise Crashed


# ---------------------------------------------------------------------- announcements and policies


@pytest.mark.parametrize(
    "changed", [Policy(retention_s=10**8, without_cursors=True), Policy(retention_s=0)], ids=["longer", "with cursors"]
)
def test_collection_announced_under_another_policy_is_withdrawn(memory_store: MemoryStore, changed: Policy) -> None:
    world = World(memory_store)
    world.append(20)
    policies = PolicyStore(memory_store, LOG)
    policies.change(lambda _: ALL_GOES)
    path = world.announce()

    policies.change(lambda _: changed)
    outcome = Collector(memory_store, LOG, options=NOW).prune(path)

    assert not isinstance(outcome, PrunedGarbage)
    assert world.manifest().announced is None
    assert len(world.offsets()) == 20


def test_collection_is_withdrawn_when_the_last_cursor_is_gone(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.plant(cursor=12)
    path = world.announce()

    CursorStore(memory_store, LOG).delete("reader")
    outcome = Collector(memory_store, LOG, options=NOW).prune(path)

    assert not isinstance(outcome, PrunedGarbage)
    assert world.offsets()[0] == 1


def test_document_deleted_as_abandoned_while_it_was_announced_is_written_again(memory_store: MemoryStore) -> None:
    """Another run read it before the announcement, took it for a dead run's, and deletes it at the worst moment."""
    world = World(memory_store)
    world.plant(cursor=12)
    options = replace(NOW, orphans_max=0)
    reached, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        go_on.wait(10)

    other = Collector(once(memory_store, "delete", "GARBAGE", hold), LOG, options=options)
    resuming = threading.Thread(target=other.resume_all)

    def resume() -> None:
        resuming.start()
        reached.wait(10)

    def forget() -> None:
        go_on.set()
        resuming.join(10)

    announcing = Collector(once(memory_store, "replace", "MANIFEST", resume), LOG, options=options)
    path = announcing.announce(announcing.plan())
    Collector(once(memory_store, "replace", "GARBAGE", forget), LOG, options=options).prune(path)

    assert world.documents() == [path]
    assert Deleter(memory_store, LOG, options=options).delete(path).num_deleted > 0
    assert world.stored() == world.reachable()


@pytest.mark.parametrize("depth", [1, 2])
def test_damaged_snapshot_in_a_garbage_document_stops_no_later_collection(
    memory_store: MemoryStore, depth: int
) -> None:
    world = World(memory_store)
    world.plant(cursor=12)
    collector = Collector(memory_store, LOG, options=NOW)
    plan = collector.plan()
    gone = [
        pointer.path
        for pointer in world.pointers(world.manifest().pointers)
        if isinstance(pointer, SnapshotPointer) and pointer.depth == depth
    ]
    world.prune()
    damage(life_store(memory_store, LOG), gone[0])
    world.move_cursor(16)

    problems = [deleted.problems for _ in range(2) for deleted in world.collect().deleted]

    assert any(problems)
    assert plan.first.position.offset == 12
    assert world.offsets()[0] == 16


# ---------------------------------------------------------------------- cursors


def test_cursor_of_a_destroyed_log_never_empties_a_new_one(memory_store: MemoryStore) -> None:
    """Neither a cursor whose write arrives late, nor one whose store was opened before."""
    world = World(memory_store)
    world.append(20)
    cursors = CursorStore(memory_store, LOG)
    witness = cursors.create("reader", LogPosition(20, 0))
    before = life_path(memory_store, LOG, "cursor/late.json")
    held_back = FaultyStore(memory_store)
    held_back.fail("create", "late", "late", times=99)
    with pytest.raises(LogError):
        World(held_back).move_cursor(20, "late")
    destroy(memory_store, LOG)
    world.append(5)
    world.move_cursor(2, "new")

    held_back.arrive()
    with pytest.raises(LogReplacedError, match="open it again"):
        cursors.create("other", LogPosition(20, 0))
    with pytest.raises(LogReplacedError, match="open it again"):
        cursors.save("reader", LogPosition(20, 0), witness)

    assert memory_store.head(before) is not None
    assert list(CursorStore(memory_store, LOG).list()) == ["new"]
    assert world.collect().plan.first.position.offset == 2
    assert len(world.offsets()) == 4


def test_cursor_beyond_the_end_stops_every_collection(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.append(5)
    stray = Cursor(
        position=LogPosition(20, 0), epoch_us=0, writer="a test", generation=1, log_id=world.manifest().log_id
    )
    life_store(memory_store, LOG).create("cursor/late.json", stray.to_bytes())

    with pytest.raises(CollectionRefusedError, match="expected cursors up to its end, 6, found .*late.*20"):
        world.collect()

    assert len(world.offsets()) == 5


def test_move_of_a_cursor_left_below_the_first_record_is_refused_with_its_new_place(memory_store: MemoryStore) -> None:
    """A process moved it back and died before it read the manifest; its next reader continues from the new place."""
    world = World(memory_store)
    world.plant(cursor=12)
    world.announce()
    dying = FaultyStore(memory_store)

    def die(kind: str, path: str) -> None:
        if kind == "get" and "MANIFEST" in path and place_of(memory_store) == 3:
            raise Crashed

    dying.before = die
    with pytest.raises(Crashed):
        World(dying).move_cursor(3)

    cursors = CursorStore(memory_store, LOG)
    witness = cursors.load("reader")
    assert witness is not None
    with pytest.raises(GarbageCollectedError, match="it is now at 12"):
        cursors.save("reader", LogPosition(5, 0), witness)

    assert place_of(memory_store) == 12
    assert world.collect().plan.empty


def test_moving_a_cursor_reads_the_manifest_once_and_then_never(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.append(20)
    world.move_cursor(2)
    asked: list[str] = []
    store = FaultyStore(memory_store)
    store.before = lambda kind, path: asked.append(f"{kind} {path}")
    cursors = CursorStore(store, LOG)
    witness = cursors.load("reader")
    assert witness is not None

    for offset in range(3, 10):
        asked.clear()
        witness = cursors.save("reader", LogPosition(offset, 0), witness)

    assert asked == [f"replace {life_path(memory_store, LOG, 'cursor/reader.json')}"]


def test_cursor_that_is_being_corrected_raises_no_alarm(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.plant(cursor=12)
    path = world.prune()
    looks: list[str] = []
    store = FaultyStore(memory_store)

    def before(kind: str, at: str) -> None:
        if kind == "list" and at.endswith("/cursor/"):
            looks.append(at)
            if len(looks) == 2:
                world.move_cursor(12)

    store.before = before
    abandon(memory_store)

    assert World(store).delete(path).finished
    assert len(looks) == 2


def place_of(store: ObjectStore) -> int:
    witness = CursorStore(store, LOG).load("reader")
    assert witness is not None
    return witness.cursor.position.offset


def abandon(store: ObjectStore) -> None:
    """Move the cursor below the log's first record, and die before that is detected."""
    dying = FaultyStore(store)

    def die(kind: str, path: str) -> None:
        if kind == "get" and "MANIFEST" in path and place_of(store) == 3:
            raise Crashed

    dying.before = die
    with pytest.raises(Crashed):
        World(dying).move_cursor(3)


# ---------------------------------------------------------------------- pins, copies, destroyed logs


def test_log_that_is_being_destroyed_cannot_be_pinned(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.append(5)
    store, refused = FaultyStore(memory_store), []

    def pin(kind: str, path: str) -> None:
        announced = kind == "replace" and world.manifest().destroying
        if not (announced or (kind == "delete" and "/log/" in path)):
            return
        expected = "found it being destroyed" if announced else "found that it was destroyed"
        with pytest.raises((InvalidRequestError, LogNotFoundError), match=expected):
            PinStore(memory_store, LOG).create("audit", reason="a test")
        refused.append(kind)

    store.before = pin
    destroy(store, LOG)

    # Once destruction is announced, and once the name is vacant.
    assert set(refused) == {"replace", "delete"}
    assert [meta.path for meta in memory_store.list_objects("a/")] == [f"a/{MANIFEST}"]


def test_copy_with_cursors_is_finished_though_the_source_lost_a_cursor_meanwhile(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.append(5)
    world.move_cursor(2)
    world.move_cursor(3, "other")
    written: list[str] = []
    dying = FaultyStore(memory_store)

    def die(kind: str, path: str) -> None:
        if kind == "create" and "/cursor/" in path:
            written.append(path)
        if kind == "replace" and "MANIFEST" in path and len(written) == 2:
            raise Crashed

    dying.before = die
    with pytest.raises(Crashed):
        copy(LogAt(memory_store, LOG), LogAt(dying, "t"), with_cursors=True)

    CursorStore(memory_store, LOG).delete("other")
    copy(LogAt(memory_store, LOG), LogAt(memory_store, "t"), with_cursors=True)

    assert list(CursorStore(memory_store, "t").list()) == ["reader"]
    assert list(LogReader.open(memory_store, "t").records()) == list(LogReader.open(memory_store, LOG).records())


@pytest.mark.parametrize(("kind", "at"), [("replace", "MANIFEST"), ("create", "/log/")])
def test_failing_copy_leaves_another_copy_its_pin(memory_store: MemoryStore, kind: str, at: str) -> None:
    """It fails either while taking the claim over or afterwards."""
    world = World(memory_store)
    world.plant(cursor=12)
    failed: list[str] = []

    def fail_beside() -> None:
        denied = FaultyStore(memory_store)
        denied.fail(kind, at, "denied", times=100)
        with pytest.raises(StoreDeniedError, match="expected access"):
            copy(LogAt(memory_store, LOG), LogAt(denied, "t"))
        failed.append(kind)
        world.collect()
        world.collect()

    first = once(memory_store, "create", "/log/", fail_beside)
    if kind == "create":
        # The failed copy had already taken the claim over; the next call continues from what both copied.
        with pytest.raises(LogReplacedError, match="another call has taken over"):
            copy(LogAt(memory_store, LOG), LogAt(first, "t"))
        assert copy(LogAt(memory_store, LOG), LogAt(memory_store, "t")).resumed
    else:
        copy(LogAt(memory_store, LOG), LogAt(first, "t"))

    assert failed == [kind]
    assert world.offsets()[0] == 12
    assert [record.offset for record in records_across(memory_store, "t")] == list(range(1, 21))


# ---------------------------------------------------------------------- unreadable values


HALF = "na\udcefve"


def test_text_that_could_not_be_read_back_is_never_written(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.append(3)
    before = world.manifest()

    with pytest.raises(InvalidRequestError, match="half of a surrogate pair"):
        seal(memory_store, LOG, reason=HALF)
    with pytest.raises(InvalidRequestError, match="half of a surrogate pair"):
        PinStore(memory_store, LOG).create("audit", reason=HALF)

    assert world.manifest() == before
    assert PinStore(memory_store, LOG).list() == {}
    assert seal(memory_store, LOG, reason="whole: \U0001f512 and \\ud83d").reason == "whole: \U0001f512 and \\ud83d"


@pytest.mark.parametrize("retention_s", [-1, 2**64, 1.5, True])
def test_retention_that_could_not_be_read_back_is_refused(memory_store: MemoryStore, retention_s: int) -> None:
    World(memory_store).append(3)

    with pytest.raises(InvalidRequestError, match="retention_s: expected an integer"):
        PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, retention_s=retention_s))

    assert PolicyStore(memory_store, LOG).load() == Policy()


def test_impossible_cursor_name_is_reported_as_damage(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    world.append(3)
    world.move_cursor(2)
    life_store(memory_store, "a").create(f"cursor/{'x' * 201}.json", b"{}")

    with pytest.raises(CollectionRefusedError, match="expected cursor/<name>.json"):
        world.collect()


def test_log_is_collected_entirely_when_its_policy_allows_it(memory_store: MemoryStore) -> None:
    """Age alone decides, and each record is old enough."""
    world = World(memory_store)
    world.append(20)
    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, without_cursors=True, retention_s=0))
    options = replace(NOW, fraction_max=0.9, retry=QUICK)
    with pytest.raises(CollectionRefusedError, match="at most 90%"):
        world.collect(options)

    PolicyStore(memory_store, LOG).change(lambda policy: replace(policy, percent_max=100))

    assert world.collect(options).plan.num_records == 20
    assert world.offsets() == []
