"""A step: the logs that it works on, however its run was started, and which failures are retried.

A run of an asset works on the partitions that were chosen for it, and records each of them. A sweep, a run of
operations that a schedule or sensor starts, works on all known logs or on those that its configuration names,
and records only what changed.

A step requests its retries itself: for a store that does not answer, and failures of Spark. A retry policy on an asset
would also retry a cancelled step: the run would continue, and in the end report success. A step that fails for good
raises a Failure, whose description is what the run shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dagster import (
    AssetExecutionContext,
    AssetKey,
    Backoff,
    DagsterInstance,
    Failure,
    Jitter,
    OpExecutionContext,
    RetryPolicy,
    RetryRequested,
)
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from wal3_core.compaction.reports import Retried
from wal3_core.errors import LogError, StoreDeniedError, UnavailableError, UnsuitableStoreError
from wal3_core.fleet.outcomes import Refusal
from wal3_core.runtime import shared_runtime
from wal3_core.spark.jobs import JobResults
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.log_records import LogRecord, LogRecords
from wal3_orchestration.framework.readable import duration
from wal3_orchestration.framework.scope import StoreScope
from wal3_orchestration.framework.store import map_logs, open_known
from wal3_orchestration.resources import CollectionResource, spark_session

T = TypeVar("T")
LOGS_FIELD = "logs"
# Where the work of a step was done, as its metadata says.
HERE, ON_SPARK = "this process", "Spark"
# The label of it.
SAID_ONCE = "done_by"
# Logs after which the rest of the work is estimated.
_MEASURED_LOGS = 64
# Failed logs of which a sweep keeps the messages; its failure names the first of these.
FIRST_FAILED_MAX = 50
_NAMED_MAX = 10
RETRIES = RetryPolicy(max_retries=3, delay=5, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)
# Logs of which a sweep holds what it finds at a time, however many it goes over.
LOGS_PER_SLICE_MAX = 1_000


def slices(logs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield many logs in parts, so that what belongs to each is not held for all of them at once."""
    for start in range(0, len(logs), LOGS_PER_SLICE_MAX):
        yield logs[start : start + LOGS_PER_SLICE_MAX]


@dataclass(slots=True, kw_only=True)
class WorkDone:
    """How the work of a step was done: where, for how many logs, and how long it took; all its slices share it.

    ``start_s`` is how long Spark took to start, and ``retried`` what it ran again, if it was used.
    """

    num_logs: Counter[str] = field(default_factory=Counter)
    here_s: float = 0.0
    start_s: float | None = None
    retried: Retried | None = None

    def left_s(self, num_left: int) -> float:
        """Estimate how long the logs that are left would take in this process; 0 when none was done yet."""
        return self.here_s * num_left / self.num_logs[HERE] if self.num_logs[HERE] else 0.0

    def add_spark(self, num_logs: int, retried: Retried) -> None:
        """Add logs that Spark did the work for, and what it ran again."""
        self.num_logs[ON_SPARK] += num_logs
        self.retried = retried if self.retried is None else self.retried + retried

    def said(self) -> dict[str, str]:
        """Say what did the work, and what starting Spark cost."""
        ways = sorted(self.num_logs.items(), reverse=True)
        named = [f"{way} for {count:,}" if len(ways) > 1 else way for way, count in ways]
        started = {} if self.start_s is None else {"Spark's start took": duration(self.start_s)}
        return {**({SAID_ONCE: ", ".join(named)} if named else {}), **started}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The logs of a step of an asset; ``swept`` says that the run is a sweep, ``last`` that no step comes after it.

    A slice has some of the step's ``num_logs``: whether Spark is worth its start does not depend on the slice, but on
    the ``work`` that was measured.
    """

    scope: StoreScope
    context: AssetExecutionContext | OpExecutionContext
    asset: str
    logs: Sequence[str]
    swept: bool = False
    last: bool = True
    num_all: int | None = None
    work: WorkDone = field(default_factory=WorkDone, compare=False)

    @classmethod
    def of_sweep(cls, scope: StoreScope, context: OpExecutionContext, asset: str, *, last: bool) -> Step:
        """Take the logs from the configuration: those of them that are still known; all known ones without it."""
        known, named = scope.known_logs(context.instance), context.op_config.get(LOGS_FIELD)
        logs = known if named is None else sorted(set(named) & set(known))
        left_out = sorted(set(named or ()) - set(known))
        if left_out:
            more = f" and {len(left_out) - _NAMED_MAX} more" if len(left_out) > _NAMED_MAX else ""
            said = "%d logs that the configuration names are not known, and left out: %s%s"
            context.log.warning(said, len(left_out), ", ".join(left_out[:_NAMED_MAX]), more)
        return cls(scope=scope, context=context, asset=asset, logs=logs, swept=True, last=last)

    @property
    def num_logs(self) -> int:
        """How many logs the step has, in all of its slices."""
        return len(self.logs) if self.num_all is None else self.num_all

    @property
    def instance(self) -> DagsterInstance:
        """The Dagster instance of the run."""
        return self.context.instance

    @property
    def key(self) -> AssetKey:
        """The asset's key."""
        return self.scope.key(self.asset)

    @property
    def limits(self) -> CollectionResource:
        """The limits of collections, and the thresholds of checks."""
        return self.scope.collection(self.context)

    def slices(self) -> Iterator[Step]:
        """Yield the step in parts, so that a sweep over many logs takes no more memory than one over some of them.

        Dagster holds the chosen partitions of a run together in any case, and records them together.
        """
        parts = slices(self.logs) if self.swept else [self.logs]
        yield from (replace(self, logs=some, num_all=self.num_logs) for some in parts)

    def spark(self) -> tuple[SparkSession, str]:
        """Start the Spark session; return it, and the store's URL for its processes."""
        begun_s = shared_runtime().monotonic_s()
        session = spark_session(self.scope.spark(self.context))
        if self.work.start_s is None:
            self.work.start_s = shared_runtime().monotonic_s() - begun_s
        return session, self.scope.store(self.context).url

    def each_log(
        self,
        here: Callable[[str], T],
        on_spark: Callable[[SparkSession, str, list[str]], JobResults[T]],
        *,
        num_bytes: int = 0,
    ) -> Iterator[tuple[T, str]]:
        """Yield what is found for each log, in order, and where: in this process, or by a Spark job.

        Spark is used where it is worth its start: for ``num_bytes`` of these logs, or when the logs that are left, by
        what those before them took, would take long in this process.
        """
        done = 0 if num_bytes < self.limits.spark_bytes_min else None
        while done is not None and done < len(self.logs):
            if self.work.left_s(self.num_logs - self.work.num_logs.total()) >= self.limits.spark_work_s_min:
                break
            some = self.logs[done : done + _MEASURED_LOGS]
            begun_s = shared_runtime().monotonic_s()
            found = list(map_logs(here, some))
            self.work.here_s += shared_runtime().monotonic_s() - begun_s
            self.work.num_logs[HERE] += len(some)
            yield from ((each, HERE) for each in found)
            done += len(some)
        rest = list(self.logs[done or 0 :])
        if rest:
            swept = on_spark(*self.spark(), rest)
            self.work.add_spark(len(rest), swept.retried)
            yield from ((each, ON_SPARK) for each in swept)

    def records(self, asset: str) -> dict[str, LogRecord]:
        """Return what was recorded last of the step's logs for an asset."""
        return LogRecords(self.scope, self.instance, asset).load(self.logs)

    def open(self) -> ObjectStore:
        """Open the store; Failure when it is not the one that the instance looks after."""
        return open_known(self.scope, self.context)


