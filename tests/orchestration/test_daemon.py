from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRunStatus

from tests.orchestration.daemons import eventually, running_daemon
from tests.orchestration.run_requests import run_request
from wal3_core import CursorStore, LogPosition, LogReader
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import COLLECT_TAG, LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run, Write


@pytest.fixture
def pruned(
    instance: DagsterInstance, write: Write, fleet: ObjectStore, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two logs with garbage: pruned in one, and found by a plan tagged for collection in the other."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    for log in ("planned", "pruned"):
        write(log, fragments=3)
        CursorStore(fleet, log).create("reader", LogPosition(4, 0))
    instance.add_dynamic_partitions(LOGS_NAME, ["planned", "pruned"])
    assert run("garbage_plan_job", run_request("planned", "planned", tags={COLLECT_TAG: "true"})).success
    assert run("collection_job", run_request("pruned", "pruned")).success


@pytest.fixture
def daemon(instance: DagsterInstance, write: Write, pruned: None, tmp_path: Path) -> Iterator[Path]:  # noqa: ARG001 - its home and store, by the environment
    """Dagster's daemon as a user runs it; yields its output so far."""
    output = tmp_path / "daemon.log"
    with running_daemon(output, "--workspace", "workspace.yaml"):
        yield output


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_running_daemon_discovers_prunes_and_deletes_by_itself(
    write: Write, instance: DagsterInstance, fleet: ObjectStore, daemon: Path
) -> None:
    for log in ("alpha", "beta/one"):
        write(log)

    logs = {"alpha", "beta/one", "planned", "pruned"}
    eventually(lambda: set(instance.get_dynamic_partitions(LOGS_NAME)) == logs, daemon)
    for asset, seen in {
        "manifest": logs,
        "pruned_manifest": {"planned", "pruned"},
        "deleted_garbage": {"pruned"},
    }.items():
        eventually(lambda: seen <= instance.get_materialized_partitions(AssetKey(asset)), daemon)  # noqa: B023 - called at once
    eventually(lambda: all(run.status is DagsterRunStatus.SUCCESS for run in instance.get_runs()), daemon)

    asked = {(run.job_name, run.tags.get("dagster/sensor_name")) for run in instance.get_runs()}
    by_sensor = {("manifest_sweep", "discovery"), ("collection_job", "pruning"), ("deletion_job", "deletion")}
    assert by_sensor <= asked
    assert list(Deleter(fleet, "pruned").documents()) == []
    assert LogReader.open(fleet, "planned").manifest().first.position.offset == 4
