"""Which failures are worth another try: a store that does not answer, Spark that fails, and nothing else.

The steps ask for it themselves. A retry policy on an asset would also try a step again that was
cancelled: the run would go on, and in the end report success.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster import Backoff, Failure, Jitter, RetryPolicy, RetryRequested
from pyspark.errors import PySparkException

from wal3_core.errors import LogError, StoreDeniedError, UnavailableError, UnsuitableStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dagster import AssetExecutionContext

RETRIES = RetryPolicy(max_retries=3, delay=5, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)


@contextmanager
def retried_only_when_unavailable(context: AssetExecutionContext, policy: RetryPolicy = RETRIES) -> Iterator[None]:
    """Have the step tried again when the store does not answer or Spark fails; on any other error it fails for good.

    Damage does not heal by being read again, nor is access granted by asking again.
    """
    try:
        yield
    except (StoreDeniedError, UnsuitableStoreError) as error:
        raise _final(error) from error
    except (UnavailableError, PySparkException) as error:
        delay_s = policy.calculate_delay(context.retry_number + 1)
        raise RetryRequested(max_retries=policy.max_retries, seconds_to_wait=delay_s) from error
    except LogError as error:
        raise _final(error) from error


def raise_together(messages: Mapping[str, str], total: int, *, transient: bool) -> None:
    """Fail the step for the logs that have a message; for good, unless another try may do."""
    if not messages:
        return
    told = f"{len(messages)} of {total} logs: " + "; ".join(f"{log}: {text}" for log, text in messages.items())
    if transient:
        raise UnavailableError(told)
    raise Failure(told, allow_retries=False)


def _final(error: LogError) -> Failure:
    return Failure(f"{type(error).__name__}: {error}", allow_retries=False)
