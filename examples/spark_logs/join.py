"""A join of two logs: what each customer has paid, by the newest record of each customer.

python -m examples.spark_logs.join STORE
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from wal3_core import LogWriter, Message, open_store
from wal3_core.spark import local_session

CUSTOMERS, PAYMENTS = "shop/customers", "shop/payments"


def fill(url: str) -> None:
    """Append customers, one of whom moves, and payments."""
    store = open_store(url)
    with LogWriter.open_or_create(store, CUSTOMERS) as writer:
        for name, city in (("ada", "London"), ("kurt", "Brno"), ("kurt", "Vienna"), ("alan", "Manchester")):
            writer.append(json.dumps({"city": city}).encode(), key=name.encode())
    with LogWriter.open_or_create(store, PAYMENTS) as writer:
        payments = [("ada", 30), ("kurt", 5), ("ada", 12), ("kurt", 7)]
        writer.append_many([Message(json.dumps({"cents": cents}).encode(), name.encode()) for name, cents in payments])


def read(spark: SparkSession, url: str, log: str, schema: str) -> DataFrame:
    """Read a log whose bodies are JSON; its key becomes the column name."""
    records = spark.read.format("wal3").options(store=url, log=log, columns="offset,key,body").load()
    parsed = f.from_json(f.col("body").cast("string"), schema)
    return records.select("offset", f.col("key").cast("string").alias("name"), parsed.alias("value"))


def paid(spark: SparkSession, url: str) -> DataFrame:
    """Return what the customers of each city have paid."""
    customers = (
        read(spark, url, CUSTOMERS, "city STRING").groupBy("name").agg(f.max_by("value.city", "offset").alias("city"))
    )
    payments = read(spark, url, PAYMENTS, "cents LONG")
    return payments.join(customers, "name").groupBy("city").agg(f.sum("value.cents").alias("cents")).orderBy("city")


def main() -> None:
    """Run it on the store that is named."""
    url = sys.argv[1]
    fill(url)
    paid(local_session("join"), url).show()


if __name__ == "__main__":
    main()
