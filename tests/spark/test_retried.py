"""The results of Spark's jobs are right when tasks fail, and say what was run again and why."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from pyspark.sql.connect.shell.progress import StageInfo

from tests.spark.failing_once import WHY, let_first_attempts_fail
from tests.spark.logs import fill
from tests.spec.compacting import LOG, append, keyed_log
from wal3_core import LogWriter, scrub
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.compaction.reports import Retried
from wal3_core.spark import SparkEngine, compact, jobs, verify, verify_logs
from wal3_core.spark.jobs import ConnectProgress, reason_of
from wal3_core.spark.maintenance import delete_objects, list_orphans, plan_collections, plan_rollups
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


FAILED = f"OSError: {WHY}"


def make_logs(store: ObjectStore) -> None:
    """Make the log b of some fragments, and one to compact."""
    fill(store, "b", fragments=3)
    keyed_log(store)
    append(store, *([(b"a", b"%d" % number)] for number in range(4)))


@pytest.mark.spark
def test_verification_says_how_many_tasks_failed_and_why(
    spark: SparkSession,
    local_store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for log in ("a", "b"):
        fill(local_store, log, fragments=3)
    let_first_attempts_fail(monkeypatch, verify, "verify_task")

    with caplog.at_level(logging.WARNING, "wal3.spark"):
        found = verify_logs(spark, local_store.url, ["a", "b"])

    assert found == [scrub(local_store, log) for log in ("a", "b")]
    count = found.retried.num_tasks
    assert count > 0
    assert found.retried == Retried(num_tasks=count, reasons=((FAILED, count),))
    assert f"at least {count} attempts of tasks failed" in caplog.text
    assert FAILED in caplog.text


@pytest.mark.spark
def test_jobs_in_which_nothing_fails_say_so_whatever_failed_before(
    spark: SparkSession, local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(local_store, "a", fragments=3)
    with monkeypatch.context() as patch:
        let_first_attempts_fail(patch, jobs, "log_task")
        first = plan_collections(spark, local_store.url, ["a"])

    second = plan_collections(spark, local_store.url, ["a"])

    assert (first.retried.num_tasks, second.retried) == (1, Retried())
    assert list(first) == list(second)


@pytest.mark.spark
def test_each_job_on_the_objects_of_logs_says_what_was_run_again(
    spark: SparkSession, local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_logs(local_store)
    LogWriter.create(local_store, "dirty/server")
    let_first_attempts_fail(monkeypatch, jobs, "log_task")
    let_first_attempts_fail(monkeypatch, compact, "merge_task")

    compacted = KeyCompactor(local_store, LOG, engine=SparkEngine(spark)).compact(force=True)
    (garbage,) = compacted.garbage
    deleted = delete_objects(spark, local_store.url, [(LOG, garbage)])
    orphans = list_orphans(spark, local_store.url, ["b"])

    assert compacted.retried == Retried(num_tasks=1, reasons=((FAILED, 1),))
    assert "retried" in compacted.to_json()
    assert orphans.retried.num_tasks > 0
    # Nothing was due, and no job ran.
    assert deleted.retried == Retried()
    assert plan_rollups(spark, local_store.url, ["dirty/server"]).retried == Retried()


@pytest.mark.spark
def test_where_sparks_records_are_out_of_reach_tasks_say_which_attempt_they_are(
    spark: SparkSession, local_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_logs(local_store)
    for module, task in ((verify, "verify_task"), (jobs, "log_task"), (compact, "merge_task")):
        let_first_attempts_fail(monkeypatch, module, task)
    # As in a client of Spark Connect, for this module alone, whose server says nothing of progress.
    monkeypatch.setattr(jobs, "is_remote", lambda: True)
    for name in ("registerProgressHandler", "removeProgressHandler"):
        monkeypatch.setattr(type(spark), name, lambda _spark, _handler: None)

    verified = verify_logs(spark, local_store.url, ["b"])
    planned = plan_collections(spark, local_store.url, ["b"])
    compacted = KeyCompactor(local_store, LOG, engine=SparkEngine(spark)).compact(force=True)

    expected = Retried(num_tasks=1, attempts_only=True)
    assert (verified.retried, planned.retried, compacted.retried) == (expected, expected, expected)
    assert list(verified) == [scrub(local_store, "b")]
    assert [each.log for each in planned] == ["b"]
    assert compacted.num_superseded == 3


def stage(stage_id: int, num_tasks: int, num_completed_tasks: int, *, done: bool = True) -> StageInfo:
    """A stage as a server of Spark Connect shows it."""
    return StageInfo(stage_id, num_tasks, num_completed_tasks, 0, done)


# What servers on two workers said last: of queries in which an executor was killed, and in which none was.
_SAID = [
    ("verification", 2, 1, [stage(0, 2, 2), stage(1, 2, 1), stage(2, 2, 4)]),
    ("compaction", 2, 3, [stage(20, 2, 1), stage(21, 2, 1), stage(17, 2, 0, done=False), stage(22, 4, 2),
                          stage(16, 2, 2), stage(23, 1, 3), stage(19, 4, 4)]),
    ("nothing again", 0, 0, [stage(5, 2, 2), stage(10, 2, 0, done=False), stage(11, 2, 2), stage(15, 1, 1)]),
    ("ended early, as not needed", 0, 0, [stage(5, 2, 2), stage(6, 8, 3)]),
    ("not yet said to have ended", 0, 0, [stage(5, 2, 2), stage(6, 2, 1, done=False)]),
]  # fmt: skip


@pytest.mark.parametrize(("num_tasks", "num_stages", "stages"), [each[1:] for each in _SAID], ids=[e[0] for e in _SAID])
def test_client_of_spark_connect_counts_tasks_beyond_those_of_the_stages(
    num_tasks: int, num_stages: int, stages: list[StageInfo]
) -> None:
    progress = ConnectProgress()

    progress(stages=stages[:1], operation_id="one", inflight_tasks=1, done=False)
    progress(stages=stages, operation_id="one", inflight_tasks=0, done=True)
    progress(stages=[stage(90, 1, 2)], operation_id="other", inflight_tasks=0, done=True)
    # Of another thread's query, in the same session.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(progress, stages=[stage(91, 1, 7)], operation_id="third", done=True).result()

    assert progress.retried() == Retried(num_tasks=num_tasks + 1, num_stages=num_stages, attempts_only=True)


@dataclass(frozen=True)
class Error:
    text: str
    said: str


_PYTHON = """org.apache.spark.api.python.PythonException: [PYTHON_EXCEPTION] An exception was thrown: Traceback (most \
recent call last):
  File "task.py", line 3, in read
    raise KeyError
