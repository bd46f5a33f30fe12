"""A deletion by two Spark jobs at once, whose tasks are killed and run again.

Arguments: the store's URL, the log, the garbage document's path, a folder for marks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

import wal3_core.spark.maintenance as collect_module
from tests.stores import FaultyStore
from wal3_core.options import CollectorOptions
from wal3_core.spark.maintenance import delete_task
from wal3_core.spark.session import session_conf, use_this_python
from wal3_core.store.object_store import ObjectStore

MARKS_VARIABLE = "WAL3_TEST_MARKS"
# Fewer than a task has, within a snapshot that holds more.
DELETES = 3


def dying_task(store: ObjectStore, log: str, texts: Sequence[str], *, options: CollectorOptions) -> Iterable[str]:
    """Delete as the library does; kill the process at the third delete of each task's first attempt."""
    context = TaskContext.get()
    assert context is not None
    (Path(os.environ[MARKS_VARIABLE]) / f"{context.taskAttemptId()}.{context.attemptNumber()}").touch()
    store = store if context.attemptNumber() else FaultyStore(store, before=_DieAtThird())
    return delete_task(store, log, texts, options=options)


class _DieAtThird:
    def __init__(self) -> None:
        self._deletes = count(1)

    def __call__(self, kind: str, _path: str) -> None:
        if kind == "delete" and next(self._deletes) == DELETES:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    url, log, path, marks = sys.argv[1:]
    os.environ[MARKS_VARIABLE] = marks
    use_this_python()
    builder = SparkSession.builder
    # A task may fail three times; on other local masters it may not even once.
    for name, value in session_conf("local[2, 4]").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    collect_module.delete_task = dying_task
    options = CollectorOptions(interval_s=0)
    with ThreadPoolExecutor(2) as threads:
        jobs = [threads.submit(collect_module.delete_objects, spark, url, [(log, path)], options) for _ in range(2)]
        results = [job.result() for job in jobs]
    outcomes = [outcome for each in results for outcome in each]
    # Each counts the tasks of its own job alone; all that died are among them.
    dead = sum(mark.suffix == ".0" for mark in Path(marks).iterdir())
    again = sum(mark.suffix == ".1" for mark in Path(marks).iterdir())
    retried = [each.retried.num_tasks for each in results]
    assert again <= sum(retried) <= dead, (again, retried, dead)
    print(all(outcome.deleted.finished and outcome.refusal is None for outcome in outcomes))
    spark.stop()


if __name__ == "__main__":
    main()
