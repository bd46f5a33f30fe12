"""``spark.read.format("wal3")``: logs as a DataFrame, verified as they are read.

Options: ``store`` (URL); one of ``log``, ``logs`` (names joined by commas) and ``prefix`` (all logs at or
below it, without unfinished copies); ``from_offset``, ``to_offset``, ``from_timestamp_us``,
``to_timestamp_us`` (from inclusive, to exclusive); ``columns`` (names joined by commas; Spark does not tell
a Python source which ones a query uses); ``verify`` (true); ``partitions`` or ``partition_bytes``;
``push_filters`` (false). Columns: log, offset, timestamp_us, key, body, fragment. A DataFrame ends where its
logs ended when it was first used; load it again to see more.

``push_filters`` hands Spark's filters on log, offset and timestamp_us to the source, in a session where
``spark.sql.python.filterPushdown.enabled`` is true. Spark 4.1 to 4.3 reuses the plan of one query's filters
for the next query from the same ``load()``, and for other branches of the same query: the results are
silently wrong. So bound the read by the options above, and push filters only from a frame that is loaded
for one query and used in it once.

No state lives in the driver alone: Spark plans and reads in worker processes, and every task opens the
store by its URL.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from wal3_core.errors import InvalidRequestError, LogError, LogNotFoundError
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import check_start, trim
from wal3_core.model.position import AtTime
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.bounds import EVERYTHING, apply_filter
from wal3_core.spark.columns import COLUMNS, LONG_MAX, arrow_schema, check_schema, spark_schema, to_batches
from wal3_core.spark.cutting import Piece, cut, open_piece, pieces_of
from wal3_core.spark.fetching import Run, fragments
from wal3_core.spark.request import ReadRequest
from wal3_core.spark.tasks import count_tasks
from wal3_core.storage.documents.manifest_store import ManifestStore
from wal3_core.storage.object_store import log_store
from wal3_core.storage.open_store import open_store
from wal3_core.storage.patient import patient

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

    from wal3_core.spark.bounds import Bounds
    from wal3_core.storage.object_store import ObjectStore

_LOGS_PLANNED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Runs(InputPartition):
    """What one task reads, in order."""

    runs: tuple[Run, ...]


class LogDataSource(DataSource):
    """Reads logs. Register it with ``wal3_core.spark.register``."""

    @classmethod
    def name(cls) -> str:
        """Return the name that ``format`` takes."""
        return "wal3"

    def schema(self) -> StructType:
        """Return the columns that the options ask for, all by default."""
        return spark_schema(ReadRequest.from_options(self.options).columns or COLUMNS)

    def reader(self, schema: StructType) -> LogSourceReader:
        """Return the reader of the schema's columns."""
        request = ReadRequest.from_options(self.options)
        check_schema(schema)
        if request.columns is not None and tuple(schema.fieldNames()) != request.columns:
            message = f"schema: expected the columns of the option, {request.columns}, found {schema.fieldNames()}"
            raise InvalidRequestError(message)
        return (FilteringReader if request.push_filters else LogSourceReader)(request, schema)


