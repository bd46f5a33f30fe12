import pytest
from dagster import AssetExecutionContext, AssetsDefinition, DagsterInstance, Failure, asset, materialize
from pyspark.errors import PySparkException

from wal3_core import CorruptError, InvalidRequestError, LogError, StoreDeniedError, UnavailableError
from wal3_core.fleet.outcomes import Refusal
from wal3_orchestration.framework.step import RETRIES, Failures, retried_only_when_unavailable

AT_ONCE = RETRIES._replace(delay=0)


def _failing(errors: list[Exception]) -> AssetsDefinition:
    """Make an asset that fails with each of the errors in turn, then succeeds."""

    @asset
    def work(context: AssetExecutionContext) -> None:
        with retried_only_when_unavailable(context, AT_ONCE):
            if errors:
                raise errors.pop(0)

    return work


@pytest.mark.parametrize("error", [UnavailableError("503"), PySparkException("executor lost")])
def test_recovering_store_or_cluster_costs_only_retries(error: Exception) -> None:
    with DagsterInstance.ephemeral() as instance:
        result = materialize([_failing([error] * 2)], instance=instance)

    assert result.success
    assert result.retry_attempts_for_node("work") == 2


def test_unreachable_store_fails_the_step_after_the_retries() -> None:
    with DagsterInstance.ephemeral() as instance:
        result = materialize([_failing([UnavailableError("503")] * 9)], instance=instance, raise_on_error=False)

    assert not result.success
    assert result.retry_attempts_for_node("work") == RETRIES.max_retries
    assert "503" in str(result.failure_data_for_node("work"))


@pytest.mark.parametrize(
    "error", [CorruptError("fragment 7: torn"), StoreDeniedError("403"), InvalidRequestError("no such log")]
)
def test_permanent_error_is_not_retried_and_is_named(error: LogError) -> None:
    with DagsterInstance.ephemeral() as instance:
        result = materialize([_failing([error] * 9)], instance=instance, raise_on_error=False)

    assert not result.success
    assert result.retry_attempts_for_node("work") == 0
    assert f"{type(error).__name__}: {error}" in str(result.failure_data_for_node("work"))


@pytest.mark.parametrize(("transient", "attempts"), [(True, RETRIES.max_retries), (False, 0)])
def test_step_over_many_logs_is_retried_only_if_transient_and_names_the_failed_logs(
    transient: bool,  # noqa: FBT001 - the table's column
    attempts: int,
) -> None:
    @asset
    def work(context: AssetExecutionContext) -> None:
        with retried_only_when_unavailable(context, AT_ONCE):
            failures = Failures()
            failures.add("alpha", Refusal(kind=UnavailableError.__name__ if transient else "", message="503"))
            failures.raise_together(2)

    with DagsterInstance.ephemeral() as instance:
        result = materialize([work], instance=instance, raise_on_error=False)

    assert not result.success
    assert result.retry_attempts_for_node("work") == attempts
    assert "1 of 2 logs: alpha: 503" in str(result.failure_data_for_node("work"))


def test_failure_of_many_logs_counts_all_and_names_the_first() -> None:
    failures = Failures()
    for number in range(60):
        failures.add(f"log-{number:02}", Refusal(kind="CorruptError", message="torn"))

    with pytest.raises(Failure) as raised:
        failures.raise_together(100, hint=". See there")

    said = str(raised.value.description)
    assert said.startswith("60 of 100 logs: log-00: torn; log-01: torn; ")
    assert said.endswith("; log-09: torn; and 50 more. See there")
    assert len(failures.first) == 50
