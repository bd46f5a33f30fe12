"""A run whose code server is gone does not count as started for ever."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import AssetKey, DagsterInstance, DagsterRun, DagsterRunStatus, build_sensor_context

from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.alerts import is_of
from wal3_orchestration.defs.lost_runs import LOST, SERVER_TAG, fail_lost_runs
from wal3_orchestration.framework.scope import STORE_TAG, StoreScope

OWN = StoreScope().tags


@pytest.fixture
def memory() -> Iterator[DagsterInstance]:
    with DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[str]:
    """The address of a server that is there."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "there"))
        server.listen()
        yield str(tmp_path / "there")


def _start(
    instance: DagsterInstance, server: object, status: DagsterRunStatus = DagsterRunStatus.STARTED, **tags: str
) -> str:
    said = {} if server is None else {SERVER_TAG: json.dumps(server)}
    job = defs().resolve_job_def("manifest_job")
    return instance.create_run_for_job(job, tags={**said, **(tags or OWN)}, status=status).run_id


def _status(instance: DagsterInstance, run_id: str) -> DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def _tick(instance: DagsterInstance, scope: StoreScope | None = None) -> str:
    with build_sensor_context(instance) as context:
        result = fail_lost_runs(scope or StoreScope(), context)
    assert result.skip_reason is not None
    return str(result.skip_reason.skip_message)


@pytest.mark.parametrize("closed", ["removed socket", "refusing socket", "refusing port"])
def test_run_whose_server_is_gone_fails_and_says_so(memory: DagsterInstance, tmp_path: Path, closed: str) -> None:
    path = str(tmp_path / "gone")
    with socket.socket(socket.AF_UNIX) as server, socket.create_server(("127.0.0.1", 0)) as other:
        if closed == "refusing socket":
            server.bind(path)
        port = other.getsockname()[1]
    found = {"host": "127.0.0.1", "port": port} if closed == "refusing port" else {"host": "localhost", "socket": path}
    run_id = _start(memory, found)

    said = _tick(memory)

    assert _status(memory, run_id) is DagsterRunStatus.FAILURE
    assert said == f"1 runs were lost: {run_id}"
    assert LOST in [event.message for event in memory.all_logs(run_id)]
    assert _tick(memory) == "no run was lost"


@pytest.mark.parametrize("status", [DagsterRunStatus.STARTING, DagsterRunStatus.CANCELING])
def test_run_that_was_about_to_begin_or_to_end_is_lost_as_well(
    memory: DagsterInstance, tmp_path: Path, status: DagsterRunStatus
) -> None:
    run_id = _start(memory, {"socket": str(tmp_path / "gone")}, status)

    assert _tick(memory) == f"1 runs were lost: {run_id}"
    assert _status(memory, run_id) is DagsterRunStatus.FAILURE


def test_run_whose_server_listens_is_left_alone_and_so_is_one_of_another_launcher(
    memory: DagsterInstance, listening: str
) -> None:
    runs = [_start(memory, {"host": "localhost", "socket": listening}), _start(memory, None)]

    assert _tick(memory) == "no run was lost"
    assert {_status(memory, each) for each in runs} == {DagsterRunStatus.STARTED}


def test_run_of_another_store_is_left_to_its_own_sensor(memory: DagsterInstance, tmp_path: Path) -> None:
    gone = {"host": "localhost", "socket": str(tmp_path / "gone")}
    run_id = _start(memory, gone, **{STORE_TAG: "orders"})

    assert _tick(memory) == "no run was lost"
    assert _tick(memory, StoreScope(name="orders")).startswith("1 runs")
    assert _status(memory, run_id) is DagsterRunStatus.FAILURE


def test_run_of_chosen_assets_is_the_store_s_whose_assets_they_are(memory: DagsterInstance, tmp_path: Path) -> None:
    """As launched by a click on assets: such a run has no tag of a job."""
    gone = {SERVER_TAG: json.dumps({"socket": str(tmp_path / "gone")})}
    job, chosen = defs().resolve_job_def("manifest_job"), frozenset({AssetKey("manifest")})
    run = memory.create_run_for_job(job, tags=gone, asset_selection=chosen, status=DagsterRunStatus.STARTED)

    assert _tick(memory, StoreScope(key_prefix=("mine",))) == "no run was lost"
    assert _tick(memory) == f"1 runs were lost: {run.run_id}"


@pytest.mark.parametrize("key", ["manifest", "report", "orders/manifest", "orders/report"])
def test_run_of_chosen_assets_is_of_the_store_that_has_them(key: str) -> None:
    run = DagsterRun(job_name="__ASSET_JOB", asset_selection=frozenset({AssetKey(key.split("/"))}))

    assert is_of(StoreScope(), run) == (key == "manifest")
    assert is_of(StoreScope(key_prefix=("orders",)), run) == (key == "orders/manifest")
