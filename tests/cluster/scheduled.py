"""Runs of Dagster on the Spark that the environment names; prints for each whether it succeeded on the cluster.

Arguments: the logs, joined by commas. The project's own definitions, as a deployment has them; the limits of the
resources alone are lowered, so that Spark is used for small logs.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from dagster import DagsterInstance, ExecuteInProcessResult
from pyspark import SparkContext

from tests.orchestration.conftest import SILENT
from tests.orchestration.dirty import AT_ONCE, Sensor
from wal3_orchestration.definitions import defs
from wal3_orchestration.framework.scope import LOGS_NAME

_ON_SPARK = {"spark_work_s_min": 0.0, "spark_bytes_min": 1, "spark_objects_min": 1, "interval_s": 0.001}
RETRIED = {"tasks retried", "executors lost", "retried because"}
SWEEPS = ("verification_sweep", "garbage_plan_sweep", "deletion_sweep", "compaction_sweep")


def main() -> None:
    """Run the sweeps, and the roll-up that a sensor asks for."""
    with DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(LOGS_NAME, sys.argv[1].split(","))
        for name in SWEEPS:
            _report(name, [_run(instance, name)])
        sensor = Sensor(instance, {**AT_ONCE, "tick_markers_max": 1, "spark_markers_min": 1})
        _report("rollup_job", [each for each in sensor.tick() if each.dagster_run.job_name == "rollup_job"])


def _run(instance: DagsterInstance, name: str) -> ExecuteInProcessResult:
    config: dict[str, Any] = {**SILENT, "resources": {"collection": {"config": _ON_SPARK}}}
    return defs().resolve_job_def(name).execute_in_process(instance=instance, run_config=config, raise_on_error=False)


def _report(name: str, results: list[ExecuteInProcessResult]) -> None:
    # Each run has a session of its own.
    context = SparkContext._active_spark_context
    jobs = 0 if context is None else len(context.statusTracker().getJobIdsForGroup())
    master = None if context is None else context.master
    success, retried = all(each.success for each in results), [found for each in results for found in _retried(each)]
    found = {"runs": len(results), "success": success, "jobs": jobs, "master": master, "retried": retried}
    print(json.dumps({name: found}), flush=True)


def _retried(result: ExecuteInProcessResult) -> list[dict[str, Any]]:
    """Return what the run's assets say was retried, each set of labels once."""
    events = [each.step_materialization_data.materialization for each in result.get_asset_materialization_events()]
    shown = [
        {label: value.value for label, value in each.metadata.items() if label in RETRIED}
        for each in events
        if "tasks retried" in each.metadata
    ]
    return [each for at, each in enumerate(shown) if each not in shown[:at]]


if __name__ == "__main__":
    main()
