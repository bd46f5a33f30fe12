"""Runs that are cancelled, die, continue after being marked failed, or run twice: the log ends in the same state.

Every run is a process of its own. No queue or pool separates runs of a log here: the manifest's CAS alone
keeps the log safe.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter
from dagster._core.test_utils import create_run_for_test
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import ModuleTarget

from tests.orchestration.conftest import make_home
from tests.orchestration.gated_location import execute
from tests.orchestration.phased_store import GATES_VARIABLE
from tests.stores import life_store
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, WriterOptions, open_store, scrub
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import SnapshotOptions
from wal3_orchestration.partitions import LOGS_NAME, run_request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.process import BaseProcess

    from conftest import Run

    from wal3_core.storage.object_store import ObjectStore

# Looking for orphans takes Spark.
pytestmark = [pytest.mark.slow, pytest.mark.spark]

ROOT = Path(__file__).parent.parent.parent
# Where a run stops, and its job.
PHASES = {
    "before-document": "collection_job",
    "after-document": "collection_job",
    "after-announced": "collection_job",
    "after-cut": "collection_job",
    "after-marked": "collection_job",
    "before-deleted": "deletion_job",
    "after-deleted": "deletion_job",
    "before-removed": "deletion_job",
    "before-uploaded": "snapshot_compaction_job",
    "after-uploaded": "snapshot_compaction_job",
    "after-swapped": "snapshot_compaction_job",
}
# A run launched by Dagster takes seconds to import: only some phases of each job are launched.
LAUNCHED = ("before-document", "after-announced", "after-cut", "after-deleted", "after-uploaded")
FRAGMENTS = 12
# Where the log begins once it is collected: six of its fragments are garbage.
FIRST = 19
KEPT = ["a record", "another", "a third"] * (FRAGMENTS - 6)
# Snapshots of two where the default is 16, so that the tree is lopsided.
LOPSIDED = WriterOptions(snapshots=SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1))
FORKS = multiprocessing.get_context("forkserver")


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The environment of all runs here, and the gates they wait at."""
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


@pytest.fixture
def logs(gate: Path, fleet: ObjectStore, instance: DagsterInstance, run: Run) -> list[str]:
    """One log for each phase, with work for a run that stops in that phase."""
    names = [f"{gate.name}/{phase}" for phase in PHASES]
    for log in names:
        with LogWriter.open_or_initialize(fleet, log, options=LOPSIDED) as writer:
            for _ in range(FRAGMENTS):
                writer.append_many([b"a record", b"another", b"a third"])
        CursorStore(fleet, log).init("reader", LogPosition(FIRST + 1, 0))
    instance.add_dynamic_partitions(LOGS_NAME, names)
    for log in _of("deletion_job", names):
        assert run("collection_job", run_request(log, log)).success
    return names


def _of(job: str, logs: Sequence[str]) -> list[str]:
    return [log for log in logs if PHASES[log.partition("/")[2]] == job]


class Start(Protocol):
    def __call__(self, log: str) -> BaseProcess: ...


@pytest.fixture
def start(gates: Path) -> Iterator[Start]:
    """Starts a log's run in a process of its own, without queue or pool."""
    FORKS.set_forkserver_preload(["tests.orchestration.gated_location"])
    names = ("DAGSTER_HOME", "WAL3_STORE", "WAL3_GC_INTERVAL_S")
    environment = {**{name: os.environ[name] for name in names}, GATES_VARIABLE: str(gates)}
    started: list[BaseProcess] = []

    def begin(log: str) -> BaseProcess:
        process = FORKS.Process(target=execute, args=(PHASES[log.partition("/")[2]], log, environment))
        process.start()
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.join(60)


def _eventually(missing: Callable[[], list[str]], timeout_s: float = 180) -> None:
    """Wait until nothing is missing."""
    deadline = time.monotonic() + timeout_s
    while found := missing():
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def _await(gate: Path, logs: Sequence[str]) -> None:
    """Wait until a run of each log waits at the gate."""
    phases = {log.partition("/")[2] for log in logs}
    _eventually(lambda: sorted(phases - {each.name.partition(".")[0] for each in gate.iterdir()}))


def _logs_of(instance: DagsterInstance, status: DagsterRunStatus) -> list[str]:
    return [run.tags["dagster/partition"] for run in instance.get_runs(RunsFilter(statuses=[status]))]


def _finish(run: Run, logs: Sequence[str]) -> None:
    """Do what schedules and sensors do later, including orphans: a dead run's upload is one."""
    request = run_request(logs[0], logs[-1])
    for job in ("collection_job", "snapshot_compaction_job", "deletion_job", "orphans_job", "deletion_job"):
        result = run(job, request)
        assert result.success, (job, [event.event_specific_data for event in result.all_events if event.is_failure])


