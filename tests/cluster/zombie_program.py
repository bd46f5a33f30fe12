"""A driver for ``spark-submit`` that can be stopped between its tasks' end and its install: streams, then a write.

Arguments: the driver's name, the store's URL, the folder of checkpoints and gates, the batch at whose commit each query
waits (-1: none does), and whether to write. A commit that waits says so by a file, and goes on when there is another
one: test_zombies.py.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from wal3_core.spark.sink import LogSinkWriter, LogStreamSinkWriter
from wal3_core.spark.source import LogDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage
    from pyspark.sql.streaming import StreamingQuery
    from pyspark.sql.types import StructType

WAIT_S = 400
PER_BATCH = 10
# By query: whether its rows, and the log that they go to, name the driver, as of a source that gives others each time.
STREAMS: dict[str, dict[str, str]] = {
    "same": {},
    "last": {},
    "other": {"rows": "of the driver"},
    "allowed": {"rows": "of the driver", "same_rows": "false"},
    "sealed": {},
    "replaced": {},
}
WRITES = ("write", "other-write")
DRIVER, URL, FOLDER, BATCH, WRITING = sys.argv[1:6] if __name__ == "__main__" else [""] * 5


def wait_at_gate(name: str) -> None:
    """Say that what ``name`` appends is staged, and wait until the test lets it be installed."""
    (Path(FOLDER) / f"{DRIVER}-{name}").touch()
    limit = time.monotonic() + WAIT_S
    while not (Path(FOLDER) / f"go-{DRIVER}").exists():
        if time.monotonic() > limit:
            message = f"{DRIVER} waited for {WAIT_S} s"
            raise TimeoutError(message)
        time.sleep(0.05)


# Spark pickles what a program's own module defines, whole: these reach its workers.
class GatedStreamWriter(LogStreamSinkWriter):
    """Waits at the commit of a batch."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Wait, then install."""
        if batchId == int(BATCH):
            wait_at_gate(self._request.writer or "")
        super().commit(messages, batchId)


class GatedWriter(LogSinkWriter):
    """Waits at its commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Wait, then install."""
        wait_at_gate(self._request.writer or "")
        super().commit(messages)


class GatedSource(LogDataSource):
    """The data source, whose writers wait."""

    def writer(self, schema: StructType, overwrite: bool) -> GatedWriter:  # noqa: FBT001 - Spark's signature
        """Return the writer of a DataFrame."""
        return GatedWriter(super().writer(schema, overwrite)._request)

    def streamWriter(self, schema: StructType, overwrite: bool) -> GatedStreamWriter:  # noqa: FBT001, N802 - as above
        """Return the writer of a stream."""
        return GatedStreamWriter(super().streamWriter(schema, overwrite)._request)


def start(spark: SparkSession, url: str, name: str) -> StreamingQuery:
    """Copy the log in/NAME to out/NAME as a stream, ten records a batch."""
    given = dict(STREAMS[name])
    options = {"store": url, "log": f"in/{name}", "maxRecordsPerTrigger": f"{PER_BATCH}"}
    frame = spark.readStream.format("wal3").options(**options).load()
    body = f"concat(cast(body AS STRING), ' of {DRIVER}') AS body" if given.pop("rows", "") else "body"
    writer = frame.selectExpr(body).writeStream.format("wal3").options(store=url, log=f"out/{name}", writer=name)
    writer = writer.options(checkpointLocation=f"{FOLDER}/checkpoint-{name}", **given)
    return writer.trigger(availableNow=True).start()


def wait_for_first_batch(query: StreamingQuery, name: str) -> None:
    """Wait until a query's processes run: Spark gives each 10 s to start, which many at once exceed."""
    limit = time.monotonic() + WAIT_S
    while query.isActive and not query.recentProgress and not (Path(FOLDER) / f"{DRIVER}-{name}").exists():
        assert time.monotonic() < limit, f"{name}: nothing done in {WAIT_S} s"
        time.sleep(0.1)


def write(spark: SparkSession, url: str, name: str) -> None:
    """Write rows under a name that another driver writes, too."""
    body = "CAST(id AS STRING)" if name == "write" else f"concat(id, ' of {DRIVER}')"
    options = {"store": url, "log": f"out/{name}", "writer": name, "write_id": "monday"}
    spark.range(0, 100, 1, 2).selectExpr(f"{body} AS body").write.format("wal3").options(**options).mode(
        "append"
    ).save()


def main() -> None:
    """Start all streams, then write while they run; print the error of each, or that there was none."""
    spark = SparkSession.builder.getOrCreate()
    spark.dataSource.register(GatedSource)
    queries = {}
    for name in STREAMS:
        queries[name] = start(spark, URL, name)
        wait_for_first_batch(queries[name], name)
    found: dict[str, str | None] = {}
    for name in WRITES if WRITING == "write" else ():
        try:
            write(spark, URL, name)
            found[name] = None
        except PySparkException as error:
            found[name] = str(error)
    for name, query in queries.items():
        try:
            ended = query.awaitTermination(WAIT_S)
            found[name] = None if ended else "it did not end"
        except PySparkException as error:
            found[name] = str(error)
    print(json.dumps({DRIVER: found}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
