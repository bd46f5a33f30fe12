from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dagster import AssetSpec, DagsterInstance, DagsterRun, Definitions
from dagster._utils.tags import TagConcurrencyLimitsCounter

from tests.orchestration.run_requests import run_request
from wal3_orchestration.definitions import defs

ROOT = Path(__file__).parent.parent.parent
SNAPSHOT = Path(__file__).parent / "asset_graph.json"


def _asset(spec: AssetSpec) -> dict[str, Any]:
    assets = defs().resolve_assets_def(spec.key)
    partitions = assets.partitions_def
    return {
        "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
        "kinds": sorted(spec.kinds),
        "partitions": None if partitions is None else partitions.name,
        "backfill": str(assets.backfill_policy),
        "pool": assets.op.pool,
        # None: a step requests its retries itself; otherwise a cancelled step would be retried.
        "retries": assets.op.retry_policy,
        "group": spec.group_name,
        "checks": {
            check.name: {"blocking": check.blocking, "partitions": check.partitions_def and check.partitions_def.name}
            for check in assets.check_specs
        },
    }


def _graph() -> dict[str, Any]:
    repository = defs().get_repository_def()
    return {
        "assets": {spec.key.to_user_string(): _asset(spec) for spec in defs().resolve_all_asset_specs()},
        "jobs": sorted(name for name in repository.job_names if not name.startswith("__")),
        "sensors": {
            sensor.name: {
                "jobs": [target.job_name for target in sensor.targets],
                "status": sensor.default_status.value,
            }
            for sensor in repository.sensor_defs
        },
        "schedules": {
            schedule.name: {
                "job": schedule.job_name,
                "cron": schedule.cron_schedule,
                "status": schedule.default_status.value,
            }
            for schedule in repository.schedule_defs
        },
        "resources": sorted(defs().resources or {}),
        "executor": getattr(defs().executor, "name", None),
    }


def test_definitions_load() -> None:
    Definitions.validate_loadable(defs())


@pytest.mark.slow
def test_asset_graph_is_the_agreed_one() -> None:
    graph = _graph()

    assert graph == json.loads(SNAPSHOT.read_text()), (
        f"if meant, write this to {SNAPSHOT}:\n{json.dumps(graph, indent=2)}"
    )


def test_definitions_stay_thin() -> None:
    assert len((ROOT / "wal3_orchestration" / "definitions.py").read_text().splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_workspace_file_loads() -> None:
    command = [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"]

    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)

    assert outcome.returncode == 0, outcome.stderr
    assert "Validation successful for code location wal3" in outcome.stderr + outcome.stdout


@pytest.mark.slow
def test_loading_prints_no_warnings() -> None:
    command = [sys.executable, "-c", "import wal3_orchestration.definitions"]

    outcome = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=600)

    assert outcome.stderr == ""


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_instance_settings_are_accepted_and_take_effect(instance: DagsterInstance) -> None:
    concurrency = instance.get_concurrency_config()

    assert not instance.telemetry_enabled
    assert concurrency.pool_config.default_pool_limit == 1
    assert str(concurrency.pool_config.pool_granularity.value) == "run"
    assert concurrency.run_queue_config.tag_concurrency_limits == [
        {"key": key, "value": {"applyLimitPerUniqueValue": True}, "limit": 1}
        for key in ("wal3/log", "dagster/partition")
    ]
    assert instance.run_monitoring_enabled
    assert Path(instance.storage_directory()).parent == Path(instance.root_directory)


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_queue_runs_one_run_per_log_and_other_logs_beside_it(instance: DagsterInstance) -> None:
    limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    going, same, other = (
        DagsterRun(job_name="collection_job", tags=run_request(log, log).tags) for log in ("alpha", "alpha", "gamma")
    )

    counter = TagConcurrencyLimitsCounter(limits, [going])

    assert counter.is_blocked(same)
    assert not counter.is_blocked(other)


@pytest.mark.slow
@pytest.mark.usefixtures("dagster_home")
def test_queue_runs_one_manually_launched_run_per_log(instance: DagsterInstance) -> None:
    limits = instance.get_concurrency_config().run_queue_config.tag_concurrency_limits
    going, same, other = (
        DagsterRun(job_name="collection_job", tags={"dagster/partition": log}) for log in ("alpha", "alpha", "gamma")
    )

    counter = TagConcurrencyLimitsCounter(limits, [going])

    assert counter.is_blocked(same)
    assert not counter.is_blocked(other)
