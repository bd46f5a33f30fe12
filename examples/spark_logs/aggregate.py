"""A streaming aggregate: the payments of all shops, counted by customer, each change appended to a log of totals.

python -m examples.spark_logs.aggregate STORE CHECKPOINT

Run it again after more payments: each payment is counted once, and each change of a total is appended once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from wal3_core import LogWriter, Message, open_store
from wal3_core.spark import local_session

PAYMENTS, TOTALS = "payments", "totals"


def pay(url: str, shop: str, payments: Sequence[tuple[str, int]]) -> None:
    """Append payments at a shop, which has a log of its own."""
    with LogWriter.open_or_create(open_store(url), f"{PAYMENTS}/{shop}") as writer:
        writer.append_many([Message(json.dumps({"cents": cents}).encode(), name.encode()) for name, cents in payments])


def count(spark: SparkSession, url: str, checkpoint: str, seconds: float) -> None:
    """Count what was paid since the last call; new shops are found. TimeoutError after so many seconds."""
    payments = (
        spark.readStream.format("wal3")
        .options(store=url, prefix=PAYMENTS, columns="key,body", maxRecordsPerTrigger=100_000, cursor="totals")
        .load()
        .select(f.col("key"), f.from_json(f.col("body").cast("string"), "cents LONG").alias("paid"))
    )
    totals = payments.groupBy("key").agg(f.sum("paid.cents").alias("cents"))

    def append(changed: DataFrame, batch: int) -> None:
        # Spark repeats a batch after a failure; a log that has this one already does not get it again. Batches of
        # another checkpoint have another query's id.
        query_id = changed.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        rows = changed.select("key", f.to_json(f.struct("cents")).alias("body"))
        options = {"store": url, "log": TOTALS, "create": "true", "writer": "totals", "write_id": query_id}
        rows.write.format("wal3").options(**options, write_number=batch).mode("append").save()

    query = (
        totals.writeStream.foreachBatch(append)
        .outputMode("update")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(int(seconds)):
        query.stop()
        message = f"totals: expected the query to end within {seconds} s, found it running"
        raise TimeoutError(message)


def main() -> None:
    """Run it on the store that is named."""
    url, checkpoint = sys.argv[1:]
    pay(url, "north", [("ada", 30), ("kurt", 5)])
    pay(url, "south", [("ada", 12)])
    spark = local_session("aggregate")
    count(spark, url, checkpoint, seconds=600)
    spark.read.format("wal3").options(store=url, log=TOTALS).load().selectExpr(
        "offset", "CAST(key AS STRING) AS name", "CAST(body AS STRING) AS total"
    ).show(truncate=False)


if __name__ == "__main__":
    main()
