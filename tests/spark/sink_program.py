"""Writes rows to log ``a`` of a store, by tasks of which each fails at its first try, when it has staged rows."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

from wal3_core.spark import register, session_conf, use_this_python

ROWS = 20_000
# More than a fragment for each task.
PADDING = " " + "x" * 1024


def spoilt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    for batch in batches:
        rows = [json.dumps([number, attempt], separators=(",", ":")) + PADDING for number in batch["id"].to_pylist()]
        yield pa.RecordBatch.from_arrays([pa.array(rows)], names=["body"])
    if attempt == 0:
        message = "a failure after all rows"
        raise RuntimeError(message)


def main() -> None:
    use_this_python()
    builder = SparkSession.builder.appName("retried")
    for name, value in session_conf("local[2, 3]").items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    frame = spark.range(0, ROWS, 1, 2).mapInArrow(spoilt, "body STRING")
    frame.write.format("wal3").options(store=sys.argv[1], log="a").mode("append").save()
    print(json.dumps({"rows": ROWS}))
    spark.stop()


if __name__ == "__main__":
    main()
