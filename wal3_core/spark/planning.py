"""Which tasks read which records of which logs, and one such task: what batch and streaming reads share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from wal3_core.errors import CorruptError, GarbageCollectedError, InvalidRequestError, LogError, LogNotFoundError
from wal3_core.format.manifest import Manifest
from wal3_core.format.parquet import Fragment
from wal3_core.format.parquet.columns import table_setsum
from wal3_core.format.paths import LogId
from wal3_core.format.position import AtTime, ReadStart
from wal3_core.format.setsum import EMPTY, Setsum
from wal3_core.log.read.scan import trim
from wal3_core.options import UNLIMITED, Limits
from wal3_core.runtime import shared_runtime
from wal3_core.spark.columns import LONG_MAX, arrow_schema, to_batches
from wal3_core.spark.jobs import LogPiece, count_pieces, cut, freezing, open_piece, pieces_of, reader_of
from wal3_core.spark.requests import EVERYTHING, Bounds, ReadRequest, Span
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store
from wal3_core.store.open_store import open_store
from wal3_core.store.retrying import with_retries

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wal3_core.log.read.reader import LogReader


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Records of one life of a log, by offset, and the size of the fragments that hold them.

    ``setsum`` is that of all records that these fragments held when they were planned, from ``first_offset`` to
    ``next_offset``.
    """

    log: str
    log_id: LogId
    start: int
    limit: int
    num_bytes: int
    first_offset: int
    next_offset: int
    setsum: Setsum


def _planned_fragments(reader: LogReader, run: RecordRun) -> Iterator[tuple[Fragment, ReadStart]]:
    """Fetch the fragments that hold a run's records, in order; CorruptError unless they reach its limit.

    GarbageCollectedError, at the end, if a compaction has dropped some since they were planned: the newer records for
    which it did may be in no task. Spark discards what a task that fails has read.
    """
    reached, found = run.start, EMPTY
    for fragment, begin in reader.fragments(run.start, Limits(offset=run.limit)):
        yield fragment, begin
        reached = fragment.pointer.limit.offset
        found += _planned_setsum(fragment, run)
    if reached < run.limit:
        raise CorruptError(
            f"log {run.log}: expected records from {run.start} to {run.limit} as planned, found its end at {reached}"
        )
    if found != run.setsum:
        raise GarbageCollectedError(
            f"log {run.log}: expected the records from {run.start} to {run.limit} as they were planned, found them"
            f" compacted since: load the DataFrame again"
        )


def _planned_setsum(fragment: Fragment, run: RecordRun) -> Setsum:
    """Sum up a fragment's records that lie in the fragments that were planned."""
    pointer = fragment.pointer
    if run.first_offset <= pointer.start.offset and pointer.limit.offset <= run.next_offset:
        return pointer.setsum
    return table_setsum(trim(fragment.table, run.first_offset, Limits(offset=run.next_offset)))


LOGS_PLANNED_AT_ONCE = 16
# The most runs of a task that are read at the same time, whole, and the size of one that may be.
_SMALL_RUNS_AT_ONCE = 16
_SMALL_RUN_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class Runs(InputPartition):
    """What one task reads, in order."""

    runs: tuple[RecordRun, ...]


def manifest_unless_vacant(store: ObjectStore, log: str, *, listed: bool) -> Manifest | LogNotFoundError:
    """Load a log's manifest; return the error when a ``listed`` name has no log: an unfinished copy, or destroyed.

    A lost manifest is raised: the log's records may still exist.
    """
    try:
        return reader_of(store, log).manifest()
    except LogNotFoundError as error:
        runtime = shared_runtime()
        if not listed or ManifestStore(with_retries(log_store(store, log), runtime), runtime).look() is None:
            raise
        return error


def plan_log(store: ObjectStore, log: str, manifest: Manifest, bounds: Bounds) -> list[LogPiece]:
    """Return the pieces that overlap the bounds: fragments, and snapshots, opened only at the bounds' edges."""
    return list(_touched(store, pieces_of(log, manifest), bounds))


