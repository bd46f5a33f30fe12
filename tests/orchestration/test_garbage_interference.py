"""Runs that are cancelled, die, continue after being marked failed, or run twice: the log ends in the same state.

Every run is a process of its own. No queue or pool separates runs of a log here: the manifest's CAS alone
keeps the log safe.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.orchestration.interrupting import (
    Start,
    cancel,
    fleet,
    gate,
    gates,
    instance,
    kill,
    running,
    start,
    start_all,
)
from tests.orchestration.run_requests import run_request
from tests.stores import life_store
from wal3_core import CursorStore, LogPosition, LogReader, LogWriter, WriterOptions, scrub
from wal3_core.log.collect.deleter import Deleter
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import SnapshotOptions
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import LOGS_NAME

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance


__all__ = ["fleet", "gate", "gates", "instance", "start"]

pytestmark = pytest.mark.slow

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


@pytest.fixture
def logs(gate: Path, fleet: ObjectStore, instance: DagsterInstance, run: Run) -> list[str]:
    """One log for each phase, with work for a run that stops in that phase."""
    names = [f"{gate.name}/{phase}" for phase in PHASES]
    for log in names:
        with LogWriter.open_or_create(fleet, log, options=LOPSIDED) as writer:
            for _ in range(FRAGMENTS):
                writer.append_many([b"a record", b"another", b"a third"])
        CursorStore(fleet, log).create("reader", LogPosition(FIRST + 1, 0))
    instance.add_dynamic_partitions(LOGS_NAME, names)
    for log in _of("deletion_job", names):
        assert run("collection_job", run_request(log, log)).success
    return names


def _job(log: str) -> str:
    return PHASES[log.partition("/")[2]]


def _of(job: str, logs: Sequence[str]) -> list[str]:
    return [log for log in logs if _job(log) == job]


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


@pytest.mark.repeat
def test_next_run_completes_a_run_cancelled_in_any_phase(
    gate: Path, logs: list[str], fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    logs = [log for log in logs if log.partition("/")[2] in LAUNCHED]

    cancel(gate, {log: _job(log) for log in logs}, instance)
    _finish(run, logs)

    for log in logs:
        _assert_collected(fleet, log)


def test_next_run_completes_a_run_killed_in_any_phase(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    processes = start_all(gate, start, {log: _job(log) for log in logs})

    kill(gate, processes, instance)
    _finish(run, logs)

    assert {process.exitcode for process in processes} == {-signal.SIGKILL}
    for log in logs:
        _assert_collected(fleet, log)


@pytest.mark.repeat
def test_run_that_continues_after_being_marked_failed_does_no_harm(
    gate: Path, logs: list[str], start: Start, fleet: ObjectStore, run: Run, instance: DagsterInstance
) -> None:
    zombies = start_all(gate, start, {log: _job(log) for log in logs})
    for still in running(instance):
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
    # The second run prunes for the first, which stopped after its announcement, and so never stops there itself.
    processes = start_all(gate, start, {log: _job(log) for log in logs}, times=2)

    (gate / "open").touch()
    for process in processes:
        process.join(180)
    _finish(run, logs)

    assert {process.exitcode for process in processes} <= {0, 1}
    for log in logs:
        _assert_collected(fleet, log)
