"""A user's program: its own session, the data source, and a verification. Run by test_session.py."""

import json
import sys

from pyspark.sql import SparkSession

from wal3_core import open_store
from wal3_core.compaction.compactor import KeyCompactor
from wal3_core.spark import SparkEngine, register, verify_logs


def main() -> None:
    """Read and verify the log ``a``, and compact ``keyed``, in each of the stores named on the command line."""
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
    register(spark)
    for url in sys.argv[1:]:
        frame = spark.read.format("wal3").options(store=url, log="a").load()
        bodies = [row["body"].decode() for row in frame.orderBy("offset").collect() if row["body"] is not None]
        (report,) = verify_logs(spark, url, ["a"])
        done = KeyCompactor(open_store(url), "keyed", engine=SparkEngine(spark)).compact()
        found = {"bodies": bodies, "sound": report.sound, "records": report.num_records}
        print(json.dumps({**found, "superseded": done.num_superseded}))


if __name__ == "__main__":
    main()
