"""One task of a verification: read fragments back and report on each. It only reads, so repeating is harmless."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType

from wal3_core.errors import LogError, MissingError
from wal3_core.fleet.asking import ask
from wal3_core.log.read.reader import LogReader
from wal3_core.model import strict_json
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.setsum import COLUMNS, EMPTY
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.attempts import AGAIN, earlier_attempts
from wal3_core.spark.columns import batch_of
from wal3_core.spark.settling import settling
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import DataType

    from wal3_core.model.snapshot import Pointer

SETSUM_COLUMNS = tuple(f"setsum_{index}" for index in range(COLUMNS))
_FETCHES_AHEAD = 4
_READ_RESULTS_PER_BATCH = 1000
_POINTER_BYTES_MAX = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Problematic:
    """A damaged, denied or ``missing`` object, and the offsets that it covers."""

    path: str
    # As text: offsets may exceed a LONG.
    start: str
    limit: str
    problem: str
    missing: bool

    @classmethod
    def of(cls, pointer: Pointer, error: LogError) -> Problematic:
        """Record an error of the object that a pointer names."""
        return cls(
            path=pointer.path,
            start=str(pointer.start.offset),
            limit=str(pointer.limit.offset),
            problem=str(error),
            missing=isinstance(error, MissingError),
        )


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The result of reading one object of a log: sound when ``error`` is None."""

    log: str
    pointer: Pointer
    error: LogError | None

    def to_row(self) -> tuple[str | bool | int | None, ...]:
        """Return as a row of READ_RESULTS."""
        pointer, snapshot = self.pointer, isinstance(self.pointer, SnapshotPointer)
        path, start, limit = pointer.path, str(pointer.start.offset), str(pointer.limit.offset)
        if self.error is not None:
            bad = Problematic.of(pointer, self.error)
            return (self.log, snapshot, path, start, limit, bad.problem, bad.missing, 0, 0, *EMPTY.columns)
        # A snapshot's records are counted by the fragments below it.
        held = (0, 0, *EMPTY.columns) if snapshot else (pointer.num_records, pointer.num_bytes, *pointer.setsum.columns)
        return (self.log, snapshot, path, start, limit, None, False, *held)


def _field(name: str, of: DataType, *, nullable: bool = False) -> StructField:
    return StructField(name, of, nullable)


READ_RESULTS = StructType(
    [
        _field("log", StringType()),
        _field("snapshot", BooleanType()),
        _field("path", StringType()),
        _field("start", StringType()),
        _field("limit", StringType()),
        _field("problem", StringType(), nullable=True),
        _field("missing", BooleanType()),
        _field("num_records", LongType()),
        _field("num_bytes", LongType()),
        *(_field(name, LongType()) for name in SETSUM_COLUMNS),
    ]
)
_ARROW_TYPES = {"string": pa.string(), "boolean": pa.bool_(), "long": pa.int64()}
_ARROW_READ_RESULTS = pa.schema(
    [pa.field(each.name, _ARROW_TYPES[each.dataType.typeName()], each.nullable) for each in READ_RESULTS]
)


def verify_task(batches: Iterable[pa.RecordBatch], *, store_url: str) -> Iterator[pa.RecordBatch]:
    """Read back the objects of rows (log, its id, pointer as JSON, opened); yield a READ_RESULTS row for each object.

    What an opened snapshot holds comes in rows of its own. A row AGAIN comes first if this is not the first attempt.
    """
    if earlier := earlier_attempts():
        again = (AGAIN, False, "", "", "", None, False, earlier, 0, *EMPTY.columns)
        yield batch_of([again], _ARROW_READ_RESULTS)
    results = settling(_read_results(batches, store_url))
    while some := list(islice(results, _READ_RESULTS_PER_BATCH)):
        yield batch_of((result.to_row() for result in some), _ARROW_READ_RESULTS)


def _read_results(batches: Iterable[pa.RecordBatch], store_url: str) -> Iterator[ReadResult]:
    store, runtime = open_store(store_url), shared_runtime()

    def work() -> Iterator[tuple[LogReader, str, FragmentPointer] | ReadResult]:
        for batch in batches:
            columns = (batch[name].to_pylist() for name in ("log", "log_id", "pointer", "opened"))
            for log, log_id, text, opened in zip(*columns, strict=True):
                reader = LogReader(store, log, options=ReaderOptions(), runtime=runtime, log_id=log_id)
                yield from _expanded(reader, log, _pointer(text, log), opened=opened)

    return map_ahead(runtime, _check, work(), count=_FETCHES_AHEAD)


def _pointer(text: str, log: str) -> Pointer:
    fields = strict_json.load(text.encode(), what=f"log {log}: pointer", bytes_max=_POINTER_BYTES_MAX)
    return SnapshotPointer.from_json(fields) if fields.has("depth") else FragmentPointer.from_json(fields)


def _expanded(
    reader: LogReader, log: str, pointer: Pointer, *, opened: bool = False
) -> Iterator[tuple[LogReader, str, FragmentPointer] | ReadResult]:
    """Yield a fragment as work to be done; open a snapshot at once, and yield what it holds."""
    if isinstance(pointer, FragmentPointer):
        yield reader, log, pointer
        return
    found = ask(reader.load_snapshot, pointer)
    if isinstance(found, LogError):
        yield ReadResult(log, pointer, found)
        return
    yield ReadResult(log, pointer, None)
    for each in () if opened else found.pointers:
        yield from _expanded(reader, log, each)


def _check(work: tuple[LogReader, str, FragmentPointer] | ReadResult) -> ReadResult:
    if isinstance(work, ReadResult):
        return work
    reader, log, pointer = work
    found = ask(reader.fetch, pointer)
    return ReadResult(log, pointer, found if isinstance(found, LogError) else None)