KeyError: 'a'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "task.py", line 5, in task
    raise UnavailableError
wal3_core.errors.UnavailableError: store: expected an answer, found none
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner.handlePythonException(PythonRunner.scala:1097)
"""
_LOST = (
    "ExecutorLostFailure (executor 3 exited caused by one of the running tasks) Reason: Command exited with code 137"
)
_FETCH = "FetchFailed(BlockManagerId(0, 127.0.0.2, 1, None), shuffleId=1, mapIndex=0, message=\norg.apache…\n\tat org"


@pytest.mark.parametrize(
    "error",
    [
        Error(_PYTHON, "wal3_core.errors.UnavailableError: store: expected an answer, found none"),
        Error(_LOST, _LOST),
        Error(_FETCH, "FetchFailed(BlockManagerId(0, 127.0.0.2, 1, None), shuffleId=1, mapIndex=0, message="),
        Error("", "no reason given"),
        Error("x" * 400, f"{'x' * 300}…"),
    ],
    ids=["python", "lost executor", "fetch", "none", "long"],
)
def test_error_of_a_task_is_shortened_to_what_was_raised(error: Error) -> None:
    assert reason_of(error.text) == error.said


def test_retries_of_several_jobs_add_up_and_are_said_in_a_line() -> None:
    one = Retried(num_tasks=3, num_executors=1, reasons=(("lost", 2), ("full", 1)))
    other = Retried(num_tasks=2, num_stages=1, num_copies=4, reasons=(("full", 2),))

    both = one + other

    assert both == Retried(num_tasks=5, num_executors=1, num_stages=1, num_copies=4, reasons=(("full", 3), ("lost", 2)))
    assert str(both) == (
        "at least 5 attempts of tasks failed or lost their executor, 1 executors were lost, 1 stages ran again,"
        " 4 copies of slow tasks were started: full (3 times); lost (2 times)"
    )
    assert str(Retried(num_tasks=2, attempts_only=True)) == (
        "at least 2 attempts of tasks failed, or were overtaken by a copy"
    )
    assert not Retried(num_copies=4).failed
