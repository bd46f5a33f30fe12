"""What the checks of a run found, and which logs a request is about."""

from __future__ import annotations

from typing import Any

from dagster import AssetCheckEvaluation, AssetKey, DagsterInstance, ExecuteInProcessResult, RunRequest, SensorResult

from wal3_orchestration.framework.recorder import run_of


def found_bad(result: ExecuteInProcessResult) -> dict[tuple[str, str], str]:
    """Return the problems that the run's own checks found, by log and check."""
    return {
        (each["log"], check.check_name): each["problem"]
        for check in result.get_asset_check_evaluations()
        if "found" in check.metadata
        for each in check.metadata["found"].value
    }


def recorded_by(instance: DagsterInstance, result: ExecuteInProcessResult, asset: str) -> dict[str, dict[str, Any]]:
    """Return what a sweep recorded of an asset, by log; the empty name is the whole."""
    found = instance.fetch_materializations(AssetKey(asset), limit=100, ascending=True).records
    return {
        each.partition_key or "": {label: value.value for label, value in each.asset_materialization.metadata.items()}
        for each in found
        if each.asset_materialization is not None and run_of(each) == result.run_id
    }


def check_of(result: ExecuteInProcessResult, name: str) -> AssetCheckEvaluation:
    """Return the run's evaluation of a check; there is one, whatever the number of logs."""
    (found,) = [check for check in result.get_asset_check_evaluations() if check.check_name == name]
    return found


def logs_of(request: RunRequest) -> list[str]:
    """Return the logs that a request names."""
    if request.partition_key is not None:
        return [request.partition_key]
    (logs, *others) = [operation["config"]["logs"] for operation in request.run_config["ops"].values()]
    assert all(each == logs for each in others)
    return list(logs)


def asked(result: SensorResult) -> list[list[str]]:
    """Return the logs of each run that a tick asks for."""
    return [logs_of(request) for request in result.run_requests or ()]


def keys(result: SensorResult) -> list[str | None]:
    """Return the keys of the runs that a tick asks for."""
    return [request.run_key for request in result.run_requests or ()]
