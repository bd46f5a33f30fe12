"""Names the library's jobs in Spark's UI, and says which of them lost tasks: so an operator learns of failing workers.

Spark counts them itself: a task counts as lost when an attempt of it raised, or its executor went away. Where results
of a stage were lost with their executor, Spark runs it again, and the failures of its earlier attempts are not counted.
Copies that speculation starts are no failures.
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
    from pyspark.core.status import SparkStageInfo
    from pyspark.sql import SparkSession

_DESCRIPTION = "spark.job.description"


@contextmanager
def named_jobs(spark: SparkSession, name: str) -> Iterator[None]:
    """Name the jobs of a block, and warn of the tasks that they lost, also when it fails. Not with Spark Connect."""
    if is_remote():
        yield
        return
    context, tag = spark.sparkContext, f"wal3-{shared_runtime().token()}"
    before = context.getLocalProperty(_DESCRIPTION)
    context.addJobTag(tag)
    context.setLocalProperty(_DESCRIPTION, f"wal3: {name}")
    try:
        yield
    finally:
        context.setLocalProperty(_DESCRIPTION, before)  # type: ignore[arg-type]  # None removes it
        context.removeJobTag(tag)
        stages = _stages(context, tag)
        failed = sum(stage.numFailedTasks for stage in stages)
        again = sum(stage.currentAttemptId > 0 for stage in stages)
        if failed or again:
            text = "%s: at least %d attempts of tasks failed or lost their executor, %d stages ran again"
            SPARK.warning(text, name, failed, again)


def _stages(context: SparkContext, tag: str) -> list[SparkStageInfo]:
    """Return the last attempt of each stage of the tag's jobs that Spark knows of yet."""
    # Python's StatusTracker does not find jobs by tag.
    found = context._jsc.sc().statusTracker()  # noqa: SLF001 - as above
    tracker = context.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in found.getJobIdsForTag(tag)]
    numbers = {stage for job in jobs if job is not None for stage in job.stageIds}
    stages = [tracker.getStageInfo(stage) for stage in numbers]
    return [stage for stage in stages if stage is not None]
