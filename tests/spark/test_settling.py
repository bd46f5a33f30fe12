"""What Spark's workers have loaded is exempt from the collection after each task, once in a process."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from wal3_core.spark.jobs import freezing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_process_that_is_no_worker_is_left_alone() -> None:
    before = gc.get_freeze_count()
    assert list(freezing(iter([1, 2]))) == [1, 2]
    assert gc.get_freeze_count() == before


@pytest.mark.slow
@pytest.mark.spark
def test_a_worker_freezes_behind_the_last_result_and_only_once(spark: SparkSession) -> None:
    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        results = freezing(iter(list(batches)))
        counts = [gc.get_freeze_count()]
        yield from results
        counts.append(gc.get_freeze_count())
        # Of a later task: it stays subject to collection.
        kept = [[] for _ in range(1000)]
        list(freezing(iter(kept)))
        counts.append(gc.get_freeze_count())
        yield pa.record_batch({"count": pa.array(counts, pa.int64())})

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        *_, counts = task(batches)
        yield counts

    rows = spark.range(1).coalesce(1).mapInArrow(counted, "count long").collect()
    _, after, later = (row["count"] for row in rows)
    # Objects of the library, thousands at least.
    assert after > 10_000
    # Frozen objects that are no longer used go; none is added.
    assert after - 100 <= later <= after
