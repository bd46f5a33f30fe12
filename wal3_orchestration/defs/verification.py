"""Verification: reads every byte of a log back and compares it with its checksums.

Many or large logs are read in one Spark job. Few and small ones are read in the run's own process: Spark
takes longer to start than they take to read. Both report the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from dagster import (
    AssetCheckEvaluation,
    AssetExecutionContext,
    AssetMaterialization,
    DagsterInstance,
    Definitions,
    FreshnessPolicy,
    MaterializeResult,
    MetadataValue,
    Output,
)

from wal3_core import LogError, LogReplacedError, ScrubReport, scrub
from wal3_core.fleet.asking import ask
from wal3_core.log.read.scrub import Problem
from wal3_core.model.paths import MANIFEST
from wal3_core.model.setsum import EMPTY
from wal3_core.spark.verify import verify_logs
from wal3_core.storage.object_store import ObjectStore
from wal3_orchestration.building import LogAsset, LogCheck, LogJob, LogSchedule, build_jobs, build_schedule
from wal3_orchestration.damage import Damage, locate
from wal3_orchestration.damaged_logs import DamagedLogs, KnownDamage
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.log_state import LogState, read_states
from wal3_orchestration.outcomes import HERE, ON_SPARK, Verdict, advice, fail_for_blocked, record_checks
from wal3_orchestration.resources import CollectionResource, spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.scope import Scope
from wal3_orchestration.store_guard import open_known

PROBLEMS_SHOWN_MAX = 100
_SPOKEN_MAX = 3
_NAMED_MAX = 10

SOUND = LogCheck(
    name="sound",
    asset="verification",
    blocking=True,
    description="The log holds what was written: manifest, snapshots, fragments, balance of setsums, cursors.",
    section=Section.UNSOUND,
    next_command=("scrub", "LOG"),
)
# Dagster's overview of an asset shows the newest result of a check, whichever log it is of.
ALL_SOUND = LogCheck(
    name="all_logs_sound",
    asset="verification",
    of_all_logs=True,
    description="No log is left whose newest verification found it damaged; a failure names those logs.",
    section=Section.UNSOUND,
    next_command=("scrub", "LOG"),
)


def verify(
    scope: Scope, context: AssetExecutionContext
) -> Iterator[AssetCheckEvaluation | AssetMaterialization | MaterializeResult[None] | Output[None]]:
    """Read each log of the step back: materialized when sound; when damaged, the check names the bad objects."""
    logs = context.partition_keys
    with retried_only_when_unavailable(context):
        opened = open_known(scope, context)
        way, reports = _read_back(scope, context, opened)
        verdicts = [verdict(opened, report) for report in reports]
    if all(report.sound for report in reports):
        for report in reports:
            context.add_asset_metadata(_metadata(report, way), partition_key=report.log)
        yield MaterializeResult()
    else:
        # The step is about to fail: record the sound logs one by one.
        for report in reports:
            if report.sound:
                yield AssetMaterialization(context.asset_key, partition=report.log, metadata=_metadata(report, way))
    yield from record_checks(scope, context.instance, verdicts)
    yield from _all_sound(scope, context.instance, verdicts)
    fail_for_blocked(scope, verdicts, len(logs))


def _read_back(scope: Scope, context: AssetExecutionContext, store: ObjectStore) -> tuple[str, list[ScrubReport]]:
    logs = context.partition_keys
    if is_small(store, logs, scope.collection(context)):
        return HERE, [scrub_log(store, log) for log in logs]
    return ON_SPARK, verify_logs(spark_session(scope.spark(context)), scope.store(context).url, logs)


def is_small(store: ObjectStore, logs: Sequence[str], limits: CollectionResource) -> bool:
    """Return whether logs are few and small enough to be read without Spark; one look at each says."""
    if len(logs) >= limits.spark_logs_min:
        return False
    states = [state for state in read_states(store, logs) if isinstance(state, LogState)]
    return sum(state.manifest.num_bytes for state in states) < limits.spark_bytes_min


def scrub_log(store: ObjectStore, log: str) -> ScrubReport:
    """Read a whole log back in this process; a log that cannot be read is reported, as ``verify_logs`` does.

    UnavailableError when the store does not answer.
    """
    found = ask(partial(scrub, store), log)
    if isinstance(found, LogReplacedError):
        # The name has another life since the first request: that one is read.
        return scrub_log(store, log)
    if not isinstance(found, LogError):
        return found
    return ScrubReport(
        log=log,
        setsum=EMPTY.hexdigest(),
        num_records=0,
        num_bytes=0,
        num_fragments=0,
        num_snapshots=0,
        problems=(Problem(MANIFEST, str(found)),),
    )


def verdict(store: ObjectStore, report: ScrubReport) -> Verdict:
    """Turn a report into the log's check result; a failed one names the bad objects."""
    damages = locate(store, report, report.problems[:PROBLEMS_SHOWN_MAX]) if report.problems else []
    first = damages[0] if damages else None
    return Verdict(
        check=SOUND,
        log=report.log,
        problem=_sentence(damages, len(report.problems)) if damages else None,
        blocking=True,
        details={
            "num_problems": len(report.problems),
            "problems": MetadataValue.json([damage.to_json() for damage in damages]),
            **({} if first is None else {"file": first.file}),
            **({} if first is None or first.offsets is None else {"offsets": first.offsets_text}),
        },
    )


