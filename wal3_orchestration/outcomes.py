"""Records what a step did for each log in Dagster: by partition, and over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    JsonMetadataValue,
    MaterializeResult,
    Output,
)
from dagster._core.definitions.asset_checks.asset_check_evaluation import (
    AssetCheckEvaluationTargetMaterializationData as _Target,
)

from wal3_orchestration.failures import raise_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster import AssetCheckSpec, AssetExecutionContext, AssetKey, DagsterInstance, EventLogRecord

    from wal3_core.fleet.outcomes import Refusal

Value = bool | int | float | str | JsonMetadataValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step found or did for a log, or why it failed there."""

    log: str
    metadata: Mapping[str, Value] = field(default_factory=dict)
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A check's result for a log; ``problem`` is None when it passed. Only a ``blocking`` failure stops later steps."""

    spec: AssetCheckSpec
    log: str
    problem: str | None
    blocking: bool = False


def record(
    context: AssetExecutionContext, outcomes: Sequence[Outcome]
) -> Iterator[AssetObservation | AssetMaterialization | MaterializeResult[None]]:
    """Record what did not fail; if a log of the step is missing, log by log, so that nothing downstream starts."""
    done = [outcome for outcome in outcomes if outcome.refusal is None]
    for outcome in done:
        yield _over_time(context.asset_key, outcome)
    if len(done) == len(context.partition_keys):
        for outcome in done:
            context.add_asset_metadata(outcome.metadata, partition_key=outcome.log)
        yield MaterializeResult()
        return
    for outcome in done:
        yield AssetMaterialization(context.asset_key, partition=outcome.log, metadata=dict(outcome.metadata))


def fail_for(outcomes: Sequence[Outcome]) -> None:
    """Fail the step if any log failed; for good, unless a failure is transient."""
    refused = {each.log: each.refusal for each in outcomes if each.refusal is not None}
    raise_together(
        {log: refusal.message for log, refusal in refused.items()},
        len(outcomes),
        transient=any(refusal.transient for refusal in refused.values()),
    )


def _over_time(key: AssetKey, outcome: Outcome) -> AssetObservation:
    """Put the log's name into the labels: Dagster plots a label over time, mixing the partitions that share it."""
    numbers = {
        f"{outcome.log}: {label}": value for label, value in outcome.metadata.items() if isinstance(value, int | float)
    }
    return AssetObservation(key, partition=outcome.log, metadata=numbers)


def record_checks(
    instance: DagsterInstance, verdicts: Sequence[Verdict]
) -> Iterator[Output[None] | AssetCheckEvaluation]:
    """Record each check's result for each log."""
    for name in dict.fromkeys(verdict.spec.get_python_identifier() for verdict in verdicts):
        yield Output(None, output_name=name)
    for verdict in verdicts:
        yield _evaluation(instance, verdict)


def _evaluation(instance: DagsterInstance, verdict: Verdict) -> AssetCheckEvaluation:
    spec = verdict.spec
    return AssetCheckEvaluation(
        asset_key=spec.asset_key,
        check_name=spec.name,
        partition=verdict.log,
        passed=verdict.problem is None,
        severity=AssetCheckSeverity.ERROR if verdict.blocking else AssetCheckSeverity.WARN,
        blocking=verdict.blocking,
        target_materialization_data=latest_target(instance, spec.asset_key, verdict.log),
        description=None if verdict.problem is None else f"{verdict.log}: {verdict.problem}",
        metadata={"log": verdict.log},
    )


def latest_target(instance: DagsterInstance, key: AssetKey, log: str) -> _Target | None:
    """Find the log's newest materialization: Dagster shows a check's outcome until there is a newer one."""
    for found in latest(instance, key, log, count=1):
        return _Target(storage_id=found.storage_id, run_id=found.run_id, timestamp=found.timestamp)
    return None


def latest(instance: DagsterInstance, key: AssetKey, log: str, *, count: int) -> Sequence[EventLogRecord]:
    """Return a log's newest materializations, newest first."""
    return instance.fetch_materializations(AssetRecordsFilter(key, asset_partitions=[log]), limit=count).records


def value_of(found: EventLogRecord, label: str) -> object:
    """Return a materialization's metadata value for a label; None when it has none."""
    materialization = found.asset_materialization
    value = None if materialization is None else materialization.metadata.get(label)
    return None if value is None else value.value
