"""One task of a verification: read fragments back and report on each. It only reads, so repeating is harmless."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, BooleanType, LongType, StringType, StructField, StructType

from wal3_core.errors import LogError, MissingError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.reader import LogReader
from wal3_core.model import strict_json
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.model.snapshot import SnapshotPointer
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.columns import batch_of
from wal3_core.spark.task_context import AGAIN, earlier_attempts, settling
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql.types import DataType

    from wal3_core.model.snapshot import Pointer

ROWS_AT_ONCE = 1000
_FETCHES_AHEAD = 4
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


class Totals:
    """The sums of what was found in one log, by one task or by all; counts are of sound objects."""

    __slots__ = ("bad", "num_bytes", "num_fragments", "num_records", "num_snapshots", "setsum")

    def __init__(self) -> None:
        self.setsum = EMPTY
        self.num_records = self.num_bytes = self.num_fragments = self.num_snapshots = 0
        self.bad: list[Problematic] = []

    def add(self, pointer: Pointer, error: LogError | None) -> None:
        """Add the result of reading one object."""
        if error is not None:
            self.bad.append(Problematic.of(pointer, error))
        elif isinstance(pointer, SnapshotPointer):
            # Its records are counted by the fragments below it.
            self.num_snapshots += 1
        else:
            self.setsum += pointer.setsum
            self.num_records += pointer.num_records
            self.num_bytes += pointer.num_bytes
            self.num_fragments += 1

    def merge(self, other: Totals) -> None:
        """Add what another task found in the same log."""
        self.setsum += other.setsum
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.bad += other.bad

    def to_row(self, log: str) -> tuple[object, ...]:
        """Return as a row of READ_TOTALS."""
        counts = (getattr(self, name) for name in _COUNTS)
        return (log, self.setsum.hexdigest(), *counts, [asdict(one) for one in self.bad])

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Totals:
        """Read a row of READ_TOTALS, whose log is the caller's affair."""
        found = cls()
        found.setsum = Setsum.from_hexdigest(row["setsum"])
        for name in _COUNTS:
            setattr(found, name, row[name])
        found.bad = [Problematic(**one) for one in row["bad"]]
        return found


_COUNTS = ("num_records", "num_bytes", "num_fragments", "num_snapshots")


def _field(name: str, of: DataType) -> StructField:
    return StructField(name, of, nullable=False)


_BAD = [
    *(_field(name, StringType()) for name in ("path", "start", "limit", "problem")),
    _field("missing", BooleanType()),
]
READ_TOTALS = StructType(
    [
        _field("log", StringType()),
        _field("setsum", StringType()),
        *(_field(name, LongType()) for name in _COUNTS),
        _field("bad", ArrayType(StructType(_BAD), containsNull=False)),
    ]
)


def verify_task(batches: Iterable[pa.RecordBatch], *, store_url: str) -> Iterator[pa.RecordBatch]:
    """Read back the objects of rows (log, its id, pointer as JSON, opened); yield a READ_TOTALS row for each log.

    They are added up here, not by Spark: it would compile an aggregation of its own, and shuffle once more, for
    a few numbers of each log. What an opened snapshot holds comes in rows of its own. A row AGAIN comes first if
    this is not the first attempt.
    """
    totals: dict[str, Totals] = {}
    if earlier := earlier_attempts():
        totals[AGAIN] = Totals()
        totals[AGAIN].num_records = earlier
    for result in settling(_read_results(batches, store_url)):
        totals.setdefault(result.log, Totals()).add(result.pointer, result.error)
    rows, schema = (found.to_row(log) for log, found in totals.items()), to_arrow_schema(READ_TOTALS)
    while some := list(islice(rows, ROWS_AT_ONCE)):
        yield batch_of(some, schema)


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
    found = try_log(reader.load_snapshot, pointer)
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
    found = try_log(reader.fetch, pointer)
    return ReadResult(log, pointer, found if isinstance(found, LogError) else None)
