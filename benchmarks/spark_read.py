"""Read one log in Spark: verified, not verified, one column only, as a stream, and its Parquet files by Spark itself.

Then write its bodies to new logs: by one task each, whose fragments are installed as they are, and by several tasks,
whose fragments the driver writes again.

python benchmarks/spark_read.py [records] [bytes] [fragments]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from wal3_core import LogReader, LogWriter, WriterOptions, open_store
from wal3_core.spark import local_session, verify_logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

LOG = "bench"
CORES = 2
ROUNDS = 3
DEFAULTS = ("200000", "1024", "50")


def fill(url: str, *, records: int, record_bytes: int, fragments: int) -> None:
    each = records // fragments
    options = WriterOptions(record_bytes_max=2**20, batch_bytes_max=each * (record_bytes + 64))
    with LogWriter.open_or_initialize(open_store(url), LOG, options=options) as writer:
        for _ in range(fragments):
            data = os.urandom(each * record_bytes)
            writer.append_many([data[at : at + record_bytes] for at in range(0, len(data), record_bytes)])


def timed(name: str, records: int, run: Callable[[], object]) -> None:
    found = []
    for _ in range(ROUNDS):
        before = time.perf_counter()
        run()
        found.append(time.perf_counter() - before)
    best = min(found)
    print(f"{name:44} {best:6.2f} s {records / best:10,.0f} records/s", flush=True)


def stream_and_write(spark: SparkSession, url: str, parquet: str, columns: str, records: int) -> None:
    numbers = count()

    def follow() -> None:
        options = {"store": url, "log": LOG, "columns": columns}
        writer = spark.readStream.format("wal3").options(**options).load().writeStream.format("noop")
        writer = writer.option("checkpointLocation", f"{url}-checkpoints/{next(numbers)}")
        writer.trigger(availableNow=True).start().awaitTermination()

    def write(tasks: int) -> None:
        rows = spark.read.parquet(parquet).select("body").coalesce(tasks)
        options = {"store": url, "log": f"copy-{next(numbers)}", "create": "true"}
        rows.write.format("wal3").options(**options).mode("append").save()

    timed("wal3, verified, as a stream", records, follow)
    for tasks in (1, CORES):
        timed(f"df.write, {tasks} tasks", records, partial(write, tasks))


def main() -> None:
    records, record_bytes, fragments = map(int, [*sys.argv[1:], *DEFAULTS[len(sys.argv) - 1 :]])
    with tempfile.TemporaryDirectory() as folder:
        url = (Path(folder) / "store").as_uri()
        fill(url, records=records, record_bytes=record_bytes, fragments=fragments)
        reader = LogReader.open(open_store(url), LOG)
        print(f"{records:,} records of {record_bytes} bytes in {len(reader.scan())} fragments, {CORES} cores")
        spark = local_session("wal3-bench", CORES)
        spark.sparkContext.setLogLevel("ERROR")

        def consume(**options: str) -> None:
            frame = spark.read.format("wal3").options(store=url, log=LOG, **options).load()
            frame.write.format("noop").mode("overwrite").save()

        wanted = "offset,timestamp_us,key,body"
        timed("LogReader.batches, verified, no Spark", records, lambda: sum(len(b) for b in reader.batches()))
        timed("wal3, verified", records, lambda: consume(columns=wanted))
        timed("wal3, not verified", records, lambda: consume(columns=wanted, verify="false"))
        timed("wal3, verified, all columns", records, consume)
        timed("wal3, verified, offset only", records, lambda: consume(columns="offset"))
        timed(
            "wal3, not verified, a task a fragment",
            records,
            lambda: consume(columns=wanted, verify="false", partitions="9999"),
        )
        log_id = reader.manifest().log_id
        parquet = f"{url}/{LOG}/Life={log_id}/log"
        timed(
            "spark.read.parquet",
            records,
            lambda: spark.read.parquet(parquet).write.format("noop").mode("overwrite").save(),
        )
        stream_and_write(spark, url, parquet, wanted, records)
        timed("verify_logs", records, lambda: [r.num_records for r in verify_logs(spark, url, [LOG])])
        spark.stop()


if __name__ == "__main__":
    main()
