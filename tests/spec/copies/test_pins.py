"""Pins hold the content of a log under a name, whatever is collected or reorganised meanwhile."""

from __future__ import annotations

import pytest

from tests.spec.copying import NOW, records
from tests.spec.pins import QUICK, assert_whole, collect, collect_orphans, fill, grow, prune, roll_up
from tests.stores import FaultyStore, damage, life_store
from tests.world import World
from wal3_core import (
    AtTime,
    CorruptError,
    GarbageCollectedError,
    InvalidRequestError,
    Limits,
    LogNotFoundError,
    LogWriter,
    MemoryStore,
    Pin,
    PinStore,
    UnavailableError,
    pinned_records,
    seal,
)
from wal3_core.format.position import ReadStart
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import ObjectStore


def test_pin_is_created_loaded_listed_and_deleted(store: ObjectStore) -> None:
    fill(store, "a", 3)
    pins = PinStore(store, "a")

    made = pins.create("audit", reason="the audit")

    assert made.manifest == World(store).manifest()
    assert (made.reason, made.generation) == ("the audit", 2)
    assert pins.load("audit") == made
    assert pins.list() == {"audit": made}
    pins.delete("audit")
    pins.delete("audit")
    assert pins.load("audit") is None
    assert pins.list() == {}


def test_pin_s_name_is_unique(store: ObjectStore) -> None:
    fill(store, "a", 3)
    pins = PinStore(store, "a")
    made = pins.create("audit", reason="the audit")

    with pytest.raises(InvalidRequestError, match="found one"):
        pins.create("audit", reason="another")

    assert pins.load("audit") == made


@pytest.mark.parametrize("name", ["", "a/b", "..", "a b", "ä", "x" * 201, "a.json"])
def test_bad_pin_name_is_refused(memory_store: MemoryStore, name: str) -> None:
    fill(memory_store, "a", 1)

    with pytest.raises(InvalidRequestError, match="pin name"):
        PinStore(memory_store, "a").create(name, reason="a test")


def test_missing_log_cannot_be_pinned(store: ObjectStore) -> None:
    with pytest.raises(LogNotFoundError):
        PinStore(store, "none").create("audit", reason="a test")

    assert list(store.list_objects("none/")) == []


def test_sealed_and_empty_logs_can_be_pinned(memory_store: MemoryStore) -> None:
    LogWriter.create(memory_store, "a")
    seal(memory_store, "a", reason="full")

    made = PinStore(memory_store, "a").create("audit", reason="a test")

    assert made.manifest.seal is not None
    assert list(pinned_records(memory_store, "a", "audit")) == []


# ---------------------------------------------------------------------- what a pin holds


def test_pinned_records_can_be_read_after_they_were_collected(store: ObjectStore) -> None:
    held = grow(store, "a")
    every = records(store, "a")
    PinStore(store, "a").create("audit", reason="a test")

    deleted = collect(store, "a", held)
    fill(store, "a", 3)

    assert deleted.num_held > 0
    assert not deleted.finished
    assert records(store, "a")[0].offset == held
    assert list(pinned_records(store, "a", "audit")) == every


def test_objects_held_by_the_pin_alone_are_collected_once_it_is_deleted(store: ObjectStore) -> None:
    held = grow(store, "a")
    pins = PinStore(store, "a")
    pins.create("audit", reason="a test")
    path = prune(store, "a", held)
    deleter = Deleter(store, "a", options=NOW)
    deleter.delete(path)
    assert len(list(life_store(store, "a").list_objects("log/"))) == held

    pins.delete("audit")

    assert deleter.delete(path).finished
    assert len(list(life_store(store, "a").list_objects("log/"))) == 1


def test_snapshots_that_were_rolled_up_stay_while_they_are_pinned(store: ObjectStore) -> None:
    grow(store, "a")
    every = records(store, "a")
    pin = PinStore(store, "a").create("audit", reason="a test")
    kept = {pointer.path for pointer in pin.manifest.snapshots}

    roll_up(store, "a", pin.manifest)
    collect_orphans(store, "a")
    assert_whole(store, "a", pin)
    assert list(pinned_records(store, "a", "audit")) == every
    PinStore(store, "a").delete("audit")

    assert kept & set(collect_orphans(store, "a"))


