"""A run's process, the daemon, or the whole machine is killed in the middle of a collection; the next one ends it."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from tests.abuse.collectable import PLAN_ALL, make_collectable
from tests.abuse.daemon import eager_daemon, eventually, under_way
from tests.orchestration.phased_store import GATES_VARIABLE
from wal3_core import LogReader, scrub
from wal3_core.log.collect.deleter import Deleter
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.defs import lost_runs

if TYPE_CHECKING:
    import subprocess

    from conftest import Run, Write


# Between announce and prune, and between prune and mark; no gate stops what happens to the third.
LOGS = ["gate/after-announced", "gate/after-cut", "gate/quiet"]
STOPPED = LOGS[:2]


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "gates" / "gate"
    folder.mkdir(parents=True)
    monkeypatch.setenv(GATES_VARIABLE, str(folder.parent))
    return folder


@pytest.fixture
def planned(
    write: Write, fleet: ObjectStore, instance: DagsterInstance, run: Run, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Logs of which two fragments are to be collected, as a plan says."""
    make_collectable(LOGS, write, fleet, instance, monkeypatch)
    assert run("", PLAN_ALL).success
    return LOGS


def _waiting(gate: Path) -> dict[str, int]:
    """Return the process of the run that waits in each phase."""
    return {each.name.partition(".")[0]: int(each.suffix[1:]) for each in gate.iterdir() if each.name != "open"}


def _kill(victim: str, daemon: subprocess.Popen[bytes], gate: Path) -> None:
    match victim:
        case "run workers":
            for process in _waiting(gate).values():
                os.kill(process, signal.SIGKILL)
        case "daemon":
            daemon.kill()
            daemon.wait(30)
        case "machine":
            os.killpg(daemon.pid, signal.SIGKILL)
            daemon.wait(30)


@pytest.mark.parametrize("victim", ["run workers", "daemon", "machine"])
def test_log_is_collected_after_a_kill_between_announce_prune_and_mark(  # noqa: PLR0913, PLR0917 - fixtures
    victim: str,
    planned: list[str],
    gate: Path,
    fleet: ObjectStore,
    instance: DagsterInstance,
    run: Run,
    tmp_path: Path,
) -> None:
    """Regression: after the machine went down, the dead runs counted as started, and kept all others waiting."""
    output = tmp_path / "daemon.log"
    with ExitStack() as daemons:
        daemon = daemons.enter_context(eager_daemon(output))
        eventually(lambda: len(_waiting(gate)) == len(STOPPED), output)
        _kill(victim, daemon, gate)
        (gate / "open").touch()
        if victim != "run workers":
            # What is left of the first one goes on beside it.
            daemons.enter_context(eager_daemon(output))
        _expect_all_done(planned, fleet, instance, run, output)

    failed = instance.get_runs(RunsFilter(statuses=[DagsterRunStatus.FAILURE]))
    # A run over all logs has no partition.
    logs = {each.tags.get("dagster/partition") for each in failed}
    match victim:
        case "run workers":
            assert logs == set(STOPPED)
        case "daemon":
            # The code server goes on until its runs have ended.
            assert logs == set()
        case _:
            assert logs >= set(STOPPED)
            assert all(lost_runs.LOST in _said(instance, each.run_id) for each in failed)


def _said(instance: DagsterInstance, run_id: str) -> list[str | None]:
    return [event.message for event in instance.all_logs(run_id)]


def _expect_all_done(logs: list[str], store: ObjectStore, instance: DagsterInstance, run: Run, output: Path) -> None:
    # The sensor asks for deletions as long as a collection is half done.
    eventually(lambda: under_way(instance, "collection_job") == [], output)
    run("", PLAN_ALL)
    eventually(lambda: all(_is_collected(store, log) for log in logs), output)
    eventually(lambda: under_way(instance) == [], output)
    for log in logs:
        assert scrub(store, log).sound
        assert [record.offset for record in LogReader.open(store, log).records()] == list(range(7, 13))


def _is_collected(store: ObjectStore, log: str) -> bool:
    manifest = LogReader.open(store, log).manifest()
    left = list(Deleter(store, log).documents())
    return manifest.first.position.offset == 7 and manifest.announced is None and not left
