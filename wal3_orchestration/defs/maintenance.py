"""Maintenance of logs that something else has found to need it: the seam for whatever knows which logs are dirty."""

from __future__ import annotations

from collections.abc import Iterable

from dagster import RunRequest

from wal3_orchestration.defs.garbage_collection.assets import PLANNED, PRUNED
from wal3_orchestration.defs.key_compaction.assets import JOB as COMPACTION
from wal3_orchestration.defs.snapshot_compaction import COMPACTED
from wal3_orchestration.framework.assets import LogJob, request_runs
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.triggers import Workflow

# One run, because Dagster keeps some 0.2 MB for each, whatever it does. Neither half waits for the other.
MAINTENANCE = LogJob(
    name="maintenance",
    assets=(COMPACTED, PLANNED, PRUNED),
    description="Compacts the snapshots of logs that have grown, and plans, verifies and prunes; both, if one fails.",
)


def request_maintenance(
    scope: StoreScope, logs: Iterable[str], reason: str, *, keyed: Iterable[str] = ()
) -> list[RunRequest]:
    """Ask for the snapshot compaction and collection of these logs in few runs, and for the key compaction of some.

    ``reason`` says why, and is part of each run's key: the same logs with the same reason ask for the same runs,
    which Dagster starts once. So it names its cause, such as a position in a dirty log. A sensor that returns
    these requests has the job MAINTENANCE, and that of key compactions. The deletion sensor starts the deletion an
    interval later.
    """
    keys = {log: f"{reason}/{log}" for log in sorted(set(logs))}
    compacted = {log: f"{reason}/{log}" for log in sorted(set(keyed))}
    return [*request_runs(scope, MAINTENANCE, keys, reason), *request_runs(scope, COMPACTION, compacted, reason)]


workflow = Workflow(jobs=(MAINTENANCE,))