@pytest.mark.parametrize(
    ("start", "limits", "expected"),
    [
        (None, Limits(), [1, 2, 3, 4, 5]),
        (3, Limits(), [3, 4, 5]),
        (6, Limits(), []),
        (2, Limits(records=2), [2, 3]),
        (None, Limits(offset=3), [1, 2]),
        (None, Limits(fragments=1), [1, 2, 3]),
        (AtTime(0), Limits(records=1), [1]),
    ],
)
def test_pinned_log_is_read_within_limits(
    memory_store: MemoryStore, start: ReadStart, limits: Limits, expected: list[int]
) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"1", b"2", b"3"])
        writer.append_many([b"4", b"5"])
    PinStore(memory_store, "a").create("audit", reason="a test")
    fill(memory_store, "a", 5)

    found = pinned_records(memory_store, "a", "audit", start, limits)

    assert [record.offset for record in found] == expected


def test_impossible_read_of_a_pin_is_refused(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 5)
    collect(memory_store, "a", 3)
    PinStore(memory_store, "a").create("audit", reason="a test")

    with pytest.raises(InvalidRequestError, match="expected a pin none, found none"):
        list(pinned_records(memory_store, "a", "none"))
    with pytest.raises(InvalidRequestError, match="from 1 to 6, found 7"):
        list(pinned_records(memory_store, "a", "audit", 7))
    with pytest.raises(GarbageCollectedError, match="from 3, found 2"):
        list(pinned_records(memory_store, "a", "audit", 2))


# ---------------------------------------------------------------------- failures


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "conflict"])
def test_create_without_an_answer_determines_its_outcome(memory_store: MemoryStore, fault: str) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)
    store.fail("create", "/pin/", fault)

    pin = PinStore(store, "a", retry=QUICK).create("audit", reason="a test")

    assert store.fired[fault] == 1
    assert PinStore(memory_store, "a").list() == {"audit": pin}


def test_manifest_request_without_an_answer_is_retried(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)
    store.fail("get", "MANIFEST", "unavailable", times=2)

    pin = PinStore(store, "a", retry=QUICK).create("audit", reason="a test")

    assert store.fired["unavailable"] == 2
    assert PinStore(memory_store, "a").load("audit") == pin


def test_pin_that_could_not_be_checked_stays_unfinished(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)

    def fail(kind: str, path: str) -> None:
        if kind == "create" and "/pin/" in path:
            store.fail("get", "MANIFEST", "unavailable", times=100)

    store.before = fail
    with pytest.raises(UnavailableError):
        PinStore(store, "a", retry=QUICK).create("audit", reason="a test")

    assert not PinStore(memory_store, "a").list()["audit"].complete


def test_damaged_pin_is_an_error_and_can_be_deleted(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    pins = PinStore(memory_store, "a")
    pins.create("audit", reason="a test")
    damage(life_store(memory_store, "a"), "pin/audit.json", 40)

    for look in (lambda: pins.load("audit"), pins.list, lambda: list(pinned_records(memory_store, "a", "audit"))):
        with pytest.raises(CorruptError, match="pin/audit"):
            look()
    pins.delete("audit")

    assert pins.list() == {}


def test_foreign_file_among_the_pins_is_named(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 1)
    life_store(memory_store, "a").create("pin/notes.txt", b"hello")

    with pytest.raises(CorruptError, match="notes.txt"):
        PinStore(memory_store, "a").list()


def test_pin_contains_the_manifest_as_it_was(memory_store: MemoryStore) -> None:
    grow(memory_store, "a")
    made = PinStore(memory_store, "a").create("audit", reason="a test")

    assert Pin.from_bytes(made.to_bytes(), what="pin") == made
    assert made.manifest.to_bytes() == memory_store.read("a/manifest/MANIFEST.json")
    assert made.to_bytes() == life_store(memory_store, "a").read("pin/audit.json")
