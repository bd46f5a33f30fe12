"""Pins made while the log is collected and reorganised, and creators that die meanwhile."""

from __future__ import annotations

import pytest

from tests.spec.copying import NOW
from tests.spec.pins import announce, assert_whole, collect, collect_orphans, fill, grow, prune, racing, roll_up
from tests.stores import FaultyStore
from tests.world import Crashed, World
from wal3_core import (
    InvalidRequestError,
    LogWriter,
    MemoryStore,
    PinStore,
    UnavailableError,
    pinned_records,
)
from wal3_core.log.collect.collector import Collector, PrunedGarbage
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import ObjectStore


@pytest.mark.parametrize("when", ["before it is written", "before it is checked"])
@pytest.mark.parametrize("times", [1, 3])
def test_pin_that_races_a_collection_keeps_the_remaining_records(store: ObjectStore, when: str, times: int) -> None:
    # Fragments alone; a later test has snapshots of both depths too.
    with LogWriter.open_or_create(store, "a") as writer:
        for _ in range(12):
            writer.append(b"x")
    begins = iter((3, 6, 9))

    pin = PinStore(racing(store, when, lambda: collect_next(store, begins), times=times), "a").create(
        "audit", reason="a test"
    )

    assert pin.manifest.first.position.offset == 3 * times
    assert pin.generation == times + 2
    assert PinStore(store, "a").load("audit") == pin
    collect(store, "a", 13)
    assert [record.offset for record in pinned_records(store, "a", "audit")] == list(range(3 * times, 13))


def test_pin_that_was_never_finished_stops_no_deletion(memory_store: MemoryStore) -> None:
    """Its creator died after writing it, either too late for the objects it names or before reading the manifest."""
    held = grow(memory_store, "a")
    store = FaultyStore(memory_store)

    def end(kind: str, path: str) -> None:
        if kind == "create" and "/pin/" in path:
            collect(memory_store, "a", held)
            store.before = end_all

    def end_all(kind: str, path: str) -> None:
        if kind != "create" or not path.endswith("/pin/audit.json"):
            raise Crashed

    store.before = end
    with pytest.raises(Crashed):
        PinStore(store, "a").create("audit", reason="a test")
    assert PinStore(memory_store, "a").load("audit") is not None
    fill(memory_store, "a", 3)

    deleted = collect(memory_store, "a", held + 2)

    assert (deleted.num_deleted, deleted.num_held, deleted.problems) == (1, 1, ())
    made = PinStore(memory_store, "a").create("audit", reason="made again")
    assert made.complete
    assert_whole(memory_store, "a", made)


def test_pin_that_was_never_finished_is_not_read(memory_store: MemoryStore) -> None:
    fill(memory_store, "a", 3)
    store = FaultyStore(memory_store)

    def die(kind: str, path: str) -> None:
        if kind == "replace" and path.endswith("/pin/audit.json"):
            raise Crashed

    store.before = die
    with pytest.raises(Crashed):
        PinStore(store, "a").create("audit", reason="a test")

    with pytest.raises(InvalidRequestError, match="expected pin audit to be finished"):
        list(pinned_records(memory_store, "a", "audit"))


def collect_next(store: ObjectStore, begins: object) -> None:
    collect(store, "a", next(begins))


@pytest.mark.parametrize("when", ["before it is written", "before it is checked"])
def test_pin_made_between_pruning_and_deleting_keeps_the_log_s_records(store: ObjectStore, when: str) -> None:
    fill(store, "a", 12)
    pruned: list[str] = []

    pin = PinStore(racing(store, when, lambda: pruned.append(prune(store, "a", 6))), "a").create(
        "audit", reason="a test"
    )
    deleted = Deleter(store, "a", options=NOW).delete(pruned[0])

    assert deleted.finished
    assert [record.offset for record in pinned_records(store, "a", "audit")] == list(range(6, 13))
    assert_whole(store, "a", pin)


@pytest.mark.parametrize("when", ["before", "before it is written", "before it is checked"])
def test_announced_collection_delays_no_pin_and_takes_nothing_from_it(store: ObjectStore, when: str) -> None:
    fill(store, "a", 12)
    announced: list[str] = []

    def race() -> None:
        announced.append(announce(store, "a", 6))

    if when == "before":
        race()
    pin = PinStore(racing(store, when, race) if when != "before" else store, "a").create("audit", reason="a test")
    collector = Collector(store, "a", options=NOW)
    assert isinstance(collector.prune(announced[0]), PrunedGarbage)
    Deleter(store, "a", options=NOW).delete(announced[0])

    assert World(store).manifest().first.position.offset == 6
    assert [record.offset for record in pinned_records(store, "a", "audit")] == list(range(1, 13))
    assert_whole(store, "a", pin)


@pytest.mark.parametrize("at", ["manifest", "pin"])
def test_running_deleter_takes_nothing_from_a_pin(store: ObjectStore, at: str) -> None:
    """The pin is made while garbage is being deleted, before or after the deleter reads the pins."""
    fill(store, "a", 12)
    path = prune(store, "a", 6)
    deleting = FaultyStore(store)

    def pin(kind: str, asked: str) -> None:
        if kind in {"get", "list"} and f"/{at}/" in asked:
            deleting.before = lambda _kind, _path: None
            PinStore(store, "a").create("audit", reason="a test")

    deleting.before = pin
    deleted = Deleter(deleting, "a", options=NOW).delete(path)

    made = PinStore(store, "a").load("audit")
    assert made is not None
    assert deleted.finished
    assert_whole(store, "a", made)
    assert [record.offset for record in pinned_records(store, "a", "audit")] == list(range(6, 13))


@pytest.mark.parametrize("when", ["before it is written", "before it is checked"])
def test_pin_that_races_a_roll_up_refers_to_nothing_that_can_be_deleted(store: ObjectStore, when: str) -> None:
    held = grow(store, "a")
    before = World(store).manifest()

    def race() -> None:
        roll_up(store, "a", before)
        collect_orphans(store, "a")

    pin = PinStore(racing(store, when, race), "a").create("audit", reason="a test")
    collect_orphans(store, "a")

    assert pin.manifest.num_records > held
    assert_whole(store, "a", pin)
    assert len(list(pinned_records(store, "a", "audit"))) == pin.manifest.num_records


def test_appends_alone_do_not_make_a_pin_start_over(store: ObjectStore) -> None:
    fill(store, "a", 1)

    pin = PinStore(racing(store, "before it is checked", lambda: fill(store, "a", 1)), "a").create(
        "audit", reason="a test"
    )

    assert (pin.generation, pin.manifest.num_records) == (2, 1)


@pytest.mark.slow
def test_pin_stays_unfinished_when_the_log_keeps_changing(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_core.store.documents.pin_store.REBASES_MAX", 16)
    fill(memory_store, "a", 40)
    begins = iter(range(2, 40))

    with pytest.raises(UnavailableError, match="16 times over; not finished"):
        PinStore(
            racing(memory_store, "before it is checked", lambda: collect_next(memory_store, begins), times=30), "a"
        ).create("audit", reason="a test")

    assert not PinStore(memory_store, "a").list()["audit"].complete
