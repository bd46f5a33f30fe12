"""Spark jobs over logs: work and logs are cut into tasks of about equal cost; what tasks are given, and give back.

A task costs tens of milliseconds whatever it does, so there is one for each core, a few where there is much to do, and
never one for each fragment. A snapshot is opened only where a task begins or ends in it; the tasks open the others. The
cuts are the same as those of one list of all fragments.

A task's work and its results are small JSON texts, each under a name, nearly always that of a log. ``run_by_log`` is
one job: texts of each log go in, texts come out, and an error of one log hides no other.

Jobs are named in Spark's UI, and watched for what Spark ran again, so an operator learns of it. Where there is a Spark
context, its own records say that. With Spark Connect there is none. Then the server says how many tasks have ended, and
a task that is not the first attempt says so among its results: that is all that is known.
"""

from __future__ import annotations

import gc
import os
from _thread import get_ident
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.utils import is_remote

from wal3_core.compaction.reports import REASONS_MAX, Retried
from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.format import strict_json
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LogId
from wal3_core.format.snapshot import Pointer, SnapshotPointer, count_fragments
from wal3_core.format.strict_json import Fields, JsonObject
from wal3_core.log.read.reader import LogReader
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.runtime.loggers import SPARK
from wal3_core.spark.columns import batch_of
from wal3_core.spark.requests import check_shared
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

with suppress(ModuleNotFoundError):
    # A client of Spark Connect may lack it, and has no use for it.
    from py4j.protocol import Py4JJavaError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.connect.shell.progress import StageInfo
    from pyspark.sql.pandas._typing import ArrowMapIterFunction

    # Turns the texts that a task has of a log into results; may raise LogError.
    LogWork = Callable[[ObjectStore, str, Sequence[str]], Iterable[str]]

T = TypeVar("T")

# A task's bytes, by default: about those of a snapshot of full fragments.
TASK_BYTES = 256 * 2**20
TASK_COST_MIN = 4 * 2**20
# Beside so much work a task costs little of its own, and a few on each core even out cores that are slow or busy.
TASK_COST_AMPLE = 256 * 2**20
TASKS_PER_CORE = 4
# The cost of a task of tiny objects, in tasks' bytes: a cheaper one is over before Python has started in its executor.
REQUESTS_RATIO = 4
# A request's cost besides its bytes, in bytes that could be read meanwhile.
REQUEST_COST = 256 * 2**10


def cost(num_bytes: int, *, requests: int = 1) -> int:
    """Estimate the cost of reading objects, in bytes."""
    return num_bytes + REQUEST_COST * requests


