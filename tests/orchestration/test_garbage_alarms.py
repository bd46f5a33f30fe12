"""Each alarm sounds in its own case, and in no other."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.orchestration.checked import found_bad
from tests.orchestration.run_requests import run_request
from tests.world import ClockStore
from wal3_core import CursorStore, DelayQueue, LogPosition, LogReader, LogWriter, MemoryStore, destroy
from wal3_core.fleet.survey import CursorAge, GarbageDocumentStatus, Survey, survey_log
from wal3_core.log.collect.collector import Collector
from wal3_core.options import CollectorOptions
from wal3_core.runtime import US_PER_S, shared_runtime
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.garbage_collection.checks import (
    PlannedLog,
    collected_in_time,
    cursors_move,
    few_orphans,
    little_garbage,
)
from wal3_orchestration.resources import CollectionResource

if TYPE_CHECKING:
    from conftest import Run, Write


LIMITS = CollectionResource(interval_s=100, announced_s_max=50, cursor_idle_s_max=1000, lag_min=5)
QUIET = Survey(log="a")


@pytest.mark.parametrize(("fraction_alarm", "sounds"), [(0.4, True), (0.6, False)])
def test_alarm_for_a_plan_that_takes_a_large_part_of_the_log(
    memory_store: ObjectStore,
    fraction_alarm: float,
    sounds: bool,  # noqa: FBT001 - the table's column
) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        for _ in range(4):
            writer.append_many([b"x"])
    CursorStore(memory_store, "a").create("reader", LogPosition(3, 0))
    survey = survey_log(memory_store, "a", CollectorOptions())

    warning = little_garbage.judge(PlannedLog(survey=survey), CollectionResource(fraction_alarm=fraction_alarm))

    assert (warning is not None) is sounds
    assert little_garbage.judge(PlannedLog(survey=QUIET), LIMITS) is None


@pytest.mark.parametrize(
    ("standing", "warning"),
    [
        (GarbageDocumentStatus(path="gc/x", age_s=201), "1 documents left, gc/x for 201 s"),
        (GarbageDocumentStatus(path="gc/x", age_s=199), None),
        (
            GarbageDocumentStatus(path="gc/x", age_s=51, announced=True),
            "gc/x to prune within 50 s, found it announced for 51 s",
        ),
        (GarbageDocumentStatus(path="gc/x", age_s=49, announced=True), None),
    ],
)
def test_alarm_for_old_garbage_and_old_announcements(standing: GarbageDocumentStatus, warning: str | None) -> None:
    found = collected_in_time.judge(PlannedLog(survey=replace(QUIET, documents=(standing,))), LIMITS)

    assert found is None if warning is None else found is not None and warning in " ".join(found.split())


@pytest.mark.parametrize(
    ("lag", "idle_s", "sounds"), [(5, 1001, True), (4, 1001, False), (5, 999, False), (5, 0, False)]
)
def test_alarm_for_a_cursor_that_does_not_move_while_the_log_grows(
    lag: int,
    idle_s: int,
    sounds: bool,  # noqa: FBT001 - the table's column
) -> None:
    survey = replace(QUIET, cursors=(CursorAge(name="reader", lag=lag, idle_s=idle_s),))

    warning = cursors_move.judge(PlannedLog(survey=survey), LIMITS)

    assert (warning is not None) is sounds


def test_cursor_of_a_queue_may_stay_at_its_checkpoint_and_others_of_the_name_not(
    memory_store: ObjectStore,
) -> None:
    with DelayQueue.open_or_create(memory_store, "q") as queue:
        queue.enqueue(b"x")
    with LogWriter.open_or_create(memory_store, "plain") as writer:
        writer.append_many([b"x"])
    CursorStore(memory_store, "plain").create("queue", LogPosition(1, 0))
    old = (CursorAge(name="queue", lag=5, idle_s=1001),)

    warnings = [
        cursors_move.judge(
            PlannedLog(survey=replace(survey_log(memory_store, log, CollectorOptions()), cursors=old)), LIMITS
        )
        for log in ("q", "plain")
    ]

    assert [warning is not None for warning in warnings] == [False, True]


def test_cursor_is_idle_only_if_the_log_grew_since_its_last_move(memory_store: ObjectStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"x", b"y"])
        cursor = CursorStore(memory_store, "a").create("reader", LogPosition(2, 0)).cursor
        quiet = LogReader.open(memory_store, "a").manifest()
        writer.append_many([b"z"])
        grown = LogReader.open(memory_store, "a").manifest()
    five_s_later_us = cursor.epoch_us + 5_000_000

    ages = [CursorAge.of("reader", cursor, manifest, five_s_later_us) for manifest in (quiet, grown)]

    assert [(age.lag, age.idle_s) for age in ages] == [(1, 0), (2, 5)]


def test_cursor_of_a_clock_that_was_years_ahead_is_idle_by_the_store_s_clock(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, day_s = ClockStore(memory_store), 24 * 60 * 60
    with LogWriter.open_or_create(store, "a") as writer:
        writer.append_many([b"x", b"y"])
        store.pass_s(-30 * day_s)
        with monkeypatch.context() as patched:
            ahead_us = shared_runtime().now_us() + 3650 * day_s * US_PER_S
            patched.setattr(shared_runtime(), "now_us", lambda: ahead_us)
            CursorStore(store, "a").create("reader", LogPosition(1, 0))
        store.pass_s(30 * day_s)
        writer.append_many([b"z"] * 10)

    [age] = survey_log(store, "a", CollectorOptions()).cursors

    assert (age.lag, round(age.idle_s / day_s)) == (12, 30)
    assert cursors_move.judge(PlannedLog(survey=replace(QUIET, cursors=(age,))), LIMITS) is not None


def test_subscription_that_pins_nothing_is_not_behind(memory_store: ObjectStore) -> None:
    with LogWriter.open_or_create(memory_store, "a") as writer:
        writer.append_many([b"x", b"y"])
    cursors = CursorStore(memory_store, "a")
    for name, pins in (("kept", True), ("unpinned", False)):
        cursors.create(name, LogPosition(1, 0), pins=pins)

    survey = survey_log(memory_store, "a", CollectorOptions())

    assert [(age.name, age.lag) for age in survey.cursors] == [("kept", 2)]


@pytest.mark.parametrize(
    ("counts", "sounds"),
    [
        ([5000], True),
        ([4999], False),
        ([300, 200, 101], True),
        ([300, 200], False),
        ([300, 200, 200], False),
        ([200, 300, 100], False),
        ([90, 80, 70], False),
    ],
)
def test_alarm_for_many_orphans_and_for_rising_orphans(
    counts: list[int],
    sounds: bool,  # noqa: FBT001 - the table's column
) -> None:
    assert (few_orphans.judge(counts, CollectionResource()) is not None) is sounds


@pytest.mark.slow
def test_alarm_for_planned_garbage_that_is_never_pruned(
    known: list[str], fleet: ObjectStore, run: Run, write: Write
) -> None:
    def late(job: str) -> set[str]:
        soon = {"resources": {"collection": {"config": {"planned_s_max": 0.0}}}}
        result = run(job, run_request(known[0], known[-1]), soon)
        assert result.success
        found = found_bad(result)
        assert all("daily_collection" in problem for problem in found.values())
        return {log for log, _ in found}

    CursorStore(fleet, "alpha").create("reader", LogPosition(4, 0))
    for log in ("beta/one", "gamma"):
        CursorStore(fleet, log).create("reader", LogPosition(1, 0))

    found = [late("garbage_plan_job") for _ in range(2)]
    CursorStore(fleet, "gamma").delete("reader")
    CursorStore(fleet, "gamma").create("reader", LogPosition(4, 0))
    found.append(late("collection_job"))
    write("alpha", fragments=2)
    CursorStore(fleet, "alpha").delete("reader")
    CursorStore(fleet, "alpha").create("reader", LogPosition(7, 0))
    found.append(late("garbage_plan_job"))

    # Gamma's garbage is new when it is collected; alpha's is new afterwards.
    assert found == [set(), {"alpha"}, {"alpha"}, set()]


@pytest.mark.slow
def test_garbage_of_the_log_before_does_not_count_against_a_log_created_again(
    known: list[str], fleet: ObjectStore, run: Run, write: Write
) -> None:
    """Regression: both begin with fragment 1, so the new log's garbage was said to wait since the old one's did."""
    soon = {"resources": {"collection": {"config": {"planned_s_max": 0.0}}}}
    CursorStore(fleet, "alpha").create("reader", LogPosition(4, 0))
    run("garbage_plan_job", run_request("alpha", "alpha"))
    destroy(fleet, "alpha", also_pinned=True)
    write("alpha", fragments=2)
    CursorStore(fleet, "alpha").create("reader", LogPosition(4, 0))

    new, old = (run("garbage_plan_job", run_request("alpha", "alpha"), soon) for _ in range(2))

    assert (found_bad(new), set(found_bad(old))) == ({}, {("alpha", "collected_in_time")})
    assert known


@pytest.mark.slow
def test_alarms_are_asset_checks_that_warn_and_stop_nothing(
    known: list[str], fleet: ObjectStore, run: Run, write: Write
) -> None:
    for log in known:
        CursorStore(fleet, log).create("reader", LogPosition(4, 0))
    collector = Collector(fleet, "gamma")
    collector.announce(collector.plan())
    for log in known:
        write(log)
    # Ages are in whole seconds.
    time.sleep(1.1)
    limits = {"fraction_alarm": 0.1, "announced_s_max": 0.0, "cursor_idle_s_max": 0.0, "intervals_max": 1.0}

    result = run(
        "garbage_plan_job",
        run_request(known[0], known[-1]),
        {"resources": {"collection": {"config": limits}}},
    )

    assert result.success
    outcomes = {check.check_name: check.passed for check in result.get_asset_check_evaluations()}
    assert {name for name, passed in outcomes.items() if passed} == {"safe_to_collect"}
    assert len(outcomes) == 4
    assert set(found_bad(result)) == {
        *((log, "little_garbage") for log in known),
        *((log, "cursors_move") for log in known),
        ("gamma", "collected_in_time"),
    }
