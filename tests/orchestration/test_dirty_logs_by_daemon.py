"""Under Dagster's daemon the marked logs get their runs, and their marks are dropped once it has stored these."""

from __future__ import annotations

from pathlib import Path

import pytest
from dagster import DagsterInstance, RunsFilter

from tests.orchestration.daemons import eventually, running_daemon
from tests.orchestration.dirty import waiting
from wal3_core import Fleet, FleetOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import LOG_TAG, LOGS_NAME
from wal3_orchestration.resources import AGE_VARIABLE


@pytest.mark.repeat
@pytest.mark.usefixtures("dagster_home")
def test_daemon_starts_the_runs_of_marked_logs_once_and_forgets_the_marks(
    fleet: ObjectStore, instance: DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(AGE_VARIABLE, "0")
    with Fleet.open(fleet, server="server-1", options=FleetOptions(creates=True)) as opened:
        opened.append("alpha", b"a record")
        opened.append("beta/one", b"a record")
    output = tmp_path / "daemon.log"

    with running_daemon(output, "--module-name", "tests.orchestration.dirty_location"):
        eventually(lambda: waiting(fleet) == {}, output)

    asked = instance.get_runs(RunsFilter(tags={"dagster/sensor_name": "dirty_logs"}))
    found = sorted(
        (run.job_name, run.tags.get(LOG_TAG, "")) for run in asked if "dirty/" not in run.tags.get(LOG_TAG, "")
    )
    assert found == [
        ("maintenance_job", "alpha"),
        ("maintenance_job", "beta/one"),
        ("rollup_job", ""),
    ]
    assert {"alpha", "beta/one"} <= set(instance.get_dynamic_partitions(LOGS_NAME))
