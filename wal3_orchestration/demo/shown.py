"""Gives runs of this process the code location of workspace.yaml, so that the UI's first page shows them.

A run that a daemon launches has it from the beginning; Dagster's command line sets it for others, job by job.
"""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# What Dagster calls a location's definitions, and a location that no workspace has.
_LABEL = "__repository__@this_process"
UNPLACED = {".dagster/repository": _LABEL}
_AT_ONCE = 2
_TIMEOUT_S = 60


def place(root: Path, jobs: Iterable[str]) -> list[str]:
    """Place the runs of these jobs that carry UNPLACED; return what went wrong, job by job."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        problems = pool.map(lambda job: _place(root, job), sorted(set(jobs)))
        return [problem for problem in problems if problem is not None]


def _place(root: Path, job: str) -> str | None:
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
