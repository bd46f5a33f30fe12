"""Gives runs of this process the code location of workspace.yaml, so that the UI's first page shows them.

A run that a daemon launches has it from the beginning; Dagster's command line sets it for others, one job at a time.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from dagster import RunsFilter

if TYPE_CHECKING:
    from pathlib import Path

    from dagster import DagsterInstance

# What Dagster calls a location's definitions, and a location that no workspace has.
_LABEL = "__repository__@this_process"
UNPLACED = {".dagster/repository": _LABEL}
_TIMEOUT_S = 60


def place(root: Path, instance: DagsterInstance) -> str | None:
    """Place the runs that carry UNPLACED; return what went wrong.

    The command loads the code location, which takes seconds: the other jobs' runs are placed as it places one job's.
    """
    runs = instance.get_runs(RunsFilter(tags=UNPLACED))
    if not runs:
        return None
    problem = _place_job(root, runs[0].job_name)
    if problem is not None:
        return problem
    placed = instance.get_run_by_id(runs[0].run_id)
    if placed is None or placed.remote_job_origin is None:
        return f"{runs[0].job_name}: expected a run with its code location, found none"
    for run in instance.get_runs(RunsFilter(tags=UNPLACED)):
        origin = placed.remote_job_origin._replace(job_name=run.job_name)
        instance.run_storage.replace_job_origin(run, origin)
    return None


def _place_job(root: Path, job: str) -> str | None:
    command = (sys.executable, "-m", "dagster", "run", "migrate-repository", "--from", _LABEL)
    place = ("-w", "workspace.yaml", "-j", job)
    try:
        done = subprocess.run(  # noqa: S603 - its own interpreter
            [*command, *place],
            cwd=root,
            input="MIGRATE\n",
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{job}: expected an answer of Dagster's command line within {_TIMEOUT_S} s, found none"
    last = done.stderr.strip().splitlines()[-1:]
    return None if done.returncode == 0 else f"{job}: {' '.join(last) or 'Dagster refused'}"
