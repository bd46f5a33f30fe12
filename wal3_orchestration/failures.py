"""Which failures are retried: a store that does not answer, and failures of Spark. No others are.

The steps request the retry themselves. A retry policy on an asset would also retry a cancelled step: the
run would continue, and in the end report success. A step that fails for good raises a Failure, whose
description is what the run shows.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster import Backoff, Failure, Jitter, RetryPolicy, RetryRequested
from pyspark.errors import PySparkException

from wal3_core.errors import LogError, StoreDeniedError, UnavailableError, UnsuitableStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dagster import AssetExecutionContext, OpExecutionContext

    from wal3_core.fleet.outcomes import Refusal

# A sweep keeps the messages of so many failed logs, and its failure names the first of these.
FIRST_FAILED_MAX = 50
_NAMED_MAX = 10
RETRIES = RetryPolicy(max_retries=3, delay=5, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)


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
        if len(self.first) < FIRST_FAILED_MAX:
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
