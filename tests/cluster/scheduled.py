"""Runs of Dagster on the Spark that the environment names; prints for each whether it succeeded on the cluster.

Arguments: the logs, joined by commas. The project's own definitions, as a deployment has them; the limits of the
resources alone are lowered, so that Spark is used for small logs.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from dagster import DagsterInstance
from pyspark import SparkContext

from tests.orchestration.conftest import SILENT
from tests.orchestration.dirty import AT_ONCE, Sensor
from wal3_orchestration.definitions import defs
from wal3_orchestration.partitions import LOGS_NAME

if TYPE_CHECKING:
    from dagster import ExecuteInProcessResult

_ON_SPARK = {"spark_logs_min": 1, "spark_bytes_min": 1, "spark_objects_min": 1, "interval_s": 0.001}
SWEEPS = ("verification_sweep", "garbage_plan_sweep", "deletion_sweep", "compaction_sweep")


def main() -> None:
    """Run the sweeps, and the roll-up that a sensor asks for."""
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(LOGS_NAME, sys.argv[1].split(","))
        for name in SWEEPS:
            _told(name, [_run(instance, name)])
        sensor = Sensor(instance, {**AT_ONCE, "tick_markers_max": 0, "spark_markers_min": 1})
        _told("rollup_job", [each for each in sensor.tick() if each.dagster_run.job_name == "rollup_job"])


def _run(instance: DagsterInstance, name: str) -> ExecuteInProcessResult:
    config: dict[str, Any] = {**SILENT, "resources": {"collection": {"config": _ON_SPARK}}}
    return defs().resolve_job_def(name).execute_in_process(instance=instance, run_config=config, raise_on_error=False)


def _told(name: str, results: list[ExecuteInProcessResult]) -> None:
    # Each run has a session of its own.
    context = SparkContext._active_spark_context
    jobs = 0 if context is None else len(context.statusTracker().getJobIdsForGroup())
    master = None if context is None else context.master
    found = {"runs": len(results), "success": all(each.success for each in results), "jobs": jobs, "master": master}
    print(json.dumps({name: found}), flush=True)


if __name__ == "__main__":
    main()
