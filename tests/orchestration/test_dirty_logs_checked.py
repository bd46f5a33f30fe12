"""What is wrong with dirty logs is seen by a run, whose checks name it, and hides no other dirty log."""

from __future__ import annotations

import shutil
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, Failure

from tests.orchestration.checked import check_of, found_bad
from tests.orchestration.conftest import SILENT
from tests.orchestration.dirty import AT_ONCE, Sensor, waiting
from wal3_core import CursorStore, Fleet, FleetOptions, LogAt, LogPosition, LogReader, LogWriter, copy, destroy
from wal3_core.fleet.dirty.rollup import RollUp
from wal3_core.fleet.identity import store_identity
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.dirty_logs.assets import JOB, known_over_limit
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope

pytestmark = pytest.mark.slow


def append(store: ObjectStore, server: str, *logs: str) -> None:
    with Fleet.open(store, server=server, options=FleetOptions(creates=True)) as opened:
        for log in logs:
            opened.append(log, b"a record")


@pytest.fixture
def sensor(instance: DagsterInstance) -> Sensor:
    return Sensor(instance)


def _root(store: ObjectStore) -> Path:
    return Path(urlsplit(store.url).path)


def test_damaged_dirty_log_is_reported_and_the_others_are_rolled_up(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "bad", "alpha")
    append(fleet, "good", "beta")
    kept = next((_root(fleet) / "dirty/bad").rglob("*.parquet"))
    data = kept.read_bytes()
    kept.write_bytes(data[:-9])

    ticks = [sensor.tick() for _ in range(3)]
    collected = sensor.collected()
    kept.write_bytes(data)
    ticks += [sensor.tick() for _ in range(3)]

    judged = [each for results in ticks for each in results if each.dagster_run.job_name == "rollup_job"]
    assert [set(found_bad(each)) for each in judged] == [{("dirty/bad", "dirty_logs_readable")}, set()]
    failed = check_of(judged[0], "dirty_logs_readable")
    assert "wal3 --store" in str(failed.metadata["next_command"].value)
    assert str(failed.metadata["next_command"].value).endswith(" dirty show bad")
    assert "scrub dirty/bad" in str(failed.metadata["remedy"].value)
    assert "alpha" not in collected
    assert "beta" in collected
    assert {"alpha", "beta"} <= set(sensor.collected())
    assert waiting(fleet) == {}


def test_dirty_log_that_is_gone_stops_no_round(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "one", "alpha")
    append(fleet, "two", "beta")
    sensor.accept(sensor.evaluate())

    destroy(fleet, "dirty/one", also_pinned=True)
    sensor.tick()
    sensor.tick()

    assert waiting(fleet) == {}
    assert {"alpha", "beta"} <= set(sensor.collected())


def test_markers_without_a_log_fail_a_check_and_are_dropped(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "server", "alpha")
    for _ in range(3):
        sensor.tick()
    append(fleet, "server", "beta")
    destroy(fleet, "beta")

    ticks = [sensor.tick() for _ in range(3)]

    judged = [each for results in ticks for each in results if each.dagster_run.job_name == "rollup_job"]
    assert [set(found_bad(each)) for each in judged] == [{("dirty/server", "marked_logs_found")}, set()]
    assert "beta: no log of this name" in str(check_of(judged[0], "marked_logs_found").description)
    assert waiting(fleet) == {}


def test_backlog_and_an_old_mark_fail_their_checks(sensor: Sensor, fleet: ObjectStore) -> None:
    sensor.settings = {**AT_ONCE, "waiting_max": 1, "late_s_max": 0.0}
    append(fleet, "server", "alpha", "beta")

    (judged,) = [each for each in sensor.tick() if each.dagster_run.job_name == "rollup_job"]

    assert set(found_bad(judged)) == {("dirty/server", "few_markers_wait"), ("dirty/server", "rolled_up_in_time")}
    assert "expected at most 1 markers to wait, found 2" in str(check_of(judged, "few_markers_wait").description)
    # What the run selected is maintained all the same.
    sensor.tick()
    assert {"alpha", "beta"} <= set(sensor.collected())


