"""What was processed, as a cursor says it to a roll-up, when the cursor lies beyond the end of its log."""

from __future__ import annotations

from dataclasses import replace

from tests.spec.rolling import ALL, DIRTY, grow, marked, read
from tests.stores import FaultyStore
from tests.world import World
from wal3_core import CursorStore, LogPosition, MemoryStore
from wal3_core.fleet.dirty.rollup import RollUp, RollUpEnd
from wal3_core.fleet.dirty.rollup_plan import Decision
from wal3_core.format.paths import MANIFEST


def test_cursor_beyond_the_end_of_a_restored_log_says_nothing_of_what_was_processed(memory_store: MemoryStore) -> None:
    options, path = replace(ALL, cursor="done"), f"a/{MANIFEST}"
    grow(memory_store, "a", dirty_log=None)
    older = memory_store.read(path)
    assert older is not None
    grow(memory_store, "a", 9, dirty_log=None)
    CursorStore(memory_store, "a").create("done", World(memory_store).manifest().next.position)
    memory_store.delete(path)
    memory_store.create(path, older)
    grow(memory_store, "a", 2)

    plan = read(memory_store, options)

    assert [(each.decision, each.num_records) for each in plan.logs] == [(Decision.SELECTED, 2)]
    assert RollUp(memory_store, DIRTY, options=options).finish(plan).outcome is RollUpEnd.NOTHING_TO_DO
    assert marked(memory_store) == {"a": (2, 4)}


def test_cursor_beyond_the_manifest_that_was_loaded_is_compared_with_a_newer_one(
    memory_store: MemoryStore,
) -> None:
    options = replace(ALL, cursor="done")
    grow(memory_store, "a")
    CursorStore(memory_store, "a").create("done", LogPosition(1, 0))
    moved = False

    def move(_kind: str, path: str) -> None:
        nonlocal moved
        if path.endswith("cursor/done.json") and not moved:
            moved = True
            grow(memory_store, "a", 3, dirty_log=None)
            witness = CursorStore(memory_store, "a").load("done")
            assert witness is not None
            CursorStore(memory_store, "a").save("done", World(memory_store).manifest().next.position, witness)

    plan = read(FaultyStore(memory_store, before=move), options)

    assert moved
    assert [each.decision for each in plan.logs] == [Decision.CAUGHT_UP]