@contextmanager
def retried_only_when_unavailable(
    context: AssetExecutionContext | OpExecutionContext, policy: RetryPolicy = RETRIES
) -> Iterator[None]:
    """Retry the step when the store does not answer or Spark fails; any other error fails it for good.

    Reading again does not repair damage, and asking again does not grant access. What fails for good
    is raised without the errors below it: its sentence says what happened.
    """
    try:
        yield
    except (StoreDeniedError, UnsuitableStoreError) as error:
        raise _final(error) from None
    except (UnavailableError, PySparkException) as error:
        if context.retry_number >= policy.max_retries:
            raise _final(error, tries=context.retry_number + 1) from None
        delay_s = policy.calculate_delay(context.retry_number + 1)
        raise RetryRequested(max_retries=policy.max_retries, seconds_to_wait=delay_s) from error
    except LogError as error:
        raise _final(error) from None


class Failures:
    """The logs of a step that failed: how many, the first of them with their messages, and whether one is transient."""

    def __init__(self) -> None:
        self.count = 0
        self.first: dict[str, str] = {}
        self.transient = False

    def add(self, log: str, refusal: Refusal) -> None:
        """Count a log's failure."""
        self.count += 1
        self.transient |= refusal.transient
        if log in self.first:
            self.first[log] += f"; {refusal.message}"
        elif len(self.first) < FIRST_FAILED_MAX:
            self.first[log] = refusal.message

    def raise_together(self, total: int, *, hint: str = "") -> None:
        """Fail the step if any of its ``total`` logs failed; for good, unless a failure is transient."""
        if not self.count:
            return
        named = list(self.first.items())[:_NAMED_MAX]
        more = f"; and {self.count - len(named)} more" if self.count > len(named) else ""
        said = "; ".join(f"{log}: {message}" for log, message in named)
        text = f"{self.count} of {total} logs: {said}{more}"
        if self.transient:
            raise UnavailableError(text)
        raise Failure(f"{text}{hint}", allow_retries=False)


def _final(error: LogError | PySparkException, *, tries: int = 1) -> Failure:
    after = f" (after {tries} tries)" if tries > 1 else ""
    return Failure(f"{type(error).__name__}: {error}{after}", allow_retries=False)
