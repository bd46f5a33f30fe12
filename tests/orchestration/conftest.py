"""A Dagster instance with the project's settings, and logs for it to look after."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Protocol

import pytest
import yaml
from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    DagsterInstance,
    DeleteDynamicPartitionsRequest,
    SensorResult,
    build_sensor_context,
)

from tests.orchestration.webhook import Webhook
from wal3_core import LogWriter, open_store

# The code location does not load without a store; each test names its own.
os.environ.setdefault("WAL3_STORE", "memory:none")
# A task that fails is run again, as on a cluster.
os.environ.setdefault("WAL3_SPARK_MASTER", "local[2, 3]")

from collections.abc import Iterator

from dagster import ExecuteInProcessResult, RunRequest

from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.alerts import ALERT_VARIABLE
from wal3_orchestration.defs.discovery import discover
from wal3_orchestration.deployment import settings
from wal3_orchestration.framework.scope import LOGS_NAME, StoreScope
from wal3_orchestration.resources import StoreResource

ROOT = Path(__file__).parent.parent.parent


class Write(Protocol):
    def __call__(self, log: str, *, fragments: int = 1) -> None: ...


class Run(Protocol):
    def __call__(
        self, job: str, request: RunRequest, config: dict[str, Any] | None = None, *, only: str | None = None
    ) -> ExecuteInProcessResult: ...


class Tick(Protocol):
    def __call__(self, after: SensorResult | None = None) -> SensorResult: ...


# Otherwise Dagster starts four processes per step, to capture its output.
QUIET = """
compute_logs:
  module: dagster._core.storage.noop_compute_log_manager
  class: NoOpComputeLogManager
"""

SILENT = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}


def make_home(home: Path) -> Path:
    """Make an empty home with the project's settings."""
    home.mkdir()
    (home / "dagster.yaml").write_text(settings() + QUIET)
    return home


@pytest.fixture
def dagster_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that the environment names. A test that uses it has its instance stored there, for other processes."""
    home = make_home(tmp_path / "dagster_home")
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    return home


@pytest.fixture
def instance(request: pytest.FixtureRequest) -> Iterator[DagsterInstance]:
    """An instance with the project's settings. In memory it takes half as long as on disk."""
    if "dagster_home" in request.fixturenames:
        opened = DagsterInstance.from_config(str(request.getfixturevalue("dagster_home")))
    else:
        opened = DagsterInstance.ephemeral(settings=yaml.safe_load(settings()))
    with opened:
        yield opened


@pytest.fixture
def fleet(local_url: str, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The code location's store: empty and local."""
    monkeypatch.setenv("WAL3_STORE", local_url)
    return open_store(local_url)


@pytest.fixture
def write(fleet: ObjectStore) -> Write:
    """Appends fragments of three records to a log of the fleet, creating it if necessary."""

    def append(log: str, *, fragments: int = 1) -> None:
        with LogWriter.open_or_create(fleet, log) as writer:
            for _ in range(fragments):
                writer.append_many([b"a record", b"another", b"a third"])

    return append


@pytest.fixture
def run(instance: DagsterInstance) -> Run:
    """Executes a requested run in this process; with ``only``, just that asset of the job.

    A request may name a job itself.
    """

    def execute(
        job: str, request: RunRequest, config: dict[str, Any] | None = None, *, only: str | None = None
    ) -> ExecuteInProcessResult:
        workflow = defs().resolve_job_def(request.job_name or job)
        return workflow.execute_in_process(
            instance=instance,
            run_config={**SILENT, **(config or {}), **(request.run_config or {})},
            partition_key=request.partition_key,
            tags=request.tags,
            asset_selection=None if only is None else [AssetKey(only)],
            raise_on_error=False,
        )

    return execute


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """A webhook that the environment names."""
    with Webhook() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setenv(ALERT_VARIABLE, server.url)
        yield server
        server.shutdown()


@pytest.fixture
def known(instance: DagsterInstance, write: Write) -> list[str]:
    """Three logs, written to and known as partitions."""
    logs = ["alpha", "beta/one", "gamma"]
    for log in logs:
        write(log, fragments=2)
    instance.add_dynamic_partitions(LOGS_NAME, logs)
    return logs


@pytest.fixture
def tick(instance: DagsterInstance, fleet: ObjectStore) -> Tick:  # noqa: ARG001 - the sensor finds the fleet by the environment
    """Evaluates the sensor and changes the partitions as it requests, like the daemon."""

    def evaluate(after: SensorResult | None = None) -> SensorResult:
        resources = {"store": StoreResource.from_environment()}
        cursor = None if after is None else after.cursor
        with build_sensor_context(instance, cursor=cursor, resources=resources) as context:
            result = discover(StoreScope(), context)
        assert isinstance(result, SensorResult)
        for request in result.dynamic_partitions_requests or ():
            if isinstance(request, AddDynamicPartitionsRequest):
                instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
            if isinstance(request, DeleteDynamicPartitionsRequest):
                for key in request.partition_keys:
                    instance.delete_dynamic_partition(request.partitions_def_name, key)
        return result

    return evaluate


@pytest.fixture
def look(tick: Tick, run: Run) -> Tick:
    """Evaluates the sensor, and executes the runs that it requests."""

    def evaluate(after: SensorResult | None = None) -> SensorResult:
        result = tick(after)
        for request in result.run_requests or ():
            run("", request)
        return result

    return evaluate
