"""Spark jobs over many logs: named in Spark's UI, and watched for what Spark ran again, so an operator learns of it.

``run_by_log`` is one job: texts of each log go in, texts come out, and an error of one log hides no other.

Where there is a Spark context, its own records say what ran again. With Spark Connect there is none. Then the server
says how many tasks have ended, and a task that is not the first attempt says so among its results: that is all that is
known.
"""

from __future__ import annotations

import os
from _thread import get_ident
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from wal3_core.compaction.retried import REASONS_MAX, Retried
from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.runtime import shared_runtime
from wal3_core.runtime.loggers import SPARK
from wal3_core.spark.requests import check_shared
from wal3_core.spark.tasks import (
    AGAIN,
    RESULTS,
    ROWS_AT_ONCE,
    Result,
    count_tasks,
    from_text,
    give,
    group,
    refusal_of,
    work_table,
)
from wal3_core.store.open_store import open_store

with suppress(ModuleNotFoundError):
    # A client of Spark Connect may lack it, and has no use for it.
    from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa
    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

    from wal3_core.store.object_store import ObjectStore

    # Turns the texts that a task has of a log into results; may raise LogError.
    LogWork = Callable[[ObjectStore, str, Sequence[str]], Iterable[str]]


class ConnectProgress:
    """Keeps the last that the server has said of each query of the thread that made this."""

    def __init__(self) -> None:
        self._thread = get_ident()
        self._last: dict[str | None, Sequence[StageInfo]] = {}

    def __call__(self, *, stages: Iterable[StageInfo] | None, operation_id: str | None, **_: object) -> None:
        """Take what the server says; Spark calls this in the thread of the query."""
        if get_ident() == self._thread:
            self._last[operation_id] = list(stages or ())

    def retried(self) -> Retried:
        """Return how many more tasks of stages ended than these have, and how many stages ran again in part.

        The last tasks of a query may not have been reported as ended: it is the least that ran again.
        """
        found = Retried(attempts_only=True)
        for stages in self._last.values():
            excess = sum(max(0, each.num_completed_tasks - each.num_tasks) for each in stages)
            # A stage whose results an earlier one has does not run, unless some of them were lost. A stage may also end
            # early because its results are not needed: but then no task has failed.
            in_part = sum(each.done and 0 < each.num_completed_tasks < each.num_tasks for each in stages)
            found += Retried(num_tasks=excess, num_stages=in_part if excess else 0, attempts_only=True)
        return found


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
        # Attempts that tasks have reported: they are used where Spark's own records are out of reach.
        self.earlier = 0

    def collect(self, frame: DataFrame) -> dict[str, LogResults]:
        """Run a job whose rows are RESULTS; return them by name, in their order."""
        found: dict[str, list[str]] = {}
        refusals: dict[str, Refusal] = {}
        # A few rows at a time: as Python objects, those of many logs take much more memory than in Arrow.
        for batch in frame.toArrow().to_batches(max_chunksize=ROWS_AT_ONCE):
            for log, refused, result in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                texts = found.setdefault(log, [])
                if refused:
                    refusals[log] = Refusal.from_json(from_text(result, "refusal"))
                else:
                    texts.append(result)
        self.earlier += sum(map(int, found.pop(AGAIN, ())))
        return {log: LogResults(tuple(texts), refusals.get(log)) for log, texts in found.items()}


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
    """Have Spark's own records say what was run again."""
    tag, before = f"wal3-{shared_runtime().token()}", context.getLocalProperty(_DESCRIPTION)
    context.addJobTag(tag)
    context.setLocalProperty(_DESCRIPTION, f"wal3: {name}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it
        context.removeJobTag(tag)
        watch.retried = retried_of(context, tag)


@contextmanager
def _remote(spark: SparkSession, watch: JobWatch) -> Iterator[None]:
    """Have the server and the tasks say what was run again: each may say less than was."""
    progress = ConnectProgress()
    # A function will do, whatever the types say.
    spark.registerProgressHandler(progress)  # type: ignore[arg-type]
    try:
        yield
    finally:
        spark.removeProgressHandler(progress)  # type: ignore[arg-type]
        found = progress.retried()
        watch.retried = replace(found, num_tasks=max(found.num_tasks, watch.earlier))


_TASK_BYTES = 256 * 2**20
_LOGS_AT_ONCE = 8


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
    spark: SparkSession, store_url: str, items: Sequence[Item], work: LogWork, what: str
) -> tuple[dict[str, LogResults], Retried]:
    """Do the work as one job, and say what Spark ran again; adjacent items, which belong to one log, stay together.

    ``what`` names the work, before the number of logs.
    """
    if not items:
        return {}, Retried()
    costs = [item.cost for item in items]
    tasks = group(items, costs, count_tasks(costs, cores=cores(spark), task_bytes=_TASK_BYTES))
    rows = ((number, item.log, item.text) for number, task in enumerate(tasks) for item in task)
    run = partial(log_task, store_url=check_shared(store_url), work=work)
    return run_tasks(spark, rows, len(tasks), run, f"{what} of {len({item.log for item in items})} logs")


def run_tasks(
    spark: SparkSession, rows: Iterable[tuple[int, str, str]], count: int, task: ArrowMapIterFunction, name: str
) -> tuple[dict[str, LogResults], Retried]:
    """Run rows of WORK, of at least one task, as a job; return the results by log, and what Spark ran again."""
    frame = spark.createDataFrame(work_table(rows)).repartitionById(count, "task")
    with named_jobs(spark, name) as watch:
        found = watch.collect(frame.mapInArrow(task, from_arrow_schema(RESULTS)))
    return found, watch.retried


