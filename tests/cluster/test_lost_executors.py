"""Executors are killed, slowed down and lost in the middle of each job: each result is right, and there once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.outcomes import check, prepare
from tests.cluster.submitted import JOBS

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.cluster.conftest import Machines
    from wal3_core.storage.object_store import ObjectStore

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


@pytest.mark.parametrize("moment", REQUESTS)
def test_executor_killed_in_the_middle_of_a_job_changes_nothing_and_is_told(
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
        found = JOBS[job](spark, store.url, str(tmp_path))

    check(job, store, found)
    told = [record.getMessage() for record in caplog.records if record.name == "wal3.spark"]
    # Reads and writes are Spark's own jobs.
    assert bool(told) == (job not in {"read", "write", "stream"}), told
    assert all("failed or lost their executor" in text for text in told)


@pytest.mark.parametrize("moment", REQUESTS)
def test_worker_that_hangs_is_overtaken_by_copies_of_its_tasks(
    machines: Machines, spark: SparkSession, store: ObjectStore, tmp_path: Path, moment: str
) -> None:
    job = moment.partition(",")[0]
    prepare(store, job)

    with machines.in_the_middle(*REQUESTS[moment], machines.let_others_go_on):
        found = JOBS[job](spark, store.url, str(tmp_path))
    # What the hanging tasks still do, they do now.

    check(job, store, found)


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
