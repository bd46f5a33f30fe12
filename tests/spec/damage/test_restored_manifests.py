"""An older manifest is restored by hand, and the garbage documents are deleted, as docs/operations.md says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spec.collecting import (
    LOG,
    announce,
    append,
    documents,
    gather,
    held,
    manifest_of,
    offsets,
    place,
    plant,
    prune,
    reachable,
    roll,
)
from tests.spec.logs import bodies
from tests.spec.staged.test_staged import OPTIONS, stage
from tests.stores import life_store
from wal3_core import LogWriter, scrub
from wal3_core.log.write.staged.installing import install_staged
from wal3_core.log.write.staged.once import Once
from wal3_core.model.paths import GARBAGE_FOLDER, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core import MemoryStore


def nothing(_: MemoryStore) -> None:
    pass


def prune_twice(store: MemoryStore) -> None:
    prune(store)
    place(store, 12)
    prune(store)


@pytest.mark.parametrize("before", [nothing, announce])
@pytest.mark.parametrize("meanwhile", [nothing, announce, prune, prune_twice])
def test_log_whose_manifest_was_restored_goes_on_without_its_garbage_documents(
    memory_store: MemoryStore,
    before: Callable[[MemoryStore], object],
    meanwhile: Callable[[MemoryStore], object],
) -> None:
    """Nothing that the restored log leads to is deleted, and what it does not lead to is, as orphans."""
    plant(memory_store, cursor=8)
    before(memory_store)
    older = memory_store.read(f"{LOG}/{MANIFEST}")
    assert older is not None
    append(memory_store, 5)
    roll(memory_store)
    meanwhile(memory_store)
    inside = life_store(memory_store, LOG)

    memory_store.delete(f"{LOG}/{MANIFEST}")
    memory_store.create(f"{LOG}/{MANIFEST}", older)
    for each in [*inside.list_objects(GARBAGE_FOLDER)]:
        inside.delete(each.path)
    append(memory_store, 9)
    roll(memory_store)

    assert offsets(memory_store) == list(range(1, 30))
    for _ in range(4):
        gather(memory_store)
    assert offsets(memory_store) == list(range(12 if meanwhile is prune_twice else 8, 30))
    assert (documents(memory_store), manifest_of(memory_store).announced) == ([], None)
    assert held(memory_store) == reachable(memory_store)
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
    assert bodies(memory_store)[::2] == [b"first", b"new", b"second", b"third"]
