"""A store without space: deletions that are due need none, and make some."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stores import FaultyStore
from tests.world import (
    DAY_S,
    LATER,
    LOG,
    NOW,
    ClockStore,
    World,
)
from wal3_core import MemoryStore, PinStore, StoreDeniedError, destroy
from wal3_core.format.paths import MANIFEST
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.backends.local import LocalStore


class Full:
    """Makes a store deny every write for lack of space, until something is deleted if ``until_deleted``."""

    def __init__(self, store: FaultyStore, *, until_deleted: bool = False) -> None:
        self._until_deleted = until_deleted
        self.full = True
        store.before = self._before

    def _before(self, kind: str, path: str) -> None:
        if kind == "delete" and self._until_deleted:
            self.full = False
        if kind in {"create", "replace"} and self.full:
            raise StoreDeniedError(f"{path}: no space left", full=True)


def test_garbage_that_is_due_is_deleted_from_a_full_store(memory_store: MemoryStore) -> None:
    clock = ClockStore(memory_store)
    world = World(clock)
    world.plant(cursor=12)
    world.prune()
    clock.pass_s(DAY_S)
    # What was written last shows that a day has passed.
    world.append(1)
    Full(clock)

    [deleted] = world.collect(replace(LATER, orphans_max=0)).deleted

    assert deleted.finished
    assert world.stored() == world.reachable()
    assert world.documents() == []


def test_garbage_is_not_deleted_early_because_a_full_store_does_not_give_its_time(memory_store: MemoryStore) -> None:
    clock = ClockStore(memory_store)
    world = World(clock)
    world.plant(cursor=12)
    path = world.prune()
    clock.pass_s(DAY_S - 1)
    world.append(1)
    clock.pass_s(DAY_S)
    Full(clock)

    assert Deleter(clock, LOG, options=LATER).delete(path).wait_s == 1
    assert world.stored() > world.reachable()


def test_interval_of_0_needs_no_time_of_a_full_store(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    world = World(store)
    world.plant(cursor=12)
    world.prune()
    Full(store)

    [deleted] = world.collect(replace(NOW, orphans_max=0)).deleted

    assert deleted.finished
    assert world.stored() == world.reachable()


def test_collection_a_full_store_cut_short_is_finished_after_what_is_due_is_deleted(
    memory_store: MemoryStore,
) -> None:
    store = FaultyStore(memory_store)
    world = World(store)
    world.plant(cursor=6)
    world.prune()
    world.move_cursor(12)
    world.announce()
    Full(store, until_deleted=True)

    assert all(each.finished for each in world.collect(replace(NOW, orphans_max=0)).deleted)
    world.collect(replace(NOW, orphans_max=0))

    assert world.stored() == world.reachable()
    assert world.documents() == []


def test_destroy_of_a_log_in_a_full_store_begins_with_its_garbage(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    world = World(store)
    world.plant(cursor=12)
    world.prune()
    Full(store, until_deleted=True)

    destroy(store, LOG)

    assert [meta.path for meta in store.list_objects(f"{LOG}/")] == [f"{LOG}/{MANIFEST}"]


def test_destroy_of_a_log_in_a_full_store_begins_with_what_an_earlier_life_left(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    world = World(store)
    world.append(1)
    [left] = [meta.path for meta in store.list_objects(f"{LOG}/Life=")]
    destroy(store, LOG)
    world.append(1)
    store.create(left, b"late")
    Full(store, until_deleted=True)

    destroy(store, LOG)

    assert [meta.path for meta in store.list_objects(f"{LOG}/")] == [f"{LOG}/{MANIFEST}"]


@pytest.mark.parametrize("marked", [False, True])
def test_destroy_that_finds_no_space_leaves_every_object_of_the_log(memory_store: MemoryStore, *, marked: bool) -> None:
    store = FaultyStore(memory_store)
    world = World(store)
    world.plant(cursor=12)
    if marked:
        world.prune()
    before = world.reachable()
    PinStore(store, LOG).create("audit", reason="a test")
    Full(store)

    with pytest.raises(StoreDeniedError, match="no space left"):
        destroy(store, LOG, also_pinned=True)

    assert world.reachable() == before
    assert world.stored() >= before
    store.before = lambda _kind, _path: None
    world.append(1)


def test_local_store_without_space_names_what_it_cannot_write_and_still_deletes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    LocalStore(tmp_path).create("a/b", b"1")

    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("wal3_core.store.backends.local.tempfile.mkstemp", none_left)
    monkeypatch.setattr("wal3_core.store.backends.local.tempfile.NamedTemporaryFile", none_left)
    store = LocalStore(tmp_path)

    with pytest.raises(StoreDeniedError, match="No space left on device: a/c needs 3 bytes: free some space") as caught:
        store.create("a/c", b"123")
    assert caught.value.full
    store.delete("a/b")
    assert list(store.list_objects("")) == []
