"""Key compaction as Spark jobs: the tasks read keys, compare them and merge; the driver plans and installs.

Keys are compared as whole bytes by a shuffle, which spills to disk: their number has no limit. What a key drops goes
from there to the task that merges its fragment, and the driver gets counts, hashes, and one row for each new fragment.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as sf

from wal3_core.compaction.dropped import DropReason, sum_counts
from wal3_core.compaction.merge import Merged
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
from wal3_core.spark.collect_task import from_text, to_text
from wal3_core.spark.columns import LONG_MAX
from wal3_core.spark.compact_task import (
    HASHES,
    KEYS,
    MERGED,
    REFUSED,
    REPEATED,
    PassTask,
    hash_task,
    merge_task,
    read_keys,
)
from wal3_core.spark.jobs import cores, named_jobs
from wal3_core.spark.requests import check_shared
from wal3_core.spark.tasks import cost, count_tasks, group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from wal3_core.compaction.dropped import LossCount
    from wal3_core.compaction.engine import Hashes
    from wal3_core.compaction.grouping import Group
    from wal3_core.compaction.merge import Merging
    from wal3_core.compaction.reports import KeyCompactorOptions
    from wal3_core.compaction.retried import Retried
    from wal3_core.log.log_stores import LogStores
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.position import FragmentSeqNo
    from wal3_core.spark.jobs import JobWatch

T = TypeVar("T")

_TASK_BYTES = 256 * 2**20
# Its keys are sorted in memory, or on disk when they are long.
_RECORDS_COMPARED = 500_000
# The footer, and the columns.
_KEY_REQUESTS = 2
_RAISED_AGAIN: tuple[type[LogError], ...] = (
    CorruptError,
    InvalidRequestError,
    LogReplacedError,
    MissingError,
    StoreDeniedError,
    UnavailableError,
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
            message = f"{past.path}: expected positions below 2^63, Spark's LONG, found {past.limit}"
            raise InvalidRequestError(message)
        tasks = self._tasks(fragments, [cost(each.num_bytes, requests=_KEY_REQUESTS) for each in fragments])
        rows = [(number, to_text(each.to_json())) for number, task in enumerate(tasks) for each in task]
        frame = self._frame(rows, [("task", pa.int32()), ("pointer", pa.string())])
        read = partial(read_keys, part=self._shared(len(tasks)))
        found = frame.repartitionById(len(tasks), sf.col("task")).select("pointer").mapInArrow(read, KEYS)
        return Keys(found, sum(each.num_records for each in fragments))

    def hashes(self, rows: Keys, *, tombstones_below: int | None = None) -> Hashes:
        """Hash the keys in the tasks that read them."""
        # Used again to find the losses.
        self._keep(rows.frame)
        frame = rows.frame
        if tombstones_below is not None:
            frame = frame.where(sf.col("tombstone") & (sf.col("offset") < sf.lit(tombstones_below)))
        found = _collected(frame.select("key").mapInArrow(hash_task, HASHES).distinct())
        return np.unique(found["hash"].to_numpy().view(np.uint64))

    def losses(self, rows: Sequence[Keys], *, expired_below: int) -> DataFrame:
        """Compare the keys; columns of LOSSES. Computed once, however often it is used."""
        every = reduce(DataFrame.unionByName, [keys.frame for keys in rows], self._spark.createDataFrame([], KEYS))
        count = max(self._cores, -(-sum(keys.num_records for keys in rows) // _RECORDS_COMPARED))
        found = find_losses(every, expired_below=expired_below, tasks=count)
        self._keep(found)
        return found

    def counts(self, losses: DataFrame) -> Mapping[FragmentSeqNo, LossCount]:
        """Count them by fragment."""
        return sum_counts(_collected(losses.groupBy("seq_no", "reason").agg(sf.count("*").alias("count"))))

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
        types = [("task", pa.int32()), ("group", pa.int32()), ("seq_no", pa.int64()), ("offset", pa.int64())]
        members = self._frame(rows, [*types, ("pointer", pa.string())])
        work = partial(merge_task, part=self._shared(len(tasks)), merging=merging)
        merged = _by_group(members, losses, tasks=len(tasks)).mapInArrow(work, MERGED)
        found = _collected(merged).sort_by("group")
        earlier = pc.equal(found["group"], REPEATED)
        self._watch.add_earlier(sum(map(int, found.filter(earlier)["merged"].to_pylist())))
        found = found.filter(pc.invert(earlier))
        assert found["group"].to_pylist() == list(range(len(groups))), "expected one result of each group"
        for one, text in zip(groups, found["merged"].to_pylist(), strict=True):
            fields = from_text(text, "merged group")
            parts = fields.objects("merged", count_max=len(one.members))
            yield [Merged.from_json(part, one.members) for part in parts]

    def _tasks(self, items: Sequence[T], costs: Sequence[int]) -> list[list[T]]:
        return group(items, costs, count_tasks(costs, cores=self._cores, task_bytes=_TASK_BYTES))

    def _shared(self, tasks: int) -> PassTask:
        """Divide the rate among the tasks of a job that run at a time."""
        rate = self._part.options.bytes_per_s_max
        return replace(self._part, bytes_per_s_max=None if rate is None else rate / min(tasks, self._cores))

    def _frame(self, rows: Sequence[Sequence[object]], types: Sequence[tuple[str, pa.DataType]]) -> DataFrame:
        columns = [pa.array(column, of) for column, (_, of) in zip(zip(*rows, strict=True), types, strict=True)]
        return self._spark.createDataFrame(pa.table(columns, names=[name for name, _ in types]))

    def _keep(self, frame: DataFrame) -> None:
        if not any(frame is each for each in self._persisted):
            self._persisted.append(frame)
            self._kept.callback(frame.persist().unpersist)


def find_losses(rows: DataFrame, *, expired_below: int, tasks: int) -> DataFrame:
    """Find the records to drop among rows of KEYS, as ``wal3_core.compaction.dropped.find_losses`` does.

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


def _by_group(members: DataFrame, losses: DataFrame, *, tasks: int) -> DataFrame:
    """Bring each group's members and losses to its task, in the order of their offsets, members first."""
    places = sf.broadcast(members.select("task", "group", "seq_no"))
    dropped = losses.join(places, "seq_no").withColumn("pointer", sf.lit(None).cast("string"))
    both = members.withColumn("reason", sf.lit(None).cast("int")).unionByName(dropped)
    return (
        both.repartitionById(tasks, sf.col("task"))
        .sortWithinPartitions("group", "offset", sf.col("reason").asc_nulls_first())
        .select("group", "seq_no", "offset", "reason", "pointer")
    )


def _collected(frame: DataFrame) -> pa.Table:
    """Run a job; a LogError of a task is raised here as what it was."""
    try:
        return frame.toArrow()
    except PySparkException as error:
        _, found, text = str(error).partition(REFUSED)
        if not found:
            raise
        refusal = Refusal.from_json(from_text(text.partition("\n")[0], "refusal"))
        for kind in _RAISED_AGAIN:
            if kind.__name__ == refusal.kind:
                raise kind(refusal.message) from error
        raise