def _assert_collected(store: ObjectStore, log: str) -> None:
    """Assert that nothing is lost, nothing is left over, and nothing blocks the next collection."""
    reader = LogReader.open(store, log)
    manifest = reader.manifest()
    fragments = {meta.path for meta in life_store(store, log).list_objects("log/")}
    snapshots = {meta.path for meta in life_store(store, log).list_objects("snapshot/")}
    assert manifest.announced is None, log
    assert list(Deleter(store, log).documents()) == [], log
    assert manifest.first.position.offset == FIRST, log
    assert fragments == {pointer.path for pointer in reader.scan()}, log
    assert snapshots == {pointer.path for pointer in manifest.snapshots}, log
    assert [record.body.decode() for record in reader.records(FIRST) if record.body is not None] == KEPT, log
    assert SnapshotCompactor(store, log).plan().empty, log
    assert scrub(store, log).sound, log


def _running(instance: DagsterInstance) -> list[str]:
    return [run.run_id for run in instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.STARTED]))]


@pytest.mark.repeat
def test_next_run_completes_a_run_cancelled_in_any_phase(
    gates: Path, gate: Path, logs: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    logs = [log for log in logs if log.partition("/")[2] in LAUNCHED]
    target = ModuleTarget("tests.orchestration.gated_location", "defs", str(ROOT), "wal3")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(GATES_VARIABLE, str(gates))
        with WorkspaceProcessContext(instance, target) as context, ThreadPoolExecutor(len(logs)) as threads:
            workspace = context.create_request_context()

            def launch(log: str) -> str:
                (location,) = workspace.code_locations
                (repository,) = location.get_repositories().values()
                job = repository.get_full_job(PHASES[log.partition("/")[2]])
                created = create_run_for_test(
                    instance,
                    job.name,
                    tags={"dagster/partition": log, **(run_request(log, log).tags)},
                    remote_job_origin=job.get_remote_origin(),
                    job_code_origin=job.get_python_origin(),
                )
                instance.launch_run(created.run_id, workspace)
                return created.run_id

            launched = list(threads.map(launch, logs))
            _await(gate, logs)
            for run_id in launched:
                assert instance.run_launcher.terminate(run_id)
            _eventually(lambda: _logs_of(instance, DagsterRunStatus.CANCELING))
            # Their threads may still be about to delete something, and do.
            (gate / "open").touch()

    _finish(run, logs)

    runs = [instance.get_run_by_id(run_id) for run_id in launched]
    assert {each.status for each in runs if each is not None} == {DagsterRunStatus.CANCELED}
    for log in logs:
        _assert_collected(fleet, log)


def test_next_run_completes_a_run_killed_in_any_phase(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    processes = [start(log) for log in logs]
    _await(gate, logs)

    for process in processes:
        process.kill()
        process.join(60)
    for run_id in _running(instance):
        left = instance.get_run_by_id(run_id)
        assert left is not None
        instance.report_run_failed(left)
    (gate / "open").touch()
    _finish(run, logs)

    assert {process.exitcode for process in processes} == {-signal.SIGKILL}
    for log in logs:
        _assert_collected(fleet, log)


@pytest.mark.repeat
def test_run_that_continues_after_being_marked_failed_does_no_harm(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    zombies = [start(log) for log in logs]
    _await(gate, logs)
    for run_id in _running(instance):
        still = instance.get_run_by_id(run_id)
        assert still is not None
        instance.report_run_failed(still)

    _finish(run, logs)
    (gate / "open").touch()
    for zombie in zombies:
        zombie.join(180)
    _finish(run, logs)

    ended = {log: zombie.exitcode for log, zombie in zip(logs, zombies, strict=True)}
    # Deletion runs find the work done and succeed; the others may be refused because it is done already.
    assert {ended[log] for log in _of("deletion_job", logs)} == {0}
    assert set(ended.values()) <= {0, 1}
    for log in logs:
        _assert_collected(fleet, log)


@pytest.mark.repeat
def test_two_concurrent_runs_in_any_phase_give_the_result_of_one(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run
) -> None:
    pairs = [partial(start, log) for log in logs for _ in range(2)]
    # The second run prunes for the first, which stopped after its announcement, and so never stops there itself.
    processes = [begin() for begin in pairs]
    _await(gate, logs)

    (gate / "open").touch()
    for process in processes:
        process.join(180)
    _finish(run, logs)

    assert {process.exitcode for process in processes} <= {0, 1}
    for log in logs:
        _assert_collected(fleet, log)
