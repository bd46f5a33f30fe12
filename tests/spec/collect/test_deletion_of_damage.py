"""Deletion of a collection's objects where a snapshot among them is damaged or lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.stores import damage, life_store
from tests.world import (
    LOG,
    QUICK,
    ClockStore,
    World,
)
from wal3_core.format.garbage import Garbage
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.runtime import ThreadRuntime
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from wal3_core import MemoryStore


def leaf_of(store: ObjectStore, path: str) -> tuple[str, str]:
    """A dropped depth-1 snapshot, and the depth-2 snapshot that holds it."""
    found = life_store(store, "a").read(path)
    assert found is not None
    top = Garbage.from_bytes(found, what=path).dropped[0]
    assert isinstance(top, SnapshotPointer)
    leaf = next(each for each in World(store).pointers([top]) if isinstance(each, SnapshotPointer) and each.depth == 1)
    return leaf.path, top.path


def test_damaged_snapshot_is_reported_and_the_rest_is_deleted(store: ObjectStore) -> None:
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    leaf, _ = leaf_of(store, path)
    damage(life_store(store, "a"), leaf)

    done = world.delete(path)

    [problem] = done.problems
    assert leaf in problem
    assert not done.finished
    assert world.documents() == [path]
    assert leaf in world.stored()
    assert len([each for each in world.stored() - world.reachable() if each.startswith("log/")]) == 2


def test_damaged_snapshot_is_reported_as_long_as_it_is_stored(store: ObjectStore) -> None:
    """Its holder stays: without it, the next run would consider everything below gone and delete the document."""
    world = World(store)
    world.plant(cursor=12)
    path = world.prune()
    leaf, top = leaf_of(store, path)
    damage(life_store(store, "a"), leaf)

    first, second = world.delete(path), world.delete(path)

    assert top in world.stored()
    assert second.problems == first.problems
    assert world.documents() == [path]


def test_objects_below_a_lost_snapshot_are_found_as_orphans(store: ObjectStore) -> None:
    clock = ClockStore(store)
    world = World(clock)
    world.plant(cursor=12)
    path = world.prune()
    leaf, _ = leaf_of(clock, path)
    life_store(clock, "a").delete(leaf)

    assert world.delete(path).finished
    assert len(world.stored() - world.reachable()) == 2
    world.collect()

    assert world.stored() == world.reachable()


def test_deletion_whose_pause_is_over_while_it_looks_at_the_clock_goes_on(memory_store: MemoryStore) -> None:
    world = World(memory_store)

    class Stepping(ThreadRuntime):
        """Its clock passes 0.7 s with each look."""

        looks = 0

        def monotonic_s(self) -> float:
            self.looks += 1
            return self.looks * 0.7

        def sleep(self, seconds: float) -> None:
            assert seconds >= 0

    world.plant(cursor=12)
    path = world.prune()
    with Stepping() as runtime:
        options = CollectorOptions(interval_s=0, fraction_max=1, deletes_per_s=1, retry=QUICK)
        deleted = Deleter(memory_store, LOG, options=options, runtime=runtime).delete(path)

    assert deleted.finished
    assert deleted.num_deleted > 1
