"""Read one log in Spark, verified, beside its Parquet files read by Spark itself: all they hold, and offset and body.

Beside these, a Python data source that only yields such batches: what Spark lets any of them reach. Then not
verified, with other columns, with other numbers of tasks, and as a stream.

Then write its bodies to new logs: by one task each, whose fragments are installed as they are, and by several tasks,
whose fragments the driver writes again.

python benchmarks/spark_read.py [records] [bytes] [fragments]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from wal3_core import LogReader, LogWriter, WriterOptions, open_store
from wal3_core.spark import local_session, verify_logs
from wal3_core.spark.columns import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

LOG = "bench"
CORES = 2
ROUNDS = 4
DEFAULTS = ("200000", "1024", "50")
# Of the same size as those of the source of logs.
READY_BATCH_BYTES = 16 * 2**20


def fill(url: str, *, records: int, record_bytes: int, fragments: int) -> None:
    each = records // fragments
    options = WriterOptions(record_bytes_max=2**20, batch_bytes_max=each * (record_bytes + 64))
    with LogWriter.open_or_create(open_store(url), LOG, options=options) as writer:
        for _ in range(fragments):
            data = os.urandom(each * record_bytes)
            writer.append_many([data[at : at + record_bytes] for at in range(0, len(data), record_bytes)])


class ReadyPart(InputPartition):
    """How many batches one task yields, and of how many records."""

    def __init__(self, batches: int, records: int) -> None:
        self.batches = batches
        self.records = records


class ReadyReader(DataSourceReader):
    """Makes one batch, and yields it again and again."""

    def __init__(self, options: dict[str, str]) -> None:
        self.records, self.record_bytes = int(options["records"]), int(options["bytes"])

    def partitions(self) -> list[ReadyPart]:
        """Give each core its share of the records."""
        each = self.records // CORES
        batches = -(-each * self.record_bytes // READY_BATCH_BYTES)
        return [ReadyPart(batches, each // batches) for _ in range(CORES)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the batches of a part."""
        assert isinstance(partition, ReadyPart)
        offsets = pa.array(range(partition.records), pa.int64())
        body = pa.repeat(pa.scalar(b"x" * self.record_bytes, pa.binary()), partition.records)
        fields = [pa.field("offset", pa.int64(), nullable=False), pa.field("body", pa.binary())]
        batch = pa.RecordBatch.from_arrays([offsets, body], schema=pa.schema(fields))
        for _ in range(partition.batches):
            yield batch


class ReadyBatches(DataSource):
    """The least that a data source in Python can do for as many records."""

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return "ready"

    def schema(self) -> str:
        """Return the two columns."""
        return "offset bigint not null, body binary"

    def reader(self, schema: StructType) -> ReadyReader:  # noqa: ARG002 - Spark's signature
        """Return the reader."""
        return ReadyReader(self.options)


def timed(records: int, runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Run each in turn, a few times; print and return the best times."""
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            before = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - before)
    for name, seconds in best.items():
        print(f"{name:44} {seconds:6.2f} s {records / seconds:10,.0f} records/s", flush=True)
    return best


def discard(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def beside_parquet(spark: SparkSession, url: str, parquet: str, *, records: int, record_bytes: int) -> None:
    """Compare like with like, in turns."""

    def ours(**options: str) -> None:
        discard(spark.read.format("wal3").options(store=url, log=LOG, **options).load())

    def ready() -> None:
        discard(spark.read.format("ready").options(records=records, bytes=record_bytes).load())

    found = timed(
        records,
        {
            "wal3, verified, all columns": ours,
            "the same with log and fragment": lambda: ours(columns=",".join(COLUMNS)),
            "spark.read.parquet, all columns": lambda: discard(spark.read.parquet(parquet)),
            "wal3, verified, offset and body": lambda: ours(columns="offset,body"),
            "spark.read.parquet, offset and body": lambda: discard(
                spark.read.parquet(parquet).select("offset", "body")
            ),
            "a source that only yields offset and body": ready,
        },
    )
    for columns in ("all columns", "offset and body"):
        ratio = found[f"spark.read.parquet, {columns}"] / found[f"wal3, verified, {columns}"]
        print(f"wal3, verified, of spark.read.parquet, {columns:16} {ratio:5.2f}")
    timed(
        records,
        {
            "wal3, not verified": lambda: ours(verify="false"),
            "wal3, verified, offset only": lambda: ours(columns="offset"),
            "wal3, verified, four tasks a core": lambda: ours(partitions=str(4 * CORES)),
            "wal3, not verified, a task a fragment": lambda: ours(verify="false", partitions="9999"),
        },
    )


def stream_and_write(spark: SparkSession, url: str, parquet: str, records: int) -> None:
    numbers = count()

    def follow() -> None:
        writer = spark.readStream.format("wal3").options(store=url, log=LOG).load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", f"{url}-checkpoints/{next(numbers)}")
        writer.trigger(availableNow=True).start().awaitTermination()

    def write(tasks: int) -> None:
        rows = spark.read.parquet(parquet).select("body").coalesce(tasks)
        options = {"store": url, "log": f"copy-{next(numbers)}", "create": "true"}
        rows.write.format("wal3").options(**options).mode("append").save()

    runs: dict[str, Callable[[], object]] = {"wal3, verified, as a stream": follow}
    timed(records, runs | {f"df.write, {tasks} tasks": partial(write, tasks) for tasks in (1, CORES)})


def main() -> None:
    records, record_bytes, fragments = map(int, [*sys.argv[1:], *DEFAULTS[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        url = (Path(folder) / "store").as_uri()
        fill(url, records=records, record_bytes=record_bytes, fragments=fragments)
        reader = LogReader.open(open_store(url), LOG)
        print(f"{records:,} records of {record_bytes} bytes in {len(reader.scan())} fragments, {CORES} cores")
        spark = local_session("wal3-bench", CORES)
        spark.sparkContext.setLogLevel("ERROR")

        spark.dataSource.register(ReadyBatches)
        timed(records, {"LogReader.batches, verified, no Spark": lambda: sum(len(each) for each in reader.batches())})
        parquet = f"{url}/{LOG}/Life={reader.manifest().log_id}/log"
        beside_parquet(spark, url, parquet, records=records, record_bytes=record_bytes)
        stream_and_write(spark, url, parquet, records)
        timed(records, {"verify_logs": lambda: [each.num_records for each in verify_logs(spark, url, [LOG])]})
        spark.stop()


if __name__ == "__main__":
    main()
