"""Key compactions that are cancelled, die, or run twice: the next run ends them, and the log is what one run makes.

Every run is a process of its own, without the queue or the pool that separates them in a deployment.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.orchestration.interrupting import Start, await_runs, cancel, fleet, gate, gates, instance, kill, start
from tests.orchestration.run_requests import run_request
from tests.orchestration.test_key_compaction import COMPACTED, append, compact_by_key, keys_of
from tests.stores import life_store
from wal3_core import LogReader, scrub
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance


__all__ = ["fleet", "gate", "gates", "instance", "start"]

PHASES = ("before-merged", "after-merged", "before-installed", "after-installed")
JOB = "compaction_job"


@pytest.fixture
def logs(gate: Path, fleet: ObjectStore, instance: DagsterInstance) -> list[str]:
    """One log for each phase, with two superseded records."""
    names = [f"{gate.name}/{phase}" for phase in PHASES]
    for log in names:
        append(fleet, log, "kl", "km", "ln")
        compact_by_key(fleet, log)
    instance.add_dynamic_partitions(LOGS_NAME, names)
    return names


def _finish(run: Run, logs: list[str]) -> None:
    """Do what sensors and schedules do later, including orphans: what a dead run merged is one."""
    request = run_request(logs[0], logs[-1])
    for job in (JOB, "deletion_job", "orphans_job", "deletion_job"):
        result = run(job, request)
        assert result.success, (job, [event.event_specific_data for event in result.all_events if event.is_failure])


def _assert_compacted(store: ObjectStore, log: str) -> None:
    fragments = {meta.path for meta in life_store(store, log).list_objects("log/")}
    assert keys_of(store, log) == COMPACTED, log
    assert fragments == {pointer.path for pointer in LogReader.open(store, log).scan()}, log
    assert list(Deleter(store, log).documents()) == [], log
    assert KeyCompactor(store, log).outline().due is None, log
    assert KeyCompactor(store, log).verify().holds, log
    assert scrub(store, log).sound, log


def test_next_run_compacts_a_log_whose_run_was_cancelled_in_any_phase(
    gate: Path, logs: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    cancel(gate, dict.fromkeys(logs, JOB), instance)
    _finish(run, logs)

    for log in logs:
        _assert_compacted(fleet, log)


def test_next_run_compacts_a_log_whose_run_was_killed_in_any_phase(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    processes = [start(JOB, log) for log in logs]
    await_runs(gate, logs)

    kill(gate, processes, instance)
    _finish(run, logs)

    assert {process.exitcode for process in processes} == {-signal.SIGKILL}
    for log in logs:
        _assert_compacted(fleet, log)


def test_two_compactions_at_once_in_any_phase_give_the_result_of_one(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run
) -> None:
    processes = [start(JOB, log) for log in logs for _ in range(2)]
    await_runs(gate, logs)

    (gate / "open").touch()
    for process in processes:
        process.join(180)
    _finish(run, logs)

    assert {process.exitcode for process in processes} == {0}
    for log in logs:
        _assert_compacted(fleet, log)
