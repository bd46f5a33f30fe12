"""Names the library's jobs in Spark's UI, and finds out what Spark ran again of them: so an operator learns of it.

Where there is a Spark context, its own records say (``job_records``). With Spark Connect there is none. Then the server
says how many tasks have ended (``progress``), and a task that is not the first attempt says so among its results
(``attempts``): that is all that is known.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.utils import is_remote

from wal3_core.model.retried import Retried
from wal3_core.runtime import shared_runtime
from wal3_core.runtime.loggers import SPARK
from wal3_core.spark.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession

T = TypeVar("T")

_DESCRIPTION = "spark.job.description"


class JobResults(list[T]):
    """The results of jobs over many logs, in the order asked for, and what Spark ran again to get them."""

    def __init__(self, results: Iterable[T] = (), retried: Retried | None = None) -> None:
        super().__init__(results)
        self.retried = Retried() if retried is None else retried


class JobWatch:
    """What Spark ran again of the jobs of a block; ``retried`` is known when the block ends."""

    def __init__(self) -> None:
        self.retried = Retried()
        self._earlier = 0

    def add_earlier(self, attempts: int) -> None:
        """Count attempts that a task has reported: they are used where Spark's own records are out of reach."""
        self._earlier += attempts

    def end(self, context: SparkContext, tag: str) -> None:
        """Find out what was run again from Spark's own records."""
        from wal3_core.spark.job_records import retried_of  # noqa: PLC0415 - a client of Spark Connect may lack py4j

        self.retried = retried_of(context, tag)

    def end_remote(self, progress: Progress) -> None:
        """Find out what was run again from what the server and the tasks have said: each may say less than was."""
        found = progress.retried()
        self.retried = replace(found, num_tasks=max(found.num_tasks, self._earlier))


@contextmanager
def named_jobs(spark: SparkSession, name: str) -> Iterator[JobWatch]:
    """Name the jobs of a block, watch them, and warn of the tasks that they lost, also when the block fails."""
    watch = JobWatch()
    try:
        with _remote(spark, watch) if is_remote() else _tagged(spark.sparkContext, name, watch):
            yield watch
    finally:
        if watch.retried.failed:
            SPARK.warning("%s: %s", name, watch.retried)


@contextmanager
def _tagged(context: SparkContext, name: str, watch: JobWatch) -> Iterator[None]:
    tag, before = f"wal3-{shared_runtime().token()}", context.getLocalProperty(_DESCRIPTION)
    context.addJobTag(tag)
    context.setLocalProperty(_DESCRIPTION, f"wal3: {name}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it
        context.removeJobTag(tag)
        watch.end(context, tag)


@contextmanager
def _remote(spark: SparkSession, watch: JobWatch) -> Iterator[None]:
    progress = Progress()
    # A function will do, whatever the types say.
    spark.registerProgressHandler(progress)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(progress)  # type: ignore[arg-type]
        watch.end_remote(progress)
