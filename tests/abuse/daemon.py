"""The daemon with the eager code location, and what has become of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from tests.orchestration import daemons

if TYPE_CHECKING:
    import subprocess


WAIT_S_MAX = 500
UNDER_WAY = [
    DagsterRunStatus.QUEUED,
    DagsterRunStatus.NOT_STARTED,
    DagsterRunStatus.STARTING,
    DagsterRunStatus.STARTED,
    DagsterRunStatus.CANCELING,
]


def eager_daemon(output: Path) -> AbstractContextManager[subprocess.Popen[bytes]]:
    """Run the daemon on the home and store that the environment names."""
    return daemons.running_daemon(output, "--module-name", "tests.abuse.eager_location")


def eventually(seen: Callable[[], bool], output: Path) -> None:
    """Wait until something is seen, for long: a shared machine may take minutes for what takes seconds alone."""
    daemons.eventually(seen, output, WAIT_S_MAX)


def under_way(instance: DagsterInstance, job: str | None = None) -> list[str]:
    """Return the runs, of a job or of all, that have not ended."""
    return [run.run_id for run in instance.get_runs(RunsFilter(job_name=job, statuses=UNDER_WAY))]


def ended(instance: DagsterInstance) -> Counter[tuple[str, str]]:
    """Count the runs by job and status."""
    return Counter((run.job_name, run.status.value) for run in instance.get_runs())
