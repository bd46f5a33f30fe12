"""``df.write.format("wal3")``: rows become records, each once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.spark.logs import fill
from wal3_core import LogReader, LogWriter
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]
PROGRAM = Path(__file__).parent / "sink_program.py"
PROGRAM_S = 240


def bodies(store: ObjectStore, log: str) -> list[bytes | None]:
    return [record.body for record in LogReader.open(store, log).records()]


def test_rows_become_records_of_the_logs_that_they_name(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    fill(local_store, "a", fragments=1)
    frame = spark.range(0, 100, 1, 3).selectExpr(
        "IF(id % 2 = 0, 'a', 'b/new') AS log",
        "CAST(id AS STRING) AS body",
        "CAST(CAST(id % 5 AS STRING) AS BINARY) AS key",
    )

    frame.write.format("wal3").options(store=local_url, create="true").mode("append").save()

    assert bodies(local_store, "a")[10:] == [b"%d" % number for number in range(0, 100, 2)]
    assert bodies(local_store, "b/new") == [b"%d" % number for number in range(1, 100, 2)]
    assert LogReader.open(local_store, "a").manifest().next.seq_no == 3
    read = spark.read.format("wal3").options(store=local_url, log="b/new").load()
    assert read.count() == 50


def test_write_without_rows_begins_its_log_or_says_that_there_is_none(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    """It once began none, and the next job that read it failed."""
    empty = spark.range(0).selectExpr("CAST(id AS STRING) AS body")

    with pytest.raises(PySparkException, match="option create, set to true"):
        empty.write.format("wal3").options(store=local_url, log="daily").mode("append").save()
    empty.write.format("wal3").options(store=local_url, log="daily", create="true").mode("append").save()

    assert spark.read.format("wal3").options(store=local_url, log="daily").load().count() == 0
    assert bodies(local_store, "daily") == []


def test_write_that_cannot_be_says_why_and_appends_nothing(
    spark: SparkSession, local_url: str, local_store: ObjectStore
) -> None:
    LogWriter.create(local_store, "a")
    frame = spark.range(3).selectExpr("IF(id < 2, CAST(id AS STRING), NULL) AS body")

    for changed, options, mode, complaint in (
        (frame, {"log": "a"}, "append", r"row \d of \d: record: expected a body, a key, or both, found neither"),
        (frame, {"log": "a"}, "overwrite", "expected the mode append"),
        (frame, {"log": "missing"}, "append", "option create, set to true"),
        (frame, {}, "append", r"expected the columns key, body, log .* found \['body'\]"),
        (spark.range(3), {"log": "a"}, "append", r"found \['id'\]"),
    ):
        with pytest.raises(PySparkException, match=complaint):
            changed.write.format("wal3").options(store=local_url, **options).mode(mode).save()
    assert bodies(local_store, "a") == []


def test_retried_task_doubles_nothing(local_url: str, local_store: ObjectStore) -> None:
    LogWriter.create(local_store, "a")

    outcome = subprocess.run(
        [sys.executable, str(PROGRAM), local_url], capture_output=True, text=True, timeout=PROGRAM_S, check=True
    )

    report = json.loads(outcome.stdout.splitlines()[-1])
    found = [json.loads((body or b"").split(b" ")[0]) for body in bodies(local_store, "a")]
    assert sorted(found) == [[number, 1] for number in range(report["rows"])]
