"""The sensor on the dirty logs asks for the maintenance of those logs that have grown, once, and forgets none."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus

from tests.orchestration.checked import logs_of
from tests.orchestration.conftest import make_home
from tests.orchestration.dirty import AT_ONCE, Sensor, num_records, waiting
from wal3_core import Fleet, FleetOptions, LogWriter
from wal3_core.fleet.dirty.rollup import RollUp
from wal3_core.format.marker import Marker
from wal3_core.format.position import LogPosition
from wal3_core.spark.maintenance import PlannedRollUp, plan_rollups
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.dirty_logs import assets
from wal3_orchestration.defs.dirty_logs import sensors as sensor_module
from wal3_orchestration.defs.dirty_logs.assets import Round, RoundKind, Rounds
from wal3_orchestration.framework.assets import RUNS_OF_ONE_LOG_MAX
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from wal3_core.fleet.dirty.rollup_plan import RollUpOptions

pytestmark = pytest.mark.slow

SERVER = "server-1"
DIRTY = f"dirty/{SERVER}"


def append(store: ObjectStore, *logs: str, server: str = SERVER) -> None:
    """Append to logs as a server that marks them."""
    with Fleet.open(store, server=server, options=FleetOptions(creates=True)) as opened:
        for log in logs:
            opened.append_many(log, [b"a record", b"another"])


@pytest.fixture
def sensor(instance: DagsterInstance, fleet: ObjectStore) -> Sensor:
    """The sensor, after the run that judges the empty dirty logs was asked for; every marked log is due."""
    append(fleet)
    made = Sensor(instance)
    made.tick()
    return made


def test_marked_logs_alone_get_maintenance_and_are_forgotten_a_tick_later(
    sensor: Sensor, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    for log in ("quiet", "other"):
        with LogWriter.open_or_create(fleet, log) as writer:
            writer.append_many([b"not marked"])
    append(fleet, "alpha", "beta/one")

    sensor.tick()
    marked = waiting(fleet)
    sensor.tick()

    assert [each for each in sensor.maintained if DIRTY not in each] == [
        "maintenance_job: alpha",
        "maintenance_job: beta/one",
    ]
    assert marked == {"alpha": 3, "beta/one": 3}
    assert waiting(fleet) == {}
    # Only these: discovery finds the others.
    assert set(instance.get_dynamic_partitions(LOGS_NAME)) - {DIRTY} == {"alpha", "beta/one"}


def test_many_logs_share_a_run(sensor: Sensor, fleet: ObjectStore) -> None:
    logs = [f"log-{number:02}" for number in range(RUNS_OF_ONE_LOG_MAX + 2)]
    append(fleet, *logs)

    result = sensor.evaluate()

    assert [(request.job_name, logs_of(request)) for request in result.run_requests or ()] == [
        ("maintenance_sweep", logs)
    ]


def test_log_that_is_not_due_stays_marked(sensor: Sensor, fleet: ObjectStore) -> None:
    sensor.settings = {**AT_ONCE, "age_s_max": 3600.0}
    append(fleet, "alpha")

    for _ in range(3):
        sensor.tick()

    assert sensor.maintained == []
    assert waiting(fleet) == {"alpha": 3}


def test_log_that_grows_again_is_maintained_again(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "alpha")
    sensor.tick()
    append(fleet, "alpha")
    sensor.tick()
    sensor.tick()

    assert sensor.collected().count("alpha") == 2
    assert waiting(fleet) == {}


def test_repeated_evaluation_asks_for_the_same_runs_and_forgets_nothing(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "alpha")

    first = sensor.evaluate()
    append(fleet, "beta")
    second, third = sensor.evaluate(), sensor.evaluate()

    keys = [[request.run_key for request in each.run_requests or ()] for each in (first, second, third)]
    assert len(keys[0]) == 1
    assert keys[0] == keys[1] == keys[2]
    assert waiting(fleet) == {"alpha": 3, "beta": 3}


@pytest.mark.parametrize("stored", [False, True], ids=["not stored", "stored and not launched"])
def test_runs_that_were_never_started_are_asked_for_again(sensor: Sensor, fleet: ObjectStore, *, stored: bool) -> None:
    """As when the sensor is stopped while it asks: Dagster stores the cursor, and starts no further run.

    Regression: a launch that failed leaves a run that never starts, and its log was no longer marked.
    """
    append(fleet, "alpha", "beta")
    result = sensor.evaluate()
    (first, second) = result.run_requests or ()
    sensor.accept(result._replace(run_requests=[first]))
    if stored:
        sensor.store(second, DagsterRunStatus.NOT_STARTED)

    again = sensor.evaluate()

    # Under the same key: the daemon then launches a run that it stored.
    assert [request.run_key for request in again.run_requests or ()] == [second.run_key]
    assert waiting(fleet) == {"alpha": 3, "beta": 3}
    sensor.accept(again)
    sensor.tick()
    assert [log for log in sensor.collected() if log != DIRTY] == ["alpha", "beta"]
    assert waiting(fleet) == {}


class _Killed(BaseException):
    pass


def _kill_at(number: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Kill the tick before its numbered step, or after it; return how many there were."""
    steps = [0]

    def stepped(found: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: object, **kwargs: object) -> object:
            steps[0] += 1
            if steps[0] == number:
                raise _Killed
            outcome = found(*args, **kwargs)
            steps[0] += 1
            if steps[0] == number:
                raise _Killed
            return outcome

        return call

    for owner, name in (
        (sensor_module, "dirty_logs"),
        (sensor_module, "probe"),
        (sensor_module, "missing"),
        (RollUp, "read"),
        (RollUp, "finish"),
        (RollUp, "_append"),
        (Rounds, "save"),
        (Sensor, "start"),
        (Sensor, "accept"),
    ):
        monkeypatch.setattr(owner, name, stepped(getattr(owner, name)))
    return lambda: steps[0]


