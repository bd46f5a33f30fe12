"""What a successor and an updated copy take along, and what others do at that moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from tests.spec.consuming import ONCE as AT_ONCE
from tests.spec.copies.test_copy_failures import crash_at
from tests.stores import FaultyStore
from tests.world import NOW, Crashed
from wal3_core import (
    CollectionRefusedError,
    Collector,
    Consumer,
    CursorStore,
    DelayQueue,
    FeedSubscription,
    GarbageCollectedError,
    InvalidRequestError,
    KeyedLog,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    Owner,
    Policy,
    PolicyStore,
    SnapshotOptions,
    StoreDeniedError,
    WriterOptions,
    collect,
    copy,
    create_successor,
    migrate,
    seal,
    update_copy,
)
from wal3_core.log.maintain.copy.target import delete_cursor
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, Stager, install_staged
from wal3_core.runtime import shared_runtime
from wal3_core.store.object_store import ObjectStore

WEEK_S = 7 * 24 * 3600


def fill(store: ObjectStore, log: str, count: int) -> None:
    with LogWriter.open_or_create(store, log) as writer:
        for number in range(count):
            writer.append(b"%d" % number)


def consume(store: ObjectStore, name: str, count: int = 1000, log: str = "a") -> list[tuple[str, int]]:
    """Process some records of a log and its successors."""
    given: list[tuple[str, int]] = []
    with Consumer(store, log, name, options=AT_ONCE) as consumer:
        for record in consumer:
            given.append((record.log, record.offset))
            if len(given) == count:
                break
    return given


def collected(store: ObjectStore, log: str) -> int:
    collect(store, log, options=NOW)
    return LogReader.open(store, log).manifest().first.position.offset


def append_once(store: ObjectStore, log: str) -> bool:
    """Append under a name; whether the log had that already."""
    staged = Stager(store, log).stage(pa.table([[None], [b"monday"]], schema=MESSAGE_SCHEMA))
    return install_staged(store, log, staged, once=Once("writer-w", "monday")).repeated


def sealed_for(store: ObjectStore, log: str, successor: str, *, reason: str) -> None:
    seal(store, log, successor=successor, reason=reason)


def test_slow_consumer_finds_all_of_a_successor_however_often_that_is_collected(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    assert len(consume(memory_store, "slow", 2)) == 2
    assert len(consume(memory_store, "fast", 5)) == 5
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", 5)
    consume(memory_store, "fast")
    migrate(memory_store, "b", "c", reason="full")
    fill(memory_store, "c", 5)
    consume(memory_store, "fast")

    assert [collected(memory_store, log) for log in "abc"] == [3, 6, 11]

    assert [offset for _, offset in consume(memory_store, "slow")] == list(range(3, 16))
    assert [collected(memory_store, log) for log in "abc"] == [6, 11, 16]


def test_successor_keeps_what_the_sealed_log_s_policy_keeps(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    PolicyStore(memory_store, "a").change(lambda policy: replace(policy, retention_s=WEEK_S, unprocessed_max=2000))
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", 3)
    consume(memory_store, "c")

    assert collected(memory_store, "b") == 4
    kept = PolicyStore(memory_store, "b").load()
    assert (kept.retention_s, kept.unprocessed_max) == (WEEK_S, 2000)


def test_consumer_that_begins_in_a_sealed_log_keeps_its_successors(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", 3)
    assert len(consume(memory_store, "late", 1)) == 1
    consume(memory_store, "fast")

    assert collected(memory_store, "b") == 4
    assert [offset for _, offset in consume(memory_store, "late")] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("kind", ["by key", "subscription"])
def test_other_owners_that_begin_in_a_sealed_log_keep_its_successors_too(memory_store: MemoryStore, kind: str) -> None:
    fill(memory_store, "a", 3)
    for log, successor in (("a", "b"), ("b", "c")):
        migrate(memory_store, log, successor, reason="full")
        fill(memory_store, successor, 3)
    if kind == "by key":
        KeyedLog.open(memory_store, "a").consumer("late")
    else:
        FeedSubscription.open(memory_store, "a", "late").close()
    consume(memory_store, "fast")

    assert [collected(memory_store, log) for log in "abc"] == [1, 4, 7]
    assert delete_cursor(memory_store, "a", "late") == ["b", "c"]


def test_consumer_that_may_not_keep_its_successor_s_records_does_not_begin(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", 3)
    store = FaultyStore(memory_store)
    store.fail("create", "b/", "denied")

    with pytest.raises(StoreDeniedError), Consumer(store, "a", "late", options=AT_ONCE):
        pass

    assert consume(memory_store, "fast")
    assert len(consume(memory_store, "late")) == 6


def test_consumer_whose_successor_was_collected_learns_it_and_skips_nothing(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "a", 3)
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", 3)
    consume(memory_store, "fast", log="b")
    assert collected(memory_store, "b") == 7
    given = []

    for _ in range(2):
        with pytest.raises(GarbageCollectedError), Consumer(memory_store, "a", "late", options=AT_ONCE) as consumer:
            given += [record.offset for record in consumer]

    assert CursorStore(memory_store, "b").load("late") is None


def test_named_append_that_the_sealed_log_has_is_not_made_again_in_its_successor(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    assert not append_once(memory_store, "a")
    migrate(memory_store, "a", "b", reason="full")

    assert append_once(memory_store, "b")
    assert list(LogReader.open(memory_store, "b").records()) == []


def test_subscription_goes_along_and_keeps_its_topics(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 1)
    FeedSubscription.open(memory_store, "a", "s", topics="x/*", start="beginning").close()
    migrate(memory_store, "a", "b", reason="full")

    with pytest.raises(InvalidRequestError, match="expected one to"):
        FeedSubscription.open(memory_store, "b", "s", topics="y")
    FeedSubscription.open(memory_store, "b", "s", topics="x/*").close()


@pytest.mark.parametrize("call", [migrate, sealed_for])
@pytest.mark.parametrize("log", ["q", "dirty/server"])
def test_log_of_a_queue_and_dirty_log_have_no_successor(
    memory_store: MemoryStore, log: str, call: Callable[..., object]
) -> None:
    if log == "q":
        DelayQueue.create(memory_store, log)
    else:
        fill(memory_store, log, 1)
    before = sorted(meta.path for meta in memory_store.list_objects(""))

    with pytest.raises(InvalidRequestError, match="expected one that can go on in a successor"):
        call(memory_store, log, "next", reason="full")

    assert sorted(meta.path for meta in memory_store.list_objects("")) == before
    assert LogReader.open(memory_store, log).manifest().seal is None


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("create", "replace", "delete"), ("read", "get", "list")])
def test_migration_that_was_cut_short_anywhere_takes_all_along(kinds: tuple[str, ...]) -> None:
    for step in range(100):
        origin = MemoryStore(shared_runtime())
        fill(origin, "a", 2)
        PolicyStore(origin, "a").change(lambda _: Policy(retention_s=WEEK_S))
        for name in ("c", "gone"):
            CursorStore(origin, "a").create(name, LogPosition(1, 0))
        store = FaultyStore(origin)
        crash_at(store, step, kinds)
        finished = True
        try:
            migrate(store, "a", "b", reason="full")
        except Crashed:
            finished = False
        if not finished and LogReader.open(origin, "a").manifest().seal is not None:
            # What an earlier call has written is not relied on.
            CursorStore(origin, "a").delete("gone")
        migrate(origin, "a", "b", reason="full")
        begun = {name: witness.cursor.position.offset for name, witness in CursorStore(origin, "b").list().items()}
        assert begun.pop("c") == 3
        assert begun in ({}, {"gone": 3})
        assert PolicyStore(origin, "b").load().retention_s == WEEK_S
        folders = [folder for folder in origin.list_folders("b/") if "Life=" in folder]
        assert len(folders) == 1
        if finished:
            return
    message = "the migration never ended"
    raise AssertionError(message)


def test_two_calls_that_begin_a_successor_at_once_begin_one(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 2)
    CursorStore(memory_store, "a").create("c", LogPosition(1, 0))
    seal(memory_store, "a", reason="full", successor="b")
    store = FaultyStore(memory_store)
    others = iter([None])

    def meanwhile(kind: str, path: str) -> None:
        if kind == "create" and path.endswith("cursor/c.json") and next(others, 0) is None:
            create_successor(memory_store, "a")

    store.before = meanwhile

    assert create_successor(store, "a") == "b"
    assert {name: each.cursor.position.offset for name, each in CursorStore(memory_store, "b").list().items()} == {
        "c": 3
    }


def test_update_deletes_the_cursors_that_were_deleted_in_the_source_and_no_others(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    theirs, ours = CursorStore(memory_store, "a"), CursorStore(memory_store, "b")
    for name in ("retired", "moved", "stays"):
        theirs.create(name, LogPosition(2, 0))
    copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), with_cursors=True)
    ours.create("of-the-copy", LogPosition(3, 0))
    moved = ours.load("moved")
    assert moved is not None
    ours.save("moved", LogPosition(3, 0), moved, owner=Owner.CONSUMER)
    for name in ("retired", "moved"):
        theirs.delete(name)

    update_copy(LogAt(memory_store, "a"), LogAt(memory_store, "b"), with_cursors=True)

    assert ours.offsets() == {"moved": 3, "stays": 2, "of-the-copy": 3}


def test_consumer_that_is_retired_in_a_sealed_log_is_retired_in_its_successors(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 2)
    consume(memory_store, "gone", 1)
    consume(memory_store, "goes-on", 1)
    for log, successor in (("a", "b"), ("b", "c")):
        migrate(memory_store, log, successor, reason="full")
        fill(memory_store, successor, 2)
    consume(memory_store, "goes-on", 3)

    assert delete_cursor(memory_store, "a", "gone") == ["b", "c"]
    # Its owner has moved it in the first successor, and has not come further yet.
    assert delete_cursor(memory_store, "a", "goes-on") == []

    assert [sorted(CursorStore(memory_store, log).list()) for log in "abc"] == [[], ["goes-on"], ["goes-on"]]


def test_named_append_in_the_part_a_copy_lacks_is_known_where_parts_are_joined(
    memory_store: MemoryStore,
) -> None:
    fill(memory_store, "a", 1)
    assert not append_once(memory_store, "a")
    copy(LogAt(memory_store, "a"), LogAt(memory_store, "part1"), with_cursors=True)
    fill(memory_store, "a", 3)
    copy(LogAt(memory_store, "a"), LogAt(memory_store, "part2"), from_offset=3, with_cursors=True)
    copy(LogAt(memory_store, "part1"), LogAt(memory_store, "whole"), with_cursors=True)
    update_copy(LogAt(memory_store, "part2"), LogAt(memory_store, "whole"), with_cursors=True)

    assert [append_once(memory_store, log) for log in ("a", "part2", "whole")] == [True, True, True]


def test_update_from_a_successor_takes_no_cursors(memory_store: MemoryStore) -> None:
    """They say nothing of the records before: the copy's own would be moved over these."""
    fill(memory_store, "a", 3)
    CursorStore(memory_store, "a").create("c", LogPosition(1, 0))
    copy(LogAt(memory_store, "a"), LogAt(memory_store, "backup"), with_cursors=True)
    migrate(memory_store, "a", "b", reason="full")
    fill(memory_store, "b", 2)

    with pytest.raises(InvalidRequestError, match="found a successor of it"):
        update_copy(LogAt(memory_store, "b"), LogAt(memory_store, "backup"), with_cursors=True)
    update_copy(LogAt(memory_store, "b"), LogAt(memory_store, "backup"))

    assert CursorStore(memory_store, "backup").offsets() == {"c": 1}
    assert LogReader.open(memory_store, "backup").manifest().next.position.offset == 6


