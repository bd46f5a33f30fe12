"""Evaluates the sensor on the dirty logs as Dagster's daemon does, and does the runs that it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dagster import (
    AddDynamicPartitionsRequest,
    AssetCheckEvaluation,
    DagsterInstance,
    DagsterRunStatus,
    ExecuteInProcessResult,
    RunRequest,
    SensorResult,
    build_sensor_context,
)

from tests.orchestration.checked import logs_of
from tests.orchestration.conftest import SILENT
from wal3_core import LogReader
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup import RollUp
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.dirty_logs.sensors import roll_up_dirty_logs
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.resources import RollUpResource, StoreResource

# Every marked log is due, and every tick looks.
AT_ONCE: dict[str, Any] = {"age_s_max": 0.0, "period_s": 0.0}


@dataclass
class Sensor:
    """The sensor of one instance: its cursor, and which runs each log got."""

    instance: DagsterInstance
    settings: dict[str, Any] = field(default_factory=lambda: dict(AT_ONCE))
    cursor: str | None = None
    maintained: list[str] = field(default_factory=list)
    # Without it, runs are stored, as those that were launched.
    executes: bool = True

    def evaluate(self) -> SensorResult:
        """Evaluate it, and store nothing of what it returns."""
        resources = {"store": StoreResource.from_environment(), "rollup": RollUpResource(**self.settings)}
        with build_sensor_context(self.instance, cursor=self.cursor, resources=resources) as context:
            return roll_up_dirty_logs(StoreScope(), context)

    def accept(self, result: SensorResult) -> list[ExecuteInProcessResult]:
        """Add the partitions, start the runs whose keys are new, and store the cursor."""
        for event in result.asset_events:
            assert not isinstance(event, AssetCheckEvaluation)
            self.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            assert isinstance(request, AddDynamicPartitionsRequest)
            self.instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
        done = [self.start(request) for request in result.run_requests or ()]
        self.cursor = result.cursor
        return [each for each in done if each is not None]

    def start(self, request: RunRequest) -> ExecuteInProcessResult | None:
        """Do a run, unless one with its key was launched."""
        tags = {**request.tags, "dagster/run_key": str(request.run_key)}
        launched = [run for run in self.instance.get_runs() if run.status != DagsterRunStatus.NOT_STARTED]
        if any(run.tags.get("dagster/run_key") == request.run_key for run in launched):
            return None
        if request.job_name != "rollup_job":
            self.maintained += [f"{request.job_name}: {log}" for log in logs_of(request)]
        if not self.executes:
            # Queued runs need a code location.
            self.store(request, DagsterRunStatus.STARTING)
            return None
        rollup = {"rollup": {"config": self.settings}} if request.job_name == "rollup_job" else {}
        return (
            defs()
            .resolve_job_def(str(request.job_name))
            .execute_in_process(
                instance=self.instance,
                run_config={**SILENT, **request.run_config, **({"resources": rollup} if rollup else {})},
                partition_key=request.partition_key,
                tags=tags,
                raise_on_error=False,
            )
        )

    def store(self, request: RunRequest, status: DagsterRunStatus) -> None:
        """Store a run without doing it."""
        tags = {**request.tags, "dagster/run_key": str(request.run_key)}
        job = defs().resolve_job_def(str(request.job_name))
        self.instance.create_run_for_job(job, run_config=request.run_config, tags=tags, status=status)

    def tick(self) -> list[ExecuteInProcessResult]:
        """Evaluate it, and do what the daemon does with the result."""
        return self.accept(self.evaluate())

    def collected(self) -> list[str]:
        """Return the logs that were collected, in that order."""
        return [each.partition(": ")[2] for each in self.maintained if each.startswith("maintenance_")]


def waiting(store: ObjectStore) -> dict[str, int]:
    """Return the logs that are marked, each with the offset up to which it is."""
    plans = [RollUp(store, name).read() for name in dirty_logs(store)]
    return {each.log: each.marker.limit.offset for plan in plans for each in plan.logs}


def num_records(store: ObjectStore, log: str) -> int:
    return LogReader.open(store, log).manifest().num_records
