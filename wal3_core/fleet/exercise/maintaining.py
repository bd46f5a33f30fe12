"""The maintaining process of an exercise: it collects the logs that are followed, and compacts their snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import CollectionRefusedError, LogError, LogNotFoundError, UnavailableError
from wal3_core.fleet.exercise.ledger import Ledger
from wal3_core.fleet.exercise.place import log_name
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.snapshot_compactor import SnapshotCompactor
from wal3_core.options import CollectorOptions

if TYPE_CHECKING:
    from wal3_core.fleet.exercise.process import Work

# Far too short for production, where readers must have ended within it: here it makes the races more frequent.
_COLLECTOR = CollectorOptions(interval_s=1.0, fraction_max=1.0)
_PAUSE_S = 0.2


def maintain(work: Work) -> None:
    """Maintain one log after another until the process has to end."""
    ledger = Ledger(work.folder, work.task.name)
    while True:
        for number in work.task.followed:
            if work.pause(_PAUSE_S):
                return
            log = log_name(number)
            try:
                _maintain(work, log)
            except (UnavailableError, LogNotFoundError, CollectionRefusedError) as error:
                work.counts.count(f"maintenance {type(error).__name__}")
            except LogError as error:
                ledger.problem(log, f"{type(error).__name__}: {error}")


def _maintain(work: Work, log: str) -> None:
    report = collect(work.store, log, options=_COLLECTOR)
    work.counts.count("collections")
    work.counts.count("records_collected", report.plan.num_records)
    work.counts.count("objects_deleted", sum(each.num_deleted for each in report.deleted))
    work.counts.count("snapshot_steps", SnapshotCompactor(work.store, log).compact().num_steps)
