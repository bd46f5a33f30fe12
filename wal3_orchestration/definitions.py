"""The code location: what Dagster loads when it looks after one store and nothing else."""

from dagster import Definitions, definitions, in_process_executor

from wal3_orchestration.embedding import wal3_definitions


@definitions
def defs() -> Definitions:
    """Return all definitions, for the store that the environment names at the time of the call."""
    # Also for what is materialized without a job, by a click on assets: one process per run.
    return Definitions.merge(wal3_definitions(), Definitions(executor=in_process_executor))
