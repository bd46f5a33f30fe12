"""A log that a sweep finds bad gets a run of its own: its partition is red, and says what is wrong and what to do."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, AssetRecordsFilter, DagsterInstance, ExecuteInProcessResult, RunRequest

from tests.stores import age_out, damage, life_store
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs.found_bad import SHOWN_BY, requests_of
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION, PLANNING
from wal3_orchestration.defs.verification import JOB as VERIFY
from wal3_orchestration.framework.scope import StoreScope

if TYPE_CHECKING:
    from conftest import Run

    from wal3_orchestration.framework.assets import LogJob


SCOPE = StoreScope()


def _requests(instance: DagsterInstance, result: ExecuteInProcessResult) -> list[RunRequest]:
    return list(requests_of(SCOPE, instance, result.run_id))


def _statuses(instance: DagsterInstance, asset: str, logs: list[str]) -> dict[str, str | None]:
    found = instance.get_status_by_partition(AssetKey(asset), logs, SCOPE.logs)
    return {log: None if status is None else status.value for log, status in (found or {}).items()}


def _spoil(fleet: ObjectStore, log: str) -> tuple[str, bytes]:
    """Damage the first fragment of a log; return its path and what it held."""
    store = life_store(fleet, log)
    path = min(meta.path for meta in store.list_objects("log/"))
    data = store.read(path)
    assert data is not None
    damage(store, path)
    return path, data


@pytest.mark.slow
def test_partition_of_a_log_that_a_sweep_finds_damaged_is_red_until_it_is_sound(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    run("", VERIFY.request_sweep(SCOPE))
    path, data = _spoil(fleet, "gamma")
    found = run("", VERIFY.request_sweep(SCOPE))
    (request,) = _requests(instance, found)
    before = _statuses(instance, "verification", known)

    shown = run("", request)
    red = _statuses(instance, "verification", known)
    store = life_store(fleet, "gamma")
    store.delete(path)
    store.create(path, data)
    sound = run("", VERIFY.request_sweep(SCOPE))

    assert (request.job_name, request.partition_key) == ("verification_job", "gamma")
    assert request.tags["wal3/reason"].startswith("a sweep found sound: 1 problem: fragment 1, offsets 1 to 3 ")
    assert (before["gamma"], red["gamma"]) == ("MATERIALIZED", "FAILED")
    assert {red[log] for log in known if log != "gamma"} == {"MATERIALIZED"}
    assert not shown.success
    assert _statuses(instance, "verification", known)["gamma"] == "MATERIALIZED"
    assert _requests(instance, sound) == []


@pytest.mark.slow
def test_page_of_a_damaged_log_shows_the_problem_and_the_next_command(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    run("", VERIFY.request_sweep(SCOPE))
    _spoil(fleet, known[0])

    run("", next(iter(_requests(instance, run("", VERIFY.request_sweep(SCOPE))))))

    wanted = AssetRecordsFilter(AssetKey("verification"), asset_partitions=["alpha"])
    (newest,) = instance.fetch_observations(wanted, limit=1).records
    assert newest.asset_observation is not None
    said = str(newest.asset_observation.description)
    command = shlex.join(["wal3", "--store", fleet.url, "scrub", "alpha"])
    assert said.startswith("sound: 1 problem: fragment 1, offsets 1 to 3 ")
    assert said.endswith(f". Next: {command}")
    assert "file://" not in said.partition(". Next: ")[0]
    shown = {label: value.value for label, value in newest.asset_observation.metadata.items()}
    assert shown["next_command"] == command
    assert "repair alpha --from BACKUP_URL" in str(shown["remedy"])
    # It is newer than the numbers of the time before.
    (numbers,) = instance.fetch_materializations(wanted, limit=1).records
    assert numbers.storage_id < newest.storage_id


@pytest.mark.slow
def test_log_that_is_shown_as_bad_gets_another_run_only_for_another_problem(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    _spoil(fleet, known[0])
    for request in _requests(instance, run("", VERIFY.request_sweep(SCOPE))):
        run("", request)
    again = _requests(instance, run("", VERIFY.request_sweep(SCOPE)))
    life_store(fleet, known[0]).delete(min(meta.path for meta in life_store(fleet, known[0]).list_objects("log/")))

    other = _requests(instance, run("", VERIFY.request_sweep(SCOPE)))

    assert again == []
    assert [each.partition_key for each in other] == [known[0]]


@pytest.mark.slow
@pytest.mark.parametrize("job", [PLANNING, COLLECTION])
def test_log_that_is_not_safe_to_collect_is_planned_in_a_run_of_its_own(
    known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, job: LogJob
) -> None:
    age_out(fleet, known[-1])

    (request,) = _requests(instance, run("", job.request_sweep(SCOPE)))
    shown = run("", request)

    assert (request.job_name, request.partition_key) == ("garbage_plan_job", known[-1])
    assert not shown.success
    assert _statuses(instance, "garbage_plan", known)[known[-1]] == "FAILED"


@pytest.mark.slow
def test_sweep_that_finds_all_logs_sound_asks_for_nothing(
    known: list[str], run: Run, instance: DagsterInstance
) -> None:
    assert _requests(instance, run("", VERIFY.request_sweep(SCOPE))) == []
    assert known


def test_only_jobs_that_change_nothing_show_what_a_sweep_found() -> None:
    assert {job.name for job in SHOWN_BY.values()} == {"verification", "garbage_plan"}
