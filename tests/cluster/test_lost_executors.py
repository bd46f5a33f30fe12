"""Executors are killed, slowed down and lost in the middle of each job: each result is right, and there once."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import JOBS
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.cluster.conftest import Machines

pytestmark = pytest.mark.spark

# A request that only a job's tasks make, not its driver.
REQUESTS = {
    "read": ("GET", "/log/"),
    "write": ("PUT", "/log/"),
    "stream": ("GET", "/log/"),
    "verify": ("GET", "/log/"),
    "plan": ("GET", "/manifest/"),
    "delete": ("DELETE", "/log/"),
    "compact": ("GET", "/log/"),
    "compact, merging": ("PUT", "/log/"),
    "roll_up": ("GET", "/log/"),
}
# What is read and written by Spark's own jobs, Spark's UI alone says.
SPARKS_OWN = {"read", "write", "stream"}


@pytest.mark.parametrize("moment", REQUESTS)
def test_executor_killed_in_the_middle_of_a_job_changes_nothing_and_is_reported(
    machines: Machines,
    spark: SparkSession,
    store: ObjectStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    moment: str,
) -> None:
    job = moment.partition(",")[0]
    prepare(store, job)

    with machines.in_the_middle(*REQUESTS[moment], machines.kill_executor):
        done = JOBS[job](spark, store.url, str(tmp_path))

    check(job, store, done)
    logged = [record.getMessage() for record in caplog.records if record.name == "wal3.spark"]
    if job in SPARKS_OWN:
        assert (logged, done["retried"]) == ([], None)
        return
    assert done["retried"]["executors"] == 1, done["retried"]
    assert done["retried"]["tasks"] >= 1
    assert done["retried"]["reasons"][0]["reason"].startswith("ExecutorLostFailure (executor "), done["retried"]
    assert any("1 executors were lost" in text for text in logged), logged


@pytest.mark.parametrize("moment", REQUESTS)
def test_worker_that_hangs_is_overtaken_by_copies_of_its_tasks(
    machines: Machines, spark: SparkSession, store: ObjectStore, tmp_path: Path, moment: str
) -> None:
    job = moment.partition(",")[0]
    prepare(store, job)

    with machines.in_the_middle(*REQUESTS[moment], machines.let_others_go_on):
        done = JOBS[job](spark, store.url, str(tmp_path))
    # What the hanging tasks still do, they do now.

    check(job, store, done)
    # An attempt that is stopped because another one was quicker is no failure.
    assert job in SPARKS_OWN or (done["retried"]["copies"], done["retried"]["tasks"]) >= (1, 0), done["retried"]
    assert job in SPARKS_OWN or done["retried"]["executors"] == 0, done["retried"]


def test_worker_lost_for_good_leaves_every_job_to_the_other(
    machines: Machines, spark: SparkSession, store: ObjectStore, tmp_path: Path
) -> None:
    prepare(store, *JOBS)
    lost: list[int] = []

    def lose(number: int) -> None:
        lost.append(number)
        machines.lose(number)

    with machines.in_the_middle(*REQUESTS["verify"], lose):
        found = {"verify": JOBS["verify"](spark, store.url, str(tmp_path))}
    try:
        found |= {job: JOBS[job](spark, store.url, str(tmp_path)) for job in JOBS if job != "verify"}
    finally:
        machines.start_worker(lost[0])

    for job in JOBS:
        check(job, store, found[job])
    assert found["verify"]["retried"]["executors"] == 1, found["verify"]
