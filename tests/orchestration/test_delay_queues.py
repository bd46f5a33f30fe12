"""Delay queues are observed by the sensor and judged by runs; neither takes a queue from its broker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import pytest
from dagster import AssetKey, AssetObservation, DagsterInstance, SensorResult, build_sensor_context

from tests.orchestration.checked import asked, check_of, found_bad, keys, recorded_by
from tests.orchestration.run_requests import run_request
from tests.orchestration.test_key_compaction import metadata_of
from tests.orchestration.test_key_compaction_chosen import tick
from tests.stores import life_store
from wal3_core import CursorStore, DelayQueue, LogPosition, LogReader, QueueStats, open_store
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.delay_queues import JOB, QueueProbe, observe_queues, oldest_due_within
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.resources import CollectionResource, StoreResource

if TYPE_CHECKING:
    from conftest import Run, Write


SCOPE = StoreScope()
QUEUE = "queues/mail"
EMPTY = QueueStats(
    pending=0,
    due=0,
    scheduled=0,
    leased=0,
    dead=0,
    bytes=0,
    oldest_due_us=None,
    oldest_enqueued_us=None,
    next_deadline_us=None,
    last_id=0,
    waiting=0,
)


def configured(**limits: float) -> dict[str, Any]:
    return {"resources": {"collection": {"config": limits}}}


@contextmanager
def queue_of(store: ObjectStore, log: str = QUEUE) -> Iterator[DelayQueue]:
    """Open a queue with two due items, one scheduled, one leased and one dead."""
    with DelayQueue.open_or_create(store, log) as queue:
        for _ in range(4):
            queue.enqueue(b"x" * 10)
        queue.enqueue(b"later", delay_s=3600)
        buried, _leased = queue.dequeue(2)
        queue.bury(buried.id, buried.token)
        yield queue


@dataclass
class Sensor:
    """The sensor of one instance; each tick looks at all queues."""

    instance: DagsterInstance
    cursor: str | None = None

    def tick(self, **limits: float) -> SensorResult:
        resources = {
            "store": StoreResource.from_environment(),
            "collection": CollectionResource(**{"queue_period_s": 0.0, **limits}),
        }
        with build_sensor_context(self.instance, cursor=self.cursor, resources=resources) as context:
            result = observe_queues(SCOPE, context)
        self.cursor = result.cursor
        return result


@pytest.fixture(autouse=True)
def one_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see the end of the time in which a queue is judged once."""
    for name in ("JUDGED_S", "FAILED_S", "LARGE_S"):
        monkeypatch.setattr(f"wal3_orchestration.defs.delay_queues.{name}", 10**9)


@pytest.fixture
def sensor(instance: DagsterInstance) -> Sensor:
    return Sensor(instance)


def observed(result: SensorResult) -> dict[str, dict[str, Any]]:
    """Return what a tick observed, by partition; the empty name is the whole."""
    events = [event for event in result.asset_events if isinstance(event, AssetObservation)]
    assert len(events) == len(result.asset_events)
    return {event.partition or "": {label: value.value for label, value in event.metadata.items()} for event in events}


@pytest.mark.slow
def test_recorded_numbers_are_the_queues_on_every_store_and_its_broker_goes_on(
    store_url: str, instance: DagsterInstance, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WAL3_STORE", store_url)
    instance.add_dynamic_partitions(LOGS_NAME, [QUEUE])
    with queue_of(open_store(store_url)) as queue:
        result = run("delay_queue_job", run_request(QUEUE, QUEUE))
        stats = queue.stats()
        queue.enqueue(b"after the look")

    assert result.success
    found = metadata_of(result, "delay_queue")[QUEUE]
    assert {label: found[label] for label in ("pending", "due", "scheduled", "leased", "dead", "bytes", "last_id")} == {
        "pending": 3,
        "due": 2,
        "scheduled": 1,
        "leased": 1,
        "dead": 1,
        "bytes": 45,
        "last_id": 5,
    }
    assert stats.oldest_enqueued_us is not None
    assert stats.next_deadline_us is not None
    assert found["oldest_enqueued"] == stats.oldest_enqueued_us / 1e6
    assert found["next_deadline"] == stats.next_deadline_us / 1e6
    assert found["oldest due (s)"] >= 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "limits", "problem"),
    [
        ("oldest_due_within", {"queue_due_s_max": 0.0}, "handed out within 0 s of its deadline, found one that"),
        ("dead_letters_below", {}, "expected at most 0 dead letters, found 1"),
        ("depth_below", {"queue_pending_max": 2}, "expected at most 2 pending items, found 3"),
    ],
)
def test_check_warns_beyond_its_limit_and_says_what_to_do(
    fleet: ObjectStore, instance: DagsterInstance, run: Run, check: str, limits: dict[str, float], problem: str
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, [QUEUE])
    with queue_of(fleet):
        passed = run("delay_queue_job", run_request(QUEUE, QUEUE), configured(queue_dead_max=1))
        failed = run("delay_queue_job", run_request(QUEUE, QUEUE), configured(**{"queue_dead_max": 1, **limits}))
        if not limits:
            failed = run("delay_queue_job", run_request(QUEUE, QUEUE))

    assert (passed.success, failed.success) == (True, True)
    assert [each.passed for each in passed.get_asset_check_evaluations()] == [True] * 3
    assert list(found_bad(failed)) == [(QUEUE, check)]
    assert problem in found_bad(failed)[QUEUE, check]
    found = check_of(failed, check)
    assert found.severity.value == "WARN"
    assert "docs/operations.md#" in str(found.metadata["runbook"].value)
    assert found.metadata["remedy"].records
    assert (found.metadata["pending"].value, found.metadata["dead"].value) == ("3", "1")


