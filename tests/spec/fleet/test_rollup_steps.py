"""A roll-up may be killed, repeated, run twice at once, or answered late: what was marked is handled or stays so."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.spec.rolling import (
    ALL,
    AT_ONCE,
    DIRTY,
    QUICK,
    begun,
    grow,
    mark,
    marked,
    place_of,
    read,
)
from tests.stores import CountingStore, Fault, FaultyStore, life_store
from tests.world import NOW, Crashed, Later, World
from wal3_core import CursorStore, InvalidRequestError, LogError, LogReader, LogWriter, MemoryStore, collect, seal
from wal3_core.fleet.dirty.dirty_log import assigned, dirty_logs
from wal3_core.fleet.dirty.rollup import ROLLUP, RollUp, RollUpEnd
from wal3_core.format.paths import MANIFEST
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from wal3_core.fleet.dirty.rollup_plan import RollUpOptions

# Many cases: some ten seconds.
pytestmark = pytest.mark.slow

CALLS_MAX = 200
# What ``plant`` marks, and what of it no roll-up may drop: b's commit and the one under way in d come later.
HANDLED = "a"


def plant(store: ObjectStore) -> None:
    """Mark logs for every decision: one to be handled, one kept, one done, one under way, one under way for long."""
    for log in ("a", "b", "done", "under-way"):
        grow(store, log, 3)
    CursorStore(store, "done").create("done", World(store, "done").manifest().next.position)
    mark(store, begun(store, "under-way", 2))
    for log in ("a", "b"):
        mark(store, begun(store, log))


def roll_up(store: ObjectStore, options: RollUpOptions) -> RollUpEnd:
    """Read, and finish with one of the dirty logs handled."""
    rollup = RollUp(store, DIRTY, options=options)
    return rollup.finish(rollup.read(), [HANDLED]).outcome


def check_marked(store: ObjectStore, *, fenced: bool) -> None:
    """Whatever was not handled is still marked; what was under way, unless the fence has decided about it."""
    left = marked(store)
    assert left["b"][0] == 1
    assert left["b"][1] >= 4
    assert left["under-way"][0] == 1
    if not fenced:
        assert left["b"][1] >= 5
        assert (left["a"][1], left["under-way"][1]) == (5, 6)


@pytest.mark.parametrize("options", [replace(ALL, cursor="done"), replace(AT_ONCE, cursor="done")], ids=["", "fence"])
def test_roll_up_killed_before_any_request_loses_no_marker(memory_store: MemoryStore, options: RollUpOptions) -> None:
    plant(memory_store)
    number, killed = 0, True
    while killed:
        number += 1
        assert number < CALLS_MAX
        store = FaultyStore(memory_store)

        def kill() -> None:
            raise Crashed

        later = Later(store, number, kill)
        # A writer's threads die, too: then the append fails.
        with contextlib.suppress(Crashed, LogError):
            roll_up(store, options)
        killed = later.happened
        check_marked(memory_store, fenced=options.undecided_s == 0)

    assert number > 20
    [*_, last] = [each for each in read(memory_store, options).logs if each.log == "b"]
    assert last.num_records == 3


@pytest.mark.parametrize("fault", ["applied-unknown", "unknown", "late", "conflict", "applied-refused", "unavailable"])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("create", "/log/"),
        ("replace", "dirty/x/manifest"),
        ("create", "/cursor/"),
        ("replace", "/cursor/"),
        ("", "a/m"),
    ],
)
def test_request_with_an_unclear_answer_loses_no_marker(
    memory_store: MemoryStore, kind: str, path: str, fault: Fault
) -> None:
    plant(memory_store)
    options = replace(AT_ONCE if kind == "" else ALL, cursor="done")
    if path == "/cursor/" and kind == "replace":
        roll_up(memory_store, options)
        # So many that folding them is worth it.
        for _ in range(4):
            grow(memory_store, "b")
    store = FaultyStore(memory_store)
    store.fail(kind or "replace", path, fault)

    with contextlib.suppress(LogError):
        roll_up(store, options)
    check_marked(memory_store, fenced=kind == "")
    store.arrive()
    check_marked(memory_store, fenced=kind == "")
    roll_up(memory_store, options)
    store.arrive()

    check_marked(memory_store, fenced=kind == "")
    assert sum(store.fired.values()) == 1


def test_finish_repeated_or_beaten_changes_nothing(store: ObjectStore) -> None:
    world = World(store, DIRTY)
    for log in ("a", "b"):
        grow(store, log)
    rollup = RollUp(store, DIRTY, options=ALL)
    plan, beaten = rollup.read(), rollup.read()
    first = rollup.finish(plan, ["a"])
    place, left, after = place_of(store), marked(store), world.manifest()

    again, other = rollup.finish(plan, ["a"]), rollup.finish(beaten, ["a", "b"])

    assert (first.outcome, again.outcome, other.outcome) == (
        RollUpEnd.ADVANCED,
        RollUpEnd.OVERTAKEN,
        RollUpEnd.OVERTAKEN,
    )
    assert (place_of(store), marked(store), world.manifest()) == (place, left, after)
    assert left == {"b": (1, 2)}


def test_roll_up_that_is_overtaken_between_its_steps_moves_no_cursor_back(memory_store: MemoryStore) -> None:
    grow(memory_store, "a")
    grow(memory_store, "b")
    grow(memory_store, "c")
    RollUp(memory_store, DIRTY, options=ALL).finish(read(memory_store, ALL), ["c"])
    grow(memory_store, "a")
    grow(memory_store, "b")
    store = FaultyStore(memory_store)
    places: list[int | None] = []

    def overtake(kind: str, path: str) -> None:
        if kind == "replace" and "/cursor/" in path:
            store.before = lambda _kind, _path: None
            grow(memory_store, "c")
            RollUp(memory_store, DIRTY, options=ALL).finish(read(memory_store, ALL), ["c"])
            places.append(place_of(memory_store))

    store.before = overtake
    done = RollUp(store, DIRTY, options=ALL).finish(read(store, ALL), ["b"])

    assert done.outcome is RollUpEnd.OVERTAKEN
    assert places == [place_of(memory_store)]
    assert marked(memory_store) == {"a": (1, 3), "b": (1, 3)}


def test_two_compactors_that_pull_from_every_dirty_log_at_once_lose_nothing(store: ObjectStore) -> None:
    names = [f"log{number}" for number in range(6)]
    servers = ["dirty/x", "dirty/y"]
    for number, log in enumerate(names):
        grow(store, log, dirty_log=servers[number % 2])
    handled: set[str] = set()

    def pull(compactor: int) -> None:
        for _ in range(4):
            for server in dirty_logs(store):
                rollup = RollUp(store, server, options=ALL)
                plan = rollup.read()
                mine = [log for log in plan.selected if int(log[-1]) % 3 == compactor]
                if rollup.finish(plan, mine).outcome is RollUpEnd.ADVANCED:
                    handled.update(mine)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(pull, range(2)))

    left = set().union(*(marked(store, server) for server in servers))
    assert left | handled == set(names)
    assert {"log2", "log5"} <= left
    assert handled


def test_deleted_cursor_makes_the_next_roll_up_begin_at_the_first_marker_again(store: ObjectStore) -> None:
    grow(store, "a")
    RollUp(store, DIRTY, options=ALL).finish(read(store, ALL), ["a"])
    grow(store, "b")
    old = read(store, ALL)
    CursorStore(store, DIRTY).delete(ROLLUP)

    plan = read(store, ALL)

    assert plan.selected == ("a", "b")
    assert RollUp(store, DIRTY, options=ALL).finish(old, ["b"]).outcome is RollUpEnd.OVERTAKEN
    assert RollUp(store, DIRTY, options=ALL).finish(plan, ["a"]).outcome is RollUpEnd.ADVANCED
    assert marked(store) == {"b": (1, 2)}


def test_cursor_below_the_first_marker_is_rolled_up_from_there_and_reported(memory_store: MemoryStore) -> None:
    grow(memory_store, "a")
    RollUp(memory_store, DIRTY, options=ALL).finish(read(memory_store, ALL), ["a"])
    grow(memory_store, "b")
    cursors = CursorStore(memory_store, DIRTY)
    witness = cursors.load(ROLLUP)
    assert witness is not None
    inside = life_store(memory_store, DIRTY)
    path = f"cursor/{ROLLUP}.json"
    before = inside.read(path)
    assert before is not None
    cursors.save(ROLLUP, World(memory_store, DIRTY).manifest().next.position, witness)
    collect(memory_store, DIRTY, options=NOW)
    # An older version of the cursor is restored by hand.
    inside.delete(path)
    inside.create(path, before)

    plan = read(memory_store, ALL)

    assert (plan.marker_range.skipped, plan.marker_range.start) == (1, 3)
    assert plan.logs == ()


def test_markers_of_a_dirty_log_that_was_restored_are_not_skipped(memory_store: MemoryStore) -> None:
    grow(memory_store, "a")
    rollup, path = RollUp(memory_store, DIRTY, options=ALL), f"{DIRTY}/{MANIFEST}"
    older = memory_store.read(path)
    assert older is not None
    for log in ("b", "c", "d"):
        grow(memory_store, log)
    assert rollup.finish(read(memory_store, ALL), ["a", "b", "c", "d"]).outcome is RollUpEnd.ADVANCED
    memory_store.delete(path)
    memory_store.create(path, older)
    grow(memory_store, "e")

    plan = read(memory_store, ALL)
    # Nothing is handled: this only moves the cursor back.
    done = rollup.finish(plan)
    for _ in range(5):
        grow(memory_store, "f")

    assert plan.selected == ("a", "e")
    assert plan.marker_range.skipped == 0
    assert done.outcome is RollUpEnd.ADVANCED
    assert set(marked(memory_store)) == {"a", "e", "f"}
    assert rollup.finish(read(memory_store, ALL), ["a", "e", "f"]).outcome is RollUpEnd.ADVANCED
    assert marked(memory_store) == {}


def test_dirty_log_of_a_quiet_fleet_shrinks_to_nothing_and_is_collected(store: ObjectStore) -> None:
    rollup = RollUp(store, DIRTY, options=ALL)
    for number in range(30):
        grow(store, f"log{number % 5}")
    plan = rollup.read()
    rollup.finish(plan, plan.selected)
    collect(store, DIRTY, options=replace(NOW, fraction_max=0.9, orphans_max=0))

    quiet = rollup.read()
    assert (quiet.marker_range.num_markers, quiet.logs) == (0, ())
    assert rollup.finish(quiet).outcome is RollUpEnd.NOTHING_TO_DO
    assert World(store, DIRTY).manifest().num_records <= 1
    assert len(list(life_store(store, DIRTY).list_objects("log/"))) <= 1


def test_sealed_dirty_log_is_rolled_up_once_all_of_it_is_handled(store: ObjectStore) -> None:
    grow(store, "a")
    seal(store, DIRTY, reason="the server is retired")
    rollup = RollUp(store, DIRTY, options=ALL)

    with pytest.raises(LogError, match="sealed"):
        grow(store, "b")
    plan = rollup.read()
    assert rollup.finish(plan, plan.selected).outcome is RollUpEnd.ADVANCED
    assert marked(store) == {}


def test_roll_up_of_fifty_logs_takes_at_most_120_requests_and_no_listing(
    memory_store: MemoryStore,
) -> None:
    options = replace(ALL, cursor="done")
    for round_ in range(2):
        markers = [grow(memory_store, f"log{number}", dirty_log=None) for number in range(50)]
        mark(memory_store, *markers)
        if not round_:
            RollUp(memory_store, DIRTY, options=options).finish(read(memory_store, options), ["log0"])
    store = CountingStore(memory_store)
    rollup = RollUp(store, DIRTY, options=options)

    plan = rollup.read()
    done = rollup.finish(plan, plan.selected[:25])

    assert (len(plan.selected), done.num_reinserted) == (50, 25)
    assert store.requests["list"] == 0
    assert sum(store.requests.values()) <= 120, store.requests


def test_dirty_logs_are_the_logs_below_dirty(store: ObjectStore) -> None:
    for log in ("dirty", "dirty/b", "dirty/a", "dirtier", "a"):
        LogWriter.create(store, log)

    assert dirty_logs(store) == ["dirty/a", "dirty/b"]


def test_another_compactor_moves_only_its_share_of_the_dirty_logs() -> None:
    servers = [f"dirty/server-{number}" for number in range(1000)]
    four, five = (assigned(servers, [f"compactor-{n}" for n in range(count)]) for count in (4, 5))
    before, after = ({log: who for who, logs in each.items() for log in logs} for each in (four, five))

    moved = [log for log in servers if before[log] != after[log]]

    assert sorted(before) == sorted(after) == sorted(servers)
    assert all(after[log] == "compactor-4" for log in moved)
    assert len(moved) == len(five["compactor-4"])
    assert all(120 < len(logs) < 300 for logs in (*four.values(), *five.values()))
    # Pinned: every version of every process must agree.
    assert assigned(["dirty/a", "dirty/b", "dirty/c"], ["1", "2"]) == assigned(
        ["dirty/c", "dirty/b", "dirty/a"], ["2", "1"]
    )
    with pytest.raises(InvalidRequestError, match="at least one"):
        assigned(servers, [])


def test_ambiguous_append_of_the_kept_markers_is_repeated(memory_store: MemoryStore) -> None:
    for log in ("a", "b"):
        grow(memory_store, log)
    store = FaultyStore(memory_store)
    hasty = replace(ALL, retry=replace(QUICK, attempts_max=1))
    plan = RollUp(store, DIRTY, options=hasty).read()
    store.fail("replace", "dirty/x/manifest", "applied-unknown")
    store.fail("get", "dirty/x/manifest", "unavailable", times=0)

    done = RollUp(store, DIRTY, options=hasty).finish(plan, ["a"])

    assert done.outcome is RollUpEnd.ADVANCED
    assert marked(memory_store) == {"b": (1, 2)}
    assert [record.key for record in LogReader.open(memory_store, DIRTY).records(place_of(memory_store))][:1] == [b"b"]