def tasks_of(
    store: ObjectStore, request: ReadRequest, pieces: Sequence[LogPiece], bounds_of: Callable[[str], Bounds]
) -> list[Runs]:
    """Cut pieces into tasks of about equal cost, each bound by its log's bounds; one that reads nothing for none."""
    task_bytes = request.partition_bytes
    count = request.partitions or count_pieces(pieces, cores=os.cpu_count() or 1, task_bytes=task_bytes)
    tasks: dict[int, list[RecordRun]] = {}
    for number, piece in cut(store, pieces, count=count):
        if not piece.opened:
            _extend(tasks.setdefault(number, []), _run(piece, bounds_of(piece.log)))
    return [Runs(tuple(runs)) for runs in tasks.values()] or [Runs(())]


def read_runs(request: ReadRequest, schema: StructType, partition: Runs, times: Span) -> Iterator[pa.RecordBatch]:
    """Read one task's records, verified unless asked not to; an error names the fragment."""
    store, columns = open_store(request.store), arrow_schema(schema)
    return freezing(_read_all(partial(_read_run, store, columns, times, verify=request.verify), partition))


def _read_all(read: Callable[[RecordRun], Iterator[pa.RecordBatch]], partition: Runs) -> Iterator[pa.RecordBatch]:
    """Read small runs many at a time: otherwise each log of a task would wait for its manifest, then its fragment."""
    for small, runs in groupby(partition.runs, key=lambda run: run.num_bytes <= _SMALL_RUN_BYTES):
        if not small:
            yield from chain.from_iterable(map(read, runs))
            continue
        # Threads of its own: reading a log waits for the shared workers.
        with ThreadPoolExecutor(_SMALL_RUNS_AT_ONCE, thread_name_prefix="read") as threads:
            while some := list(islice(runs, _SMALL_RUNS_AT_ONCE)):
                yield from chain.from_iterable(threads.map(lambda run: list(read(run)), some))


def _read_run(
    store: ObjectStore, schema: pa.Schema, times: Span, run: RecordRun, *, verify: bool
) -> Iterator[pa.RecordBatch]:
    # The planned life: LogReplacedError when the name has another by now.
    reader = reader_of(store, run.log, run.log_id, verify=verify)
    until = Limits(offset=run.limit, timestamp_us=None if times.limit == EVERYTHING.limit else times.limit)
    try:
        for fragment, begin in _planned_fragments(reader, run):
            table = trim(fragment.table, begin, until)
            if times.start:
                table = trim(table, AtTime(times.start), UNLIMITED)
            yield from to_batches(table, schema, log=run.log, fragment=fragment.pointer.path)
    except LogError as error:
        error.add_note(f"while reading log {run.log} from offset {run.start} to {run.limit}")
        raise


def _touched(store: ObjectStore, pieces: Iterable[LogPiece], bounds: Bounds) -> Iterator[LogPiece]:
    for piece in pieces:
        # An opened snapshot is covered by the pieces it holds.
        if piece.opened or not piece.pointer.num_records or not bounds.touch(piece.pointer):
            continue
        below = None if bounds.hold(piece.pointer) else open_piece(store, piece)
        if below is None:
            yield piece
        else:
            yield from _touched(store, below, bounds)


def _run(piece: LogPiece, bounds: Bounds) -> RecordRun:
    pointer = piece.pointer
    start, limit = max(pointer.start.offset, bounds.offsets.start), min(pointer.limit.offset, bounds.offsets.limit)
    if limit - 1 > LONG_MAX or pointer.limit.timestamp_us > LONG_MAX:
        message = f"log {piece.log}: {pointer.path}: expected positions below 2^63, Spark's LONG, found {pointer.limit}"
        raise InvalidRequestError(message)
    return RecordRun(
        log=piece.log,
        log_id=piece.log_id,
        start=start,
        limit=limit,
        num_bytes=pointer.num_bytes,
        first_offset=pointer.start.offset,
        next_offset=pointer.limit.offset,
        setsum=pointer.setsum,
    )


def _extend(runs: list[RecordRun], run: RecordRun) -> None:
    """Join runs that follow each other, so that a task is small however many fragments it reads."""
    last = runs[-1] if runs else None
    if last is not None and (last.log, last.log_id, last.limit) == (run.log, run.log_id, run.start):
        num_bytes, setsum = last.num_bytes + run.num_bytes, last.setsum + run.setsum
        runs[-1] = replace(last, limit=run.limit, next_offset=run.next_offset, num_bytes=num_bytes, setsum=setsum)
    else:
        runs.append(run)
