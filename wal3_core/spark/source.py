"""``spark.read.format("wal3")``: logs as a DataFrame, verified as they are read.

Options: ``store`` (URL); one of ``log``, ``logs`` (names joined by commas) and ``prefix`` (all logs at or
below it, without unfinished copies); ``from_offset``, ``to_offset``, ``from_timestamp_us``,
``to_timestamp_us`` (from inclusive, to exclusive); ``columns`` (names joined by commas; Spark does not tell
a Python source which ones a query uses); ``verify`` (true); ``partitions`` or ``partition_bytes``;
``push_filters`` (false). Columns: offset, timestamp_us, key, body, before them log unless ``log`` names the one; if
asked for, fragment. A DataFrame ends where its logs ended when it was first used; load it again to see more.

``push_filters`` hands Spark's filters on log, offset and timestamp_us to the source, in a session where
``spark.sql.python.filterPushdown.enabled`` is true. Spark 4.1 to 4.3 reuses the plan of one query's filters
for the next query from the same ``load()``, and for other branches of the same query: the results are
silently wrong. So bound the read by the options above, and push filters only from a frame that is loaded
for one query and used in it once.

No state lives in the driver alone: Spark plans and reads in worker processes, and every task opens the
store by its URL.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from wal3_core.errors import InvalidRequestError, LogNotFoundError
from wal3_core.fleet.discovery import list_logs
from wal3_core.log.read.scan import check_start
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.runtime.loggers import SPARK
from wal3_core.spark.columns import check_schema, spark_schema
from wal3_core.spark.planning import LOGS_PLANNED_AT_ONCE, Runs, manifest_unless_vacant, plan_log, read_runs, tasks_of
from wal3_core.spark.requests import ReadRequest, StreamRequest, WriteRequest, apply_filter, named_filter, split_options
from wal3_core.spark.sink import LogSinkWriter, LogStreamSinkWriter
from wal3_core.spark.stream import LogStreamReader, StreamSelection
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from wal3_core.spark.jobs import LogPiece


class LogDataSource(DataSource):
    """Reads and writes logs, in batches and in streams. Register it with ``wal3_core.spark.register``."""

    @classmethod
    def name(cls) -> str:
        return "wal3"

    def schema(self) -> StructType:
        """Return the columns that the options ask for."""
        # Spark does not say whether a stream asks.
        of_read, _ = split_options(self.options)
        request = ReadRequest.from_options(of_read)
        return spark_schema(request.columns or request.default_columns)

    def reader(self, schema: StructType) -> LogSourceReader:
        request = ReadRequest.from_options(self.options)
        _check_columns(request, schema)
        return (FilteringReader if request.push_filters else LogSourceReader)(request, schema)

    def streamReader(self, schema: StructType) -> LogStreamReader:  # noqa: N802 - Spark's name
        request = StreamRequest.from_options(self.options)
        _check_columns(request.reading, schema)
        return LogStreamReader(request, schema)

    def writer(self, schema: StructType, overwrite: bool) -> LogSinkWriter:  # noqa: FBT001 - Spark's signature
        return LogSinkWriter(WriteRequest.from_options(self.options, schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LogStreamSinkWriter:  # noqa: FBT001, N802 - as writer
        return LogStreamSinkWriter(WriteRequest.from_options(self.options, schema, overwrite=overwrite, streaming=True))


def _check_columns(request: ReadRequest, schema: StructType) -> None:
    check_schema(schema)
    if request.columns is not None and tuple(schema.fieldNames()) != request.columns:
        message = f"schema: expected the columns of the option, {request.columns}, found {schema.fieldNames()}"
        raise InvalidRequestError(message)


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
        bounds = self._bounds
        return tasks_of(store, request, self._pieces(store), lambda _: bounds)

    def _pieces(self, store: ObjectStore) -> list[LogPiece]:
        """Plan each log; a listed name without a log is left out, unless no other is left."""
        plan = partial(self._plan, store)
        planned = list(map_ahead(shared_runtime(), plan, self._logs(store), count=LOGS_PLANNED_AT_ONCE))
        vacant = [each for each in planned if isinstance(each, LogNotFoundError)]
        if vacant and len(vacant) == len(planned):
            raise vacant[0]
        return [piece for log in planned if not isinstance(log, LogNotFoundError) for piece in log]

    def _plan(self, store: ObjectStore, log: str) -> list[LogPiece] | LogNotFoundError:
        manifest = manifest_unless_vacant(store, log, listed=self._request.logs is None)
        if isinstance(manifest, LogNotFoundError):
            return manifest
        if self._request.from_offset is not None:
            check_start(manifest, self._request.from_offset)
        return plan_log(store, log, manifest, self._bounds)

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
        assert isinstance(partition, Runs), partition
        return read_runs(self._request, self._schema, partition, self._bounds.timestamps_us)


class FilteringReader(LogSourceReader):
    """Also takes filters. Spark refuses a reader that does unless its configuration allows it."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Take the filters on log, offset and timestamp_us that bounds express exactly; give back the others.

        The plan's log names these once, by kind and column: a value may be a person's.
        """
        above: list[Filter] = []
        for condition in filters:
            narrowed = apply_filter(self._bounds, condition)
            if narrowed is None:
                above.append(condition)
            else:
                self._bounds = narrowed
        if above:
            # Spark plans in a process of its own, which the program's logging does not reach.
            logging.basicConfig()
            SPARK.warning(
                "read of %s: filters that do not bound it, which Spark applies to all records read: %s",
                StreamSelection(self._request.prefix, self._request.logs),
                ", ".join(map(named_filter, above)),
            )
        yield from above