def log_task(batches: Iterable[pa.RecordBatch], *, store_url: str, work: LogWork) -> Iterator[pa.RecordBatch]:
    """Do the work for each log of a task, several at a time: a log is named by adjacent rows, in any order."""
    store = open_store(store_url)
    rows = [row for batch in batches for row in zip(batch["log"].to_pylist(), batch["text"].to_pylist(), strict=True)]
    logs = [(log, [text for _, text in some]) for log, some in groupby(sorted(rows), key=itemgetter(0))]

    def do(named: tuple[str, list[str]]) -> list[Result]:
        log, texts = named
        try:
            return [(log, False, result) for result in work(store, log, texts)]
        except LogError as error:
            return [refusal_of(log, error)]

    # Threads of its own: the work on a log waits for the shared workers.
    with ThreadPoolExecutor(_LOGS_AT_ONCE, thread_name_prefix="logs") as threads:
        yield from give(threads.map(do, logs))


def cores(spark: SparkSession) -> int:
    """Return how many tasks run at a time; with Spark Connect, as many as this machine has cores."""
    return os.cpu_count() or 1 if is_remote() else spark.sparkContext.defaultParallelism


# ---------------------------------------------------------------------- what Spark's own records say

_EVENTS_WAIT_MS = 2_000
# Failures of a stage's attempt that are read for their executors and reasons; all are counted.
_FAILURES_READ_MAX = 200
_REASON_CHARS_MAX = 300
_EXECUTOR_LOST = "ExecutorLostFailure"
_TRACEBACK = "Traceback (most recent call last):"


def retried_of(context: SparkContext, tag: str) -> Retried:
    """Add up what was run again of all jobs with a tag."""
    found, failures = Retried(), list[tuple[str, str]]()
    records = _Records(context)
    for attempt in records.stage_attempts(tag):
        failed, copies = attempt.numFailedTasks(), records.num_copies(attempt)
        found += Retried(num_tasks=failed, num_stages=int(attempt.attemptId() > 0), num_copies=copies)
        failures += records.failures(attempt) if failed else []
    lost = {executor for executor, error in failures if error.startswith(_EXECUTOR_LOST)}
    reasons = Counter(reason_of(error) for _, error in failures).most_common(REASONS_MAX)
    return found + Retried(num_executors=len(lost), reasons=tuple(reasons))


def reason_of(error: str) -> str:
    """Shorten the error of a failed task to a line: of a Python traceback, the one that names the exception."""
    lines = error.partition("\n\tat ")[0].splitlines() or ["no reason given"]
    traceback = max((at for at, line in enumerate(lines) if line.endswith(_TRACEBACK)), default=-1)
    # Without a traceback, the first line.
    said = next((line for line in lines[traceback + 1 :] if not line.startswith(" ")), lines[0]).strip()
    return said if len(said) <= _REASON_CHARS_MAX else f"{said[:_REASON_CHARS_MAX]}…"


class _Records:
    """Calls into Spark's store of statuses."""

    def __init__(self, context: SparkContext) -> None:
        assert context._jvm is not None  # noqa: SLF001 - see the module
        assert context._gateway is not None  # noqa: SLF001
        self._tracker = context.statusTracker()
        self._scala = context._jsc.sc()  # noqa: SLF001
        self._store = self._scala.statusStore()
        self._kinds = context._jvm.org.apache.spark.status.api.v1  # noqa: SLF001
        self._list = context._jvm.java.util.ArrayList  # noqa: SLF001
        self._no_quantiles = context._gateway.new_array(context._jvm.double, 0)  # noqa: SLF001

    def stage_attempts(self, tag: str) -> Iterator[JavaObject]:
        """Go through all attempts of the stages of a tag's jobs."""
        # Spark hands events to its store in a thread of its own.
        with suppress(Py4JJavaError):
            self._scala.listenerBus().waitUntilEmpty(_EVENTS_WAIT_MS)
        jobs = [self._tracker.getJobInfo(job) for job in self._scala.statusTracker().getJobIdsForTag(tag)]
        for stage in sorted({stage for job in jobs if job is not None for stage in job.stageIds}):
            yield from self._attempts(stage)

    def _attempts(self, stage: int) -> list[JavaObject]:
        """Return the attempts of a stage; none of one that is forgotten."""
        details = with_summaries = False
        try:
            found = self._store.stageData(stage, details, self._list(), with_summaries, self._no_quantiles)
        except Py4JJavaError:
            return []
        return list(_items(found))

    def num_copies(self, attempt: JavaObject) -> int:
        """Count the copies of slow tasks."""
        found = self._store.speculationSummary(attempt.stageId(), attempt.attemptId())
        return int(found.get().numTasks()) if found.isDefined() else 0

    def failures(self, attempt: JavaObject) -> list[tuple[str, str]]:
        """Return the executor and the error of tasks that failed."""
        failed = self._list()
        failed.add(self._kinds.TaskStatus.FAILED)
        where = attempt.stageId(), attempt.attemptId()
        tasks = self._store.taskList(*where, 0, _FAILURES_READ_MAX, self._kinds.TaskSorting.ID, failed)
        errors = ((task.executorId(), task.errorMessage()) for task in _items(tasks))
        return [(executor, error.get() if error.isDefined() else "") for executor, error in errors]


def _items(sequence: JavaObject) -> Iterator[JavaObject]:
    """Go through a Scala sequence."""
    yield from (sequence.apply(at) for at in range(sequence.size()))
