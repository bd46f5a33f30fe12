"""Key compaction as Spark jobs: the tasks read keys, compare them and merge; the driver plans and installs.

Keys are compared as whole bytes by a shuffle, which spills to disk: their number has no limit. What a key drops goes
from there to the task that merges its fragment, and the driver gets counts, hashes, and one row for each group.

The tasks write only fragments that nothing refers to yet, create-only, under names that hold the pass's token. A task
that is killed, retried, or runs twice at once makes the same bytes under the same names: what it leaves is an orphan,
or what the other attempt finds written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from itertools import pairwise
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema

from wal3_core.compaction.engine import (
    LOSSES,
    DropReason,
    LossCount,
    Merged,
    Merger,
    Merging,
    ends_of_keys,
    read_keyed,
    sum_counts,
)
from wal3_core.errors import (
    CorruptError,
    InvalidRequestError,
    LogError,
    LogReplacedError,
    MissingError,
    StoreDeniedError,
    UnavailableError,
)
from wal3_core.fleet.outcomes import Refusal
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_hashes import hash_keys
from wal3_core.format.paths import LogId
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.strict_json import JsonObject
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.key_columns import KeyColumns
from wal3_core.log.read.reader import FragmentMissingError
from wal3_core.options import KeyCompactorOptions, ReaderOptions
from wal3_core.runtime import shared_runtime
from wal3_core.spark.columns import BATCH_BYTES_MAX, LONG_MAX, batch_of
from wal3_core.spark.jobs import (
    RESULTS,
    TASK_BYTES,
    JobWatch,
    cores,
    cost,
    count_tasks,
    from_text,
    give,
    group,
    named_jobs,
    to_text,
    work_table,
)
from wal3_core.spark.requests import check_shared
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store
from wal3_core.store.rate_limits import rate_limited

if TYPE_CHECKING:
    from wal3_core.compaction.engine import Hashes
    from wal3_core.compaction.reports import Retried
    from wal3_core.compaction.scope import Group

T = TypeVar("T")
P = ParamSpec("P")

# A task's keys are sorted in memory, or on disk when they are long.
_RECORDS_COMPARED = 500_000
# The footer, and the columns.
_KEY_REQUESTS = 2
_READS_AHEAD = 2
# Before a refusal in the text of an error that a task has raised.
_REFUSED = "wal3 refusal: "
_RAISED_AGAIN: tuple[type[LogError], ...] = (
    CorruptError,
    InvalidRequestError,
    LogReplacedError,
    FragmentMissingError,
    MissingError,
    StoreDeniedError,
    UnavailableError,
)


# One row for each keyed record. ``repeated``: its fragment holds a newer record of its key; ``repeats``: an older one.
KEYS = pa.schema(
    [
        pa.field("seq_no", pa.int64(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("key", pa.binary(), nullable=False),
        pa.field("tombstone", pa.bool_(), nullable=False),
        pa.field("repeated", pa.bool_(), nullable=False),
        pa.field("repeats", pa.bool_(), nullable=False),
    ]
)
HASHES = pa.schema([pa.field("hash", pa.int64(), nullable=False)])
MEMBERS = pa.schema(
    [
        ("task", pa.int32()),
        ("group", pa.int32()),
        ("seq_no", pa.int64()),
        ("offset", pa.int64()),
        ("pointer", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Runs the work of passes as jobs of a Spark session: ``KeyCompactor(…, engine=SparkEngine(spark))``.

    The tasks open the store by the URL that the driver's has. ``bytes_per_s_max`` is divided among the tasks that run
    at a time; a speculative one comes on top.
    """

    spark: SparkSession

    @contextmanager
    def open(self, stores: LogStores, options: KeyCompactorOptions) -> Iterator[SparkWork]:
        """Begin a pass; what its jobs keep on the executors is dropped at the end, also after an error."""
        part = PassTask(
            store_url=check_shared(stores.store_url),
            log=stores.log,
            log_id=stores.manifests.log_id(),
            options=options,
        )
        with named_jobs(self.spark, f"key compaction of log {stores.log}") as watch, ExitStack() as kept:
            yield SparkWork(self.spark, part, kept, watch)


