from __future__ import annotations

import pytest
from dagster import AssetsDefinition, DagsterInstance, asset, materialize

from wal3_core import CorruptError, InvalidRequestError, LogError, StoreDeniedError, UnavailableError
from wal3_orchestration.failures import RETRIES, retried_only_when_unavailable

AT_ONCE = RETRIES._replace(delay=0)


def _failing(errors: list[LogError]) -> AssetsDefinition:
    """An asset that fails with each of the errors in turn, and then no more."""

    @asset(retry_policy=AT_ONCE)
    def work() -> None:
        with retried_only_when_unavailable():
            if errors:
                raise errors.pop(0)

    return work


def test_store_that_comes_back_costs_retries_only() -> None:
    with DagsterInstance.ephemeral() as instance:
        result = materialize([_failing([UnavailableError("503")] * 2)], instance=instance)

    assert result.success
    assert result.retry_attempts_for_node("work") == 2


def test_store_that_stays_away_fails_the_step_after_the_retries() -> None:
    with DagsterInstance.ephemeral() as instance:
        result = materialize([_failing([UnavailableError("503")] * 9)], instance=instance, raise_on_error=False)

    assert not result.success
    assert result.retry_attempts_for_node("work") == RETRIES.max_retries


@pytest.mark.parametrize(
    "error", [CorruptError("fragment 7: torn"), StoreDeniedError("403"), InvalidRequestError("no such log")]
)
def test_what_another_try_can_not_mend_is_not_tried_again_and_says_what_it_was(error: LogError) -> None:
    with DagsterInstance.ephemeral() as instance:
        result = materialize([_failing([error] * 9)], instance=instance, raise_on_error=False)

    assert not result.success
    assert result.retry_attempts_for_node("work") == 0
    assert f"{type(error).__name__}: {error}" in str(result.failure_data_for_node("work"))