@pytest.mark.slow
def test_log_that_is_no_queue_is_left_alone_whatever_its_cursors_are_called(
    fleet: ObjectStore, instance: DagsterInstance, write: Write, run: Run, sensor: Sensor
) -> None:
    for log in ("foreign", "plain"):
        write(log)
    CursorStore(fleet, "foreign").create("queue", LogPosition(2, 0))
    instance.add_dynamic_partitions(LOGS_NAME, ["foreign", "plain"])

    result = run("delay_queue_job", run_request("foreign", "plain"))

    assert result.success
    reasons = {log: found["reason"] for log, found in metadata_of(result, "delay_queue").items()}
    assert "expected a queue, found a log of other records" in reasons["foreign"]
    assert reasons["plain"] == "expected a queue, found a log without the cursor `queue`"
    assert found_bad(result) == {}
    looked = sensor.tick()
    assert (asked(looked), observed(looked)) == ([], {})


@pytest.mark.slow
def test_damaged_queue_fails_the_sweep_and_hides_no_other(
    fleet: ObjectStore, instance: DagsterInstance, run: Run, sensor: Sensor
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, ["bad", "good"])
    for log in ("bad", "good"):
        with queue_of(fleet, log):
            pass
    root = Path(unquote(urlsplit(life_store(fleet, "bad").url).path))
    max((file for file in root.rglob("*.parquet") if "Bucket" in str(file)), key=lambda file: file.name).unlink()

    first = sensor.tick()
    result = run("", JOB.request_sweep(SCOPE))

    assert asked(first) == [["bad"], ["good"]]
    assert set(observed(first)) == {"good", ""}
    assert not result.success
    recorded = recorded_by(instance, result, "delay_queue")
    assert recorded["good"]["dead"] == 1
    assert recorded[""]["not done"] == 1
    assert found_bad(result) == {("good", "dead_letters_below"): "expected at most 0 dead letters, found 1"}
    assert asked(sensor.tick()) == []


@pytest.mark.slow
def test_tick_observes_each_queue_and_asks_for_a_run_only_when_a_check_changes(
    fleet: ObjectStore, instance: DagsterInstance, write: Write, run: Run, sensor: Sensor
) -> None:
    write("plain")
    instance.add_dynamic_partitions(LOGS_NAME, ["plain", QUEUE])
    with queue_of(fleet) as queue:
        first, again = sensor.tick(), sensor.tick()
        assert asked(first) == [[QUEUE]]
        assert keys(first) == keys(again)
        assert run("", (first.run_requests or ())[0]).success

        queue.enqueue(b"one more")
        second = sensor.tick()
        assert asked(second) == []
        assert observed(second)[QUEUE][f"{QUEUE}: pending"] == 4
        assert observed(second)[""]["total dead"] == observed(second)[""]["queues"] == 1

        queue.purge(pending=False, dead=True)
        third = sensor.tick()
        assert asked(third) == [[QUEUE]]
        passed = run("", (third.run_requests or ())[0])
        assert check_of(passed, "dead_letters_below").passed
        (item,) = queue.dequeue()
        queue.bury(item.id, item.token)
        assert asked(sensor.tick()) == [[QUEUE]]

    recorded = instance.fetch_materializations(AssetKey("delay_queue"), limit=10).records
    assert [each.partition_key for each in recorded] == [QUEUE] * 2


