"""Spark jobs over many logs: named in Spark's UI, and watched for what Spark ran again, so an operator learns of it.

``run_by_log`` is one job: texts of each log go in, texts come out, and an error of one log hides no other.

Where there is a Spark context, its own records say what ran again (``job_records``). With Spark Connect there is none.
Then the server says how many tasks have ended, and a task that is not the first attempt says so among its results
(``task_context``): that is all that is known.
"""

from __future__ import annotations

import os
from _thread import get_ident
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.utils import is_remote

from wal3_core.compaction.retried import Retried
from wal3_core.fleet.outcomes import Refusal
from wal3_core.runtime import shared_runtime
from wal3_core.runtime.loggers import SPARK
from wal3_core.spark.collect_task import RESULTS, collect_task, from_text
from wal3_core.spark.requests import check_shared
from wal3_core.spark.task_context import AGAIN
from wal3_core.spark.tasks import count_tasks, group

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark import SparkContext
    from pyspark.sql import Row, SparkSession

    from wal3_core.spark.collect_task import LogWork


class Stage(Protocol):
    """A stage as Spark Connect reports it."""

    @property
    def num_tasks(self) -> int:
        """How many tasks it has."""
        ...

    @property
    def num_completed_tasks(self) -> int:
        """How many attempts of its tasks have ended."""
        ...

    @property
    def done(self) -> bool:
        """Whether it has ended, once at least."""
        ...


class ConnectProgress:
    """Keeps the last that the server has said of each query of the thread that made this."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._last: dict[str | None, Sequence[Stage]] = {}

    def __call__(self, *, stages: Iterable[Stage] | None, operation_id: str | None, **_: object) -> None:
        """Take what the server says; Spark calls this in the thread of the query."""
        if get_ident() == self._thread:
            self._last[operation_id] = list(stages or ())

    def retried(self) -> Retried:
        """Return what ran again, at least; see ``retried_by_progress``."""
        return sum((retried_by_progress(stages) for stages in self._last.values()), Retried(attempts_only=True))


def retried_by_progress(stages: Iterable[Stage]) -> Retried:
    """Return how many more tasks of a query's stages ended than these have, and how many stages ran again in part.

    The last tasks of a query may not have been reported as ended: it is the least that ran again.
    """
    stages = list(stages)
    excess = sum(max(0, each.num_completed_tasks - each.num_tasks) for each in stages)
    # A stage whose results an earlier one has does not run, unless some of them were lost. A stage may also end early
    # because its results are not needed: but then no task has failed.
    in_part = sum(each.done and 0 < each.num_completed_tasks < each.num_tasks for each in stages) if excess else 0
    return Retried(num_tasks=excess, num_stages=in_part, attempts_only=True)


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

    def end_remote(self, progress: ConnectProgress) -> None:
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
    progress = ConnectProgress()
    # A function will do, whatever the types say.
    spark.registerProgressHandler(progress)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(progress)  # type: ignore[arg-type]
        watch.end_remote(progress)


_TASK_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Item:
    """A text for a log's work, and its cost."""

    log: str
    text: str
    cost: int


@dataclass(frozen=True, slots=True)
class LogResults:
    """A log's results, and the refusal that ended them."""

    results: tuple[str, ...] = ()
    refusal: Refusal | None = None


def run_by_log(
    spark: SparkSession, store_url: str, items: Sequence[Item], work: LogWork
) -> tuple[dict[str, LogResults], Retried]:
    """Do the work as one job, and say what Spark ran again; adjacent items, which belong to one log, stay together."""
    if not items:
        return {}, Retried()
    costs = [item.cost for item in items]
    tasks = group(items, costs, count_tasks(costs, cores=cores(spark), task_bytes=_TASK_BYTES))
    rows = [(number, item.log, item.text) for number, task in enumerate(tasks) for item in task]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    frame = (
        spark.createDataFrame(pa.table(columns, names=["task", "log", "text"]))
        .repartitionById(len(tasks), sf.col("task").cast("int"))
        .mapInArrow(partial(collect_task, store_url=check_shared(store_url), work=work), RESULTS)
    )
    with named_jobs(spark, f"{work.name} of {len({item.log for item in items})} logs") as watch:
        found = _by_log(frame.collect())
        watch.add_earlier(sum(map(int, found.pop(AGAIN, LogResults()).results)))
    return found, watch.retried


def _by_log(results: Sequence[Row]) -> dict[str, LogResults]:
    found: dict[str, list[str]] = {}
    refusals: dict[str, Refusal] = {}
    for row in results:
        texts = found.setdefault(row["log"], [])
        if row["refused"]:
            refusals[row["log"]] = Refusal.from_json(from_text(row["result"], "refusal"))
        else:
            texts.append(row["result"])
    return {log: LogResults(tuple(texts), refusals.get(log)) for log, texts in found.items()}


def cores(spark: SparkSession) -> int:
    """Return how many tasks run at a time; with Spark Connect, as many as this machine has cores."""
    return os.cpu_count() or 1 if is_remote() else spark.sparkContext.defaultParallelism
