"""Acceptance: an operator confirms that the store is a different one, or that logs are gone, on purpose."""

from dagster import Config, Failure, OpExecutionContext, job, op
from pydantic import Field

from wal3_core import list_logs
from wal3_core.fleet.identity import store_identity
from wal3_orchestration.partitions import LOGS_NAME
from wal3_orchestration.resources import StoreResource
from wal3_orchestration.store_guard import ACCEPT_JOB, remember


class Accepted(Config):
    """What the operator confirms."""

    store_id: str = Field(description="What wal3 store-id prints for the intended store.")
    vanished: int = Field(default=0, ge=0, description="How many of the known logs are no longer in it.")


@op
def accepted_store(context: OpExecutionContext, config: Accepted, store: StoreResource) -> None:
    """Look after this store from now on, and forget the logs that are gone, only if both match the operator's input."""
    opened = store.open()
    found = store_identity(opened)
    if found != config.store_id:
        message = f"store {opened.url}: expected store {config.store_id}, found {found or 'no identity'}"
        raise Failure(message, allow_retries=False)
    there = set(list_logs(opened))
    vanished = [log for log in context.instance.get_dynamic_partitions(LOGS_NAME) if log not in there]
    if len(vanished) != config.vanished:
        message = f"store {opened.url}: expected {config.vanished} known logs to be gone, found {len(vanished)}"
        raise Failure(f"{message}: {vanished[:100]}", allow_retries=False)
    remember(context.instance, found)
    for log in vanished:
        context.instance.delete_dynamic_partition(LOGS_NAME, log)
    context.log.info("store %s, %d logs forgotten: %s", found, len(vanished), vanished)


@job(name=ACCEPT_JOB, description="Accepts another store, or the loss of many logs, that discovery has refused.")
def accept_store_job() -> None:
    """Accept what discovery refused."""
    accepted_store()
