"""A tick always ends, and the next one goes on behind what was done; of many logs, it looks at few."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from dagster import DagsterInstance, SensorEvaluationContext, SensorResult, SkipReason, build_sensor_context

from tests.orchestration.checked import asked
from tests.orchestration.run_requests import run_request
from wal3_core import CursorStore, DelayQueue, LogPosition, UnavailableError, destroy
from wal3_core.runtime import US_PER_S
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.delay_queues import observe_queues
from wal3_orchestration.defs.garbage_collection.sensors import request_deletion
from wal3_orchestration.framework import triggers
from wal3_orchestration.framework.scope import LOGS_NAME, QUEUES_NAME, StoreScope
from wal3_orchestration.framework.triggers import (
    LOGS_AT_A_TIME,
    LOGS_PER_TICK_MAX,
    LogSensor,
    SensorCursor,
    TickBudget,
)
from wal3_orchestration.resources import CollectionResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run, Write
    from conftest import Tick as Discover

LOGS = [f"log-{number:05}" for number in range(3 * LOGS_PER_TICK_MAX)]
WAIT_S_MAX = 30.0
DAY_S = 24 * 60 * 60
SCOPE = StoreScope()


class Going:
    """Ticks of one sensor that go over all logs, each behind the one before it unless that failed."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self.cursor = SensorCursor()
        self.silent: set[str] = set()
        self.read: list[str] = []

    def tick(self) -> list[str]:
        """Return which logs a tick has looked at."""
        self.read = []
        with build_sensor_context(self._instance) as context:
            self.cursor = TickBudget(SCOPE, context, "a", self.cursor).go_over(self.cursor, LOGS, self._look)
        return self.read

    def fail(self) -> list[str]:
        """Return which logs a tick has looked at that the store's silence ended."""
        with pytest.raises(UnavailableError):
            self.tick()
        return self.read

    def _look(self, some: list[str]) -> None:
        self.read += some
        if self.silent & set(some):
            message = "no answer"
            raise UnavailableError(message)