@pytest.mark.repeat
def test_tick_killed_at_any_step_loses_no_mark_and_starts_no_run_twice(
    fleet: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In memory: many ticks.
    with DagsterInstance.ephemeral() as instance:
        _kill_at_each_step(Sensor(instance, executes=False), fleet, monkeypatch)


def _kill_at_each_step(sensor: Sensor, fleet: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    number, steps = -1, 0
    while number < steps:
        number += 1
        log = f"log-{number:02}"
        append(fleet, log)
        with monkeypatch.context() as patch:
            count = _kill_at(number, patch)
            with contextlib.suppress(_Killed):
                for _ in range(3):
                    sensor.tick()
        assert log in waiting(fleet) or f"maintenance_job: {log}" in sensor.maintained, number
        steps = max(steps, count())
        for _ in range(3):
            sensor.tick()

        assert waiting(fleet) == {}, number
        assert [each for each in sensor.maintained if each.endswith(log)] == [f"maintenance_job: {log}"], number

    assert number > 20


def test_two_instances_on_one_store_lose_nothing(sensor: Sensor, fleet: ObjectStore, tmp_path: Path) -> None:
    with DagsterInstance.from_config(str(make_home(tmp_path / "other_home"))) as second:
        other = Sensor(second)
        other.tick()
        append(fleet, "alpha")
        both = sensor.evaluate(), other.evaluate()
        append(fleet, "beta")
        sensor.accept(both[0])
        sensor.tick()
        other.accept(both[1])
        for _ in range(3):
            other.tick()
            sensor.tick()

    assert waiting(fleet) == {}
    assert {"alpha", "beta"} <= {*sensor.collected(), *other.collected()}
    assert sensor.collected().count("alpha") == other.collected().count("alpha") == 1


def test_records_appended_after_the_runs_were_asked_for_stay_marked(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "alpha")
    sensor.tick()
    append(fleet, "alpha")
    sensor.settings = {**AT_ONCE, "age_s_max": 3600.0}

    sensor.tick()

    assert waiting(fleet) == {"alpha": 5}


def test_dirty_log_of_a_quiet_fleet_is_collected_and_left_alone(sensor: Sensor, fleet: ObjectStore) -> None:
    for number in range(6):
        append(fleet, "alpha", f"log-{number}")
    for _ in range(4):
        sensor.tick()
    before = len(sensor.maintained)

    for _ in range(3):
        sensor.tick()

    assert waiting(fleet) == {}
    assert num_records(fleet, DIRTY) <= 2
    assert len(sensor.maintained) == before


def test_failed_collection_of_a_quiet_dirty_log_is_repeated_a_day_later(
    sensor: Sensor, fleet: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each look asked for the run that had failed, which Dagster starts once, and recorded that again."""
    for number in range(4):
        append(fleet, f"log-{number}")
    with monkeypatch.context() as patch:
        patch.setattr(Sensor, "start", lambda self, request: self.store(request, DagsterRunStatus.FAILURE))
        for _ in range(4):
            sensor.tick()
    assert num_records(fleet, DIRTY) == 4

    idle = [sensor.evaluate() for _ in range(2)]
    monkeypatch.setattr(sensor_module, "AGAIN_S", sensor_module.AGAIN_S / 2)
    for _ in range(2):
        sensor.tick()

    assert [(each.run_requests, each.asset_events) for each in idle] == [([], [])] * 2
    assert num_records(fleet, DIRTY) <= 1


def test_what_is_in_an_unknown_form_is_ignored(sensor: Sensor, fleet: ObjectStore, instance: DagsterInstance) -> None:
    append(fleet, "alpha")
    rounds = Rounds(StoreScope(), instance)
    for kept in RoundKind:
        instance.daemon_cursor_storage.set_cursor_values({f"wal3/rollup//{kept}": '{"plans": [{}]}'})
    sensor.cursor = "[1]"

    sensor.tick()
    sensor.tick()

    assert rounds.load(RoundKind.ASKED) is None
    assert sensor.collected() == ["alpha"]
    assert waiting(fleet) == {}


def test_marked_log_s_maintenance_names_the_roll_up(
    sensor: Sensor, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    append(fleet, "alpha")
    sensor.tick()
    sensor.tick()

    (rolled,) = instance.fetch_materializations(AssetKey("rollup"), limit=1).records
    (compacted,) = instance.fetch_materializations(AssetKey("repacked_snapshots"), limit=1).records
    (ended,) = instance.fetch_observations(AssetKey("rollup"), limit=1).records
    event, own = rolled.asset_materialization, compacted.asset_materialization
    assert event is not None
    assert own is not None
    assert compacted.partition_key == "alpha"
    assert str(event.description).endswith(f": {DIRTY} to 2")
    assert own.metadata["why"].value == event.description
    assert event.metadata["selected"].value == 1
    assert "| alpha | dirty/server-1 | 2 |" in str(event.metadata["selected logs"].value)
    assert ended.asset_observation is not None
    assert "advanced" in str(ended.asset_observation.metadata["finished"].value)


def _mark(store: ObjectStore, markers: Iterable[Marker]) -> None:
    with LogWriter.open_or_create(store, DIRTY) as writer:
        writer.append_many([marker.to_message() for marker in markers])


@pytest.mark.parametrize(
    "settings", [{}, pytest.param({"spark_markers_min": 1}, marks=(pytest.mark.spark, pytest.mark.repeat))]
)
def test_more_markers_than_a_tick_reads_are_rolled_up_by_runs(
    sensor: Sensor, fleet: ObjectStore, settings: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    on_spark: list[int] = []

    def planned(
        spark: SparkSession, store_url: str, names: Sequence[str], options: RollUpOptions
    ) -> Sequence[PlannedRollUp]:
        found = plan_rollups(spark, store_url, names, options)
        on_spark.append(len(found))
        return found

    monkeypatch.setattr(assets, "plan_rollups", planned)
    sensor.settings = {**AT_ONCE, "period_s": 3600.0, "tick_markers_max": 2, "run_markers_max": 5, **settings}
    sensor.cursor = None
    append(fleet, "alpha")
    gone = [
        Marker(log="gone", life="00000000", start=n, limit=LogPosition(n + 1, 1), num_records=1, first_us=1)
        for n in range(1, 10)
    ]
    _mark(fleet, gone)

    ticks = [sensor.tick() for _ in range(8)]

    asked = [each for done in ticks for each in done if each.dagster_run.job_name == "rollup_job"]
    assert len(asked) >= 2
    assert all(each.success for each in asked)
    assert bool(on_spark) == bool(settings)
    assert sensor.collected()[:1] == ["alpha"]
    assert waiting(fleet) == {}


def test_run_keeps_no_more_plans_than_a_tick_can_load_and_the_others_come_next(
    sensor: Sensor, fleet: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the plans of many dirty logs took a tick longer to load than Dagster lets it run, each time."""
    monkeypatch.setattr(assets, "PLANNED_LOGS_MAX", 3)
    sensor.settings = {**AT_ONCE, "period_s": 3600.0, "tick_markers_max": 1}
    sensor.cursor = None
    logs = ["alpha", "beta", "gamma", "delta"]
    for server, some in ((SERVER, logs[:2]), ("server-2", logs[2:])):
        append(fleet, *some, server=server)
    kept: list[int] = []

    def save(rounds: Rounds, which: RoundKind, found: Round | None, _save: Callable[..., None] = Rounds.save) -> None:
        if found is not None:
            kept.append(sum(len(plan.logs) for plan in found.plans))
        _save(rounds, which, found)

    monkeypatch.setattr(Rounds, "save", save)
    for _ in range(8):
        sensor.tick()

    assert max(kept) <= 3
    assert set(logs) <= set(sensor.collected())
    assert waiting(fleet) == {}


def test_dirty_log_is_collected_by_itself_only_when_its_servers_are_quiet(sensor: Sensor, fleet: ObjectStore) -> None:
    sensor.settings = {**AT_ONCE, "quiet_s": 3600.0}
    for number in range(4):
        append(fleet, f"log-{number}")
    for _ in range(3):
        sensor.tick()
    held, before = num_records(fleet, DIRTY), sensor.collected()

    sensor.settings = {**AT_ONCE, "quiet_s": 0.0}
    for _ in range(2):
        sensor.tick()

    assert held == 4
    assert DIRTY not in before
    assert sensor.collected() == [*before, DIRTY]
    assert num_records(fleet, DIRTY) <= 1


@pytest.mark.parametrize(("hours", "wrong", "judged"), [(5, True, 0), (7, True, 1), (7, False, 0), (25, False, 1)])
def test_dirty_logs_are_judged_daily_and_more_often_while_something_is_wrong(
    sensor: Sensor, fleet: ObjectStore, *, hours: int, wrong: bool, judged: int
) -> None:
    # A mark that waits is too many.
    sensor.settings = {**AT_ONCE, "age_s_max": 3600.0, "waiting_max": 0 if wrong else 9}
    append(fleet, "alpha")
    for _ in range(2):
        sensor.tick()
    place = json.loads(str(sensor.cursor))

    sensor.cursor = json.dumps({**place, "reported_us": place["reported_us"] - hours * 3600 * 1_000_000})
    asked = sensor.evaluate().run_requests or ()

    assert bool(place["problems"]) == wrong
    assert [each.job_name for each in asked] == ["rollup_job"] * judged