@pytest.mark.slow
def test_queue_is_judged_again_once_a_day_and_every_six_hours_while_a_check_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    hours_us = [hour * 3600 * 10**6 for hour in range(48)]
    states = [
        {QueueProbe(log="a", now_us=now_us, stats=stats).state(CollectionResource()) for now_us in hours_us}
        for stats in (EMPTY, replace(EMPTY, dead=1))
    ]

    assert [len(found) for found in states] == [2, 8]
    assert states[0].isdisjoint(states[1])


def test_item_whose_lease_ended_is_due_also_when_no_broker_runs() -> None:
    now_us = 10**16
    stats = replace(EMPTY, leased=2, last_id=2, ended=1, oldest_ended_us=now_us - 4000 * 10**6)
    probe = QueueProbe(log="a", now_us=now_us, stats=stats)

    numbers = probe.numbers()

    assert [numbers[label] for label in ("pending", "due", "leased", "oldest due (s)")] == [1, 1, 1, 4000.0]
    assert "has been due for 4,000 s, of 1 due items" in str(oldest_due_within.judge(probe, CollectionResource()))


@pytest.mark.slow
def test_next_look_waits_for_its_time(fleet: ObjectStore, instance: DagsterInstance, sensor: Sensor) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, [QUEUE])
    with queue_of(fleet):
        assert observed(sensor.tick(queue_period_s=900))
        rested = sensor.tick(queue_period_s=900)

    assert rested.skip_reason is not None
    assert observed(rested) == {}


@pytest.mark.slow
def test_queue_that_is_too_large_for_a_tick_is_read_by_a_run_an_hour(
    fleet: ObjectStore, instance: DagsterInstance, run: Run, sensor: Sensor
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, [QUEUE])
    with queue_of(fleet):
        first = sensor.tick(queue_records_max=1)
        assert run("", (first.run_requests or ())[0]).success
        second = sensor.tick(queue_records_max=1)

    assert asked(first) == [[QUEUE]]
    assert keys(first) == keys(second)
    assert observed(first) == {}


@pytest.mark.slow
def test_tick_that_is_out_of_time_goes_on_with_the_next_one(
    fleet: ObjectStore, instance: DagsterInstance, sensor: Sensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal3_orchestration.framework.triggers.TICK_S", -1.0)
    names = [f"queues/{number}" for number in range(6)]
    for log in names:
        DelayQueue.create(fleet, log)
    instance.add_dynamic_partitions(LOGS_NAME, names)

    looks = [observed(sensor.tick()).keys() - {""} for _ in range(3)]

    assert looks == [set(names[:4]), set(names[4:]), set(names[:4])]


@pytest.mark.slow
def test_log_of_a_queue_whose_items_were_released_is_chosen_for_key_compaction(
    fleet: ObjectStore, instance: DagsterInstance, run: Run
) -> None:
    instance.add_dynamic_partitions(LOGS_NAME, [QUEUE])
    bodies = random.Random(0)
    values = [bodies.randbytes(20_000) for _ in range(40)]
    with DelayQueue.open_or_create(fleet, QUEUE) as queue:
        for value in values:
            queue.enqueue(value)
        queue.checkpoint()
        assert run("compaction_job", run_request(QUEUE, QUEUE)).success
        clean = LogReader.open(fleet, QUEUE).manifest().num_bytes
        assert asked(tick(instance)) == []

        queue.release_many([(item.id, item.token) for item in queue.dequeue(30)])
        queue.checkpoint()
        due = tick(instance)
        assert asked(due) == [[QUEUE]]
        result = run("", (due.run_requests or ())[0])

        assert result.success
        planned = metadata_of(result, "compaction_plan")[QUEUE]
        # Three quarters of the values are gone, and a few small records say so.
        assert planned["dirty (%)"] < 10
        assert planned["dirty records (%)"] >= 50
        assert planned["cause"] == f"{planned['dirty records (%)']} % of its records are dirty"
        assert metadata_of(result, "installed_manifest")[QUEUE]["verified"] is True
        assert LogReader.open(fleet, QUEUE).manifest().num_bytes < clean / 2
    with DelayQueue.open(fleet, QUEUE) as queue:
        assert [item.value for item in queue.dequeue(100)] == values[30:]
