"""The project's code location on a store that stops runs at gates, and a process for one such run."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dagster import DagsterInstance

import wal3_orchestration.resources as resources_module
from tests.orchestration.phased_store import wait_at_gates
from tests.orchestration.run_requests import run_request
from wal3_core import open_store
from wal3_orchestration.definitions import defs

resources_module.open_store = lambda url, session=None: wait_at_gates(open_store(url, session=session))


def execute(job: str, log: str, environment: Mapping[str, str]) -> None:
    """Execute a run in this process; exit with 1 when it fails."""
    os.environ.update(environment)
    request = run_request(log, log)
    with DagsterInstance.get() as instance:
        workflow = defs().resolve_job_def(job)
        result = workflow.execute_in_process(
            instance=instance, partition_key=log, tags=request.tags, raise_on_error=False
        )
    raise SystemExit(0 if result.success else 1)
