"""Logs for Dagster to collect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dagster import DagsterInstance, RunRequest

from wal3_core import CursorStore, LogPosition
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.scope import COLLECT_TAG, LOGS_NAME

if TYPE_CHECKING:
    import pytest
    from conftest import Write


# What the daily schedule starts.
PLAN_ALL = RunRequest(job_name="garbage_plan_sweep", tags={COLLECT_TAG: "true"})


def make_collectable(
    logs: Sequence[str], write: Write, fleet: ObjectStore, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Make logs of which two fragments can be collected, without an interval."""
    monkeypatch.setenv("WAL3_GC_INTERVAL_S", "1e-6")
    for log in logs:
        write(log, fragments=4)
        CursorStore(fleet, log).create("reader", LogPosition(7, 0))
    instance.add_dynamic_partitions(LOGS_NAME, logs)
