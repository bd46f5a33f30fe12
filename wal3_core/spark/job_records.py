"""What Spark's own records say was run again of jobs: the same as its UI shows, also where that is off.

Python's StatusTracker has neither tags nor reasons, so the JVM's store is asked. It forgets jobs, stages and tasks when
there are more than ``spark.ui.retainedJobs``, ``…Stages`` and ``…Tasks``: what it counts is the least that happened.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError

from wal3_core.compaction.retried import REASONS_MAX, Retried

if TYPE_CHECKING:
    from collections.abc import Iterator

    from py4j.java_gateway import JavaObject
    from pyspark import SparkContext

_EVENTS_WAIT_MS = 2_000
# Of the failures of a stage's attempt, so many are looked at for their executors and reasons; all are counted.
_FAILURES_READ_MAX = 200
_REASON_CHARS_MAX = 300
_EXECUTOR_LOST = "ExecutorLostFailure"
_TRACEBACK = "Traceback (most recent call last):"


def retried_of(context: SparkContext, tag: str) -> Retried:
    """Add up what was run again of all jobs with a tag."""
    found, failures = Retried(), list[tuple[str, str]]()
    records = _Records(context)
    for attempt in records.stage_attempts(tag):
        failed, copies = attempt.numFailedTasks(), records.num_copies(attempt)
        found += Retried(num_tasks=failed, num_stages=int(attempt.attemptId() > 0), num_copies=copies)
        failures += records.failures(attempt) if failed else []
    lost = {executor for executor, error in failures if error.startswith(_EXECUTOR_LOST)}
    reasons = Counter(reason_of(error) for _, error in failures).most_common(REASONS_MAX)
    return found + Retried(num_executors=len(lost), reasons=tuple(reasons))


def reason_of(error: str) -> str:
    """Shorten the error of a failed task to a line: of a Python traceback, the one that names the exception."""
    lines = error.partition("\n\tat ")[0].splitlines() or ["no reason given"]
    traceback = max((at for at, line in enumerate(lines) if line.endswith(_TRACEBACK)), default=-1)
    # Without a traceback, the first line.
    said = next((line for line in lines[traceback + 1 :] if not line.startswith(" ")), lines[0]).strip()
    return said if len(said) <= _REASON_CHARS_MAX else f"{said[:_REASON_CHARS_MAX]}…"


class _Records:
    """Calls into Spark's store of statuses."""

    def __init__(self, context: SparkContext) -> None:
        assert context._jvm is not None  # noqa: SLF001 - see the module
        assert context._gateway is not None  # noqa: SLF001
        self._tracker = context.statusTracker()
        self._scala = context._jsc.sc()  # noqa: SLF001
        self._store = self._scala.statusStore()
        self._kinds = context._jvm.org.apache.spark.status.api.v1  # noqa: SLF001
        self._list = context._jvm.java.util.ArrayList  # noqa: SLF001
        self._no_quantiles = context._gateway.new_array(context._jvm.double, 0)  # noqa: SLF001

    def stage_attempts(self, tag: str) -> Iterator[JavaObject]:
        """Go through all attempts of the stages of a tag's jobs."""
        # Spark hands events to its store in a thread of its own.
        with suppress(Py4JJavaError):
            self._scala.listenerBus().waitUntilEmpty(_EVENTS_WAIT_MS)
        jobs = [self._tracker.getJobInfo(job) for job in self._scala.statusTracker().getJobIdsForTag(tag)]
        for stage in sorted({stage for job in jobs if job is not None for stage in job.stageIds}):
            yield from self._attempts(stage)

    def _attempts(self, stage: int) -> list[JavaObject]:
        """Return the attempts of a stage; none of one that is forgotten."""
        details = with_summaries = False
        try:
            found = self._store.stageData(stage, details, self._list(), with_summaries, self._no_quantiles)
        except Py4JJavaError:
            return []
        return list(_items(found))

    def num_copies(self, attempt: JavaObject) -> int:
        """Count the copies of slow tasks."""
        found = self._store.speculationSummary(attempt.stageId(), attempt.attemptId())
        return int(found.get().numTasks()) if found.isDefined() else 0

    def failures(self, attempt: JavaObject) -> list[tuple[str, str]]:
        """Return the executor and the error of tasks that failed."""
        failed = self._list()
        failed.add(self._kinds.TaskStatus.FAILED)
        where = attempt.stageId(), attempt.attemptId()
        tasks = self._store.taskList(*where, 0, _FAILURES_READ_MAX, self._kinds.TaskSorting.ID, failed)
        errors = ((task.executorId(), task.errorMessage()) for task in _items(tasks))
        return [(executor, error.get() if error.isDefined() else "") for executor, error in errors]


def _items(sequence: JavaObject) -> Iterator[JavaObject]:
    """Go through a Scala sequence."""
    yield from (sequence.apply(at) for at in range(sequence.size()))
