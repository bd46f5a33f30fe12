"""Runs that wait at gates: as processes of their own, or launched by Dagster; and what becomes of them.

The fixtures are those of a module, which imports them.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from dagster import DagsterInstance, DagsterRun, DagsterRunStatus, RunsFilter
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget

from tests.orchestration.conftest import make_home
from tests.orchestration.gated_location import execute
from tests.orchestration.phased_store import GATES_VARIABLE
from tests.orchestration.run_requests import run_request
from wal3_core import open_store
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess


ROOT = Path(__file__).parent.parent.parent
FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of all runs of a module, and the gates they wait at."""
    folder = tmp_path_factory.mktemp("interference")
    home = make_home(folder / "home")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DAGSTER_HOME", str(home))
        environment.setenv("WAL3_STORE", (folder / "store").as_uri())
        environment.setenv("WAL3_GC_INTERVAL_S", "1e-6")
        yield folder / "gates"


@pytest.fixture(scope="module")
def fleet(gates: Path) -> ObjectStore:
    return open_store((gates.parent / "store").as_uri())


@pytest.fixture(scope="module")
def instance(gates: Path) -> Iterator[DagsterInstance]:
    with DagsterInstance.from_config(str(gates.parent / "home")) as opened:
        yield opened


@pytest.fixture
def gate(gates: Path, request: pytest.FixtureRequest) -> Path:
    """The test's own gate: runs of logs below its name wait there."""
    folder = gates / request.node.name
    folder.mkdir(parents=True)
    return folder


class Start(Protocol):
    def __call__(self, job: str, log: str) -> BaseProcess: ...


@pytest.fixture
def start(gates: Path) -> Iterator[Start]:
    """Starts a log's run in a process of its own, without queue or pool."""
    FORKS.set_forkserver_preload(["tests.orchestration.gated_location"])
    names = ("DAGSTER_HOME", "WAL3_STORE", "WAL3_GC_INTERVAL_S")
    environment = {**{name: os.environ[name] for name in names}, GATES_VARIABLE: str(gates)}
    started: list[BaseProcess] = []

    def begin(job: str, log: str) -> BaseProcess:
        process = FORKS.Process(target=execute, args=(job, log, environment))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join(60)


def eventually(missing: Callable[[], list[str]], timeout_s: float = 180) -> None:
    """Wait until nothing is missing."""
    deadline = time.monotonic() + timeout_s
    while found := missing():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def await_runs(gate: Path, logs: Sequence[str]) -> None:
    """Wait until a run of each log waits at the gate."""
    phases = {log.partition("/")[2] for log in logs}
    eventually(lambda: sorted(phases - {each.name.partition(".")[0] for each in gate.iterdir()}))


def start_all(gate: Path, start: Start, jobs: Mapping[str, str], *, times: int = 1) -> list[BaseProcess]:
    """Start each log's job some times; the next one's when one of these waits at the gate."""
    processes = []
    for log, job in jobs.items():
        processes += [start(job, log) for _ in range(times)]
        await_runs(gate, [log])
    return processes


def running(instance: DagsterInstance) -> list[DagsterRun]:
    return list(instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED])))


def kill(gate: Path, processes: Sequence[BaseProcess], instance: DagsterInstance) -> None:
    """Kill runs where they wait, and let Dagster know."""
    for process in processes:
        process.kill()
        process.join(60)
    for left in running(instance):
        instance.report_run_failed(left)
    (gate / "open").touch()


def cancel(gate: Path, jobs: Mapping[str, str], instance: DagsterInstance) -> None:
    """Have Dagster launch each log's job, and cancel it where it waits."""
    target = ModuleTarget("tests.orchestration.gated_location", "defs", str(ROOT), "wal3")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(GATES_VARIABLE, str(gate.parent))
        with WorkspaceProcessContext(instance, target) as context, ThreadPoolExecutor(len(jobs)) as threads:
            workspace = context.create_request_context()

            def launch(log: str) -> str:
                (location,) = workspace.code_locations
                (repository,) = location.get_repositories().values()
                job = repository.get_full_job(jobs[log])
                created = create_run_for_test(
                    instance,
                    job.name,
                    tags={"dagster/partition": log, **(run_request(log, log).tags)},
                    remote_job_origin=job.get_remote_origin(),
                    job_code_origin=job.get_python_origin(),
                )
                instance.launch_run(created.run_id, workspace)
                return created.run_id

            launched = list(threads.map(launch, jobs))
            await_runs(gate, list(jobs))
            for run_id in launched:
                assert instance.run_launcher.terminate(run_id)
            eventually(lambda: _logs_of(instance, DagsterRunStatus.CANCELING))
            # Their threads may still be about to delete something, and do.
            (gate / "open").touch()
    runs = [instance.get_run_by_id(run_id) for run_id in launched]
    assert {each.status for each in runs if each is not None} == {DagsterRunStatus.CANCELED}


def _logs_of(instance: DagsterInstance, status: DagsterRunStatus) -> list[str]:
    return [run.tags["dagster/partition"] for run in instance.get_runs(RunsFilter(statuses=[status]))]
