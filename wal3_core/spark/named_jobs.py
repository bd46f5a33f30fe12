"""Names the library's jobs in Spark's UI, and finds out what Spark ran again of them: so an operator learns of it.

Where there is a Spark context, its own records say (``job_records``). With Spark Connect there is none. Then a task
that is not the first attempt says so among its results (``attempts``), and that is all that is known.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.utils import is_remote

from wal3_core.model.retried import Retried
from wal3_core.runtime import shared_runtime
from wal3_core.runtime.loggers import SPARK

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

    def end(self, context: SparkContext | None, tag: str) -> None:
        """Find out what was run again."""
        if context is None:
            self.retried = Retried(num_tasks=self._earlier, attempts_only=True)
        else:
            from wal3_core.spark.job_records import retried_of  # noqa: PLC0415 - a client of Spark Connect may lack py4j

            self.retried = retried_of(context, tag)


@contextmanager
def named_jobs(spark: SparkSession, name: str) -> Iterator[JobWatch]:
    """Name the jobs of a block, watch them, and warn of the tasks that they lost, also when the block fails."""
    context, tag, watch = None if is_remote() else spark.sparkContext, f"wal3-{shared_runtime().token()}", JobWatch()
    before = None if context is None else context.getLocalProperty(_DESCRIPTION)
    if context is not None:
        context.addJobTag(tag)
        context.setLocalProperty(_DESCRIPTION, f"wal3: {name}")
    try:
        yield watch
    finally:
        if context is not None:
            context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it
            context.removeJobTag(tag)
        watch.end(context, tag)
        if watch.retried.failed:
            SPARK.warning("%s: %s", name, watch.retried)
