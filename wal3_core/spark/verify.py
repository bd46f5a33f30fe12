"""Verification of many logs as one Spark job.

The driver reads the manifests, and the snapshots that a task begins or ends in; the tasks read everything
below, and those snapshots again, and add up what they found in each log; the driver adds up the sums of the
tasks, and compares them with the manifests. Damage does not end the job: the rest is still checked.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as sf

from wal3_core.compaction.retried import Retried
from wal3_core.errors import LogError, LogReplacedError, StoreDeniedError, UnavailableError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scrub import Problem, ScrubReport, cursor_problems, pruned_where_gaps, still_named
from wal3_core.model.paths import CURSOR_FOLDER, MANIFEST, check_log_name
from wal3_core.model.setsum import EMPTY
from wal3_core.options import ReaderOptions
from wal3_core.runtime import shared_runtime
from wal3_core.spark.columns import batch_of
from wal3_core.spark.jobs import JobResults, cores, named_jobs
from wal3_core.spark.requests import check_shared
from wal3_core.spark.task_context import AGAIN
from wal3_core.spark.tasks import LogPiece, count_pieces, cut, pieces_of
from wal3_core.spark.verify_task import READ_TOTALS, ROWS_AT_ONCE, Problematic, Totals, verify_task
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from wal3_core.model.manifest import Manifest
    from wal3_core.storage.object_store import ObjectStore

_WORK = pa.schema(
    {"task": pa.int64(), "log": pa.string(), "log_id": pa.string(), "pointer": pa.string(), "opened": pa.bool_()}
)


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


def work_table(numbered: Iterable[tuple[int, LogPiece]]) -> pa.Table:
    """Return the rows of ``verify_task``, each with its task's number; only some pieces are held at a time."""
    rows = (
        (number, piece.log, piece.log_id, json.dumps(piece.pointer.to_json()), piece.opened)
        for number, piece in numbered
    )
    batches = []
    while some := list(islice(rows, ROWS_AT_ONCE)):
        batches.append(batch_of(some, _WORK))
    return pa.Table.from_batches(batches, schema=_WORK)


def _read(store: ObjectStore, log: str) -> VerifyPlan:
    manifest = LogReader(store, log, options=ReaderOptions(), runtime=shared_runtime()).manifest()
    try:
        problems = tuple(cursor_problems(store, log, shared_runtime(), manifest))
    except StoreDeniedError as error:
        # What the manifest leads to can still be read back.
        problems = (Problem(CURSOR_FOLDER, str(error)),)
    return VerifyPlan(log=log, manifest=manifest, problems=problems)


# About the size of a snapshot of full fragments, which one task reads.
PARTITION_BYTES = 256 * 2**20
_LOGS_PLANNED_AT_ONCE = 16
_ROUNDS_MAX = 3


def verify_logs(
    spark: SparkSession, store_url: str, logs: Sequence[str], *, partition_bytes: int = PARTITION_BYTES
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
        found = {plan.log: _report(store, plan, totals.get(plan.log, Totals())) for plan in plans}
        reports |= {log: report for log, report in found.items() if report is not None}
        left = [log for log, report in found.items() if report is None]
        if not left:
            return JobResults((reports[log] for log in logs), retried)
    message = f"verification: maintenance replaced objects of {left[:10]} in each of {_ROUNDS_MAX} rounds: try again"
    raise UnavailableError(message)


def _run(
    spark: SparkSession, store_url: str, plans: Sequence[VerifyPlan], partition_bytes: int
) -> tuple[dict[str, Totals], Retried]:
    """Run the plans' pieces as tasks, and add up what they find, by log; say what Spark ran again."""
    pieces = [piece for plan in plans for piece in plan.pieces]
    if not pieces:
        return {}, Retried()
    count = count_pieces(pieces, cores=cores(spark), task_bytes=partition_bytes)
    results = (
        spark.createDataFrame(work_table(cut(open_store(store_url), pieces, count=count)))
        .repartitionById(count, sf.col("task").cast("int"))
        .mapInArrow(partial(verify_task, store_url=store_url), READ_TOTALS)
    )
    totals: dict[str, Totals] = {}
    with named_jobs(spark, f"verification of {len(plans)} logs") as watch:
        # A few rows at a time: as Python objects, those of many logs take much more memory than in Arrow.
        for batch in results.toArrow().to_batches(max_chunksize=ROWS_AT_ONCE):
            for row in batch.to_pylist():
                totals.setdefault(row["log"], Totals()).merge(Totals.from_row(row))
        watch.add_earlier(totals.pop(AGAIN, Totals()).num_records)
    return totals, watch.retried


def _report(store: ObjectStore, plan: VerifyPlan, totals: Totals) -> ScrubReport | None:
    """Compare what was found with the manifest; None when maintenance replaced objects to be read."""
    bad = totals.bad
    rechecked = _recheck_missing(store, plan, [one for one in bad if one.missing])
    if rechecked is None:
        return None
    gone = [one for one in bad if one.missing and one not in rechecked]
    reported = sorted((one for one in bad if one not in gone), key=lambda one: int(one.start))
    problems = [*(Problem(one.path, one.problem) for one in reported), *plan.problems]
    manifest = plan.manifest
    if manifest is not None and not problems and not gone:
        problems += _imbalances(manifest, totals)
    end = 0 if manifest is None else manifest.next.position.offset
    return ScrubReport(
        log=plan.log,
        log_id="" if manifest is None else manifest.log_id,
        setsum=(EMPTY if manifest is None else manifest.setsum).hexdigest(),
        num_records=totals.num_records,
        num_bytes=totals.num_bytes,
        num_fragments=totals.num_fragments,
        num_snapshots=totals.num_snapshots,
        problems=tuple(problems),
        first_offset=0 if manifest is None else manifest.first.position.offset,
        next_offset=end,
        end_offset=end,
        found=totals.setsum.hexdigest(),
        covered=None if manifest is None or gone else (totals.setsum + manifest.pruned).hexdigest(),
        pruned=None if manifest is None else pruned_where_gaps(manifest),
    )


def _recheck_missing(store: ObjectStore, plan: VerifyPlan, missing: Sequence[Problematic]) -> list[Problematic] | None:
    """Return the missing objects that are lost: neither collected nor replaced. None when some were replaced."""
    if not missing or plan.manifest is None:
        return []
    log_id = plan.manifest.log_id
    reader = LogReader(store, plan.log, options=ReaderOptions(), runtime=shared_runtime(), log_id=log_id)
    rechecked = try_log(partial(_recheck, reader), missing)
    # The log was damaged or destroyed since it was planned: the next round reports it.
    return None if isinstance(rechecked, LogError) else rechecked


def _recheck(reader: LogReader, missing: Sequence[Problematic]) -> list[Problematic] | None:
    newest = reader.manifest()
    lost = [one for one in missing if still_named(reader, newest, one.path, int(one.start), int(one.limit))]
    first = newest.first.position.offset
    return lost if all(one in lost or int(one.limit) <= first for one in missing) else None


def _imbalances(manifest: Manifest, totals: Totals) -> list[Problem]:
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