def _all_sound(
    scope: Scope, instance: DagsterInstance, verdicts: Sequence[Verdict]
) -> Iterator[Output[None] | AssetCheckEvaluation]:
    """Record whether any known log is damaged, also those that this run did not read."""
    logs = DamagedLogs(scope, instance)
    logs.record({verdict.log: _known_damage(verdict) for verdict in verdicts})
    damaged = logs.load()
    named = ", ".join(list(damaged)[:_NAMED_MAX])
    more = f" and {len(damaged) - _NAMED_MAX} more" if len(damaged) > _NAMED_MAX else ""
    yield Output(None, output_name=ALL_SOUND.build(scope).get_python_identifier())
    yield AssetCheckEvaluation(
        asset_key=scope.key(ALL_SOUND.asset),
        check_name=ALL_SOUND.name,
        passed=not damaged,
        description=f"{len(damaged)} damaged: {named}{more}; what to do: `remedy` below" if damaged else None,
        metadata={"num_damaged": len(damaged), **_first(scope, damaged)},
    )


def _known_damage(verdict: Verdict) -> KnownDamage | None:
    file = verdict.details.get("file")
    if verdict.problem is None:
        return None
    return KnownDamage(problem=verdict.problem, file=file if isinstance(file, str) else None)


def _first(scope: Scope, damaged: Mapping[str, KnownDamage]) -> dict[str, Any]:
    """Show what to do about the first damaged log; the check `sound` has the same for each."""
    for log, known in damaged.items():
        shown = {"log": log, "problem": known.problem, "file": known.file}
        given = {label: value for label, value in shown.items() if value is not None}
        return {**given, **advice(scope, SOUND, log, problem=known.problem, file=known.file)}
    return {}


def _sentence(damages: Sequence[Damage], count: int) -> str:
    spoken = "; ".join(map(str, damages[:_SPOKEN_MAX]))
    more = f"; and {count - _SPOKEN_MAX} more" if count > _SPOKEN_MAX else ""
    return f"{count} problem{'s' if count > 1 else ''}: {spoken}{more}"


def _metadata(report: ScrubReport, way: str) -> dict[str, int | str]:
    return {
        "records": report.num_records,
        "bytes": report.num_bytes,
        "fragments": report.num_fragments,
        "snapshots": report.num_snapshots,
        "setsum": report.setsum,
        "done_by": way,
    }


VERIFICATION = LogAsset(
    name="verification",
    step=verify,
    description=(
        "A whole log, read back and compared with its checksums: materialized when it is sound. When it is damaged,"
        " the check `sound` fails and names the bad objects."
    ),
    deps=("manifest",),
    uses=("store", "spark", "collection"),
    pool="wal3_verification",
    # Of the asset, not of each log: says that verification as a whole has stopped.
    freshness=FreshnessPolicy.time_window(fail_window=timedelta(days=8), warn_window=timedelta(days=2)),
    section=Section.UNSOUND,
    checks=(SOUND, ALL_SOUND),
)
JOBS = (
    LogJob(
        name="verification_job",
        assets=("verification",),
        description="Reads whole logs back and reports whether each is sound.",
    ),
)
NIGHTLY = LogSchedule(
    name="nightly_verification",
    job="verification_job",
    cron="0 3 * * *",
    description="Verifies every log, all in one run. Off until turned on: it reads the whole store.",
)


def workflow(scope: Scope) -> Definitions:
    """Return the asset with its check, its job and its schedule."""
    return Definitions.merge(
        build_jobs(scope, JOBS),
        Definitions(assets=[VERIFICATION.build(scope)], schedules=[build_schedule(scope, NIGHTLY)]),
    )
