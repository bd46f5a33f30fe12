"""What Spark ran again is shown by Dagster: by each asset, by its checks, and by the sum of a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from dagster import DagsterInstance, ExecuteInProcessResult, RunRequest

from tests.orchestration.checked import check_of, recorded_by
from tests.orchestration.run_requests import run_request
from tests.spark.failing_once import WHY, let_first_attempts_fail
from wal3_core.compaction.reports import Retried
from wal3_core.spark import jobs, verify
from wal3_orchestration.framework.checks import retried_metadata

if TYPE_CHECKING:
    from conftest import Run

ON_SPARK = {"resources": {"collection": {"config": {"spark_work_s_min": 0.0}}}}
SHOWN = {"tasks retried": 1, "executors lost": 0, "retried because": f"OSError: {WHY}"}


def _shown(metadata: dict[str, Any]) -> dict[str, Any]:
    return {label: getattr(value, "value", value) for label, value in metadata.items() if label in SHOWN}


def _as_text(shown: dict[str, Any]) -> dict[str, str]:
    """Return what a check shows: no plots."""
    return {label: str(value) for label, value in shown.items()}


def _metadata(result: ExecuteInProcessResult) -> dict[str | None, dict[str, Any]]:
    events = [each.step_materialization_data.materialization for each in result.get_asset_materialization_events()]
    return {each.partition: _shown(dict(each.metadata)) for each in events}


@pytest.mark.spark
def test_failed_verification_tasks_are_shown_by_logs_check_and_sweep(
    known: list[str], run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_first_attempts_fail(monkeypatch, verify, "verify_task")

    chosen = run("verification_job", run_request(known[0], known[-1]), ON_SPARK)
    sweep = run("verification_sweep", RunRequest(), ON_SPARK)

    assert chosen.success
    assert _metadata(chosen) == dict.fromkeys(known, SHOWN)
    assert _shown(dict(check_of(chosen, "sound").metadata)) == _as_text(SHOWN)
    assert sweep.success
    # The logs are as they were: nothing is recorded of them for how they were read.
    assert {log: _shown(found) for log, found in recorded_by(instance, sweep, "verification").items()} == {"": SHOWN}


@pytest.mark.spark
@pytest.mark.parametrize(("sweep", "check"), [("garbage_plan", "safe_to_collect"), ("orphans", "few_orphans")])
def test_failed_tasks_of_a_sweep_are_shown_by_its_sum_and_its_checks(
    known: list[str], run: Run, monkeypatch: pytest.MonkeyPatch, sweep: str, check: str
) -> None:
    assert known
    let_first_attempts_fail(monkeypatch, jobs, "log_task")

    result = run(f"{sweep}_sweep", RunRequest(), ON_SPARK)

    assert result.success
    (shown,) = _metadata(result).values()
    assert shown["tasks retried"] > 0
    assert shown["retried because"].startswith(SHOWN["retried because"])
    assert _shown(dict(check_of(result, check).metadata)) == _as_text(shown)


@pytest.mark.slow
def test_nothing_is_said_of_retries_where_spark_is_not_used(known: list[str], run: Run) -> None:
    result = run("verification_job", run_request(known[0], known[-1]))

    assert _metadata(result) == {log: {} for log in known}
    assert _shown(dict(check_of(result, "sound").metadata)) == {}


def test_numbers_that_are_rarely_not_zero_are_shown_when_they_are_not() -> None:
    everything = Retried(num_tasks=4, num_executors=1, num_stages=2, num_copies=3, reasons=(("lost", 3), ("full", 1)))

    assert retried_metadata(None) == {}
    assert retried_metadata(Retried()) == {"tasks retried": 0, "executors lost": 0}
    assert retried_metadata(everything) == {
        "tasks retried": 4,
        "executors lost": 1,
        "stages run again": 2,
        "copies of slow tasks": 3,
        "retried because": "lost (3 times); full",
    }
