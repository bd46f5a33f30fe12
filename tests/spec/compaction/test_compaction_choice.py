"""Of many logs, those are compacted first that are over their largest lag, then those with expired tombstones."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.spec.compacting import DAY_S, LOG, append, compactor, keyed_log
from tests.world import ClockStore, World
from wal3_core import LogPosition, MemoryStore
from wal3_core.compaction.reports import KeyCompactionPlan, choose, may_be_due
from wal3_core.format.paths import NO_LOG
from wal3_core.format.policy import Policy
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.policy_store import PolicyStore


def plan(
    log: str, dirty: int, *, held: int = 100, overdue_s: int = 0, expired: bool = False, due: bool = True
) -> KeyCompactionPlan:
    return KeyCompactionPlan(
        log=log,
        log_id=NO_LOG,
        first=1,
        limit=1,
        clean_limit=0,
        expired_below=0,
        bound="",
        due="a reason" if due else None,
        dirty_bytes=dirty,
        held_bytes=held,
        overdue_s=overdue_s,
        expired=expired,
    )


def test_order_is_lag_then_horizons_then_the_exact_ratio_then_bytes() -> None:
    plans = [
        plan("idle", 10, due=False),
        plan("half", 50),
        plan("a bit more", 501, held=1000),
        plan("all", 100),
        plan("all of more", 200, held=200),
        plan("horizon", 0, expired=True),
        plan("late", 1, overdue_s=5),
        plan("later", 1, overdue_s=50),
        plan("empty", 0, held=0),
    ]

    choice = choose(plans, logs_max=6)

    assert [each.log for each in choice.chosen] == ["later", "late", "horizon", "all of more", "all", "a bit more"]
    assert [each.log for each in choice.waiting] == ["half", "empty"]
    assert [each.log for each in choice.idle] == ["idle"]
    assert choose(reversed(plans), logs_max=6).chosen == choice.chosen


def test_share_of_records_counts_as_that_of_bytes_does() -> None:
    drained = replace(plan("drained", 3), dirty_records=60, held_records=100)

    choice = choose([plan("half", 50), drained, plan("most", 70)], logs_max=3)

    assert [each.log for each in choice.chosen] == ["most", "drained", "half"]


def test_log_that_tombstones_empty_is_due_by_its_records(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    bodies = random.Random(0)
    append(memory_store, [(b"%d" % key, bodies.randbytes(20_000)) for key in range(20)])
    assert compactor(memory_store).compact().plan.due == "100 % of its bytes are dirty"

    append(memory_store, [(b"%d" % key, None) for key in range(10)])
    few = compactor(memory_store).outline()
    append(memory_store, [(b"%d" % key, None) for key in range(10, 20)])
    many = compactor(memory_store).outline()

    assert (few.dirty_percent, few.dirty_records_percent, few.due) == (0, 33, None)
    assert (many.dirty_percent, many.dirty_records_percent) == (0, 50)
    assert many.due == "50 % of its records are dirty"
    assert compactor(memory_store).compact().num_superseded == 20
    assert compactor(memory_store).outline().held_bytes < 10_000


def test_log_that_is_only_arranged_is_not_due_by_its_records(memory_store: MemoryStore) -> None:
    keyed_log(memory_store)
    PolicyStore(memory_store, LOG).change(lambda _: Policy(arrange_by_key=True))
    append(memory_store, [(b"a", random.Random(0).randbytes(100_000))])
    compactor(memory_store).compact()

    append(memory_store, [(b"a", b"small")] * 5)

    plan = compactor(memory_store).outline()
    assert (plan.dirty_records_percent, plan.due) == (83, None)


def test_manifest_alone_says_that_nothing_can_be_due(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    world = World(store)
    keyed_log(store, delete_retention_s=DAY_S)
    append(store, [(b"a", b"1")], [(b"a", None)], [(b"b", b"1")])
    found = [may_be_due(world.manifest())]

    compactor(store).compact()
    found.append(may_be_due(world.manifest()))
    store.pass_s(2 * DAY_S)
    assert compactor(store).compact().installed
    found.append(may_be_due(world.manifest()))
    append(store, [(b"b", b"2")])
    found.append(may_be_due(world.manifest()))

    # After the first pass the tombstone still has its time to come.
    assert found == [True, True, False, True]


def test_outline_says_for_how_long_a_cursor_has_held_records_back(memory_store: MemoryStore) -> None:
    store = ClockStore(memory_store)
    keyed_log(store, max_compaction_lag_s=DAY_S)
    append(store, [(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")])
    CursorStore(store, "a").create("reader", LogPosition(2, 0))
    store.pass_s(3 * DAY_S)

    before = compactor(store).outline()
    assert compactor(store).compact().installed
    after = compactor(store).outline()

    assert 2 * DAY_S - 60 < before.overdue_s <= before.held_back_s + 60
    assert after.overdue_s == 0
    assert 2 * DAY_S - 60 < after.held_back_s < 2 * DAY_S + 60
    assert after.bound == "cursor reader is at offset 2"
