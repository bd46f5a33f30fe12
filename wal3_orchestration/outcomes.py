"""Records what a step did for each log in Dagster: by partition, and over time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetMaterialization,
    AssetObservation,
    AssetRecordsFilter,
    Failure,
    JsonMetadataValue,
    MaterializeResult,
    MetadataValue,
    Output,
)

from wal3_orchestration.failures import raise_together
from wal3_orchestration.remedies import remedy
from wal3_orchestration.runbook import address, command, link

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from dagster import AssetExecutionContext, AssetKey, DagsterInstance, EventLogRecord

    from wal3_core.fleet.outcomes import Refusal
    from wal3_orchestration.building import LogCheck
    from wal3_orchestration.runbook import Section
    from wal3_orchestration.scope import Scope

Value = bool | int | float | str | JsonMetadataValue
# Where the work of a step was done, as its metadata says.
HERE, ON_SPARK = "this process", "Spark"
_NAMED_MAX = 10
# The class of a public field, which Dagster does not export.
_TARGET = get_args(get_type_hints(AssetCheckEvaluation)["target_materialization_data"])[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a step found or did for a log, or why it failed there."""

    log: str
    metadata: Mapping[str, Value] = field(default_factory=dict)
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A check's result for a log; ``problem`` is None when it passed. Only a ``blocking`` failure stops later steps."""

    check: LogCheck
    log: str
    problem: str | None
    blocking: bool = False
    details: Mapping[str, Value] = field(default_factory=dict)


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


def fail_for(scope: Scope, section: Section, outcomes: Sequence[Outcome]) -> None:
    """Fail the step if any log failed; for good, unless a failure is transient."""
    refused = {each.log: each.refusal for each in outcomes if each.refusal is not None}
    raise_together(
        {log: refusal.message for log, refusal in refused.items()},
        len(outcomes),
        transient=any(refusal.transient for refusal in refused.values()),
        hint=f". See {address(scope, section)}",
    )


def _over_time(key: AssetKey, outcome: Outcome) -> AssetObservation:
    """Put the log's name into the labels: Dagster plots a label over time, mixing the partitions that share it."""
    numbers = {
        f"{outcome.log}: {label}": value for label, value in outcome.metadata.items() if isinstance(value, int | float)
    }
    return AssetObservation(key, partition=outcome.log, metadata=numbers)


def record_checks(
    scope: Scope, instance: DagsterInstance, verdicts: Sequence[Verdict]
) -> Iterator[Output[None] | AssetCheckEvaluation]:
    """Record each check's result for each log."""
    for check in {verdict.check.name: verdict.check for verdict in verdicts}.values():
        yield Output(None, output_name=check.build(scope).get_python_identifier())
    for verdict in verdicts:
        yield _evaluation(scope, instance, verdict)


def fail_for_blocked(scope: Scope, verdicts: Sequence[Verdict], total: int) -> None:
    """Fail the step for good, with a sentence, if a blocking check failed: later steps do not start."""
    blocked = [verdict for verdict in verdicts if verdict.blocking and verdict.problem is not None]
    if not blocked:
        return
    first = blocked[0]
    more = f"; and {len(blocked) - _NAMED_MAX} more" if len(blocked) > _NAMED_MAX else ""
    said = "; ".join(f"{verdict.log}: {verdict.check.name}: {verdict.problem}" for verdict in blocked[:_NAMED_MAX])
    hint = f". Next: {_next(scope, first.check, first.log)}. See {address(scope, first.check.section)}"
    raise Failure(f"{len(blocked)} of {total} logs: {said}{more}{hint}", allow_retries=False)


def _evaluation(scope: Scope, instance: DagsterInstance, verdict: Verdict) -> AssetCheckEvaluation:
    check, key, passed = verdict.check, scope.key(verdict.check.asset), verdict.problem is None
    return AssetCheckEvaluation(
        asset_key=key,
        check_name=check.name,
        partition=verdict.log,
        passed=passed,
        severity=AssetCheckSeverity.ERROR if verdict.blocking else AssetCheckSeverity.WARN,
        blocking=verdict.blocking,
        target_materialization_data=_latest_target(instance, key, verdict.log),
        description=None if passed else f"{verdict.log}: {verdict.problem}",
        metadata={"log": verdict.log, **verdict.details, **_advice(scope, verdict)},
    )


def _advice(scope: Scope, verdict: Verdict) -> dict[str, Any]:
    if verdict.problem is None:
        return {}
    file = verdict.details.get("file")
    known = file if isinstance(file, str) else None
    return advice(scope, verdict.check, verdict.log, problem=verdict.problem, file=known)


def advice(scope: Scope, check: LogCheck, log: str, *, problem: str, file: str | None) -> dict[str, Any]:
    """Return what to do about a failed check, as metadata: the runbook's first steps, its section, a first command."""
    steps = remedy(scope, check.name, log, problem, file)
    return {
        **({} if steps is None else {"remedy": MetadataValue.md(steps)}),
        "runbook": link(scope, check.section),
        "next_command": _next(scope, check, log),
        "folder": f"{scope.store_url.partition('?')[0].rstrip('/')}/{log}/",
    }


def _next(scope: Scope, check: LogCheck, log: str) -> str:
    return command(scope, *(log if word == "LOG" else word for word in check.next_command))


def _latest_target(instance: DagsterInstance, key: AssetKey, log: str) -> Any:  # noqa: ANN401 - see _TARGET
    """Find the log's newest materialization: Dagster shows a check's outcome until there is a newer one."""
    for found in latest(instance, key, log, count=1):
        return _TARGET(storage_id=found.storage_id, run_id=found.run_id, timestamp=found.timestamp)
    return None


def latest(instance: DagsterInstance, key: AssetKey, log: str, *, count: int) -> Sequence[EventLogRecord]:
    """Return a log's newest materializations, newest first."""
    return instance.fetch_materializations(AssetRecordsFilter(key, asset_partitions=[log]), limit=count).records


def value_of(found: EventLogRecord, label: str) -> object:
    """Return a materialization's metadata value for a label; None when it has none."""
    materialization = found.asset_materialization
    value = None if materialization is None else materialization.metadata.get(label)
    return None if value is None else value.value
