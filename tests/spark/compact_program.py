"""A pass by Spark whose tasks are killed once, and run twice at once from then on. Run by test_compact.py.

Arguments: the store's URL, a folder for marks.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql import SparkSession

import wal3_core.spark.compact as compact_module
from tests.spec.compacting import LOG, OPTIONS
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.runtime import ThreadRuntime
from wal3_core.spark.compact import PassTask, merge_task, read_keys
from wal3_core.spark.session import session_conf, use_this_python
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    import pyarrow as pa

    from wal3_core.compaction.engine import Merging

MARKS_VARIABLE = "WAL3_TEST_MARKS"
TOKEN = "00000000000000aa"


class OneTokenRuntime(ThreadRuntime):
    """A process with one token."""

    def token(self) -> str:
        return TOKEN


def _mark(kind: str) -> bool:
    """Leave a mark of this attempt; return whether it is the task's first."""
    context = TaskContext.get()
    assert context is not None
    (Path(os.environ[MARKS_VARIABLE]) / f"{kind}.{context.taskAttemptId()}.{context.attemptNumber()}").touch()
    return not context.attemptNumber()


def dying_read(batches: Iterable[pa.RecordBatch], *, part: PassTask) -> Iterator[pa.RecordBatch]:
    """Read as the library does, and die once after the first keys."""
    first = _mark("read")
    for found in read_keys(batches, part=part):
        yield found
        if first:
            os.kill(os.getpid(), signal.SIGKILL)


def dying_merge(batches: Iterable[pa.RecordBatch], *, part: PassTask, merging: Merging) -> Iterator[pa.RecordBatch]:
    """Merge as the library does: die once after the first group is uploaded; then two of them race."""
    first = _mark("merge")
    asked = list(batches)
    if first:
        next(merge_task(asked, part=part, merging=merging), None)
        os.kill(os.getpid(), signal.SIGKILL)
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: list(merge_task(asked, part=part, merging=merging)), range(2), timeout=600)
    assert one == other
    yield from one


def main() -> None:
    url, marks = sys.argv[1:]
    os.environ[MARKS_VARIABLE] = marks
    use_this_python()
    builder = SparkSession.builder
    # A task may fail three times; on other local masters it may not even once.
    for name, value in session_conf("local[2, 4]").items():
        builder = builder.config(name, value)
    spark = builder.config("spark.speculation", "true").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    compact_module.read_keys, compact_module.merge_task = dying_read, dying_merge
    engine = compact_module.SparkEngine(spark)
    with OneTokenRuntime() as runtime:
        compactor = KeyCompactor(open_store(url), LOG, options=OPTIONS, runtime=runtime, engine=engine)
        done = compactor.compact(force=True)
    assert done.retried is not None
    # Reading and merging each have a task at least.
    assert done.retried.num_tasks > 1, done.retried
    print(done.num_superseded)
    spark.stop()


if __name__ == "__main__":
    main()
