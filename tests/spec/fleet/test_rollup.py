"""A roll-up of a dirty log selects the logs that are due, drops what needs nothing, and keeps the rest marked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.spec.rolling import (
    ALL,
    AT_ONCE,
    DIRTY,
    PATIENT,
    begun,
    decisions,
    grow,
    mark,
    marked,
    place_of,
    read,
)
from tests.stores import CountingStore, FaultyStore, damage
from tests.world import DAY_S, NOW, ClockStore, World
from wal3_core import (
    Cleanup,
    CorruptError,
    CursorStore,
    InvalidRequestError,
    LogAt,
    LogNotFoundError,
    LogPosition,
    LogWriter,
    MemoryStore,
    Message,
    Policy,
    collect,
    copy,
    destroy,
    seal,
)
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.errors import KeyCompactionRefusedError
from wal3_core.fleet.dirty.rollup import RollUp, RollUpEnd
from wal3_core.fleet.dirty.rollup_plan import Decision, RollUpOptions, RollUpPlan
from wal3_core.format.marker import Marker
from wal3_core.format.paths import LogId
from wal3_core.store.documents.policy_store import PolicyStore
from wal3_core.store.object_store import ObjectStore

BY_CURSOR = replace(PATIENT, cursor="done")
CENTURY_US = 100 * 365 * 24 * 3600 * 10**6


def process(store: ObjectStore, log: str, offset: int) -> None:
    """Say that everything before an offset of a log was processed."""
    cursors = CursorStore(store, log)
    witness = cursors.load("done")
    if witness is None:
        cursors.create("done", LogPosition(offset, 0))
    else:
        cursors.save("done", LogPosition(offset, 0), witness)


def test_handled_logs_are_no_longer_marked_and_the_others_are(store: ObjectStore) -> None:
    for log in ("a", "b", "tenant/c", "a"):
        grow(store, log, 3)

    plan = read(store, ALL)
    done = RollUp(store, DIRTY, options=ALL).finish(plan, ["a", "tenant/c"])

    assert plan.selected == ("a", "b", "tenant/c")
    assert [each.num_records for each in plan.logs] == [6, 3, 3]
    assert (plan.num_records, plan.marker_range.num_markers) == (12, 4)
    assert plan.num_bytes == sum(World(store, log).manifest().num_bytes for log in plan.selected)
    assert (done.outcome, done.num_reinserted, done.limit) == (RollUpEnd.ADVANCED, 1, 5)
    assert marked(store) == {"b": (1, 4)}
    [kept] = read(store).logs
    assert (kept.log, kept.marker.reinsertions, kept.num_records) == ("b", 1, 3)


def test_log_is_selected_when_it_is_too_old_too_big_or_was_reinserted_too_often(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    grow(store, "a", 5)
    hourly = replace(PATIENT, age_s_max=3600)
    once = replace(PATIENT, reinsertions_max=1)

    assert decisions(read(store, hourly)) == {"a": Decision.KEPT}
    assert decisions(read(store, replace(PATIENT, records_max=5))) == {"a": Decision.SELECTED}
    assert decisions(read(store, replace(PATIENT, records_max=6))) == {"a": Decision.KEPT}
    num_bytes = World(store).manifest().num_bytes
    assert decisions(read(store, replace(PATIENT, bytes_max=num_bytes))) == {"a": Decision.SELECTED}
    assert decisions(read(store, replace(PATIENT, bytes_max=num_bytes + 1))) == {"a": Decision.KEPT}
    assert decisions(read(store, once)) == {"a": Decision.KEPT}
    grow(store, "a")
    grow(store, "a")
    RollUp(store, DIRTY, options=once).finish(read(store, once))
    assert decisions(read(store, once)) == {"a": Decision.SELECTED}
    store.pass_s(3601)
    [old] = read(store, hourly).logs
    assert old.decision is Decision.SELECTED
    assert old.age_s == pytest.approx(3601, abs=30)
    assert old.reason.startswith("too old: expected at most 3600 s, found 36")


def test_processed_logs_are_dropped_and_no_cursor_is_created_in_them(store: ObjectStore) -> None:
    for log in ("behind", "done", "fresh"):
        grow(store, log, 4)
    process(store, "done", 5)
    process(store, "behind", 3)

    plan = read(store, BY_CURSOR)
    RollUp(store, DIRTY, options=BY_CURSOR).finish(plan)

    assert decisions(plan) == {"behind": Decision.KEPT, "done": Decision.CAUGHT_UP, "fresh": Decision.KEPT}
    assert {each.log: each.num_records for each in plan.logs} == {"behind": 2, "done": 0, "fresh": 4}
    assert marked(store) == {"behind": (1, 5), "fresh": (1, 5)}
    assert CursorStore(store, "fresh").list() == {}


def test_log_with_more_unprocessed_records_than_the_limit_is_over(store: ObjectStore) -> None:
    grow(store, "a", 4)
    grow(store, "b", 5)

    assert read(store, replace(PATIENT, unprocessed_max=4)).over == ("b",)


def test_marker_of_a_log_that_is_gone_or_was_created_again_is_dropped(store: ObjectStore) -> None:
    for log in ("again", "gone", "never"):
        grow(store, log)
    for log in ("again", "gone"):
        destroy(store, log)
    never = Marker.of_fragment("missing", LogId("ab" * 16), LogPosition(1, 1), 1)
    mark(store, never)
    grow(store, "again", 2)

    plan = read(store)
    RollUp(store, DIRTY).finish(plan)

    found = [(each.log, each.decision, each.marker.limit.offset) for each in plan.logs]
    assert sorted(found) == [
        ("again", Decision.GONE, 2),
        ("again", Decision.KEPT, 3),
        ("gone", Decision.GONE, 2),
        ("missing", Decision.GONE, 2),
        ("never", Decision.KEPT, 2),
    ]
    assert marked(store) == {"again": (1, 3), "never": (1, 2)}


def test_marker_read_before_its_fragment_is_committed_is_kept(store: ObjectStore) -> None:
    grow(store, "a", dirty_log=None)
    mark(store, begun(store, "a", 3))
    grow(store, "b")

    plan = read(store, ALL)
    RollUp(store, DIRTY, options=ALL).finish(plan, plan.selected)

    assert decisions(plan) == {"a": Decision.UNDECIDED, "b": Decision.SELECTED}
    assert marked(store) == {"a": (2, 5)}
    # It is committed a moment later.
    grow(store, "a", 3, dirty_log=None)
    [later] = read(store).logs
    assert (later.decision, later.num_records) == (Decision.KEPT, 3)


def test_log_always_being_written_is_selected_and_what_is_under_way_stays_marked(store: ObjectStore) -> None:
    mark(store, grow(store, "a", 10, dirty_log=None).reinserted().reinserted())
    mark(store, begun(store, "a", 3))

    plan = read(store, ALL)
    RollUp(store, DIRTY, options=ALL).finish(plan, plan.selected)

    [hot] = plan.logs
    assert (hot.decision, hot.num_records) == (Decision.SELECTED, 10)
    assert marked(store) == {"a": (11, 14)}
    # Handled once, it is not due again at once.
    grow(store, "a", 3, dirty_log=None)
    [next_time] = read(store).logs
    assert (next_time.num_records, next_time.marker.reinsertions) == (3, 1)


def test_records_appended_after_the_plan_stay_marked_when_their_log_is_handled(store: ObjectStore) -> None:
    grow(store, "a", 2)
    plan = read(store, ALL)
    grow(store, "a", 3)

    RollUp(store, DIRTY, options=ALL).finish(plan, ["a"])

    assert marked(store) == {"a": (3, 6)}


def test_overdue_marker_is_dropped_once_the_fence_has_moved_and_not_by_its_age(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    world = World(store)
    grow(store, "a", dirty_log=None)
    mark(store, begun(store, "a", 3))
    later = replace(PATIENT, undecided_s=900)
    RollUp(store, DIRTY, options=later).finish(read(store, later))
    assert world.manifest().fence == 0
    store.pass_s(DAY_S)

    plan = read(store, later)
    with_the_fence_held = FaultyStore(store)
    with_the_fence_held.fail("replace", "a/manifest", "denied", times=100)
    RollUp(with_the_fence_held, DIRTY, options=later).finish(plan)
    held = marked(store)
    done = RollUp(store, DIRTY, options=later).finish(read(store, later))

    assert plan.logs[0].overdue
    assert held == {"a": (2, 5)}
    assert world.manifest().fence == 1
    assert (done.outcome, done.num_fenced) == (RollUpEnd.ADVANCED, 1)
    assert marked(store) == {}


def test_fragment_committed_just_before_the_fence_moves_stays_marked(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    grow(store, "a", dirty_log=None)
    mark(store, begun(store, "a", 3))
    plan = read(store, AT_ONCE)
    assert plan.logs[0].overdue

    def commit(kind: str, path: str) -> None:
        if (kind, path) == ("replace", "a/manifest/MANIFEST.json"):
            store.before = lambda _kind, _path: None
            grow(store, "a", 3, dirty_log=None)

    store.before = commit
    RollUp(store, DIRTY, options=AT_ONCE).finish(plan)

    assert len(World(store).bodies()) == 4
    assert marked(store) == {"a": (2, 5)}


def test_append_whose_upload_the_fence_cut_off_gets_a_new_place_and_succeeds(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    world = World(store)
    grow(store, "a", dirty_log=None)
    mark(store, begun(store, "a"))

    def fence(kind: str, path: str) -> None:
        if (kind, path) == ("replace", "a/manifest/MANIFEST.json"):
            store.before = lambda _kind, _path: None
            RollUp(memory_store, DIRTY, options=AT_ONCE).finish(read(memory_store, AT_ONCE))

    with LogWriter.open(store, "a") as writer:
        store.before = fence
        position = writer.append(b"late")

    assert world.manifest().fence == 1
    assert position.offset == 2
    assert world.bodies()[1:] == [b"late"]


def test_sealed_log_decides_every_marker(store: ObjectStore) -> None:
    for log in ("a", "b"):
        grow(store, log, 2, dirty_log=None)
        mark(store, begun(store, log, 3))
    grow(store, "b", 1)
    for log in ("a", "b"):
        seal(store, log, reason="full")

    plan = read(store, ALL)
    RollUp(store, DIRTY, options=ALL).finish(plan)

    assert decisions(plan) == {"a": Decision.CAUGHT_UP, "b": Decision.SELECTED}
    assert marked(store) == {"b": (3, 4)}
    assert [World(store, log).manifest().fence for log in ("a", "b")] == [0, 0]


def test_log_whose_marked_records_were_collected_is_dropped(store: ObjectStore) -> None:
    grow(store, "a", 3)
    grow(store, "a", 3, dirty_log=None)
    CursorStore(store, "a").create("reader", LogPosition(4, 0))
    collect(store, "a", options=NOW)

    assert decisions(read(store)) == {"a": Decision.CAUGHT_UP}


def test_unreadable_log_is_reported_and_kept_and_hides_no_other(memory_store: MemoryStore) -> None:
    store = FaultyStore(memory_store)
    for log in ("damaged", "denied", "lost", "sound"):
        grow(store, log)
    damage(memory_store, "damaged/manifest/MANIFEST.json", 20)
    memory_store.delete("lost/manifest/MANIFEST.json")
    store.fail("get", "denied/", "denied", times=100)

    plan = read(store, ALL)
    RollUp(store, DIRTY, options=ALL).finish(plan, plan.selected)

    assert plan.selected == ("sound",)
    assert [(each.log, each.reason.partition(":")[0]) for each in plan.unreadable] == [
        ("damaged", "CorruptError"),
        ("denied", "StoreDeniedError"),
        ("lost", "CorruptError"),
    ]
    assert sorted(marked(store)) == ["damaged", "denied", "lost"]


@pytest.mark.parametrize(
    "foreign",
    [Message(b"hello"), Message(b"hello", b"a"), Message(b"\x01" + bytes(4) + b"\x02\x00\x01\x00", b"a/manifest")],
    ids=["no key", "no marker", "a name that no log can have"],
)
def test_foreign_record_in_a_dirty_log_stops_the_roll_up_and_is_named(store: ObjectStore, foreign: Message) -> None:
    grow(store, "a")
    with LogWriter.open(store, DIRTY) as writer:
        writer.append_many([foreign])

    with pytest.raises(CorruptError, match=r"log dirty/x: record 2: expected a marker"):
        read(store)

    assert place_of(store) is None


def test_dirty_log_is_never_compacted(memory_store: MemoryStore) -> None:
    grow(memory_store, "a", 3)
    policies = PolicyStore(memory_store, DIRTY)

    with pytest.raises(InvalidRequestError, match="each marker of a dirty log counts until a roll-up has read it"):
        policies.change(lambda policy: replace(policy, cleanup=Cleanup.COMPACT))

    assert policies.load() == Policy()


def test_dirty_log_copied_from_a_compacted_log_keeps_its_markers(
    memory_store: MemoryStore,
) -> None:
    grow(memory_store, "a", 3)
    grow(memory_store, "a", 2)
    copy(LogAt(memory_store, DIRTY), LogAt(memory_store, "kept"))
    PolicyStore(memory_store, "kept").change(lambda _: Policy(cleanup=Cleanup.COMPACT, min_dirty_percent=0))
    destroy(memory_store, DIRTY)
    copy(LogAt(memory_store, "kept"), LogAt(memory_store, DIRTY))

    with pytest.raises(KeyCompactionRefusedError, match="expected no dirty log"):
        KeyCompactor(memory_store, DIRTY).compact()
    plan = read(memory_store, ALL)
    done = RollUp(memory_store, DIRTY, options=ALL).finish(plan, ["a"])

    assert [(each.log, each.num_records) for each in plan.logs] == [("a", 5)]
    assert done.outcome is RollUpEnd.ADVANCED


def test_missing_dirty_log_is_an_error(store: ObjectStore) -> None:
    with pytest.raises(LogNotFoundError):
        read(store)


def test_marker_of_a_clock_a_century_ahead_ages_by_the_time_of_the_dirty_log(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    grow(store, "a", dirty_log=None)
    ahead = begun(store, "a", 2)
    ahead = replace(ahead, limit=LogPosition(4, ahead.first_us + CENTURY_US), first_us=ahead.first_us + CENTURY_US)
    mark(store, ahead)

    assert not read(store, replace(PATIENT, undecided_s=900)).logs[0].overdue
    store.pass_s(901 + 60)
    assert read(store, replace(PATIENT, undecided_s=900)).logs[0].overdue


def test_roll_up_reads_at_most_so_many_markers_and_the_next_one_goes_on(store: ObjectStore) -> None:
    for log in ("a", "b", "c"):
        grow(store, log)
    few = replace(ALL, markers_max=2)

    first = read(store, few)
    RollUp(store, DIRTY, options=few).finish(first, first.selected)
    second = read(store, few)

    assert (first.selected, second.selected) == (("a", "b"), ("c",))
    assert place_of(store) == 3


def test_kept_markers_never_hide_those_behind_the_most_that_are_read(store: ObjectStore) -> None:
    for log in ("a", "b", "c"):
        grow(store, log)
    few = replace(PATIENT, markers_max=2)

    first = read(store, few)
    RollUp(store, DIRTY, options=few).finish(first)

    assert (decisions(first), list(decisions(read(store, few)))) == (dict.fromkeys("ab", Decision.KEPT), ["a", "c"])
    assert sorted(marked(store)) == ["a", "b", "c"]


def test_roll_up_that_would_change_nothing_writes_nothing(memory_store: MemoryStore) -> None:
    store = CountingStore(memory_store)
    for log in ("a", "b"):
        grow(store, log)
        grow(store, log)
    rollup = RollUp(store, DIRTY, options=PATIENT)
    plan = rollup.read()
    store.requests.clear()

    done = rollup.finish(plan)

    assert done.outcome is RollUpEnd.NOTHING_TO_DO
    assert not {"create", "replace", "delete"} & store.requests.keys()
    # One more marker, and folding shrinks the dirty log.
    grow(store, "a")
    assert rollup.finish(rollup.read()).num_reinserted == 2
    assert marked(store) == {"a": (1, 4), "b": (1, 3)}


def test_plan_is_the_same_after_a_way_through_text(store: ObjectStore) -> None:
    grow(store, "a", 3)
    mark(store, begun(store, "a", 2))
    grow(store, "b")
    plan = read(store, replace(BY_CURSOR, undecided_s=0))

    assert RollUpPlan.from_text(json.dumps(plan.to_json())) == plan
    with pytest.raises(CorruptError, match="expected one of"):
        RollUpPlan.from_text(json.dumps(plan.to_json()).replace('"kept"', '"lost"'))


def test_reading_changes_nothing_but_the_object_that_has_the_store_s_time(memory_store: MemoryStore) -> None:
    world = World(memory_store)
    grow(memory_store, "a", 3)
    mark(memory_store, begun(memory_store, "a", 2))
    before = {meta.path for meta in memory_store.list_objects("")}, world.manifest()

    read(memory_store, replace(ALL, undecided_s=0))

    after = {meta.path for meta in memory_store.list_objects("") if not meta.path.endswith("gc/CLOCK")}
    assert (after, world.manifest()) == before


def test_caller_that_may_not_write_can_read_a_plan(memory_store: MemoryStore) -> None:
    grow(memory_store, "a")
    store = FaultyStore(memory_store)
    for kind in ("create", "replace"):
        store.fail(kind, "", "denied", times=100)

    assert read(store, ALL).selected == ("a",)


def test_caller_that_may_not_learn_the_store_s_time_is_warned_and_uses_its_clock(
    memory_store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    store = ClockStore(memory_store)
    store.pass_s(-7200)
    grow(store, "old")
    mark(store, begun(store, "old", 2))
    for kind in ("create", "replace"):
        store.fail(kind, "gc/CLOCK", "denied", times=100)

    with caplog.at_level("WARNING", "wal3.collect"):
        plan = read(store, replace(PATIENT, undecided_s=0))

    # Due by age, although the store's clock is known to be no further than the last marker.
    assert plan.selected == ("old",)
    assert plan.age_s > 7000
    assert plan.guessed is not None
    assert "gc/CLOCK" in plan.guessed
    assert "ages are by this machine's clock" in caplog.text
    assert RollUpPlan.from_text(json.dumps(plan.to_json())) == plan


def test_no_fence_moves_by_the_clock_of_a_machine(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    world = World(store)
    store.pass_s(-7200)
    grow(store, "a")
    mark(store, begun(store, "a", 2))
    for kind in ("create", "replace"):
        store.fail(kind, "gc/CLOCK", "denied", times=100)
    before = world.manifest().fence

    plan = read(store)
    RollUp(store, DIRTY, options=PATIENT).finish(plan, plan.selected)

    assert (plan.selected, world.manifest().fence) == (("a",), before)
    assert marked(store) == {"a": (2, 4)}


def test_senseless_option_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequestError, match="option records_max: expected a number from 1"):
        RollUpOptions(records_max=0)
    with pytest.raises(InvalidRequestError, match="cursor name: expected"):
        RollUpOptions(cursor="a/b")