@dataclass(frozen=True, slots=True)
class Keys:
    """Rows of KEYS, of fragments that hold so many records."""

    frame: DataFrame
    num_records: int


class SparkWork:
    """One pass's work as Spark jobs."""

    def __init__(self, spark: SparkSession, part: PassTask, kept: ExitStack, watch: JobWatch) -> None:
        self._spark = spark
        self._part = part
        self._kept = kept
        self._watch = watch
        self._persisted: list[DataFrame] = []
        self._cores = cores(spark)

    @property
    def retried(self) -> Retried:
        """What Spark ran again, known at the end."""
        return self._watch.retried

    def rows(self, fragments: Sequence[FragmentPointer]) -> Keys:
        """Plan the reading of fragments; they are read where the rows are used."""
        past = next((each for each in fragments if each.limit.offset - 1 > LONG_MAX), None)
        if past is not None:
            raise InvalidRequestError(f"{past.path}: expected positions below 2^63, Spark's LONG, found {past.limit}")
        tasks = self._tasks(fragments, [cost(each.num_bytes, requests=_KEY_REQUESTS) for each in fragments])
        rows = ((at, self._part.log, to_text(each.to_json())) for at, task in enumerate(tasks) for each in task)
        frame = self._spark.createDataFrame(work_table(rows)).repartitionById(len(tasks), "task")
        read = partial(read_keys, part=self._shared(len(tasks)))
        return Keys(frame.mapInArrow(read, from_arrow_schema(KEYS)), sum(each.num_records for each in fragments))

    def hashes(self, rows: Keys, *, tombstones_below: int | None = None) -> Hashes:
        """Hash the keys in the tasks that read them."""
        # Used again to find the losses.
        self._keep(rows.frame)
        frame = rows.frame
        if tombstones_below is not None:
            frame = frame.where(sf.col("tombstone") & (sf.col("offset") < sf.lit(tombstones_below)))
        with _raised_again():
            found = frame.select("key").mapInArrow(hash_task, from_arrow_schema(HASHES)).distinct().toArrow()
        return np.unique(found["hash"].to_numpy().view(np.uint64))

    def losses(self, rows: Sequence[Keys], *, expired_below: int) -> DataFrame:
        """Compare the keys; columns of LOSSES. Computed once, however often it is used."""
        none = self._spark.createDataFrame([], from_arrow_schema(KEYS))
        every = reduce(DataFrame.unionByName, [keys.frame for keys in rows], none)
        count = max(self._cores, -(-sum(keys.num_records for keys in rows) // _RECORDS_COMPARED))
        found = find_losses(every, expired_below=expired_below, tasks=count)
        self._keep(found)
        return found

    def counts(self, losses: DataFrame) -> Mapping[FragmentSeqNo, LossCount]:
        """Count them by fragment."""
        with _raised_again():
            return sum_counts(losses.groupBy("seq_no", "reason").agg(sf.count("*").alias("count")).toArrow())

    def merge(self, groups: Sequence[Group], losses: DataFrame, merging: Merging) -> Iterator[Sequence[Merged]]:
        """Merge all groups as one job; a task has a run of them."""
        if not groups:
            return
        costs = [cost(sum(each.num_bytes for each in one.members), requests=len(one.members)) for one in groups]
        tasks = self._tasks(range(len(groups)), costs)
        rows = [
            (number, at, member.seq_no, member.start.offset, to_text(member.to_json()))
            for number, task in enumerate(tasks)
            for at in task
            for member in groups[at].members
        ]
        members = self._spark.createDataFrame(pa.Table.from_batches([batch_of(rows, MEMBERS)]))
        work = partial(merge_task, part=self._shared(len(tasks)), merging=merging)
        frame = _with_losses(members, losses, tasks=len(tasks)).mapInArrow(work, from_arrow_schema(RESULTS))
        with _raised_again():
            found = self._watch.collect(frame)
        for number, one in enumerate(groups):
            (text,) = found[str(number)].results
            parts = from_text(text, "merged group").objects("merged", count_max=len(one.members))
            yield [Merged.from_json(part, one.members) for part in parts]

    def _tasks(self, items: Sequence[T], costs: Sequence[int]) -> list[list[T]]:
        return group(items, costs, count_tasks(costs, cores=self._cores, task_bytes=TASK_BYTES))

    def _shared(self, tasks: int) -> PassTask:
        """Divide the rate among the tasks of a job that run at a time."""
        rate = self._part.options.bytes_per_s_max
        return replace(self._part, bytes_per_s_max=None if rate is None else rate / min(tasks, self._cores))

    def _keep(self, frame: DataFrame) -> None:
        if not any(frame is each for each in self._persisted):
            self._persisted.append(frame)
            self._kept.callback(frame.persist().unpersist)


def find_losses(rows: DataFrame, *, expired_below: int, tasks: int) -> DataFrame:
    """Find the records to drop among rows of KEYS, as ``wal3_core.compaction.engine.find_losses`` does.

    A task gets all rows of a key except those that its own fragment repeats: of a key that every record has, one row a
    fragment.
    """
    # A record that its fragment repeats is lost whatever other fragments hold: it is compared with none.
    compared = rows.select(
        "seq_no",
        "offset",
        "tombstone",
        "repeated",
        "repeats",
        sf.when(~sf.col("repeated"), sf.col("key")).alias("key"),
        sf.when(sf.col("repeated"), sf.col("offset")).alias("apart"),
    ).repartition(tasks, "key", "apart")
    same = Window.partitionBy("key", "apart")
    superseded = sf.col("repeated") | (sf.col("offset") < sf.max("offset").over(same))
    alone = ~sf.col("repeats") & (sf.count("*").over(same) == 1)
    expired = sf.col("tombstone") & alone & (sf.col("offset") < sf.lit(expired_below))
    reason = sf.when(superseded, int(DropReason.SUPERSEDED)).when(expired, int(DropReason.EXPIRED))
    return compared.select("seq_no", "offset", reason.alias("reason")).where("reason IS NOT NULL")


def _with_losses(members: DataFrame, losses: DataFrame, *, tasks: int) -> DataFrame:
    """Bring each group's members and losses to its task, in the order of their offsets, members first."""
    places = sf.broadcast(members.select("task", "group", "seq_no"))
    dropped = losses.join(places, "seq_no").withColumn("pointer", sf.lit(None).cast("string"))
    both = members.withColumn("reason", sf.lit(None).cast("int")).unionByName(dropped)
    return (
        both.repartitionById(tasks, sf.col("task"))
        .sortWithinPartitions("group", "offset", sf.col("reason").asc_nulls_first())
        .select("group", "seq_no", "offset", "reason", "pointer")
    )


@contextmanager
def _raised_again() -> Iterator[None]:
    """Run jobs; a LogError of a task is raised here as what it was."""
    try:
        yield
    except PySparkException as error:
        _, found, text = str(error).partition(_REFUSED)
        if not found:
            raise
        fields = from_text(text.partition("\n")[0], "refusal")
        path = fields.string("path") if fields.has("path") else ""
        refusal = Refusal.from_json(fields)
        for kind in _RAISED_AGAIN:
            if kind.__name__ == refusal.kind:
                named = {"path": path} if issubclass(kind, MissingError) else {}
                raise kind(refusal.message, **named) from error
        raise


# ---------------------------------------------------------------------- tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTask:
    """Where a pass works, and how; ``bytes_per_s_max`` is the share of one task."""

    store_url: str
    log: str
    log_id: LogId
    options: KeyCompactorOptions
    bytes_per_s_max: float | None = None

    def objects(self) -> ObjectStore:
        """Open the objects of the life, in a task."""
        runtime = shared_runtime()
        stores = LogStores(
            open_store(self.store_url),
            self.log,
            runtime=runtime,
            retry=self.options.retry,
            snapshots_loaded_max=0,
            log_id=self.log_id,
        )
        return rate_limited(stores.objects, self.bytes_per_s_max, runtime)


def _refusing(work: Callable[P, Iterator[pa.RecordBatch]]) -> Callable[P, Iterator[pa.RecordBatch]]:
    """Make the text of a LogError of a task say what it is, so that the driver can raise it again."""

    @wraps(work)
    def refusing(*args: P.args, **kwargs: P.kwargs) -> Iterator[pa.RecordBatch]:
        try:
            yield from work(*args, **kwargs)
        except LogError as error:
            path: JsonObject = {"path": error.path} if isinstance(error, MissingError) else {}
            error.add_note(f"{_REFUSED}{to_text({**path, **Refusal.of(error).to_json()})}")
            raise

    return refusing


def _pointers(texts: Iterable[str]) -> Iterator[FragmentPointer]:
    return (FragmentPointer.from_json(from_text(text, "fragment pointer")) for text in texts)


@_refusing
def read_keys(batches: Iterable[pa.RecordBatch], *, part: PassTask) -> Iterator[pa.RecordBatch]:
    """Read the keys of the fragments in rows of WORK; yield rows of KEYS."""
    options = ReaderOptions(fragment_expanded_bytes_max=part.options.fragment_expanded_bytes_max)
    columns, count = KeyColumns(part.objects(), options), part.options.requests_ahead
    pointers = _pointers(text for batch in batches for text in batch["text"].to_pylist())
    for rows in read_keyed(columns, pointers, shared_runtime(), count=count):
        if len(rows):
            table = _compared(rows)
            yield from table.to_batches(max_chunksize=max(1, len(table) * BATCH_BYTES_MAX // table.nbytes))


def _compared(rows: pa.Table) -> pa.Table:
    """Add which records of a fragment another one of it repeats: so a task gets at most one of a key and fragment."""
    offsets, newest, oldest = ends_of_keys(rows)
    columns = [rows[name].cast(KEYS.field(name).type) for name in rows.column_names]
    return pa.table([*columns, pa.array(offsets < newest), pa.array(offsets > oldest)], schema=KEYS)


def hash_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Hash the keys of rows of (key); yield rows of HASHES, each hash once a batch."""
    for batch in batches:
        hashes = np.unique(hash_keys(batch["key"])).view(np.int64)
        yield pa.RecordBatch.from_arrays([pa.array(hashes)], schema=HASHES)


@_refusing
def merge_task(batches: Iterable[pa.RecordBatch], *, part: PassTask, merging: Merging) -> Iterator[pa.RecordBatch]:
    """Merge groups of rows (group, offset, reason, pointer), sorted by group and offset; the results are by group.

    A row is a member, with its pointer, or a record to drop, with the reason.
    """
    merger = Merger(part.objects(), shared_runtime(), part.options, merging)

    def merged(rows: pa.Table) -> str:
        losses = rows.filter(rows["reason"].is_valid()).select(LOSSES.names).cast(LOSSES)
        members = [*_pointers(rows["pointer"].drop_null().to_pylist())]
        found = merger.merge(members, losses, reads_ahead=_READS_AHEAD)
        return to_text({"merged": [each.to_json() for each in found]})

    results = ([(str(number), False, merged(rows))] for number, rows in _by_group(batches))
    yield from give(results)


def _by_group(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.Table]]:
    """Put together the rows of each group, which follow each other."""
    number, parts = -1, list[pa.RecordBatch]()
    for batch in batches:
        groups = batch["group"].to_numpy()
        cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(groups)]
        for start, limit in pairwise(cuts if len(groups) else []):
            if groups[start] != number and parts:
                yield number, pa.Table.from_batches(parts)
                parts = []
            number = int(groups[start])
            parts.append(batch.slice(start, limit - start))
    if parts:
        yield number, pa.Table.from_batches(parts)
