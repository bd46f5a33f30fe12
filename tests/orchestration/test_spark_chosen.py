"""Spark does what is left when that would take long here, by what was measured; the summary says what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.orchestration.checked import recorded_by
from wal3_orchestration.defs.garbage_collection.assets import PLANNING
from wal3_orchestration.framework import step
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.step import HERE, ON_SPARK, WorkDone

if TYPE_CHECKING:
    from conftest import Run
    from dagster import DagsterInstance


@pytest.mark.spark
def test_logs_that_are_left_go_to_spark_and_the_summary_says_what_that_cost(
    known: list[str], run: Run, instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "_MEASURED_LOGS", 1)
    limits = {"resources": {"collection": {"config": {"spark_work_s_min": 1e-9}}}}

    result = run("", PLANNING.request_sweep(StoreScope()), limits)

    found = recorded_by(instance, result, "garbage_plan")
    assert result.success
    assert set(found) == {*known, ""}
    assert found[""]["done_by"] == f"{HERE} for 1, {ON_SPARK} for 2"
    assert found[""]["Spark's start took"]


@pytest.mark.slow
def test_many_small_logs_are_done_without_spark(known: list[str], run: Run, instance: DagsterInstance) -> None:
    found = recorded_by(instance, run("", PLANNING.request_sweep(StoreScope())), "garbage_plan")

    assert known
    assert found[""]["done_by"] == HERE
    assert "Spark's start took" not in found[""]


def test_what_is_left_is_estimated_by_the_logs_that_were_done() -> None:
    work = WorkDone()
    assert work.left_s(1_000) == 0

    work.num_logs[HERE], work.here_s = 64, 32.0

    assert work.left_s(1_000) == 500
