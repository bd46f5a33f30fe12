"""Maintenance of logs that something else has found to need it: the seam for whatever knows which logs are dirty."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_orchestration.defs import snapshot_compaction
from wal3_orchestration.defs.garbage_collection.assets import COLLECTION
from wal3_orchestration.jobs import request_runs

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster import RunRequest

    from wal3_orchestration.scope import Scope

# What is done to a log, in this order; the deletion sensor starts the deletion an interval later.
MAINTENANCE = (snapshot_compaction.JOB, COLLECTION)


def request_maintenance(scope: Scope, logs: Iterable[str], reason: str) -> list[RunRequest]:
    """Ask for the compaction and collection of these logs in few runs.

    ``reason`` says why, and is part of each run's key: the same logs with the same reason ask for the same runs,
    which Dagster starts once. So it names its cause, such as a position in a dirty log. A sensor that returns
    these requests has the jobs of MAINTENANCE.
    """
    keys = {log: f"{reason}/{log}" for log in sorted(set(logs))}
    return [request for job in MAINTENANCE for request in request_runs(scope, job, keys, reason)] if keys else []
