"""Consumers that save their cursors as fast as they can do not stop any plan from being carried out."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.stores import FaultyStore
from tests.world import LOG, NOW, World
from wal3_core.format.position import LogPosition
from wal3_core.options import CURSORS_AHEAD, PINS_AHEAD
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.pin_store import PinStore
from wal3_core.store.object_store import ObjectStore

CONSUMERS, RECORDS, ROUNDS = 200, 400, 5
HANDS = 8
DEADLINE_S = 60.0


def consume(store: ObjectStore, hand: int, stop: threading.Event, passed: threading.Semaphore) -> None:
    """Advance some of the consumers record by record without a pause."""
    cursors = CursorStore(store, LOG)
    names = [f"consumer{number}" for number in range(hand, CONSUMERS, HANDS)]
    witnesses = {name: cursors.create(name, LogPosition(1, 0)) for name in names}
    for offset in range(2, RECORDS):
        for name in names:
            if stop.is_set():
                return
            witnesses[name] = cursors.save(name, LogPosition(offset, 0), witnesses[name])
        # Beyond the slowest cursor's last place: records that it releases are held by none of these.
        if offset == ROUNDS + 2:
            passed.release()


@contextmanager
def busy(store: ObjectStore) -> Iterator[None]:
    """Consumers that advance without a pause, each beyond the place where the slowest one will stop."""
    stop, passed = threading.Event(), threading.Semaphore(0)
    with concurrent.futures.ThreadPoolExecutor(HANDS) as pool:
        moving = [pool.submit(consume, store, hand, stop, passed) for hand in range(HANDS)]
        try:
            assert all(passed.acquire(timeout=DEADLINE_S) for _ in range(HANDS))
            yield
        finally:
            stop.set()
            for each in moving:
                each.result(DEADLINE_S)


@pytest.mark.parametrize("store", ["local"], indirect=True)
def test_every_plan_is_carried_out_beside_200_consumers_that_save_all_the_time(store: ObjectStore) -> None:
    world = World(store)
    world.append(RECORDS)
    world.move_cursor(1, "slowest")

    with busy(store):
        for number in range(ROUNDS):
            world.move_cursor(2 + number, "slowest")
            # One attempt, with nothing repeated.
            done = world.collect(replace(NOW, rounds_max=1, orphans_max=0))
            assert not done.plan.empty
            assert world.manifest().first == done.plan.first

    assert world.offsets()[0] == 1 + ROUNDS


@pytest.mark.parametrize("count", [1, 50])
def test_cursors_are_loaded_concurrently_and_listed_in_order(memory_store: ObjectStore, count: int) -> None:
    world = World(memory_store)
    world.append(3)
    names = [f"c{number:02}" for number in range(count)]
    for name in names:
        world.move_cursor(2, name)
    faulty = loaded_together(memory_store, "/cursor/", min(count, CURSORS_AHEAD))

    assert list(CursorStore(faulty, LOG).offsets()) == names


@pytest.mark.parametrize("count", [1, 50])
def test_pins_are_loaded_concurrently_and_listed_in_order(memory_store: ObjectStore, count: int) -> None:
    World(memory_store).append(3)
    names = [f"p{number:02}" for number in range(count)]
    for name in names:
        PinStore(memory_store, LOG).create(name, reason="a test")
    faulty = loaded_together(memory_store, "/pin/", min(count, PINS_AHEAD))

    assert list(PinStore(faulty, LOG).list()) == names


def loaded_together(store: ObjectStore, folder: str, count: int) -> FaultyStore:
    """Return a store that holds the first GETs below a folder until ``count`` of them are waiting."""
    faulty = FaultyStore(store)
    together, left = threading.Barrier(count, timeout=DEADLINE_S), threading.Semaphore(count)

    def before(kind: str, path: str) -> None:
        if kind == "get" and folder in path and left.acquire(blocking=False):
            together.wait(timeout=DEADLINE_S)

    faulty.before = before
    return faulty


def test_cursor_that_advances_at_every_look_starves_no_plan(store: ObjectStore) -> None:
    """Forward moves require no new plan: it uses the positions it read."""
    world = World(store)
    world.plant(cursor=2)
    faulty = FaultyStore(store)
    seen = [2]

    def before(kind: str, path: str) -> None:
        if (kind == "get" and path.endswith("MANIFEST.json")) or (kind == "list" and path.endswith("/cursor/")):
            seen[0] = min(seen[0] + 1, 20)
            world.move_cursor(seen[0])

    faulty.before = before
    taken = World(faulty).collect(replace(NOW, rounds_max=1, orphans_max=0)).plan

    assert taken.first.seq_no > 2
    assert world.offsets() == list(range(taken.first.position.offset, 21))


def test_cursor_at_the_end_of_a_growing_log_is_not_mistaken_for_another_log_s(store: ObjectStore) -> None:
    """At every listing it moves beyond the end of the manifest that was just read."""
    world = World(store)
    world.plant(cursor=12)
    faulty = FaultyStore(store)

    def before(kind: str, path: str) -> None:
        if kind == "list" and path.endswith("/cursor/"):
            world.append(1)
            world.move_cursor(world.manifest().next.position.offset)

    faulty.before = before
    done = World(faulty).collect(replace(NOW, rounds_max=1, orphans_max=0))

    assert done.plan.first.seq_no > 12
    assert world.manifest().first.seq_no == done.plan.first.seq_no
    assert world.manifest().announced is None