@pytest.fixture
def going(instance: DagsterInstance) -> Going:
    return Going(instance)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each store counts as one of many logs."""
    monkeypatch.setattr(triggers, "QUICK_LOGS_MAX", 0)
    monkeypatch.setattr(triggers, "PERIOD_S_PER_LOG", DAY_S)


def test_ticks_go_over_all_logs_once_and_then_rest(going: Going) -> None:
    slices = [going.tick() for _ in range(3)]

    assert [log for some in slices for log in some] == LOGS
    assert {len(some) for some in slices} == {LOGS_PER_TICK_MAX}
    assert going.cursor.rests()
    assert len(going.cursor.to_cursor()) < 150


def test_tick_that_is_out_of_time_ends_behind_the_last_log_done(going: Going, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triggers, "TICK_S", -1.0)

    assert going.tick() == LOGS[:LOGS_AT_A_TIME]
    assert going.tick() == LOGS[LOGS_AT_A_TIME : 2 * LOGS_AT_A_TIME]
    assert not going.cursor.rests()


def test_silence_ends_a_tick_behind_what_was_done_and_fails_one_that_did_nothing(going: Going) -> None:
    going.silent = {LOGS[LOGS_AT_A_TIME]}

    going.tick()
    assert going.cursor.after == LOGS[LOGS_AT_A_TIME - 1]
    assert going.fail() == LOGS[LOGS_AT_A_TIME : 2 * LOGS_AT_A_TIME]


def test_a_tick_that_failed_halves_the_next_one_until_one_ends_well(going: Going) -> None:
    going.silent = {LOGS[0]}
    counts = [len(going.fail()) for _ in range(7)]
    going.silent = set()

    assert counts == [LOGS_AT_A_TIME] * 4 + [LOGS_AT_A_TIME - 3, 62, 31]
    assert len(going.tick()) == LOGS_PER_TICK_MAX >> 7
    assert len(going.tick()) == LOGS_PER_TICK_MAX


def test_a_log_at_which_no_tick_ends_is_left_to_the_next_round(going: Going) -> None:
    going.silent = {LOGS[0]}
    counts = [len(going.fail()) for _ in range(LOGS_PER_TICK_MAX.bit_length() + 1)]

    assert counts[-2:] == [1, 1]
    assert going.tick() == [LOGS[1]]
    assert len(going.tick()) == LOGS_PER_TICK_MAX


def test_no_evaluation_begins_beside_one_that_has_not_ended(instance: DagsterInstance) -> None:
    begun, ends = threading.Event(), threading.Event()

    def evaluate(_scope: StoreScope, _context: SensorEvaluationContext) -> SensorResult:
        begun.set()
        assert ends.wait(WAIT_S_MAX)
        return SensorResult(skip_reason="done")

    made = LogSensor(name="slow", tick=evaluate, jobs=(), period_s=30, description="", uses=()).build(SCOPE)
    said: list[Any] = []

    def call() -> None:
        with build_sensor_context(instance) as context:
            said.append(made(context))

    first = threading.Thread(target=call)
    first.start()
    assert begun.wait(WAIT_S_MAX)
    call()
    ends.set()
    first.join(WAIT_S_MAX)
    call()

    assert [str(each.skip_reason) for each in said] == [
        str(SkipReason("the evaluation before this one has not ended yet")),
        str(SkipReason("done")),
        str(SkipReason("done")),
    ]


# ---------------------------------------------------------------------- what is known is not polled


def _later(before: SensorResult, seconds: float, *labels: str) -> SensorResult:
    """Return what a tick said, as if it had been said some seconds ago."""
    cursor = json.loads(before.cursor or "{}")
    return SensorResult(
        cursor=json.dumps(cursor | {label: cursor[label] - int(seconds * US_PER_S) for label in labels})
    )


@pytest.mark.slow
@pytest.mark.usefixtures("large")
def test_new_logs_of_a_large_store_are_found_within_an_hour_and_changes_within_a_day(
    look: Discover, tick: Discover, write: Write, instance: DagsterInstance
) -> None:
    for log in ("alpha", "gamma"):
        write(log)
    before = look()
    for log in ("alpha", "beta"):
        write(log)

    hour = look(_later(before, 3_601, "begun_us", "read_us"))
    day = tick(_later(hour, DAY_S, "begun_us", "read_us"))

    assert "not due yet" in str(tick(before).skip_reason)
    assert (asked(hour), asked(day)) == ([["beta"]], [["alpha"]])
    assert sorted(instance.get_dynamic_partitions(LOGS_NAME)) == ["alpha", "beta", "gamma"]


@pytest.mark.slow
@pytest.mark.usefixtures("large")
def test_log_that_is_gone_loses_its_partition_at_the_end_of_the_round(
    look: Discover, write: Write, fleet: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [f"log-{number}" for number in range(6)]
    for log in logs:
        write(log)
    before = look()
    monkeypatch.setattr(triggers, "LOGS_PER_TICK_MAX", 2)
    destroy(fleet, "log-1")

    first = look(_later(before, DAY_S, "begun_us", "read_us"))
    known = instance.get_dynamic_partitions(LOGS_NAME)
    last = look(look(look(first)))

    assert known == logs
    assert instance.get_dynamic_partitions(LOGS_NAME) == [log for log in logs if log != "log-1"]
    assert "not due yet" in str(look(last).skip_reason)


@pytest.mark.slow
@pytest.mark.usefixtures("large")
def test_queues_of_a_large_store_are_known_from_discovery_and_no_other_log_is_read(
    tick: Discover, write: Write, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    write("alpha")
    DelayQueue.create(fleet, "jobs")
    tick()
    resources = {"store": StoreResource.from_environment(), "collection": CollectionResource()}

    with build_sensor_context(instance, resources=resources) as context:
        result = observe_queues(SCOPE, context)

    assert instance.get_dynamic_partitions(QUEUES_NAME) == ["jobs"]
    assert {event.partition for event in result.asset_events} == {"jobs", None}
    assert asked(result) == [["jobs"]]
    assert json.loads(result.cursor or "")["num_logs"] == 1


@pytest.mark.slow
@pytest.mark.usefixtures("large")
def test_garbage_that_a_run_made_is_deleted_an_interval_later_without_a_round(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tick(before: SensorResult) -> SensorResult:
        resources = {"store": StoreResource.from_environment(), "collection": CollectionResource()}
        with build_sensor_context(instance, cursor=before.cursor, resources=resources) as context:
            return request_deletion(SCOPE, context)

    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "3600")
    begun = tick(SensorResult())
    CursorStore(fleet, "alpha").create("reader", LogPosition(4, 0))
    assert run("collection_job", run_request(known[0], known[0])).success
    early = tick(begun)
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")

    due = tick(early)
    again = tick(due)
    (request,) = due.run_requests or ()
    assert run("", request).success
    cursor = json.loads(again.cursor or "")
    waiting = {log: [number, 0.0] for log, (number, _) in cursor["waiting"].items()}
    done = tick(SensorResult(cursor=json.dumps(cursor | {"waiting": waiting})))

    assert [asked(each) for each in (begun, early, due, again, done)] == [[], [], [["alpha"]], [], []]
    assert list(waiting) == ["alpha"]
    assert json.loads(done.cursor or "")["waiting"] == {}
