"""Acceptance: an operator confirms that the store is a different one, or that logs are gone, on purpose."""

from dagster import Config, Definitions, Failure, OpExecutionContext, in_process_executor, job, op
from pydantic import Field

from wal3_core import list_logs
from wal3_core.fleet.identity import store_identity
from wal3_orchestration.rollup_rounds import Rounds
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import ACCEPT_JOB, ACCEPT_OP, remember, remembered

_NAMED_MAX = 100


class Accepted(Config):
    """What the operator confirms."""

    store_id: str = Field(description="What wal3 store-id prints for the intended store.")
    vanished: int = Field(default=0, ge=0, description="How many of the known logs are no longer in it.")


def accept(scope: Scope, context: OpExecutionContext, config: Accepted) -> None:
    """Look after this store from now on, and forget the logs that are gone, only if both match the operator's input."""
    opened = scope.store(context).open()
    found = store_identity(opened)
    if found != config.store_id:
        message = f"store {opened.url}: expected store {config.store_id}, found {found or 'no identity'}"
        raise Failure(message, allow_retries=False)
    there = set(list_logs(opened))
    vanished = [log for log in scope.known_logs(context.instance) if log not in there]
    if len(vanished) != config.vanished:
        message = f"store {opened.url}: expected {config.vanished} known logs to be gone, found {len(vanished)}"
        raise Failure(f"{message}: {vanished[:_NAMED_MAX]}", allow_retries=False)
    if remembered(scope, context.instance) != found:
        # They name logs of the other store, and would make partitions of them.
        Rounds(scope, context.instance).clear()
    remember(scope, context.instance, found)
    for log in vanished:
        context.instance.delete_dynamic_partition(scope.logs_name, log)
    context.log.info("store %s, %d logs forgotten: %s", found, len(vanished), vanished)


def workflow(scope: Scope) -> Definitions:
    """Return the job that accepts what discovery refused."""

    @op(
        name=scope.named(ACCEPT_OP),
        description="Accepts the store and the loss that its configuration names, if they are what is found.",
        required_resource_keys={scope.named("store")},
    )
    def accepted_store(context: OpExecutionContext, config: Accepted) -> None:
        accept(scope, context, config)

    @job(
        name=scope.named(ACCEPT_JOB),
        description="Accepts another store, or the loss of many logs, that discovery has refused.",
        tags=scope.tags,
        metadata=scope.metadata,
        executor_def=in_process_executor,
    )
    def accept_store_job() -> None:
        accepted_store()

    return Definitions(jobs=[accept_store_job])
