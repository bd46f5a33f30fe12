"""``df.write.format("wal3")`` and ``df.writeStream.format("wal3")``: rows become records, each once.

Tasks only stage their rows; when all have succeeded, Spark hands the driver what one attempt of each staged, and the
driver installs that, in one commit for each log. So an attempt that failed, or that lost against a speculative copy of
itself, leaves orphans, which the collection of orphans takes, and a job that failed leaves nothing else. Rows lie in
the order of Spark's partitions. Where one task alone writes a log, and no other process has written it meanwhile, its
fragments are installed as they are; what other tasks staged is read, and written again behind them, by the driver.

docs/spark.md describes the columns and options, and how a write that is repeated as a whole is appended once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from wal3_core.errors import InvalidRequestError, LogError, LogExistsError, LogNotFoundError, NotDurableError
from wal3_core.format.paths import WRITER_CURSOR, check_log_name
from wal3_core.log.write.once import Once
from wal3_core.log.write.staged_appends import MESSAGE_SCHEMA, StagedFragment, Stager, install_staged
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import WriterOptions
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.open_store import open_store

if TYPE_CHECKING:
    from wal3_core.spark.requests import WriteRequest

A = TypeVar("A")
T = TypeVar("T")

_LOGS_AT_ONCE = 8
_NAMED_CHARS_MAX = 1000
# What a task holds of all logs together: a task with many logs stages smaller fragments, which the driver joins.
_HELD_BYTES_MAX = 64 * 2**20


# Spark's name of the query that a task belongs to; a query with another checkpoint has another one.
_QUERY_ID = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What one task staged, by log, and of which streaming query."""

    fragments: dict[str, list[StagedFragment]]
    query_id: str | None = None


class _Staging:
    """What both writers do in tasks."""

    def __init__(self, request: WriteRequest) -> None:
        self._request = request

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        return _stage(self._request, iterator)


class LogSinkWriter(_Staging, DataSourceArrowWriter):
    """Writes a DataFrame."""

    def __init__(self, request: WriteRequest) -> None:
        super().__init__(request)
        # Before any task: what cannot be a name is an error now.
        once = _once(request, f"write {request.write_id}")
        if once is not None and request.write_id is not None and request.write_number is not None:
            append = f"number {request.write_number} of {request.write_id}"
            once = replace(once, append=append, series=request.write_id, number=request.write_number)
        self._once = once

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Install what the tasks staged; an error notes which logs have their rows already."""
        _install(self._request, messages, self._once)


class LogStreamSinkWriter(_Staging, DataSourceStreamArrowWriter):
    """Writes the batches of a stream."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Install what the tasks staged; an error notes which logs have their rows already."""
        # A new checkpoint begins at batch 0 again: its batches are not those of the checkpoint before.
        queries = sorted({message.query_id or "" for message in messages if isinstance(message, Staged)} - {""})
        once = _once(self._request, " ".join(["batch", str(batchId), *queries]))
        if once is not None and queries:
            # Spark begins a batch when those before it are committed.
            once = replace(once, series=" ".join(queries), number=batchId)
        _install(self._request, messages, once)


def _stage(request: WriteRequest, batches: Iterator[pa.RecordBatch]) -> Staged:
    store, options = open_store(request.store), WriterOptions()
    logs: dict[str, _HeldRows] = {}
    held = 0
    for batch in batches:
        for log, rows in _by_log(request.log, batch):
            if log not in logs:
                logs[log] = _HeldRows(partial(_stager, store, log, options, create=request.create), log, options)
            held += logs[log].add(rows)
        while held > _HELD_BYTES_MAX:
            held -= max(logs.values(), key=lambda each: each.held).flush()
    _of_each(_HeldRows.flush, logs.values())
    context = TaskContext.get()
    query_id = None if context is None else context.getLocalProperty(_QUERY_ID)
    return Staged({log: each.staged for log, each in logs.items()}, query_id)


class _HeldRows:
    """The rows of one log that a task holds and has staged."""

    def __init__(self, open_stager: Callable[[], Stager], log: str, options: WriterOptions) -> None:
        self._open_stager = open_stager
        self._stager: Stager | None = None
        self._log = log
        self._options = options
        self._tables: list[pa.Table] = []
        self._rows = 0
        self.held = 0
        self.staged: list[StagedFragment] = []

    def add(self, table: pa.Table) -> int:
        """Hold rows, stage those of whole fragments; return by how much what is held has grown."""
        before = self.held
        self._tables.append(table)
        self.held += table.nbytes
        self._rows += len(table)
        if self.held >= self._options.batch_bytes_max or self._rows >= self._options.batch_records_max:
            self.flush()
        return self.held - before

    def flush(self) -> int:
        """Stage what is held, and return its size."""
        held, tables = self.held, self._tables
        self._tables, self._rows, self.held = [], 0, 0
        if tables:
            try:
                self._stager = self._stager or self._open_stager()
                self.staged += self._stager.stage(pa.concat_tables(tables).combine_chunks())
            except LogError as error:
                error.add_note(f"while writing to log {self._log}")
                raise
        return held


