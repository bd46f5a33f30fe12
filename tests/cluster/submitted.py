"""A user's program, for ``spark-submit`` or Spark Connect: it does jobs on a store's logs, and prints what each found.

Arguments: the store's URL, a folder for what the jobs keep, the jobs. It imports the library and Spark alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from wal3_core import open_store
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.log.collect.deleter import Deleter
from wal3_core.options import CollectorOptions
from wal3_core.spark import SparkEngine, register, verify_logs
from wal3_core.spark.maintenance import delete_objects, plan_collections, plan_rollups

if TYPE_CHECKING:
    from wal3_core.compaction.reports import Retried

    Done = dict[str, Any]

QUERY_S = 400
# The zip of the library, for Spark Connect.
LIBRARY_VARIABLE = "WAL3_TEST_LIBRARY"
READ = ("read/a", "read/b")
PLANNED = ("planned/a", "planned/b")
COLLECTED = ("collected/a", "collected/b")
KEYED = "keyed"
DIRTY = ("dirty/one", "dirty/two")
AT_ONCE = CollectorOptions(interval_s=0)


def done(found: object, retried: Retried | None = None) -> Done:
    """Return what a job found, and what it says was run again."""
    return {"found": found, "retried": None if retried is None else retried.to_json()}


def read(spark: SparkSession, url: str, _folder: str) -> Done:
    """Read a prefix: log, offset and body of every record."""
    frame = spark.read.format("wal3").options(store=url, prefix="read", partitions="4").load()
    rows = frame.select("log", "offset", "body").collect()
    return done(
        sorted([row["log"], row["offset"], None if row["body"] is None else row["body"].decode()] for row in rows)
    )


def write(spark: SparkSession, url: str, _folder: str) -> Done:
    """Write numbers to two logs, by several tasks."""
    frame = spark.range(0, 4000, 1, 4).selectExpr("concat('written/', id % 2) AS log", "cast(id AS STRING) AS body")
    frame.write.format("wal3").options(store=url, create="true").mode("append").save()
    return done(found=True)


def stream(spark: SparkSession, url: str, folder: str) -> Done:
    """Copy a prefix to a log as a stream, in several batches."""
    options = {"store": url, "prefix": "read", "maxRecordsPerTrigger": "200", "partitions": "4"}
    frame = spark.readStream.format("wal3").options(**options).load().selectExpr("'copy' AS log", "key", "body")
    writer = frame.writeStream.format("wal3").options(store=url, create="true", writer="copier")
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    ended = query.awaitTermination(QUERY_S)
    query.stop()
    return done(ended)


def verify(spark: SparkSession, url: str, _folder: str) -> Done:
    """Verify logs, and one that is missing."""
    reports = verify_logs(spark, url, [*READ, "nowhere"])
    return done([[each.log, each.sound, each.num_records] for each in reports], reports.retried)


def plan(spark: SparkSession, url: str, _folder: str) -> Done:
    """Plan collections."""
    surveys = plan_collections(spark, url, [*READ, *PLANNED], AT_ONCE)
    found = [[each.log, each.due, str(each.plan), each.refusal and each.refusal.kind] for each in surveys]
    return done(found, surveys.retried)


def delete(spark: SparkSession, url: str, _folder: str) -> Done:
    """Delete what was pruned."""
    store = open_store(url)
    documents = [(log, meta.path) for log in COLLECTED for meta in Deleter(store, log).documents()]
    deleted = delete_objects(spark, url, documents, AT_ONCE)
    return done([[each.log, each.deleted.finished, each.refusal is None] for each in deleted], deleted.retried)


def compact(spark: SparkSession, url: str, _folder: str) -> Done:
    """Compact a log by key."""
    report = KeyCompactor(open_store(url), KEYED, engine=SparkEngine(spark)).compact(force=True)
    return done(report.num_superseded, report.retried)


def roll_up(spark: SparkSession, url: str, _folder: str) -> Done:
    """Read the dirty logs, and find the logs that they mark."""
    planned = plan_rollups(spark, url, DIRTY)
    found = [[each.dirty_log, sorted(log.log for log in each.plan.logs) if each.plan else None] for each in planned]
    return done(found, planned.retried)


JOBS: dict[str, Callable[[SparkSession, str, str], Done]] = {
    job.__name__: job for job in (read, write, stream, verify, plan, delete, compact, roll_up)
}


def main() -> None:
    """Do the jobs in one session."""
    url, folder, *names = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    if is_remote():
        spark.addArtifacts(os.environ[LIBRARY_VARIABLE], pyfile=True)
    register(spark)
    for name in names:
        print(json.dumps({name: JOBS[name](spark, url, folder)}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
