"""Verification of many logs as one Spark job.

The driver reads the manifests, and the snapshots that a task begins or ends in; the tasks read everything
below, and those snapshots again, and add up what they found in each log; the driver adds up the sums of the
tasks, and compares them with the manifests. Damage does not end the job: the rest is still checked. The tasks only
read, so repeating one is harmless.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.compaction.reports import Retried
from wal3_core.errors import LogError, LogReplacedError, MissingError, StoreDeniedError, UnavailableError
from wal3_core.fleet.outcomes import try_log
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import CURSOR_FOLDER, MANIFEST, LogId, check_log_name
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.format.snapshot import Pointer, SnapshotPointer
from wal3_core.format.strict_json import JsonObject
from wal3_core.log.read.scrub import Problem, ScrubReport, cursor_problems, pruned_where_gaps, still_named
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.jobs import (
    TASK_BYTES,
    JobResults,
    LogPiece,
    Result,
    cores,
    count_pieces,
    cut,
    from_text,
    give,
    in_batches,
    pieces_of,
    pointer_of,
    reader_of,
    run_tasks,
    to_text,
)
from wal3_core.spark.requests import check_shared
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from wal3_core.log.read.reader import LogReader

    # The result of reading one object of a log: sound without an error.
    _Read = tuple[str, Pointer, LogError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """One log's verification: the ``manifest``, which leads the tasks to everything below it.

    It is None when it could not be read; ``problems`` then say why, otherwise what is wrong with the cursors.
    """

    log: str
    manifest: Manifest | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def pieces(self) -> list[LogPiece]:
        """The pieces that the tasks read."""
        return [] if self.manifest is None else pieces_of(self.log, self.manifest)


def plan_log(store: ObjectStore, log: str) -> VerifyPlan:
    """Read the top of a log; its problems are in the plan. UnavailableError when the store does not answer."""
    found = try_log(partial(_read, store), log)
    if isinstance(found, LogReplacedError):
        # The name has another life since the first request: that one is planned.
        return plan_log(store, log)
    return VerifyPlan(log=log, problems=(Problem(MANIFEST, str(found)),)) if isinstance(found, LogError) else found


def _read(store: ObjectStore, log: str) -> VerifyPlan:
    manifest = reader_of(store, log).manifest()
    try:
        problems = tuple(cursor_problems(store, log, shared_runtime(), manifest))
    except StoreDeniedError as error:
        # What the manifest leads to can still be read back.
        problems = (Problem(CURSOR_FOLDER, str(error)),)
    return VerifyPlan(log=log, manifest=manifest, problems=problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadObject:
    """A damaged, denied or ``missing`` object, and the offsets that it covers."""

    path: str
    start: int
    limit: int
    problem: str
    missing: bool


@dataclass(slots=True)
class ReadSums:
    """What was read of one log, by one task or by all: the sums of its sound objects, and the others."""

    setsum: Setsum = EMPTY
    num_records: int = 0
    num_bytes: int = 0
    num_fragments: int = 0
    num_snapshots: int = 0
    bad: list[BadObject] = field(default_factory=list)

    def add(self, pointer: Pointer, error: LogError | None) -> None:
        """Add the result of reading one object."""
        if error is not None:
            start, limit, missing = pointer.start.offset, pointer.limit.offset, isinstance(error, MissingError)
            bad = BadObject(path=pointer.path, start=start, limit=limit, problem=str(error), missing=missing)
            self.bad.append(bad)
        elif isinstance(pointer, SnapshotPointer):
            # Its records are counted by the fragments below it.
            self.num_snapshots += 1
        else:
            self.setsum += pointer.setsum
            self.num_records += pointer.num_records
            self.num_bytes += pointer.num_bytes
            self.num_fragments += 1

    def to_texts(self) -> list[str]:
        """Return it as texts: the sums, and each bad object."""
        sums = {name: getattr(self, name) for name in _COUNTS}
        return [json.dumps({"setsum": self.setsum.hexdigest(), **sums}), *(json.dumps(asdict(one)) for one in self.bad)]

    @classmethod
    def of_texts(cls, texts: Iterable[str]) -> ReadSums:
        """Add up what tasks found in the same log."""
        found = cls()
        for said in map(json.loads, texts):
            if "path" in said:
                found.bad.append(BadObject(**said))
                continue
            found.setsum += Setsum.from_hexdigest(said["setsum"])
            for name in _COUNTS:
                setattr(found, name, getattr(found, name) + said[name])
        return found


_COUNTS = ("num_records", "num_bytes", "num_fragments", "num_snapshots")
_FETCHES_AHEAD = 4


def verify_task(batches: Iterable[pa.RecordBatch], *, store_url: str) -> Iterator[pa.RecordBatch]:
    """Read back the objects of rows of WORK, each a piece of a log; the results are the texts of each log's sums.

    They are added up here, not by Spark: it would compile an aggregation of its own, and shuffle once more, for
    a few numbers of each log. What an opened snapshot holds comes in rows of its own.
    """
    sums: dict[str, ReadSums] = {}
    for log, pointer, error in _read_back(batches, store_url):
        sums.setdefault(log, ReadSums()).add(pointer, error)
    results: Iterator[Result] = ((log, False, text) for log, found in sums.items() for text in found.to_texts())
    yield from give(in_batches(results))


def _read_back(batches: Iterable[pa.RecordBatch], store_url: str) -> Iterator[_Read]:
    store = open_store(store_url)

    def work() -> Iterator[Callable[[], _Read]]:
        for batch in batches:
            for log, text in zip(batch["log"].to_pylist(), batch["text"].to_pylist(), strict=True):
                fields = from_text(text, f"log {log}: piece")
                log_id, opened = LogId(fields.string("log_id")), fields.flag("opened")
                reader = reader_of(store, log, log_id)
                yield from _expanded(reader, log, pointer_of(fields.object("pointer")), opened=opened)

    return map_ahead(shared_runtime(), operator.call, work(), count=_FETCHES_AHEAD)


def _expanded(reader: LogReader, log: str, pointer: Pointer, *, opened: bool = False) -> Iterator[Callable[[], _Read]]:
    """Yield the fetch of a fragment as work to be done; open a snapshot at once, and yield what it holds."""
    if isinstance(pointer, FragmentPointer):
        yield partial(_fetched, reader, log, pointer)
        return
    found = try_log(reader.load_snapshot, pointer)
    yield lambda: (log, pointer, found if isinstance(found, LogError) else None)
    if not isinstance(found, LogError) and not opened:
        for each in found.pointers:
            yield from _expanded(reader, log, each)


def _fetched(reader: LogReader, log: str, pointer: FragmentPointer) -> _Read:
    found = try_log(reader.fetch, pointer)
    return log, pointer, found if isinstance(found, LogError) else None


_LOGS_PLANNED_AT_ONCE = 16
_ROUNDS_MAX = 3


def verify_logs(
    spark: SparkSession, store_url: str, logs: Sequence[str], *, partition_bytes: int = TASK_BYTES
) -> JobResults[ScrubReport]:
    """Read whole logs back, all of them in one job; return what ``scrub`` returns for each, in the order given.

    The list's ``retried`` says what Spark ran again. The report of a damaged, denied or missing log says so. Raises
    UnavailableError when the store does not answer, InvalidRequestError for a name that no log can have.
    """
    store = open_store(check_shared(store_url))
    reports: dict[str, ScrubReport] = {}
    left, retried = [check_log_name(log) for log in dict.fromkeys(logs)], Retried()
    for _ in range(_ROUNDS_MAX):
        # Threads of its own: planning a log waits for the shared workers.
        with ThreadPoolExecutor(_LOGS_PLANNED_AT_ONCE, thread_name_prefix="plan") as threads:
            plans = list(threads.map(partial(plan_log, store), left))
        totals, again = _run(spark, store_url, plans, partition_bytes)
        retried += again
        found = {plan.log: _report(store, plan, totals.get(plan.log, ReadSums())) for plan in plans}
        reports |= {log: report for log, report in found.items() if report is not None}
        left = [log for log, report in found.items() if report is None]
        if not left:
            return JobResults((reports[log] for log in logs), retried)
    message = f"verification: maintenance replaced objects of {left[:10]} in each of {_ROUNDS_MAX} rounds: try again"
    raise UnavailableError(message)


def _run(
    spark: SparkSession, store_url: str, plans: Sequence[VerifyPlan], partition_bytes: int
) -> tuple[dict[str, ReadSums], Retried]:
    """Run the plans' pieces as tasks, and add up what they find, by log; say what Spark ran again."""
    pieces = [piece for plan in plans for piece in plan.pieces]
    if not pieces:
        return {}, Retried()
    count = count_pieces(pieces, cores=cores(spark), task_bytes=partition_bytes)
    rows = work_of(cut(open_store(store_url), pieces, count=count))
    task = partial(verify_task, store_url=store_url)
    found, retried = run_tasks(spark, rows, count, task, f"verification of {len(plans)} logs")
    return {log: ReadSums.of_texts(each.results) for log, each in found.items()}, retried