class LogSourceReader(DataSourceReader):
    """Plans and runs one read."""

    def __init__(self, request: ReadRequest, schema: StructType) -> None:
        self._request = request
        self._schema = schema
        self._bounds = request.bounds

    def partitions(self) -> Sequence[InputPartition]:
        """Cut what the bounds leave into tasks.

        One request for each log's manifest, many at a time, and one for each snapshot that the bounds
        or a task begin or end in.
        """
        request = self._request
        if self._bounds.empty:
            return [Runs(())]
        store = open_store(request.store)
        pieces = self._pieces(store)
        total = sum(piece.cost for piece in pieces)
        count = request.partitions or count_tasks(
            [total], cores=os.cpu_count() or 1, task_bytes=request.partition_bytes
        )
        tasks: dict[int, list[Run]] = {}
        for number, piece in cut(store, pieces, count=count):
            if not piece.opened:
                _extend(tasks.setdefault(number, []), _run(piece, self._bounds))
        return [Runs(tuple(runs)) for runs in tasks.values()] or [Runs(())]

    def _pieces(self, store: ObjectStore) -> list[Piece]:
        """Plan each log; a listed name without a log is left out, unless no other is left."""
        plan = partial(_plan_unless_vacant, store, self._request, self._bounds)
        planned = list(map_ahead(shared_runtime(), plan, self._logs(store), count=_LOGS_PLANNED_AT_ONCE))
        vacant = [each for each in planned if isinstance(each, LogNotFoundError)]
        if vacant and len(vacant) == len(planned):
            raise vacant[0]
        return [piece for log in planned if not isinstance(log, LogNotFoundError) for piece in log]

    def _logs(self, store: ObjectStore) -> list[str]:
        request = self._request
        logs = request.logs
        if logs is None:
            logs = tuple(list_logs(store, request.prefix))
            if not logs:
                message = f"store {request.store}: expected logs at or below {request.prefix!r}, found none"
                raise InvalidRequestError(message)
        return [log for log in logs if self._bounds.wants(log)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's records, verified unless asked not to; an error names the fragment."""
        assert isinstance(partition, Runs), partition
        store, schema = open_store(self._request.store), arrow_schema(self._schema)
        for run in partition.runs:
            try:
                yield from self._read_run(store, run, schema)
            except LogError as error:
                error.add_note(f"while reading log {run.log} from offset {run.start} to {run.limit}")
                raise

    def _read_run(self, store: ObjectStore, run: Run, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        runtime = shared_runtime()
        options = ReaderOptions(verify=self._request.verify)
        # The planned life: LogReplacedError when the name has another by now.
        reader = LogReader(store, run.log, options=options, runtime=runtime, log_id=run.log_id)
        times = self._bounds.timestamps_us
        until = Limits(offset=run.limit, timestamp_us=None if times.limit == EVERYTHING.limit else times.limit)
        for fragment, begin in fragments(reader, run):
            table = trim(fragment.table, begin, until)
            if times.start:
                table = trim(table, AtTime(times.start), UNLIMITED)
            yield from to_batches(table, schema, log=run.log, fragment=fragment.pointer.path)


class FilteringReader(LogSourceReader):
    """Also takes filters. Spark refuses a reader that does unless its configuration allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Take the filters on log, offset and timestamp_us that bounds express exactly; give back the others."""
        for condition in filters:
            narrowed = apply_filter(self._bounds, condition)
            if narrowed is None:
                yield condition
            else:
                self._bounds = narrowed


def _plan_log(store: ObjectStore, request: ReadRequest, bounds: Bounds, log: str) -> list[Piece]:
    """Return the pieces that overlap the bounds: fragments, and snapshots, opened only at the bounds' edges."""
    manifest = LogReader(store, log, options=ReaderOptions(), runtime=shared_runtime()).manifest()
    if request.from_offset is not None:
        check_start(manifest, request.from_offset)
    return list(_touched(store, pieces_of(log, manifest), bounds))


def _plan_unless_vacant(
    store: ObjectStore, request: ReadRequest, bounds: Bounds, log: str
) -> list[Piece] | LogNotFoundError:
    """Plan a log; return the error when a listed name has no log: an unfinished copy, or destroyed meanwhile.

    A lost manifest is raised: the log's records may still exist.
    """
    try:
        return _plan_log(store, request, bounds, log)
    except LogNotFoundError as error:
        runtime = shared_runtime()
        if request.logs is not None or ManifestStore(patient(log_store(store, log), runtime), runtime).look() is None:
            raise
        return error


def _touched(store: ObjectStore, pieces: Iterable[Piece], bounds: Bounds) -> Iterator[Piece]:
    for piece in pieces:
        # An opened snapshot is covered by the pieces it holds.
        if piece.opened or not piece.pointer.num_records or not bounds.touch(piece.pointer):
            continue
        below = None if bounds.hold(piece.pointer) else open_piece(store, piece)
        if below is None:
            yield piece
        else:
            yield from _touched(store, below, bounds)


def _run(piece: Piece, bounds: Bounds) -> Run:
    pointer = piece.pointer
    start, limit = max(pointer.start.offset, bounds.offsets.start), min(pointer.limit.offset, bounds.offsets.limit)
    if limit - 1 > LONG_MAX or pointer.limit.timestamp_us > LONG_MAX:
        message = f"log {piece.log}: {pointer.path}: expected positions below 2^63, Spark's LONG, found {pointer.limit}"
        raise InvalidRequestError(message)
    return Run(piece.log, piece.log_id, start, limit, pointer.num_bytes)


def _extend(runs: list[Run], run: Run) -> None:
    """Join runs that follow each other, so that a task is small however many fragments it reads."""
    last = runs[-1] if runs else None
    if last is not None and (last.log, last.log_id, last.limit) == (run.log, run.log_id, run.start):
        runs[-1] = replace(last, limit=run.limit, num_bytes=last.num_bytes + run.num_bytes)
    else:
        runs.append(run)
