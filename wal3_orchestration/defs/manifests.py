"""Manifests: what each log holds, as numbers that plot over time."""

import hashlib
from collections.abc import Iterator, Sequence

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetMaterialization,
    AssetObservation,
    DataVersion,
    Definitions,
    Failure,
    MaterializeResult,
)

from wal3_orchestration.building import LogAsset, LogJob, build_jobs
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.log_state import LogState, UnreadableLog, read_states
from wal3_orchestration.runbook import Section
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known


def look(
    scope: Scope, context: AssetExecutionContext
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Record the numbers of each log of the step."""
    with retried_only_when_unavailable(context):
        seen = read_states(open_known(scope, context), context.partition_keys)
    states = [state for state in seen if isinstance(state, LogState)]
    for state in states:
        yield _over_time(context.asset_key, state)
    if len(states) == len(context.partition_keys):
        for state in states:
            context.add_asset_metadata(state.metadata(), partition_key=state.log)
        yield MaterializeResult(data_version=_data_version(states))
        return
    # The step is about to fail: record the readable logs one by one.
    for state in states:
        yield AssetMaterialization(
            context.asset_key, partition=state.log, metadata=state.metadata(), tags=_version_tag(state)
        )
    raise _failure(context.partition_keys, seen)


def _over_time(key: AssetKey, state: LogState) -> AssetObservation:
    """Put the log's name into the labels: Dagster plots a label over time, mixing the partitions that share it."""
    labelled = {f"{state.log}: {label}": number for label, number in state.numbers().items()}
    return AssetObservation(key, partition=state.log, metadata=labelled, tags=_version_tag(state))


def _version_tag(state: LogState) -> dict[str, str]:
    return {"dagster/data_version": state.data_version}


def _data_version(states: Sequence[LogState]) -> DataVersion:
    """Return the log's data version; a run over several logs can carry only one, made from all of theirs."""
    if len(states) == 1:
        return DataVersion(states[0].data_version)
    versions = "\n".join(f"{state.log} {state.data_version}" for state in states)
    return DataVersion(hashlib.sha256(versions.encode()).hexdigest())


def _failure(logs: Sequence[str], seen: Sequence[LogState | UnreadableLog]) -> Failure:
    messages = {state.log: state.message if isinstance(state, UnreadableLog) else None for state in seen}
    lost = {log: messages.get(log, "expected a log, found none") for log in logs}
    named = [f"{log}: {message}" for log, message in lost.items() if message is not None]
    return Failure(f"{len(named)} of {len(logs)} logs: {'; '.join(named)}", allow_retries=False)


MANIFEST = LogAsset(
    name="manifest",
    step=look,
    description=(
        "What a log holds, read from its manifest and cursors: records, bytes, fragments, snapshots, the time of the"
        " last append, and the lag of each cursor.\n\nPlots by partition compare the logs; plots by event follow each"
        " log over time."
    ),
    pool="wal3_manifest",
    section=Section.DISCOVERY,
)
JOBS = (LogJob(name="manifest_job", assets=("manifest",), description="Looks at the manifests and cursors of logs."),)


def workflow(scope: Scope) -> Definitions:
    """Return the asset and its job."""
    return Definitions.merge(Definitions(assets=[MANIFEST.build(scope)]), build_jobs(scope, JOBS))
