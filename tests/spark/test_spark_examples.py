"""The programs in ``examples/spark_logs``, in the session of the tests."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.spark_logs import aggregate, join
from tests.spark.queries import until_connected
from wal3_core import LogReader
from wal3_core.format.record import Record
from wal3_core.store.object_store import ObjectStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = [pytest.mark.spark, pytest.mark.slow]
QUERY_S = 240


def test_join_of_two_logs_uses_the_newest_record_of_each_customer(spark: SparkSession, local_url: str) -> None:
    join.fill(local_url)

    assert [tuple(row) for row in join.paid(spark, local_url).collect()] == [("London", 42), ("Vienna", 12)]


def test_streaming_aggregate_counts_each_payment_once_over_restarts(
    spark: SparkSession, local_url: str, local_store: ObjectStore, tmp_path: Path
) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    count = partial(aggregate.count, spark, local_url, checkpoint, QUERY_S)
    aggregate.pay(local_url, "north", [("ada", 30), ("kurt", 5)])
    until_connected(count)
    aggregate.pay(local_url, "south", [("ada", 12)])
    until_connected(count)

    totals = [(record.key, json.loads(record.body or b"")["cents"]) for record in _records(local_store)]
    assert sorted(totals[:2]) == [(b"ada", 30), (b"kurt", 5)]
    assert totals[2:] == [(b"ada", 42)]


def _records(store: ObjectStore) -> list[Record]:
    return list(LogReader.open(store, aggregate.TOTALS).records())
