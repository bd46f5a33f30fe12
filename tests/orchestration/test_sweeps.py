"""A sweep goes over many logs and records only what changed or matters, and the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, RunRequest

from tests.orchestration.checked import asked, check_of, found_bad, keys, logs_of, recorded_by
from tests.orchestration.run_requests import run_request
from tests.stores import age_out, life_store
from wal3_core import CursorStore, LogPosition, LogReader, destroy
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.discovery import JOB as LOOK
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, DELETION, PLANNING
from wal3_orchestration.defs.maintenance import request_maintenance
from wal3_orchestration.defs.verification import JOB as VERIFY
from wal3_orchestration.framework import triggers
from wal3_orchestration.framework.assets import LOGS_PER_RUN_MAX, LogJob
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.framework.triggers import PERIOD_S_MAX, QUICK_LOGS_MAX, SensorCursor

if TYPE_CHECKING:
    from conftest import Run, Tick, Write


SCOPE = StoreScope()
ALL = {job: job.request_sweep(SCOPE) for job in (LOOK, VERIFY, PLANNING, COLLECTION, DELETION)}


def _claim(store: ObjectStore, *logs: str, offset: int = 4) -> None:
    for log in logs:
        CursorStore(store, log).create("reader", LogPosition(offset, 0))


def _first_offset(store: ObjectStore, log: str) -> int:
    return LogReader.open(store, log).manifest().first.position.offset


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "asset"),
    [(LOOK, "manifest"), (VERIFY, "verification"), (PLANNING, "garbage_plan")],
    ids=["manifest", "verification", "garbage_plan"],
)
def test_sweep_records_only_the_logs_that_changed_and_the_whole(
    known: list[str],
    run: Run,
    instance: DagsterInstance,
    write: Write,
    job: LogJob,
    asset: str,
) -> None:
    first = run("", ALL[job])
    again = run("", ALL[job])
    write("beta/one")
    changed = run("", ALL[job])

    assert [set(recorded_by(instance, each, asset)) for each in (first, again)] == [{*known, ""}, {""}]
    assert {event.partition for event in again.get_asset_observation_events()} == set()
    if asset != "garbage_plan":
        assert set(recorded_by(instance, changed, asset)) == {"beta/one", ""}
        assert recorded_by(instance, changed, asset)[""]["total records"] == 6 + 6 + 9
    whole = recorded_by(instance, again, asset)[""]
    assert (whole["logs"], whole["recorded"], whole["not done"]) == (3, 0, 0)


@pytest.mark.slow
def test_log_that_was_verified_by_itself_is_not_recorded_again_by_a_sweep(
    known: list[str], run: Run, instance: DagsterInstance
) -> None:
    run("verification_job", run_request("alpha", "alpha"))

    assert set(recorded_by(instance, run("", ALL[VERIFY]), "verification")) == {"beta/one", "gamma", ""}
    assert known


@pytest.mark.slow
def test_run_of_chosen_logs_records_each_of_them_also_if_unchanged(known: list[str], run: Run) -> None:
    whole = run_request(known[0], known[-1])

    results = [run("manifest_job", whole) for _ in range(2)]

    assert [{event.partition for event in each.get_asset_materialization_events()} for each in results] == [
        set(known)
    ] * 2


@pytest.mark.slow
def test_sweep_that_finds_damage_fails_and_names_the_log_and_records_the_others(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    store = life_store(fleet, "gamma")
    path = next(meta.path for meta in store.list_objects("log/"))
    data = store.read(path)
    assert data is not None
    store.delete(path)

    damaged = [run("", ALL[VERIFY]) for _ in range(2)]
    store.create(path, data)
    repaired = run("", ALL[VERIFY])

    assert [each.success for each in (*damaged, repaired)] == [False, False, True]
    assert "1 of 3 logs: gamma: sound: 1 problem" in str(
        damaged[0].failure_data_for_node("verification_sweep_verification")
    )
    assert [set(found_bad(each)) for each in damaged] == [{("gamma", "sound")}] * 2
    assert [set(recorded_by(instance, each, "verification")) for each in (*damaged, repaired)] == [
        {"alpha", "beta/one", ""},
        {""},
        # Sound again is a change.
        {"gamma", ""},
    ]
    assert check_of(repaired, "sound").passed
    assert known


@pytest.mark.slow
def test_unsafe_log_of_a_sweep_is_not_pruned_and_only_that_log(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    _claim(fleet, "alpha", "beta/one")
    age_out(fleet, "gamma")

    result = run("", ALL[COLLECTION])
    alone = run("collection_job", run_request("gamma", "gamma"), only="pruned_manifest")

    assert [_first_offset(fleet, log) for log in known] == [4, 4, 1]
    assert (result.success, alone.success) == (False, False)
    failure = str(result.failure_data_for_node("collection_sweep_pruned_manifest"))
    assert "1 of 3 logs: gamma: safe_to_collect: " in failure
    assert set(found_bad(result)) == {("gamma", "safe_to_collect"), ("gamma", "little_garbage")}
    assert set(recorded_by(instance, result, "pruned_manifest")) == {"alpha", "beta/one", ""}


@pytest.mark.slow
def test_unsafe_log_is_pruned_once_a_plan_is_safe(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    age_out(fleet, "gamma")
    run("", ALL[COLLECTION])

    _claim(fleet, "gamma", offset=7)
    result = run("", COLLECTION.request_sweep(SCOPE, ["gamma"]))

    assert result.success
    assert _first_offset(fleet, "gamma") == 7
    assert set(recorded_by(instance, result, "pruned_manifest")) == {"gamma", ""}
    assert known


@pytest.mark.slow
def test_sweep_keeps_to_its_logs_and_leaves_out_those_that_are_no_longer_known(
    known: list[str], run: Run, instance: DagsterInstance
) -> None:
    instance.delete_dynamic_partition(LOGS_NAME, "alpha")

    result = run("", VERIFY.request_sweep(SCOPE, ["alpha", "gamma"]))

    assert result.success
    assert set(recorded_by(instance, result, "verification")) == {"gamma", ""}
    said = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert "1 logs that the configuration names are not known, and left out: alpha" in said
    assert known


@pytest.mark.slow
def test_log_that_was_destroyed_since_discovery_saw_it_fails_no_sweep(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    """Regression: each sweep failed until discovery had removed the partition. Every kind of sweep: tests/abuse."""
    _claim(fleet, *known)
    destroy(fleet, "alpha")

    result = run("", ALL[COLLECTION])

    assert result.success
    assert all(each.passed for each in result.get_asset_check_evaluations() if each.check_name == "safe_to_collect")
    assert [_first_offset(fleet, log) for log in known[1:]] == [4, 4]
    whole = recorded_by(instance, result, "pruned_manifest")[""]
    assert (whole["gone"], whole["not done"]) == (1, 0)


@pytest.mark.slow
def test_damaged_manifest_fails_one_sweep_and_is_not_looked_at_until_it_changes(
    look: Tick, write: Write, fleet: ObjectStore
) -> None:
    for log in ("alpha", "beta"):
        write(log)
    before = look()
    held = fleet.read("alpha/manifest/MANIFEST.json")
    assert held is not None
    fleet.delete("alpha/manifest/MANIFEST.json")

    found = [look(before), look(before)]
    fleet.create("alpha/manifest/MANIFEST.json", held)

    assert [asked(each) for each in (*found, look(before))] == [[["alpha"]], [], [["alpha"]]]


def test_many_logs_share_runs_and_the_same_reason_asks_for_the_same_runs() -> None:
    logs = [f"log-{number:04}" for number in range(2 * LOGS_PER_RUN_MAX + 1)]

    one, same, other = (request_maintenance(SCOPE, logs, reason) for reason in ("7 to 9", "7 to 9", "9 to 12"))

    assert [each.job_name for each in one] == ["maintenance_sweep"] * 3
    assert [log for each in one for log in logs_of(each)] == logs
    assert [each.run_key for each in one] == [each.run_key for each in same]
    assert len({each.run_key for each in (*one, *other)}) == 6
    assert {each.tags["wal3/reason"] for each in one} == {"7 to 9"}


def test_few_logs_get_runs_of_their_own_under_their_partitions() -> None:
    requests = request_maintenance(SCOPE, ["b", "a", "b"], "7 to 9")

    assert [(each.job_name, each.partition_key) for each in requests] == [
        ("maintenance_job", "a"),
        ("maintenance_job", "b"),
    ]
    assert len({each.run_key for each in requests}) == 2
    assert request_maintenance(SCOPE, [], "7 to 9") == []


def test_large_store_is_looked_at_again_within_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = SensorCursor().begun()
    rests = pace.rests(10**6)

    # A clock that is more than a day ahead.
    begun = SensorCursor(begun_us=pace.begun_us - PERIOD_S_MAX * 10**6)
    monkeypatch.setattr(triggers, "PERIOD_S_PER_LOG", 0.0)

    assert rests
    assert not begun.rests(10**6)
    assert not pace.rests(QUICK_LOGS_MAX + 1)


@pytest.mark.slow
def test_sensor_of_a_large_store_looks_at_its_logs_slice_by_slice(
    tick: Tick, look: Tick, write: Write, monkeypatch: pytest.MonkeyPatch, instance: DagsterInstance
) -> None:
    monkeypatch.setattr(triggers, "QUICK_LOGS_MAX", 2)
    monkeypatch.setattr(triggers, "LOGS_PER_TICK_MAX", 2)
    monkeypatch.setattr(triggers, "PERIOD_S_PER_LOG", 1_000.0)
    logs = [f"log-{number}" for number in range(5)]
    for log in logs:
        write(log)

    ticks = [look()]
    for _ in range(3):
        ticks.append(look(ticks[-1]))
    write("log-3")

    # What a round found changed shares runs, when the round ends.
    assert [asked(each) for each in ticks] == [[], [], [logs], []]
    assert instance.get_dynamic_partitions(LOGS_NAME) == logs
    assert asked(tick(ticks[-1])) == []
    skipped = ticks[-1].skip_reason
    assert skipped is not None
    assert "not due yet" in str(skipped.skip_message)
    assert keys(ticks[-1]) == []


def test_schedule_s_request_names_no_log() -> None:
    assert ALL[VERIFY] == RunRequest(job_name="verification_sweep", run_config={}, tags={})
