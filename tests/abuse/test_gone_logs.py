"""Logs that are destroyed or renamed while they are partitions, and a store in which logs come and go all day."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from dagster import DagsterInstance, RunRequest, SensorResult

from tests.orchestration.checked import check_of, recorded_by
from tests.orchestration.run_requests import run_request
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, destroy, open_store
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run, Tick


# Each with the asset of its last step.
SWEEPS = {
    "manifest": "manifest",
    "verification": "verification",
    "garbage_plan": "garbage_plan",
    "collection": "pruned_manifest",
    "deletion": "deleted_garbage",
    "orphans": "marked_orphans",
    "snapshot_compaction": "repacked_snapshots",
    "compaction": "installed_manifest",
    "maintenance": "pruned_manifest",
    "delay_queue": "delay_queue",
}
LOGS_MADE, LOGS_AT_ONCE = 1_000, 40


def _folder(store: ObjectStore, log: str) -> Path:
    return Path(urlsplit(store.url).path) / log


def _destroy(store: ObjectStore, log: str) -> None:
    destroy(store, log)


def _rename(store: ObjectStore, log: str) -> None:
    _folder(store, log).rename(_folder(store, f"{log}-moved"))


@pytest.mark.parametrize("go", [_destroy, _rename])
def test_sweep_leaves_out_a_log_that_is_gone_and_does_the_others(
    go: object, known: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance, tick: Tick
) -> None:
    """Regression: one destroyed log failed every sweep until discovery had removed its partition, up to an hour."""
    assert callable(go)
    tick()
    for log in known:
        CursorStore(fleet, log).create("reader", LogPosition(4, 0))
    go(fleet, "alpha")

    for name, asset in SWEEPS.items():
        result = run("", RunRequest(job_name=f"{name}_sweep"))

        assert result.success, name
        assert all(each.passed for each in result.get_asset_check_evaluations()), name
        recorded = recorded_by(instance, result, asset)
        assert "alpha" not in recorded, name
        assert recorded[""]["not done"] == 0, name
    assert LogReader.open(fleet, "gamma").manifest().first.position.offset == 4


def test_chosen_log_that_is_gone_fails_its_run_by_name(known: list[str], fleet: ObjectStore, run: Run) -> None:
    destroy(fleet, "alpha")

    for name in SWEEPS:
        result = run(f"{name}_job", run_request("alpha", "alpha"))

        (event, *_) = result.get_step_failure_events()
        assert "alpha: " in str(event.event_specific_data), name
    assert known


def test_log_whose_manifest_alone_is_lost_is_damaged_and_not_gone(
    known: list[str], fleet: ObjectStore, run: Run
) -> None:
    (_folder(fleet, "alpha") / "manifest" / "MANIFEST.json").unlink()

    result = run("", RunRequest(job_name="verification_sweep"))

    assert not result.success
    assert not check_of(result, "sound").passed
    assert known


def test_sweep_of_a_store_that_has_lost_its_logs_fails(known: list[str], fleet: ObjectStore, run: Run) -> None:
    for log in known:
        shutil.rmtree(_folder(fleet, log))

    result = run("", RunRequest(job_name="verification_sweep"))

    assert not result.success
    assert "expected most of the 3 known logs, found 3 of them gone" in str(result.get_step_failure_events())


def test_renamed_log_becomes_a_partition_under_its_new_name_and_is_collected(
    known: list[str], fleet: ObjectStore, run: Run, look: Tick, instance: DagsterInstance
) -> None:
    before = look()
    _rename(fleet, "alpha")

    after = look(before)
    CursorStore(fleet, "alpha-moved").create("reader", LogPosition(4, 0))
    result = run("collection_job", run_request("alpha-moved", "alpha-moved"))

    assert sorted(instance.get_dynamic_partitions(LOGS_NAME)) == ["alpha-moved", "beta/one", "gamma"]
    assert (result.success, after.skip_reason) == (True, None)
    assert LogReader.open(fleet, "alpha-moved").manifest().first.position.offset == 4
    assert known


def test_partitions_follow_a_thousand_logs_that_are_made_and_destroyed(
    tick: Tick, run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forty at a time, beside some that stay; every fifth wave has a sweep that meets logs that are gone already."""
    url = "memory:waves"
    monkeypatch.setenv("WAL3_STORE", url)
    store = open_store(url)
    staying = [f"staying/{number}" for number in range(LOGS_AT_ONCE + 1)]
    for log in staying:
        LogWriter.create(store, log)
    going: list[str] = []
    after: SensorResult | None = None
    for wave in range(LOGS_MADE // LOGS_AT_ONCE):
        coming = [f"tenants/{wave}/log-{number:02}" for number in range(LOGS_AT_ONCE)]
        for log in coming:
            LogWriter.create(store, log)
        for log in going:
            destroy(store, log)
        if wave % 5 == 4:
            assert run("", RunRequest(job_name="snapshot_compaction_sweep")).success, wave
        after = tick(after)
        assert sorted(instance.get_dynamic_partitions(LOGS_NAME)) == sorted([*staying, *coming]), wave
        going = coming
    for log in going:
        destroy(store, log)
    tick(after)

    assert sorted(instance.get_dynamic_partitions(LOGS_NAME)) == sorted(staying)
