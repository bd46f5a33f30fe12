"""The demo's runs: what Dagster's daemon would do later, done at once on the same instance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dagster import (
    AddDynamicPartitionsRequest,
    AssetKey,
    DagsterInstance,
    ExecuteInProcessResult,
    RunRequest,
    RunsFilter,
    build_sensor_context,
)

from wal3_orchestration.definitions import defs
from wal3_orchestration.defs.dirty_logs.sensors import roll_up_dirty_logs
from wal3_orchestration.defs.discovery import discover
from wal3_orchestration.framework.scope import LOGS_NAME, RUN_KEY_TAG, StoreScope
from wal3_orchestration.framework.triggers import SensorCursor
from wal3_orchestration.resources import RollUpResource, StoreResource

if TYPE_CHECKING:
    from wal3_orchestration.framework.triggers import Evaluate

# Dagster's own: which partitions a run is about.
_RANGE_TAG = "dagster/asset_partition_range"
_REPOSITORY_TAG = ".dagster/repository"
# What Dagster calls a location's definitions, and a location that no workspace has.
_UNPLACED = {_REPOSITORY_TAG: "__repository__@this_process"}
_QUIET = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
# Half of a log may be garbage.
_LIMITS = {"fraction_max": 1.0, "fraction_alarm": 1.0}
# Look at each tick; a log is due when it has grown by some hundred records.
_ROLL_UP = RollUpResource(period_s=0, records_max=500)


class DemoRuns:
    """The runs of the demo on an instance; ``failures`` names those that failed."""

    def __init__(self, instance: DagsterInstance) -> None:
        self._instance = instance
        self._cursors: dict[Evaluate, str | None] = {}
        self.failures: list[str] = []

    def logs(self) -> Sequence[str]:
        """Return the logs that were discovered."""
        return self._instance.get_dynamic_partitions(LOGS_NAME)

    def discover(self) -> int:
        """Tick the discovery sensor until it has looked at all logs, and do the runs it requests; return how many."""
        count = 0
        while True:
            requests = self.tick(discover)
            for request in requests:
                self.start(request)
            count += len(requests)
            if not SensorCursor.from_cursor(self._cursors[discover]).after:
                return count

    def roll_up(self) -> list[str]:
        """Tick the sensor on the dirty logs until nothing is due, and do the runs it asks for; return their logs."""
        logs: set[str] = set()
        while requests := self.tick(roll_up_dirty_logs):
            for request in requests:
                self.start(request)
            logs |= {request.partition_key for request in requests if request.partition_key is not None}
        return sorted(logs)

    def tick(self, tick: Evaluate) -> Sequence[RunRequest]:
        """Tick a sensor where it left off, store what it reports, and return the runs that it asks for."""
        used = {"store": StoreResource.from_environment(), "rollup": _ROLL_UP}
        with build_sensor_context(self._instance, cursor=self._cursors.get(tick), resources=used) as context:
            result = tick(StoreScope(), context)
        for change in result.dynamic_partitions_requests or ():
            # No log of the demo goes.
            if isinstance(change, AddDynamicPartitionsRequest):
                self._instance.add_dynamic_partitions(change.partitions_def_name, change.partition_keys)
        for event in result.asset_events:
            self._instance.report_runless_asset_event(event)
        self._cursors[tick] = result.cursor
        return result.run_requests or ()

    def start_for_all(self, job: str, limits: Mapping[str, float] = _LIMITS) -> ExecuteInProcessResult:
        """Do one run of a job over every log."""
        logs = self.logs()
        tags = {f"{_RANGE_TAG}_start": logs[0], f"{_RANGE_TAG}_end": logs[-1]}
        config = {"resources": {"collection": {"config": limits}}}
        return self.start(RunRequest(job_name=job, run_config=config, tags=tags))

    def verify(self) -> ExecuteInProcessResult:
        """Verify every log, on Spark although they are small."""
        return self.start_for_all("verification_job", {"spark_work_s_min": 0.0})

    def start(self, request: RunRequest) -> ExecuteInProcessResult:
        """Do a run."""
        job = defs().resolve_job_def(str(request.job_name))
        asked = {RUN_KEY_TAG: request.run_key} if request.run_key else {}
        result = job.execute_in_process(
            instance=self._instance,
            run_config={**_QUIET, **(request.run_config or {})},
            partition_key=request.partition_key,
            tags={**request.tags, **asked, **_UNPLACED},
            raise_on_error=False,
        )
        if not result.success:
            errors = [event.step_failure_data.error for event in result.get_step_failure_events()]
            cause = (
                "; ".join(error.message.strip() for error in errors if error is not None)
                or "see the run in Dagster's UI"
            )
            self.failures.append(f"{job.name} {result.run_id}: {cause}")
        return result

    def place(self, root: Path) -> str | None:
        """Make these the runs of the code location in a checkout, as the UI's first page shows; or say why not.

        The command loads the code location, which takes seconds: the other jobs' runs are placed as it places those of
        one job.
        """
        (first, *others) = self._instance.get_runs(RunsFilter(tags=_UNPLACED))
        command = (sys.executable, "-m", "dagster", "run", "migrate-repository", "--from", _UNPLACED[_REPOSITORY_TAG])
        arguments = [*command, "-w", "workspace.yaml", "-j", first.job_name]
        try:
            done = subprocess.run(  # noqa: S603 - its own interpreter
                arguments, cwd=root, input="MIGRATE\n", capture_output=True, text=True, timeout=60, check=False
            )
        except subprocess.TimeoutExpired as error:
            return str(error)
        placed = self._instance.get_run_by_id(first.run_id)
        if placed is None or placed.remote_job_origin is None:
            return f"{first.job_name}: {' '.join(done.stderr.strip().splitlines()[-1:]) or 'Dagster refused'}"
        for run in others:
            origin = placed.remote_job_origin._replace(job_name=run.job_name)
            self._instance.run_storage.replace_job_origin(run, origin)
        return None


def recorded(result: ExecuteInProcessResult, asset: str) -> dict[str, dict[str, Any]]:
    """Return what a run recorded of an asset, by log."""
    return {
        str(event.partition): {
            label: value.value for label, value in event.step_materialization_data.materialization.metadata.items()
        }
        for event in result.get_asset_materialization_events()
        if event.asset_key == AssetKey(asset)
    }
