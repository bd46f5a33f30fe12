"""One Spark job over many logs: texts of each log go in, texts come out, and an error of one log hides no other."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf
from pyspark.sql.utils import is_remote

from wal3_core.fleet.outcomes import Refusal
from wal3_core.model.retried import Retried
from wal3_core.spark.attempts import AGAIN
from wal3_core.spark.collect_task import RESULTS, collect_task, from_text
from wal3_core.spark.named_jobs import named_jobs
from wal3_core.spark.request import check_shared
from wal3_core.spark.tasks import count_tasks, group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Row, SparkSession

    from wal3_core.spark.collect_task import Work

_TASK_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Item:
    """A text for a log's work, and its cost."""

    log: str
    text: str
    cost: int


@dataclass(frozen=True, slots=True)
class Found:
    """A log's results, and the refusal that ended them."""

    results: tuple[str, ...] = ()
    refusal: Refusal | None = None


def run_by_log(
    spark: SparkSession, store_url: str, items: Sequence[Item], work: Work
) -> tuple[dict[str, Found], Retried]:
    """Do the work as one job, and say what Spark ran again; adjacent items, which belong to one log, stay together."""
    if not items:
        return {}, Retried()
    costs = [item.cost for item in items]
    tasks = group(items, costs, count_tasks(costs, cores=cores(spark), task_bytes=_TASK_BYTES))
    rows = [(number, item.log, item.text) for number, task in enumerate(tasks) for item in task]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    frame = (
        spark.createDataFrame(pa.table(columns, names=["task", "log", "text"]))
        .repartitionById(len(tasks), sf.col("task").cast("int"))
        .mapInArrow(partial(collect_task, store_url=check_shared(store_url), work=work), RESULTS)
    )
    with named_jobs(spark, f"{work.name} of {len({item.log for item in items})} logs") as watch:
        found = _by_log(frame.collect())
        watch.add_earlier(sum(map(int, found.pop(AGAIN, Found()).results)))
    return found, watch.retried


def _by_log(results: Sequence[Row]) -> dict[str, Found]:
    found: dict[str, list[str]] = {}
    refusals: dict[str, Refusal] = {}
    for row in results:
        texts = found.setdefault(row["log"], [])
        if row["refused"]:
            refusals[row["log"]] = Refusal.from_json(from_text(row["result"], "refusal"))
        else:
            texts.append(row["result"])
    return {log: Found(tuple(texts), refusals.get(log)) for log, texts in found.items()}


def cores(spark: SparkSession) -> int:
    """Return how many tasks run at a time; with Spark Connect, as many as this machine has cores."""
    return os.cpu_count() or 1 if is_remote() else spark.sparkContext.defaultParallelism