def test_log_over_its_limit_fails_a_check_until_its_consumer_has_caught_up(sensor: Sensor, fleet: ObjectStore) -> None:
    sensor.settings = {**AT_ONCE, "unprocessed_max": 1_000}
    append(fleet, "server", "alpha", "beta")
    first = [sensor.tick() for _ in range(3)]
    with Fleet.open(fleet, server="server") as opened:
        opened.append_many("alpha", [b"a record"] * 1_500)
    CursorStore(fleet, "alpha").create("slow", LogPosition(1, 0))
    # Its maintenance is asked for: from the second tick on it is marked no more.
    over = [sensor.tick() for _ in range(4)]
    assert waiting(fleet) == {}
    witness = CursorStore(fleet, "alpha").load("slow")
    assert witness is not None
    CursorStore(fleet, "alpha").save("slow", LogPosition(1_000, 0), witness)
    after = [sensor.tick() for _ in range(2)]

    judged = [
        [set(found_bad(each)) for results in ticks for each in results if each.dagster_run.job_name == "rollup_job"]
        for ticks in (first, over, after)
    ]
    assert judged == [[set()], [{("alpha", "consumers_keep_up")}], [set()]]
    failed = check_of(next(each for each in over[0] if each.dagster_run.job_name == "rollup_job"), "consumers_keep_up")
    assert "the consumer slow is farthest behind" in str(failed.description)


def test_log_over_its_limit_that_cannot_be_read_for_a_while_is_not_forgotten(
    sensor: Sensor, fleet: ObjectStore
) -> None:
    sensor.settings = {**AT_ONCE, "unprocessed_max": 1_000}
    with Fleet.open(fleet, server="server", options=FleetOptions(creates=True)) as opened:
        opened.append_many("alpha", [b"a record"] * 1_500)
    CursorStore(fleet, "alpha").create("slow", LogPosition(1, 0))
    ticks = [[sensor.tick() for _ in range(4)]]
    assert waiting(fleet) == {}
    cursor = next((_root(fleet) / "alpha").rglob("cursor/slow*"))
    data = cursor.read_bytes()
    cursor.write_bytes(data[:-9])
    # A run judges it once more while it cannot be read: its fleet refuses appends, so that nothing marks it again.
    append(fleet, "server", "beta")
    damaged = [sensor.tick() for _ in range(4)]
    job = defs().resolve_job_def("rollup_job")
    config = {**SILENT, "resources": {"rollup": {"config": sensor.settings}}}
    during = job.execute_in_process(instance=sensor.instance, run_config=config)
    cursor.write_bytes(data)
    repaired = [sensor.tick() for _ in range(4)]
    after = job.execute_in_process(instance=sensor.instance, run_config=config)

    ticks += [damaged, repaired]
    judged = [each for some in ticks for results in some for each in results if each.dagster_run.job_name == JOB.name]
    assert judged
    bad = ("alpha", "consumers_keep_up")
    assert all(bad in found_bad(each) for each in [*judged, during, after])
    assert "cannot be measured" in str(check_of(during, "consumers_keep_up").description)
    assert known_over_limit(StoreScope(), sensor.instance) == ["alpha"]
    destroy(fleet, "alpha")
    gone = job.execute_in_process(instance=sensor.instance, run_config=config)
    assert bad not in found_bad(gone)
    assert known_over_limit(StoreScope(), sensor.instance) == []


def test_unreadable_log_stays_marked_and_the_others_are_maintained(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "server", "alpha", "beta")
    manifest = next((_root(fleet) / "alpha/manifest").glob("MANIFEST*"))
    manifest.write_bytes(manifest.read_bytes()[:-9])

    for _ in range(5):
        sensor.tick()

    assert list(waiting(fleet)) == ["alpha"]
    assert sensor.collected().count("beta") == 1
    assert "alpha" not in sensor.collected()


def test_another_store_is_refused_and_nothing_is_changed_there(
    sensor: Sensor, fleet: ObjectStore, instance: DagsterInstance
) -> None:
    append(fleet, "server", "alpha")
    sensor.tick()
    assert store_identity(fleet) is not None
    root = _root(fleet)
    shutil.copytree(root / "dirty", root.with_name("moved") / "dirty")
    shutil.rmtree(root)
    # As every store in a directory has.
    (root / ".wal3" / "locks").mkdir(parents=True)
    shutil.move(root.with_name("moved") / "dirty", root / "dirty")
    before = RollUp(fleet, "dirty/server").marker_range()

    with pytest.raises(Failure, match="looks after, found no identity"):
        sensor.evaluate()

    assert RollUp(fleet, "dirty/server").marker_range() == before
    assert list(instance.get_dynamic_partitions(LOGS_NAME)) == ["alpha"]


def test_dirty_logs_of_an_exercise_are_not_seen(sensor: Sensor, fleet: ObjectStore) -> None:
    append(fleet, "server", "alpha")
    run = "exercise/run-20260101T120000Z-a1b2c3"
    copy(LogAt(fleet, "dirty/server"), LogAt(fleet, f"{run}/dirty/p00"))
    with LogWriter.open_or_create(fleet, f"{run}/log-0000") as writer:
        writer.append(b"x")

    for _ in range(3):
        sensor.tick()

    assert {each.partition(": ")[2] for each in sensor.maintained} <= {"alpha", "dirty/server"}
    assert LogReader.open(fleet, f"{run}/dirty/p00").manifest().num_records == 1
