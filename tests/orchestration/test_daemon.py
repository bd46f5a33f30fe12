from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import AssetKey, DagsterRunStatus

from wal3_orchestration.partitions import LOGS_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Write
    from dagster import DagsterInstance

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def daemon(instance: DagsterInstance, write: Write, tmp_path: Path) -> Iterator[Path]:  # noqa: ARG001 - its home and store, by the environment
    """Dagster's daemon as a user runs it; yields what it printed so far."""
    output = tmp_path / "daemon.log"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "dagster._daemon", "run", "-w", "workspace.yaml"],
            cwd=ROOT,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "WAL3_SPARK_MASTER": "local[1]"},
        )
    try:
        yield output
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def _eventually(seen: Callable[[], bool], output: Path, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not seen():
        assert time.monotonic() < deadline, output.read_text()[-4000:]
        time.sleep(0.5)


@pytest.mark.slow
def test_running_daemon_finds_logs_and_looks_at_them_by_itself(
    write: Write, instance: DagsterInstance, daemon: Path
) -> None:
    for log in ("alpha", "beta/one"):
        write(log)

    _eventually(lambda: set(instance.get_dynamic_partitions(LOGS_NAME)) == {"alpha", "beta/one"}, daemon)
    _eventually(lambda: instance.get_materialized_partitions(AssetKey("manifest")) == {"alpha", "beta/one"}, daemon)
    _eventually(lambda: all(run.status is DagsterRunStatus.SUCCESS for run in instance.get_runs()), daemon)

    (run,) = instance.get_runs()[-1:]
    assert (run.job_name, run.tags["dagster/sensor_name"]) == ("manifest_job", "discovery")