def _stager(store: ObjectStore, log: str, options: WriterOptions, *, create: bool) -> Stager:
    try:
        return Stager(store, log, options=options)
    except LogNotFoundError as error:
        if not create:
            error.add_note(f"the option create, set to true, lets a write create log {log}")
            raise
    # Another task may have created it just now.
    with suppress(LogExistsError):
        LogWriter.create(store, log)
    return Stager(store, log, options=options)


def _by_log(log: str | None, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.Table]]:
    """Split a batch by log, as tables of messages."""
    table = pa.Table.from_batches([batch])
    if log is not None:
        yield log, _messages(table)
        return
    names = pc.unique(table["log"]).to_pylist()
    for name in names:
        if name is None:
            raise InvalidRequestError("write: column log: expected a log's name in each row, found null")
        rows = table if len(names) == 1 else table.filter(pc.equal(table["log"], name))
        yield check_log_name(name, "write: column log"), _messages(rows)


def _messages(table: pa.Table) -> pa.Table:
    columns = [
        table[field.name].cast(field.type) if field.name in table.column_names else pa.nulls(len(table), field.type)
        for field in MESSAGE_SCHEMA
    ]
    return pa.table(columns, schema=MESSAGE_SCHEMA)


def _once(request: WriteRequest, append: str) -> Once | None:
    """Name an append among those of the writer, if that has a name."""
    if request.writer is None:
        return None
    # Not the writer's name itself: a consumer may have a cursor of that name.
    return Once(f"{WRITER_CURSOR}{request.writer}", append, same_rows=request.same_rows)


def _install(request: WriteRequest, messages: Sequence[WriterCommitMessage | None], once: Once | None) -> None:
    """Install, log by log, several at a time."""
    found = [message.fragments for message in messages if isinstance(message, Staged)]
    if lost := len(messages) - len(found):
        raise NotDurableError(f"write: expected what each of {len(messages)} tasks has staged, found nothing of {lost}")
    store = open_store(request.store)
    staged = {
        log: list(chain.from_iterable(each.get(log, ()) for each in found)) for log in sorted(set().union(*found))
    }
    # Spark may give a task a batch of no rows.
    logs = {log: fragments for log, fragments in staged.items() if fragments}
    if request.log is not None and not logs:
        # A write without rows begins its log, too, or finds that there is none.
        _stager(store, request.log, WriterOptions(), create=request.create)
    if request.routes is not None and once is not None:
        _note_route(store, request, once, list(logs))
    outcomes = _of_each(partial(_install_one, store, once), logs.items())
    failed = [each for each in outcomes if isinstance(each, LogError)]
    if failed:
        done = [log for log, each in zip(logs, outcomes, strict=True) if not isinstance(each, LogError)]
        failed[0].add_note(f"logs that have their rows: {', '.join(done) or 'none'}")
        raise failed[0]


def _of_each(work: Callable[[A], T], items: Iterable[A]) -> list[T]:
    """Do the work on each of a write's logs, several at a time: there may be thousands, and each waits."""
    # Threads of its own: an install waits for the shared workers.
    with ThreadPoolExecutor(_LOGS_AT_ONCE, thread_name_prefix="write") as threads:
        return list(threads.map(work, items))


def _note_route(store: ObjectStore, request: WriteRequest, once: Once, logs: list[str]) -> None:
    """Append to which logs a write goes, once. NotDurableError when it is noted that it goes to others."""
    routes = request.routes
    assert routes is not None
    if routes in logs:
        raise InvalidRequestError(f"option routes: expected a log that gets no rows, found {routes}, which does")
    note = {"key": [once.append.encode()], "body": [json.dumps(logs).encode()]}
    stager = _stager(store, routes, WriterOptions(), create=request.create)
    try:
        staged = stager.stage(pa.table(note, schema=MESSAGE_SCHEMA))
        install_staged(store, routes, staged, once=replace(once, same_rows=True))
    except LogError as error:
        names = ", ".join(logs)[:_NAMED_CHARS_MAX] or "none"
        error.add_note(f"while noting in log {routes} to which logs this write goes, before any gets rows: {names}")
        raise


def _install_one(store: ObjectStore, once: Once | None, log: tuple[str, list[StagedFragment]]) -> LogError | None:
    try:
        install_staged(store, log[0], log[1], once=once)
    except LogError as error:
        error.add_note(f"while writing to log {log[0]}")
        return error
    return None