def count_tasks(costs: Sequence[int], *, cores: int, task_bytes: int, num_bytes: int | None = None) -> int:
    """Return how many tasks to cut the work into: by ``task_bytes``, or by less when cores would idle.

    ``num_bytes`` says how much of the costs is bytes, all by default: a task may have more requests than bytes.
    """
    total = sum(costs)
    a_core = max(TASK_COST_MIN, -(-total // cores))
    ample = max(TASK_COST_AMPLE, -(-total // (cores * TASKS_PER_CORE)))
    by_cost = -(-total // min(REQUESTS_RATIO * task_bytes, a_core, ample))
    return max(by_cost, -(-(total if num_bytes is None else num_bytes) // task_bytes))


def group(items: Sequence[T], costs: Sequence[int], count: int) -> list[list[T]]:
    """Cut items into at most ``count`` runs of adjacent ones, about equal in cost; none is empty."""
    total, before = sum(costs), 0
    groups: dict[int, list[T]] = {}
    for item, each in zip(items, costs, strict=True):
        # The run that the item's middle falls into.
        groups.setdefault((2 * before + each) * count // (2 * total), []).append(item)
        before += each
    return list(groups.values())


_OPENED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of one life of a log, as one pointer; an ``opened`` snapshot counts without what it holds."""

    log: str
    log_id: LogId
    pointer: Pointer
    opened: bool = False

    @property
    def cost(self) -> int:
        """Estimate the cost of reading the piece, in bytes."""
        return 0 if self.opened else cost(self.pointer.num_bytes, requests=count_fragments((self.pointer,)))


def pieces_of(log: str, manifest: Manifest) -> list[LogPiece]:
    """Take a log apart into the pointers of its manifest."""
    return [LogPiece(log, manifest.log_id, pointer) for pointer in manifest.pointers]


def count_pieces(pieces: Sequence[LogPiece], *, cores: int, task_bytes: int) -> int:
    """Return how many tasks to cut pieces into, none of which is opened."""
    num_bytes = sum(piece.pointer.num_bytes for piece in pieces)
    costs = [piece.cost for piece in pieces]
    return count_tasks(costs, cores=cores, task_bytes=task_bytes, num_bytes=num_bytes)


def cut(store: ObjectStore, pieces: Sequence[LogPiece], *, count: int) -> Iterator[tuple[int, LogPiece]]:
    """Cut pieces into ``count`` tasks about equal in cost, and yield each piece in order with its task's number.

    An opened snapshot comes before what it holds. One that cannot be opened stays whole: its task reports
    the error.
    """
    total = sum(piece.cost for piece in pieces)
    placed: Iterable[tuple[int, LogPiece]] = _placed(0, pieces)
    open_one = partial(_open_where_cut, store, count, total)
    depths = (each.pointer.depth for each in pieces if isinstance(each.pointer, SnapshotPointer))
    for _ in range(max(depths, default=0)):
        # One level of the snapshots that a cut goes through, many at a time.
        placed = chain.from_iterable(map_ahead(shared_runtime(), open_one, placed, count=_OPENED_AT_ONCE))
    for before, piece in placed:
        # The task that the piece's middle falls into.
        yield min(count - 1, (2 * before + piece.cost) * count // (2 * total)), piece


def _placed(before: int, pieces: Iterable[LogPiece]) -> Iterator[tuple[int, LogPiece]]:
    """Yield pieces with the cost of all pieces before each."""
    for piece in pieces:
        yield before, piece
        before += piece.cost


def _open_where_cut(
    store: ObjectStore, count: int, total: int, placed: tuple[int, LogPiece]
) -> list[tuple[int, LogPiece]]:
    before, piece = placed
    cuts = before * count // total != (before + piece.cost - 1) * count // total
    if piece.opened or not cuts:
        return [placed]
    below = open_piece(store, piece)
    return [placed] if below is None else list(_placed(before, below))


def reader_of(store: ObjectStore, log: str, log_id: LogId | None = None, *, verify: bool = True) -> LogReader:
    """Return a reader of a log, or of that life of it alone: LogReplacedError when the name has another by now."""
    return LogReader(store, log, options=ReaderOptions(verify=verify), runtime=shared_runtime(), log_id=log_id)


def open_piece(store: ObjectStore, piece: LogPiece) -> list[LogPiece] | None:
    """Return an opened snapshot and the pieces below it; None for a fragment, or a snapshot that cannot be opened."""
    if not isinstance(piece.pointer, SnapshotPointer):
        return None
    found = try_log(reader_of(store, piece.log, piece.log_id).load_snapshot, piece.pointer)
    if isinstance(found, LogError):
        return None
    return [replace(piece, opened=True), *(replace(piece, pointer=pointer) for pointer in found.pointers)]


# ---------------------------------------------------------------------- what goes to tasks, and comes back

WORK = pa.schema([("task", pa.int32()), ("log", pa.string()), ("text", pa.string())])
RESULTS = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("refused", pa.bool_(), nullable=False),
        pa.field("result", pa.string(), nullable=False),
    ]
)
# The name of a row that says how many attempts of its task were before. Only a repeated task has one.
AGAIN = ""
ROWS_AT_ONCE = 1000
_TEXT_BYTES_MAX = 4 * 2**20

Result = tuple[str, bool, str]


def to_text(document: JsonObject) -> str:
    """Encode."""
    return strict_json.dump(document).decode()


def from_text(text: str, what: str) -> Fields:
    """Decode."""
    return strict_json.load(text.encode(), what=what, bytes_max=_TEXT_BYTES_MAX)


def pointer_of(fields: Fields) -> Pointer:
    """Read a pointer of either kind."""
    return SnapshotPointer.from_json(fields) if fields.has("depth") else FragmentPointer.from_json(fields)


def in_batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """Cut rows into lists, of which only one is held at a time."""
    rows = iter(rows)
    return iter(lambda: list(islice(rows, ROWS_AT_ONCE)), [])


def work_table(rows: Iterable[tuple[int, str, str]]) -> pa.Table:
    """Make rows of WORK: of a task, by its number, a log, and what to do there."""
    return pa.Table.from_batches((batch_of(some, WORK) for some in in_batches(rows)), schema=WORK)


def give(results: Iterable[Sequence[Result]]) -> Iterator[pa.RecordBatch]:
    """Yield a task's results as rows of RESULTS, several in a batch; AGAIN comes first if it was attempted before."""
    context = TaskContext.get()
    earlier = 0 if context is None else context.attemptNumber()
    again: list[Sequence[Result]] = [[(AGAIN, False, str(earlier))]] if earlier else []
    return freezing(batch_of(some, RESULTS) for some in chain(again, results) if some)


def freezing(results: Iterable[T]) -> Iterator[T]:
    """Give a task's results; behind the last one, once in a worker, exempt from collection what is loaded by then.

    A worker collects garbage when a task ends, and begins its next one only then. With this library loaded, that takes
    tens of milliseconds for some 100,000 objects, modules and functions mostly, of which none is ever garbage.
    """
    yield from results
    # Elsewhere, in a driver or a test, what lives is not ours to exempt.
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    # Once in a process: what each task leaves in cycles must stay subject to collection.
    gc.collect()
    gc.freeze()


# ---------------------------------------------------------------------- jobs, and what Spark ran again


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
    spark.registerProgressHandler(progress)  # type: ignore[arg-type]  # any callable will do
    try:
        yield
    finally:
        spark.removeProgressHandler(progress)  # type: ignore[arg-type]  # as above
        found = progress.retried()
        watch.retried = replace(found, num_tasks=max(found.num_tasks, watch.earlier))


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
    tasks = group(items, costs, count_tasks(costs, cores=cores(spark), task_bytes=TASK_BYTES))
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
            return [(log, True, to_text(Refusal.of(error).to_json()))]

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
        assert context._gateway is not None  # noqa: SLF001 - see the module
        self._tracker = context.statusTracker()
        self._scala = context._jsc.sc()  # noqa: SLF001 - see the module
        self._store = self._scala.statusStore()
        self._kinds = context._jvm.org.apache.spark.status.api.v1  # noqa: SLF001 - see the module
        self._list = context._jvm.java.util.ArrayList  # noqa: SLF001 - see the module
        self._no_quantiles = context._gateway.new_array(context._jvm.double, 0)  # noqa: SLF001 - see the module

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
