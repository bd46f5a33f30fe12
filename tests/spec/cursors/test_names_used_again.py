"""Names of cursors and pins that are used again: a request sent for an earlier one never touches a later one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.stores import FaultyStore, damage, life_store
from tests.world import LOG, NOW, QUICK, World
from wal3_core import (
    CollectionRefusedError,
    CursorConflictError,
    CursorStore,
    InvalidRequestError,
    LogAt,
    LogPosition,
    LogReader,
    MemoryStore,
    PinStore,
    UnavailableError,
    collect,
    copy,
    destroy,
    pinned_records,
    scrub,
)
from wal3_core.options import RetryOptions
from wal3_core.store.object_store import ObjectStore

ONCE = RetryOptions(attempts_max=1)


def place(store: ObjectStore, name: str, offset: int) -> None:
    CursorStore(store, LOG, retry=QUICK).create(name, LogPosition(offset, 0))


def held(store: ObjectStore) -> list[int]:
    """Collect everything that can be deleted; return the offsets left."""
    collect(store, LOG, options=NOW)
    return [record.offset for record in LogReader.open(store, LOG).records()]


@pytest.mark.parametrize("request_kind", ["replace", "delete"])
def test_late_delete_of_a_cursor_never_deletes_a_later_cursor_of_that_name(
    store: ObjectStore, request_kind: str
) -> None:
    World(store).append(10)
    place(store, "other", 11)
    place(store, "c", 8)
    slow = FaultyStore(store)
    slow.fail(request_kind, "/cursor/c.json", "late")
    try:
        CursorStore(slow, LOG, retry=ONCE).delete("c")
    except UnavailableError:
        CursorStore(store, LOG).delete("c")
    place(store, "c", 2)

    slow.arrive()

    assert held(store) == list(range(2, 11))
    assert CursorStore(store, LOG).offsets() == {"c": 2, "other": 11}


@pytest.mark.parametrize("request_kind", ["replace", "delete"])
def test_late_delete_of_a_pin_never_deletes_a_later_pin_of_that_name(store: ObjectStore, request_kind: str) -> None:
    World(store).append(10)
    place(store, "c", 8)
    PinStore(store, LOG).create("p", reason="an old one")
    slow = FaultyStore(store)
    slow.fail(request_kind, "/pin/p.json", "late")
    try:
        PinStore(slow, LOG, retry=ONCE).delete("p")
    except UnavailableError:
        PinStore(store, LOG).delete("p")
    made = PinStore(store, LOG).create("p", reason="promised to hold")

    slow.arrive()

    assert held(store) == [8, 9, 10]
    assert PinStore(store, LOG).list() == {"p": made}
    assert [record.offset for record in pinned_records(store, LOG, "p")] == list(range(1, 11))


@pytest.mark.parametrize("tries", [1, 2])
def test_late_create_of_a_cursor_never_restores_a_deleted_one(store: ObjectStore, tries: int) -> None:
    """Also one whose creation was never answered, and that its caller deletes to be sure."""
    world = World(store)
    world.append(10)
    place(store, "other", 11)
    slow = FaultyStore(store)
    slow.fail("create", "/cursor/c.json", "late")
    cursors = CursorStore(slow, LOG, retry=RetryOptions(attempts_max=tries, pause_s_min=0.001))
    try:
        cursors.create("c", LogPosition(2, 0))
    except UnavailableError:
        assert tries == 1
    cursors.delete("c")
    assert held(store) == []

    slow.arrive()

    world.append(5)
    assert cursors.load("c") is None
    assert held(store) == list(range(11, 16))


def test_late_create_of_a_pin_never_restores_a_deleted_one(store: ObjectStore) -> None:
    World(store).append(3)
    slow = FaultyStore(store)
    slow.fail("create", "/pin/p.json", "late")
    pins = PinStore(slow, LOG, retry=QUICK)
    pins.create("p", reason="a long read")
    pins.delete("p")

    slow.arrive()

    assert pins.list() == {}
    assert pins.create("p", reason="made again").complete


@pytest.mark.parametrize("kind", ["cursor", "pin"])
def test_delete_that_may_have_been_applied_deletes_nothing_created_after_it(store: ObjectStore, kind: str) -> None:
    """Its answer is lost, and before it reads the object another caller uses the name again."""
    World(store).append(10)
    faulty = FaultyStore(store)
    names = CursorStore(faulty, LOG, retry=QUICK) if kind == "cursor" else PinStore(faulty, LOG, retry=QUICK)

    def create() -> None:
        if kind == "cursor":
            place(store, "n", 2)
        else:
            PinStore(store, LOG).create("n", reason="promised to hold")

    def use_again(request: str, path: str) -> None:
        if request == "get" and path.endswith("/n.json") and faulty.fired:
            faulty.before = lambda _kind, _path: None
            create()

    create()
    faulty.fail("replace", f"/{kind}/n.json", "applied-unknown")
    faulty.before = use_again
    with pytest.raises(UnavailableError, match="not known to be deleted"):
        names.delete("n")

    assert names.load("n") is not None
    names.delete("n")
    assert names.load("n") is None


def test_cursor_that_is_moved_continuously_can_be_deleted(memory_store: MemoryStore) -> None:
    World(memory_store).append(10)
    place(memory_store, "c", 1)
    store, cursors, left = FaultyStore(memory_store), CursorStore(memory_store, LOG), [3]

    def move(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith("/c.json") and left[0]:
            left[0] -= 1
            found = cursors.load("c")
            assert found is not None
            cursors.save("c", LogPosition(found.cursor.position.offset + 1, 0), found)

    store.before = move
    CursorStore(store, LOG).delete("c")

    assert left == [0]
    assert cursors.load("c") is None


def test_witness_of_a_deleted_cursor_moves_neither_it_nor_the_next_of_that_name(store: ObjectStore) -> None:
    World(store).append(10)
    cursors = CursorStore(store, LOG)
    witness = cursors.create("c", LogPosition(5, 0))
    cursors.delete("c")
    with pytest.raises(CursorConflictError):
        cursors.save("c", LogPosition(6, 0), witness)

    again = cursors.create("c", LogPosition(2, 0))
    with pytest.raises(CursorConflictError):
        cursors.save("c", LogPosition(6, 0), witness)
    with pytest.raises(CursorConflictError):
        cursors.create("c", LogPosition(6, 0))

    assert again.cursor.generation == witness.cursor.generation + 2
    assert cursors.load("c") == again


def test_deleted_names_are_not_visible(store: ObjectStore) -> None:
    World(store).append(10)
    cursors, pins = CursorStore(store, LOG), PinStore(store, LOG)
    place(store, "c", 5)
    pins.create("p", reason="a long read")

    for _ in range(2):
        cursors.delete("c")
        cursors.delete("never-there")
        pins.delete("p")
        pins.delete("never-there")

    assert (cursors.list(), cursors.offsets(), list(cursors.survey()), pins.list()) == ({}, {}, [], {})
    assert scrub(store, LOG).sound
    with pytest.raises(CollectionRefusedError, match="found none"):
        collect(store, LOG, options=NOW)
    assert copy(LogAt(store, LOG), LogAt(store, "copy"), with_cursors=True).num_cursors == 0
    assert CursorStore(store, "copy").list() == {}
    left = [meta for folder in ("cursor/", "pin/") for meta in life_store(store, LOG).list_objects(folder)]
    assert max(meta.size for meta in left) < 300


def test_log_whose_pins_were_deleted_is_destroyed_whole_and_one_with_a_pin_is_not(store: ObjectStore) -> None:
    World(store).append(3)
    pins = PinStore(store, LOG)
    pins.create("gone", reason="a long read")
    pins.delete("gone")
    place(store, "c", 2)
    CursorStore(store, LOG).delete("c")
    pins.create("mine", reason="a long read")
    with pytest.raises(InvalidRequestError, match="expected no pins, found mine:"):
        destroy(store, LOG)

    pins.delete("mine")
    destroy(store, LOG)

    assert [meta.path for meta in store.list_objects(f"{LOG}/")] == [f"{LOG}/manifest/MANIFEST.json"]


@pytest.mark.parametrize("kind", ["cursor", "pin"])
def test_damaged_cursor_or_pin_is_deleted_and_its_name_used_again(memory_store: MemoryStore, kind: str) -> None:
    World(memory_store).append(3)
    cursors, pins = CursorStore(memory_store, LOG), PinStore(memory_store, LOG)
    acts: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "cursor": (lambda: cursors.create("n", LogPosition(1, 0)), lambda: cursors.delete("n")),
        "pin": (lambda: pins.create("n", reason="a test"), lambda: pins.delete("n")),
    }
    create, delete = acts[kind]
    create()
    damage(life_store(memory_store, LOG), f"{kind}/n.json")

    delete()

    assert (cursors.list(), pins.list()) == ({}, {})
    create()


def test_pin_of_a_name_that_is_never_used_again_is_forgotten_with_its_object(store: ObjectStore) -> None:
    World(store).append(3)
    pins = PinStore(store, LOG)
    pins.create("p", reason="a copy")

    pins.forget("p")
    pins.forget("p")

    assert pins.load("p") is None
    assert list(life_store(store, LOG).list_objects("pin/")) == []