def at_call(store: MemoryStore, step: int, act: Callable[[], object]) -> tuple[FaultyStore, list[int]]:
    """Act before the ``step``th call of a store; the list has the step once that has happened."""
    faulty, left, done = FaultyStore(store), iter(range(step)), list[int]()

    def before(_kind: str, _path: str) -> None:
        if next(left, None) is None and not done:
            done.append(step)
            act()

    faulty.before = before
    return faulty, done


@pytest.mark.slow
def test_cursors_that_come_and_go_in_a_migration_come_and_go_in_the_successor(
    memory_store: MemoryStore,
) -> None:
    for step in range(100):
        log, successor = f"a{step}", f"b{step}"
        fill(memory_store, log, 3)
        CursorStore(memory_store, log).create("gone", LogPosition(1, 0))

        def come_and_go(log: str = log) -> None:
            consume(memory_store, "new", 1, log)
            delete_cursor(memory_store, log, "gone")

        store, done = at_call(memory_store, step, come_and_go)
        migrate(store, log, successor, reason="full")

        if not done:
            assert step > 20
            return
        assert CursorStore(memory_store, successor).offsets() == {"new": 4}


@pytest.mark.slow
def test_consumer_s_first_start_in_a_migration_that_dies_keeps_its_records(
    memory_store: MemoryStore,
) -> None:
    begun = 0
    for step in range(100):
        log, successor = f"a{step}", f"b{step}"
        fill(memory_store, log, 3)
        store, done = at_call(memory_store, step, lambda log=log: consume(memory_store, "new", 1, log))
        act = store.before

        def die_once_begun(kind: str, path: str, act: Callable[[str, str], object] = act, to: str = successor) -> None:
            if is_log(memory_store, to):
                raise Crashed
            act(kind, path)

        store.before = die_once_begun
        with contextlib.suppress(Crashed):
            migrate(store, log, successor, reason="full")

        if not done:
            break
        begun += is_log(memory_store, successor)
        if is_log(memory_store, successor):
            assert CursorStore(memory_store, successor).offsets() == {"new": 4}, step
    assert begun > 10


