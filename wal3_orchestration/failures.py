"""Which failures are worth another try: a store that does not answer, and nothing else."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from dagster import Backoff, Failure, Jitter, RetryPolicy

from wal3_core.errors import LogError, StoreDeniedError, UnavailableError, UnsuitableStoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

RETRIES = RetryPolicy(max_retries=3, delay=5, backoff=Backoff.EXPONENTIAL, jitter=Jitter.PLUS_MINUS)


@contextmanager
def retried_only_when_unavailable() -> Iterator[None]:
    """Let an unavailable store through to the retry policy; fail the step for good on any other error.

    Damage does not heal by being read again, nor is access granted by asking again.
    """
    try:
        yield
    except (StoreDeniedError, UnsuitableStoreError) as error:
        raise _final(error) from error
    except UnavailableError:
        raise
    except LogError as error:
        raise _final(error) from error


def _final(error: LogError) -> Failure:
    return Failure(f"{type(error).__name__}: {error}", allow_retries=False)
