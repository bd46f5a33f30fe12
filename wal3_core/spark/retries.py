"""Says which of the library's Spark jobs lost tasks, so that an operator learns of workers that fail.

Spark counts them itself: a task counts as lost when an attempt of it raised, or its executor went away. Copies that
speculation starts are not counted, nor is what a stage does again because its results were lost after it had ended.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.utils import is_remote

from wal3_core.runtime import shared_runtime
from wal3_core.runtime.loggers import SPARK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


@contextmanager
def lost_tasks_logged(spark: SparkSession, what: str) -> Iterator[None]:
    """Warn of the tasks that the jobs of a block lost, also when it fails; not with Spark Connect."""
    if is_remote():
        yield
        return
    context, tag = spark.sparkContext, f"wal3-{shared_runtime().token()}"
    context.addJobTag(tag)
    try:
        yield
    finally:
        context.removeJobTag(tag)
        lost, stages = _lost(context, tag)
        if lost:
            text = "%s: at least %d attempts of tasks failed or lost their executor, in %d stages"
            SPARK.warning(text, what, lost, stages)


def _lost(context: SparkContext, tag: str) -> tuple[int, int]:
    """Count failed attempts, and the stages that had any: those that Spark knows of yet."""
    # Python's StatusTracker does not find jobs by tag.
    found = context._jsc.sc().statusTracker()  # noqa: SLF001 - as above
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in found.getJobIdsForTag(tag)]
    numbers = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [tracker.getStageInfo(stage) for stage in numbers]
    failed = [stage.numFailedTasks for stage in stages if stage is not None and stage.numFailedTasks]
    return sum(failed), len(failed)