def is_log(store: MemoryStore, name: str) -> bool:
    try:
        return bool(LogReader.open(store, name))
    except LogNotFoundError:
        return False


def test_migration_goes_on_though_the_sealed_log_s_snapshots_are_repacked_meanwhile(memory_store: MemoryStore) -> None:
    LogWriter.open_or_create(memory_store, "a").close()
    assert not append_once(memory_store, "a")
    options = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=4, fragments_kept=2))
    with LogWriter.open(memory_store, "a", options=options) as writer:
        for number in range(12):
            writer.append(b"%d" % number)
    store, repacked = FaultyStore(memory_store), list[str]()

    def repack(kind: str, path: str) -> None:
        if kind == "read" and "/snapshot/" in path and not repacked:
            repacked.append(path)
            SnapshotCompactor(memory_store, "a").compact()
            with contextlib.suppress(CollectionRefusedError):
                collect(memory_store, "a", options=NOW)
            memory_store.delete(path)

    store.before = repack
    migrate(store, "a", "b", reason="full")

    assert repacked
    assert CursorStore(memory_store, "b").offsets() == {"writer-w": 14}


def test_of_two_migrations_at_once_both_find_the_successor(memory_store: MemoryStore) -> None:
    for step in range(100):
        log, successor = f"a{step}", f"b{step}"
        fill(memory_store, log, 1)

        def migrate_too(log: str = log, successor: str = successor) -> None:
            migrate(memory_store, log, successor, reason="full")

        store, done = at_call(memory_store, step, migrate_too)
        migrate(store, log, successor, reason="full")

        assert LogReader.open(memory_store, successor).manifest().next.position.offset == 2
        if not done:
            assert step > 10
            return


def test_queue_whose_cursor_an_earlier_version_wrote_has_no_successor(memory_store: MemoryStore) -> None:
    DelayQueue.create(memory_store, "q")
    cursors = CursorStore(memory_store, "q")
    witness = cursors.load("queue")
    assert witness is not None
    cursors.carry("queue", replace(witness.cursor, owner=None), witness)

    with pytest.raises(InvalidRequestError, match="expected one that can go on in a successor"):
        migrate(memory_store, "q", "next", reason="full")


def test_consumer_that_is_killed_when_it_came_too_late_leaves_no_cursor_to_begin_at(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 9)
    collector = Collector(memory_store, "a", options=NOW)
    CursorStore(memory_store, "a").create("fast", LogPosition(7, 0))
    collector.announce(collector.plan())
    cursors = CursorStore(memory_store, "a")

    with pytest.raises(GarbageCollectedError):
        cursors.create("late", LogPosition(4, 0), stays=False)

    assert (cursors.load("late"), cursors.is_deleted("late")) == (None, True)
