"""Cursors are created once, moved by witness, listed and deleted, and never left on collected records."""

from __future__ import annotations

import concurrent.futures
from dataclasses import replace

import pytest

from tests.stores import CountingStore, FaultyStore, damage, life_store
from wal3_core import (
    CorruptError,
    CursorConflictError,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    Limits,
    LogPosition,
    LogReader,
    LogWriter,
    MemoryStore,
    UnavailableError,
)
from wal3_core.format.manifest import Boundary
from wal3_core.format.snapshot import sum_setsums
from wal3_core.options import RetryOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store

QUICK = RetryOptions(attempts_max=3, pause_s_min=0.001)


def collect_three(store: ObjectStore) -> None:
    """Collect the first three of five fragments of one record each."""
    manifests = ManifestStore(log_store(store, "a"), shared_runtime())
    base = manifests.load()
    gone, kept = base.manifest.fragments[:3], base.manifest.fragments[3:]
    pruned = replace(
        base.manifest,
        fragments=kept,
        pruned=sum_setsums(gone),
        first=Boundary(kept[0].first_seq_no, kept[0].start),
        num_bytes=sum(pointer.num_bytes for pointer in kept),
        num_records=2,
    )
    assert isinstance(manifests.install(pruned, base), Installed)


@pytest.fixture
def log(store: ObjectStore) -> list[LogPosition]:
    with LogWriter.open_or_create(store, "a") as writer:
        return [writer.append(b"x") for _ in range(5)]


def test_cursor_is_created_moved_and_loaded(store: ObjectStore, log: list[LogPosition]) -> None:
    cursors = CursorStore(store, "a")

    witness = cursors.create("reader", log[0])
    moved = cursors.save("reader", log[3], witness)
    back = cursors.save("reader", log[1], moved)

    loaded = cursors.load("reader")
    assert loaded == back
    assert back.cursor.position == log[1]
    assert (witness.cursor.generation, moved.cursor.generation, back.cursor.generation) == (1, 2, 3)


def test_cursor_saved_with_a_record_continues_after_it(store: ObjectStore, log: list[LogPosition]) -> None:
    cursors, reader = CursorStore(store, "a"), LogReader.open(store, "a")
    witness = cursors.create("reader", log[0])
    [*_, third] = reader.records(None, Limits(records=3))

    moved = cursors.save("reader", third, witness)

    assert moved.cursor.position == LogPosition(log[3].offset, third.timestamp_us)
    assert [record.offset for record in reader.records(moved.cursor.position)] == [4, 5]
    with pytest.raises(InvalidRequestError, match="from 1 to 6, found 7"):
        cursors.save("reader", replace(third, offset=6), moved)


def test_cursor_begun_with_a_record_continues_after_it_and_with_a_position_at_it(
    store: ObjectStore, log: list[LogPosition]
) -> None:
    cursors, reader = CursorStore(store, "a"), LogReader.open(store, "a")
    [*_, third] = reader.records(None, Limits(records=3))

    assert cursors.create("after", third).cursor.position == LogPosition(log[3].offset, third.timestamp_us)
    assert cursors.create("at", third.position).cursor.position == LogPosition(log[2].offset, third.timestamp_us)
    assert [record.offset for record in reader.records(third.position)] == [3, 4, 5]


def test_missing_cursor_loads_as_none(store: ObjectStore, log: list[LogPosition]) -> None:  # noqa: ARG001 - the log
    assert CursorStore(store, "a").load("none") is None


def test_second_init_and_stale_witness_are_conflicts_and_change_nothing(
    store: ObjectStore, log: list[LogPosition]
) -> None:
    cursors = CursorStore(store, "a")
    witness = cursors.create("reader", log[0])
    moved = cursors.save("reader", log[2], witness)

    with pytest.raises(CursorConflictError, match="expected no cursor"):
        cursors.create("reader", log[1])
    with pytest.raises(CursorConflictError, match="expected generation 1"):
        cursors.save("reader", log[4], witness)
    assert cursors.load("reader") == moved


def test_one_of_many_moves_with_one_witness_wins(store: ObjectStore, log: list[LogPosition]) -> None:
    cursors = CursorStore(store, "a")
    witness = cursors.create("reader", log[0])

    def move(position: LogPosition) -> bool:
        try:
            cursors.save("reader", position, witness)
        except CursorConflictError:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        won = list(pool.map(move, log[1:] * 2))

    assert won.count(True) == 1


def test_cursors_are_listed_by_name_and_deleted(store: ObjectStore, log: list[LogPosition]) -> None:
    cursors = CursorStore(store, "a")
    for name in ("b", "a", "c-1_X"):
        cursors.create(name, log[1])

    cursors.delete("b")
    cursors.delete("b")

    assert sorted(cursors.list()) == ["a", "c-1_X"]


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä", "x" * 201, "a.json"])
def test_bad_cursor_name_is_refused(memory_store: MemoryStore, name: str) -> None:
    LogWriter.create(memory_store, "a")

    with pytest.raises(InvalidRequestError, match="cursor name"):
        CursorStore(memory_store, "a").create(name, LogPosition(1, 0))


