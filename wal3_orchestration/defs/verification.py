"""Verification: reads every byte of a log back and compares it with its checksums.

Many or large logs are read in one Spark job. Few and small ones are read in the run's own process: Spark
takes longer to start than they take to read. Both report the same.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from dagster import Definitions, FreshnessPolicy, MetadataValue

from wal3_core import LogError, LogReplacedError, ScrubReport, scrub
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.scrub import Problem
from wal3_core.model.paths import MANIFEST
from wal3_core.model.setsum import EMPTY
from wal3_core.spark.verify import verify_logs
from wal3_orchestration.at_once import at_once
from wal3_orchestration.building import LogAsset, LogCheck
from wal3_orchestration.damage import Damage, locate
from wal3_orchestration.failures import retried_only_when_unavailable
from wal3_orchestration.jobs import LogJob, build_jobs
from wal3_orchestration.log_state import read_manifests
from wal3_orchestration.outcomes import HERE, ON_SPARK, Outcome, Verdict
from wal3_orchestration.recording import Recorder
from wal3_orchestration.resources import spark_session
from wal3_orchestration.runbook import Section
from wal3_orchestration.triggers import LogSchedule, build_schedule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal3_core.model.retried import Retried
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.recording import Event
    from wal3_orchestration.scope import Scope
    from wal3_orchestration.work import Work

PROBLEMS_SHOWN_MAX = 100
_SPOKEN_MAX = 3
# Of a sound log. The setsum says of which content.
_IMPLIED = ("bytes", "fragments", "snapshots")

SOUND = LogCheck(
    name="sound",
    asset="verification",
    blocking=True,
    description=(
        "Each log holds what was written: manifest, snapshots, fragments, balance of setsums, cursors. Fails while the"
        " newest verification of any log found damage, and names these logs."
    ),
    section=Section.UNSOUND,
    next_command=("scrub", "LOG"),
)


def verify(work: Work) -> Iterator[Event]:
    """Read each log of the step back: materialized when sound; when damaged, the check names the bad objects."""
    recorder = Recorder(work)
    with retried_only_when_unavailable(work.context):
        opened = work.open()
        for some in work.slices():
            way, reports, retried = _read_back(some, opened)
            sound = [
                Outcome(log=report.log, metadata=_metadata(report, way), implied=_IMPLIED)
                for report in reports
                if report.sound
            ]
            recorder.add(sound, [verdict(opened, report) for report in reports], retried=retried)
    yield from recorder.finish()
    recorder.blocked.raise_together(work.scope, len(work.logs))


def _read_back(work: Work, store: ObjectStore) -> tuple[str, list[ScrubReport], Retried | None]:
    if _is_small(work, store):
        return HERE, list(at_once(partial(scrub_log, store), work.logs)), None
    spark = spark_session(work.scope.spark(work.context))
    reports = verify_logs(spark, work.scope.store(work.context).url, list(work.logs))
    return ON_SPARK, reports, reports.retried


def _is_small(work: Work, store: ObjectStore) -> bool:
    """Return whether logs are few and small enough to be read without Spark; one look at each says."""
    if work.num_logs >= work.limits.spark_logs_min:
        return False
    return sum(manifest.num_bytes for _, manifest in read_manifests(store, work.logs)) < work.limits.spark_bytes_min


def scrub_log(store: ObjectStore, log: str) -> ScrubReport:
    """Read a whole log back in this process; a log that cannot be read is reported, as ``verify_logs`` does.

    UnavailableError when the store does not answer.
    """
    found = try_log(partial(scrub, store), log)
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
    checks=(SOUND,),
)
JOB = LogJob(
    name="verification", assets=(VERIFICATION,), description="Reads whole logs back and reports whether each is sound."
)
NIGHTLY = LogSchedule(
    name="nightly_verification",
    job=JOB,
    cron="0 3 * * *",
    description="Verifies every log, all in one run. Off until turned on: it reads the whole store.",
)


def workflow(scope: Scope) -> Definitions:
    """Return the asset with its check, its job and its schedule."""
    return Definitions.merge(
        build_jobs(scope, [JOB]),
        Definitions(assets=[VERIFICATION.build(scope)], schedules=[build_schedule(scope, NIGHTLY)]),
    )
