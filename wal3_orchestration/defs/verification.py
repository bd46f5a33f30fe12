"""Verification: reads every byte of a log back and compares it with its checksums.

Many or large logs are read in one Spark job. Few and small ones are read in the run's own process: Spark
takes longer to start than they take to read. Both report the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from dagster import FreshnessPolicy, MetadataValue

from wal3_core import LogError, LogReplacedError, ScrubReport, scrub
from wal3_core.fleet.outcomes import try_log
from wal3_core.format.paths import MANIFEST
from wal3_core.format.snapshot import Pointer
from wal3_core.format.strict_json import JsonObject
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import Problem, place_of_object
from wal3_core.options import UNLIMITED
from wal3_core.spark.verify import verify_logs
from wal3_core.store.object_store import ObjectStore
from wal3_orchestration.framework.assets import LogAsset, LogJob
from wal3_orchestration.framework.checks import CheckResult, Value, log_check
from wal3_orchestration.framework.recorder import LogResult, Recorder
from wal3_orchestration.framework.runbook import Section
from wal3_orchestration.framework.step import Step
from wal3_orchestration.framework.store import read_manifests
from wal3_orchestration.framework.triggers import LogSchedule, Workflow

Ranges = dict[str, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedObject:
    """A problem, the URL of its object, and the object's offsets: first and limit; None for what holds no records."""

    problem: Problem
    file: str
    offsets: tuple[int, int] | None = None

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        start, limit = self.offsets or (None, None)
        return {**self.problem.to_json(), "file": self.file, "start_offset": start, "limit_offset": limit}

    @property
    def offsets_text(self) -> str:
        """The first and the last offset; empty when there are none."""
        return "" if self.offsets is None else f"{self.offsets[0]} to {self.offsets[1] - 1}"

    def __str__(self) -> str:
        """Say what is wrong; where the object is, and which records it holds, unless the problem says it."""
        file = "" if self.file in self.problem.message else f"file {self.file}"
        offsets = f"offsets {self.offsets_text}" if self.offsets else ""
        further = ", ".join(each for each in (file, offsets) if each not in self.problem.message)
        return f"{self.problem.message} ({further})" if further else self.problem.message


def _ranges(store: ObjectStore, log: str, paths: set[str]) -> Ranges:
    """Return the offsets of the objects that a manifest leads to."""
    reader, ranges = LogReader.open(store, log), Ranges()
    manifest = reader.manifest()

    def see(pointer: Pointer, _damage: object = None) -> None:
        if pointer.path in paths:
            ranges[pointer.path] = (pointer.start.offset, pointer.limit.offset)

    for pointer in reader.walk(manifest, None, UNLIMITED, on_damage=see):
        see(pointer)
    return ranges


PROBLEMS_SHOWN_MAX = 100
_SPOKEN_MAX = 3
# Numbers of a sound log: the setsum identifies the content that they are of.
_IMPLIED = ("bytes", "fragments", "snapshots")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damages:
    """What is wrong with a log: how many problems, and the first of them."""

    count: int
    first: Sequence[DamagedObject]

    def details(self) -> dict[str, Value]:
        """Show the problems; of the first one, the file and the offsets."""
        first = self.first[0] if self.first else None
        return {
            "num_problems": self.count,
            "problems": MetadataValue.json([damage.to_json() for damage in self.first]),
            **({} if first is None else {"file": first.file}),
            **({} if first is None or first.offsets is None else {"offsets": first.offsets_text}),
        }


@log_check(
    asset="verification",
    blocking=True,
    section=Section.UNSOUND,
    next_command=("scrub", "LOG"),
    details=Damages.details,
)
def sound(found: Damages, _limits: object) -> str | None:
    """Each log holds what was written: manifest, snapshots, fragments, balance of setsums, cursors.

    Fails while the newest verification of any log found damage, and names these logs.
    """
    if not found.count:
        return None
    spoken = "; ".join(map(str, found.first[:_SPOKEN_MAX]))
    more = f"; and {found.count - _SPOKEN_MAX} more" if found.count > _SPOKEN_MAX else ""
    return f"{found.count} problem{'s' if found.count > 1 else ''}: {spoken}{more}"


def verify(step: Step, store: ObjectStore, recorder: Recorder) -> None:
    """Read each log of the step back: materialized when sound; when damaged, the check names the bad objects."""
    # One request for each log says how large it is.
    num_bytes = sum(manifest.num_bytes for _, manifest in read_manifests(store, step.logs))
    reports = list(step.each_log(partial(scrub_log, store), verify_logs, num_bytes=num_bytes))
    results = [
        LogResult(
            log=report.log,
            implied=_IMPLIED,
            metadata={
                "records": report.num_records,
                "bytes": report.num_bytes,
                "fragments": report.num_fragments,
                "snapshots": report.num_snapshots,
                "setsum": report.setsum,
                "done_by": done_by,
            },
        )
        for report, done_by in reports
        if report.sound
    ]
    recorder.add(results, [judge(store, report) for report, _ in reports])


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
    return ScrubReport(log=log, problems=(Problem(MANIFEST, str(found)),))


def judge(store: ObjectStore, report: ScrubReport) -> CheckResult:
    """Turn a report into the log's check result; a failed one names the bad objects."""
    problems = report.problems[:PROBLEMS_SHOWN_MAX]
    found = try_log(partial(_ranges, store, report.log), {each.path for each in problems}) if problems else {}
    # The manifest itself may be what is damaged.
    ranges = {} if isinstance(found, LogError) else found
    first = [
        DamagedObject(problem=each, file=place_of_object(store, report, each), offsets=ranges.get(each.path))
        for each in problems
    ]
    return sound.result(report.log, Damages(count=len(report.problems), first=first))


VERIFICATION = LogAsset(
    name="verification",
    group="verification",
    do=verify,
    description=(
        "A whole log, read back and compared with its checksums: materialized when it is sound. When it is damaged,"
        " the check `sound` fails and names the bad objects."
    ),
    deps=("manifest",),
    uses=("store", "spark", "collection"),
    pool="wal3_verification",
    # The asset as a whole is stale when verification has stopped; a log alone is not.
    freshness=FreshnessPolicy.time_window(fail_window=timedelta(days=8), warn_window=timedelta(days=2)),
    section=Section.UNSOUND,
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


workflow = Workflow(assets=(VERIFICATION,), jobs=(JOB,), schedules=(NIGHTLY,))