@pytest.mark.parametrize("offset", [0, 7, 2**64 - 1])
def test_position_outside_the_log_is_refused(store: ObjectStore, log: list[LogPosition], offset: int) -> None:  # noqa: ARG001 - the log
    with pytest.raises(InvalidRequestError, match="from 1 to 6"):
        CursorStore(store, "a").create("reader", LogPosition(offset, 0))


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict"])
def test_save_without_an_answer_determines_its_outcome(memory_store: MemoryStore, fault: str) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"x"] * 5)
    store = FaultyStore(memory_store)
    cursors = CursorStore(store, "a", retry=QUICK)
    store.fail("create", "cursor/", fault)
    store.fail("replace", "cursor/", fault)

    witness = cursors.create("reader", LogPosition(1, 0))
    saved = cursors.save("reader", LogPosition(4, 0), witness)

    assert store.fired[fault] == 2
    assert cursors.load("reader") == saved


def test_save_that_never_gets_an_answer_is_an_error(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    store = FaultyStore(memory_store)
    store.fail("create", "cursor/", "unknown", times=100)

    with pytest.raises(UnavailableError, match="not known to be saved, after 3 tries"):
        CursorStore(store, "a", retry=QUICK).create("reader", LogPosition(1, 0))


def test_damaged_cursor_is_an_error_and_not_another_position(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"x"] * 5)
    cursors = CursorStore(memory_store, "a")
    cursors.create("reader", LogPosition(3, 0))
    stored = life_store(memory_store, "a").read("cursor/reader.json")
    assert stored is not None
    damage(life_store(memory_store, "a"), "cursor/reader.json", stored.index(b'"offset":3') + 9)

    with pytest.raises(CorruptError, match="cursor/reader"):
        cursors.load("reader")
    with pytest.raises(CorruptError, match="cursor/reader"):
        cursors.list()


def test_foreign_file_among_the_cursors_is_named(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    life_store(memory_store, "a").create("cursor/notes.txt", b"hello")

    with pytest.raises(CorruptError, match="notes.txt"):
        CursorStore(memory_store, "a").list()


@pytest.mark.parametrize("moved_on", [False, True])
def test_cursor_created_too_late_is_moved_to_the_first_record_but_never_another_s(
    memory_store: MemoryStore, *, moved_on: bool
) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        for _ in range(5):
            writer.append(b"x")
    store = FaultyStore(memory_store)
    cursors, others = CursorStore(store, "a"), CursorStore(memory_store, "a")

    def prune(kind: str, path: str) -> None:
        """Collect the first three records just before the cursor is written."""
        if kind == "create" and "cursor/" in path:
            store.before = move if moved_on else (lambda _kind, _path: None)
            collect_three(memory_store)

    def move(kind: str, path: str) -> None:
        """Another process moves the new cursor before it can be corrected."""
        if kind == "get" and "MANIFEST" in path:
            store.before = lambda _kind, _path: None
            witness = others.load("reader")
            assert witness is not None
            others.save("reader", LogPosition(5, 0), witness)

    store.before = prune
    with pytest.raises(GarbageCollectedError, match="from 4, found 2"):
        cursors.create("reader", LogPosition(2, 0))

    left = others.load("reader")
    assert (None if left is None else left.cursor.position.offset) == (5 if moved_on else 4)


def test_move_within_the_loaded_manifest_costs_one_request_and_beyond_it_two(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"x"] * 5)
        store = CountingStore(memory_store)
        cursors = CursorStore(store, "a")
        witness = cursors.create("reader", LogPosition(1, 0))
        writer.append_many([b"x"] * 5)
        store.requests.clear()

        for offset in (2, 3, 6):
            witness = cursors.save("reader", LogPosition(offset, 0), witness)
        assert store.requests == {"replace": 3}
        witness = cursors.save("reader", LogPosition(11, 0), witness)
        assert store.requests == {"replace": 4, "get": 1}
        with pytest.raises(InvalidRequestError, match="from 1 to 11, found 12"):
            cursors.save("reader", LogPosition(12, 0), witness)
        store.requests.clear()

        cursors.save("reader", LogPosition(4, 0), witness)
        assert store.requests == {"replace": 1, "get": 1}


def test_move_back_onto_records_collected_since_they_were_loaded_is_refused(
    memory_store: MemoryStore,
) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        for _ in range(5):
            writer.append(b"x")
    cursors = CursorStore(memory_store, "a")
    witness = cursors.create("reader", LogPosition(5, 0))
    collect_three(memory_store)

    with pytest.raises(GarbageCollectedError, match="from 4, found 2"):
        cursors.save("reader", LogPosition(2, 0), witness)

    left = cursors.load("reader")
    assert left is not None
    assert left.cursor.position == LogPosition(5, 0)


def test_survey_reports_damage_alongside_the_sound_cursors(memory_store: MemoryStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append(b"x")
    cursors = CursorStore(memory_store, "a")
    sound = {name: cursors.create(name, LogPosition(1, 0)) for name in ("first", "second", "third")}
    damage(life_store(memory_store, "a"), "cursor/second.json")

    found = dict(cursors.survey())

    assert found["cursor/first.json"] == sound["first"]
    assert isinstance(found["cursor/second.json"], CorruptError)
    assert found["cursor/third.json"] == sound["third"]


def test_cursor_with_an_impossible_time_is_refused(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")

    with pytest.raises(InvalidRequestError, match="timestamp"):
        CursorStore(memory_store, "a").create("reader", LogPosition(1, -1))


def test_cursor_on_a_log_that_does_not_exist_is_refused(memory_store: MemoryStore) -> None:
    with pytest.raises(InvalidRequestError, match="create the log first"):
        CursorStore(memory_store, "none").create("reader", LogPosition(1, 0))
