"""An older manifest is restored by hand, and the garbage documents are deleted, as docs/operations.md says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spec.staged.test_staged import OPTIONS, stage
from tests.stores import life_store
from tests.world import (
    LOG,
    World,
)
from wal3_core import LogWriter, MemoryStore, scrub
from wal3_core.format.paths import GARBAGE_FOLDER, MANIFEST
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import install_staged


def nothing(_: MemoryStore) -> None:
    pass


def prune_twice(world: World) -> None:
    world.prune()
    world.move_cursor(12)
    world.prune()


@pytest.mark.slow
@pytest.mark.parametrize("before", [nothing, World.announce])
@pytest.mark.parametrize("meanwhile", [nothing, World.announce, World.prune, prune_twice])
def test_log_whose_manifest_was_restored_goes_on_without_its_garbage_documents(
    memory_store: MemoryStore,
    before: Callable[[World], object],
    meanwhile: Callable[[World], object],
) -> None:
    """Nothing that the restored log leads to is deleted, and what it does not lead to is, as orphans."""
    world = World(memory_store)
    world.plant(cursor=8)
    before(world)
    older = memory_store.read(f"{LOG}/{MANIFEST}")
    assert older is not None
    world.append(5)
    world.roll()
    meanwhile(world)
    inside = life_store(memory_store, LOG)

    memory_store.delete(f"{LOG}/{MANIFEST}")
    memory_store.create(f"{LOG}/{MANIFEST}", older)
    for each in [*inside.list_objects(GARBAGE_FOLDER)]:
        inside.delete(each.path)
    world.append(9)
    world.roll()

    assert world.offsets() == list(range(1, 30))
    for _ in range(4):
        world.collect()
    assert world.offsets() == list(range(12 if meanwhile is prune_twice else 8, 30))
    assert (world.documents(), world.manifest().announced) == ([], None)
    assert world.stored() == world.reachable()
    assert scrub(memory_store, LOG).sound


def test_named_appends_that_a_restored_manifest_lacks_are_made_again(memory_store: MemoryStore) -> None:
    """Their writer's cursor lies beyond the log's end, and says where they were."""
    LogWriter.create(memory_store, "a")

    def put(name: str) -> bool:
        once = Once("writer-n", name)
        staged = stage(memory_store, name.encode(), b"")
        return install_staged(memory_store, "a", staged, once=once, options=OPTIONS).repeated

    put("first")
    older = memory_store.read(f"a/{MANIFEST}")
    assert older is not None
    put("second")
    put("third")
    memory_store.delete(f"a/{MANIFEST}")
    memory_store.create(f"a/{MANIFEST}", older)

    assert [put(name) for name in ("new", "first", "second", "third", "second")] == [False, True, False, False, True]
    assert World(memory_store).bodies()[::2] == [b"first", b"new", b"second", b"third"]