def work_of(numbered: Iterable[tuple[int, LogPiece]]) -> Iterator[tuple[int, str, str]]:
    """Yield the rows of ``verify_task``, each with its task's number."""
    for number, piece in numbered:
        what: JsonObject = {"log_id": piece.log_id, "pointer": piece.pointer.to_json(), "opened": piece.opened}
        yield number, piece.log, to_text(what)


def _report(store: ObjectStore, plan: VerifyPlan, totals: ReadSums) -> ScrubReport | None:
    """Compare what was found with the manifest; None when maintenance replaced objects to be read."""
    manifest = plan.manifest
    if manifest is None:
        return ScrubReport(log=plan.log, problems=plan.problems)
    missing = [one for one in totals.bad if one.missing]
    lost = try_log(partial(_recheck, reader_of(store, plan.log, manifest.log_id)), missing) if missing else []
    if lost is None or isinstance(lost, LogError):
        # Objects were replaced, or the log was damaged or destroyed since it was planned: the next round reports it.
        return None
    gone = [one for one in missing if one not in lost]
    reported = sorted((one for one in totals.bad if one not in gone), key=lambda one: one.start)
    problems = [*(Problem(one.path, one.problem) for one in reported), *plan.problems]
    if not problems and not gone:
        problems += _imbalances(manifest, totals)
    end = manifest.next.position.offset
    return ScrubReport(
        log=plan.log,
        log_id=manifest.log_id,
        setsum=manifest.setsum.hexdigest(),
        num_records=totals.num_records,
        num_bytes=totals.num_bytes,
        num_fragments=totals.num_fragments,
        num_snapshots=totals.num_snapshots,
        problems=tuple(problems),
        first_offset=manifest.first.position.offset,
        next_offset=end,
        end_offset=end,
        found=totals.setsum.hexdigest(),
        covered=None if gone else (totals.setsum + manifest.pruned).hexdigest(),
        pruned=pruned_where_gaps(manifest),
    )


def _recheck(reader: LogReader, missing: Sequence[BadObject]) -> list[BadObject] | None:
    """Return the missing objects that are lost: neither collected nor replaced. None when some were replaced."""
    newest = reader.manifest()
    lost = [one for one in missing if still_named(reader, newest, one.path, one.start, one.limit)]
    first = newest.first.position.offset
    return lost if all(one in lost or one.limit <= first for one in missing) else None


def _imbalances(manifest: Manifest, totals: ReadSums) -> list[Problem]:
    """Compare what was read with the whole log's counts and checksum."""
    compared = (
        ("setsum", manifest.setsum, totals.setsum + manifest.pruned),
        ("records", manifest.num_records, totals.num_records),
        ("bytes", manifest.num_bytes, totals.num_bytes),
    )
    return [
        Problem(MANIFEST, f"log: expected {name} {expected}, found {found} in what was read and pruned")
        for name, expected, found in compared
        if expected != found
    ]
