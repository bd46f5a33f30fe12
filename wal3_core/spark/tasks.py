"""Cutting work into tasks of about equal cost, and logs along their trees; what a task is given, and gives back.

A task costs tens of milliseconds whatever it does, so there is one for each core, a few where there is much to do, and
never one for each fragment. A snapshot is opened only where a task begins or ends in it; the tasks open the others. The
cuts are the same as those of one list of all fragments.

A task's work and its results are small JSON texts, each under a name, nearly always that of a log.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa
from pyspark import TaskContext

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import Refusal, try_log
from wal3_core.format import strict_json
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.snapshot import SnapshotPointer, count_fragments
from wal3_core.log.read.reader import LogReader
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.columns import batch_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.paths import LogId
    from wal3_core.format.snapshot import Pointer
    from wal3_core.format.strict_json import Fields, JsonObject
    from wal3_core.store.object_store import ObjectStore

T = TypeVar("T")

TASK_COST_MIN = 4 * 2**20
# Beside so much work a task costs little of its own, and a few on each core even out cores that are slow or busy.
TASK_COST_AMPLE = 256 * 2**20
TASKS_PER_CORE = 4
# The cost of a task of tiny objects, in tasks' bytes: a cheaper one is over before Python has started in its executor.
REQUESTS_RATIO = 4
# A request's cost besides its bytes, in bytes that could be read meanwhile.
REQUEST_COST = 256 * 2**10


def cost(num_bytes: int, *, requests: int = 1) -> int:
    """Estimate the cost of reading objects, in bytes."""
    return num_bytes + REQUEST_COST * requests


def count_tasks(costs: Sequence[int], *, cores: int, task_bytes: int, num_bytes: int | None = None) -> int:
    """Return how many tasks to cut the work into: by ``task_bytes``, or by less when cores would idle.

    ``num_bytes`` says how much of the costs is bytes, all by default: a task may have more requests than bytes.
    """
    total = sum(costs)
    a_core = max(TASK_COST_MIN, -(-total // cores))
    ample = max(TASK_COST_AMPLE, -(-total // (cores * TASKS_PER_CORE)))
    by_cost = -(-total // min(REQUESTS_RATIO * task_bytes, a_core, ample))
    return max(by_cost, -(-(total if num_bytes is None else num_bytes) // task_bytes))


def group(items: Sequence[T], costs: Sequence[int], count: int) -> list[list[T]]:
    """Cut items into at most ``count`` runs of adjacent ones, about equal in cost; none is empty."""
    total, before = sum(costs), 0
    groups: dict[int, list[T]] = {}
    for item, each in zip(items, costs, strict=True):
        # The run that the item's middle falls into.
        groups.setdefault((2 * before + each) * count // (2 * total), []).append(item)
        before += each
    return list(groups.values())


_OPENED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of one life of a log, as one pointer; an ``opened`` snapshot counts without what it holds."""

    log: str
    log_id: LogId
    pointer: Pointer
    opened: bool = False

    @property
    def cost(self) -> int:
        """Estimate the cost of reading the piece, in bytes."""
        return 0 if self.opened else cost(self.pointer.num_bytes, requests=count_fragments((self.pointer,)))


def pieces_of(log: str, manifest: Manifest) -> list[LogPiece]:
    """Take a log apart into the pointers of its manifest."""
    return [LogPiece(log, manifest.log_id, pointer) for pointer in manifest.pointers]


def count_pieces(pieces: Sequence[LogPiece], *, cores: int, task_bytes: int) -> int:
    """Return how many tasks to cut pieces into, none of which is opened."""
    num_bytes = sum(piece.pointer.num_bytes for piece in pieces)
    costs = [piece.cost for piece in pieces]
    return count_tasks(costs, cores=cores, task_bytes=task_bytes, num_bytes=num_bytes)


def cut(store: ObjectStore, pieces: Sequence[LogPiece], *, count: int) -> Iterator[tuple[int, LogPiece]]:
    """Cut pieces into ``count`` tasks about equal in cost, and yield each piece in order with its task's number.

    An opened snapshot comes before what it holds. One that cannot be opened stays whole: its task reports
    the error.
    """
    total = sum(piece.cost for piece in pieces)
    placed: Iterable[tuple[int, LogPiece]] = _placed(0, pieces)
    open_one = partial(_open_where_cut, store, count, total)
    depths = (each.pointer.depth for each in pieces if isinstance(each.pointer, SnapshotPointer))
    for _ in range(max(depths, default=0)):
        # One level of the snapshots that a cut goes through, many at a time.
        placed = chain.from_iterable(map_ahead(shared_runtime(), open_one, placed, count=_OPENED_AT_ONCE))
    for before, piece in placed:
        # The task that the piece's middle falls into.
        yield min(count - 1, (2 * before + piece.cost) * count // (2 * total)), piece


def _placed(before: int, pieces: Iterable[LogPiece]) -> Iterator[tuple[int, LogPiece]]:
    """Yield pieces with the cost of all pieces before each."""
    for piece in pieces:
        yield before, piece
        before += piece.cost


def _open_where_cut(
    store: ObjectStore, count: int, total: int, placed: tuple[int, LogPiece]
) -> list[tuple[int, LogPiece]]:
    before, piece = placed
    cuts = before * count // total != (before + piece.cost - 1) * count // total
    if piece.opened or not cuts:
        return [placed]
    below = open_piece(store, piece)
    return [placed] if below is None else list(_placed(before, below))


def open_piece(store: ObjectStore, piece: LogPiece) -> list[LogPiece] | None:
    """Return an opened snapshot and the pieces below it; None for a fragment, or a snapshot that cannot be opened."""
    if not isinstance(piece.pointer, SnapshotPointer):
        return None
    reader = LogReader(store, piece.log, options=ReaderOptions(), runtime=shared_runtime(), log_id=piece.log_id)
    found = try_log(reader.load_snapshot, piece.pointer)
    if isinstance(found, LogError):
        return None
    return [replace(piece, opened=True), *(replace(piece, pointer=pointer) for pointer in found.pointers)]


# ---------------------------------------------------------------------- what goes to tasks, and comes back

WORK = pa.schema([("task", pa.int32()), ("log", pa.string()), ("text", pa.string())])
RESULTS = pa.schema(
    [
        pa.field("log", pa.string(), nullable=False),
        pa.field("refused", pa.bool_(), nullable=False),
        pa.field("result", pa.string(), nullable=False),
    ]
)
# The name of a row that says how many attempts of its task were before. Only a repeated task has one.
AGAIN = ""
ROWS_AT_ONCE = 1000
_TEXT_BYTES_MAX = 4 * 2**20

Result = tuple[str, bool, str]


def to_text(document: JsonObject) -> str:
    """Encode."""
    return strict_json.dump(document).decode()


def from_text(text: str, what: str) -> Fields:
    """Decode."""
    return strict_json.load(text.encode(), what=what, bytes_max=_TEXT_BYTES_MAX)


def pointer_of(fields: Fields) -> Pointer:
    """Read a pointer of either kind."""
    return SnapshotPointer.from_json(fields) if fields.has("depth") else FragmentPointer.from_json(fields)


def refusal_of(log: str, error: LogError) -> Result:
    """Return the result of work on a log that failed."""
    return log, True, to_text(Refusal.of(error).to_json())


def in_batches(rows: Iterable[T]) -> Iterator[list[T]]:
    """Cut rows into lists, of which only one is held at a time."""
    rows = iter(rows)
    return iter(lambda: list(islice(rows, ROWS_AT_ONCE)), [])


def work_table(rows: Iterable[tuple[int, str, str]]) -> pa.Table:
    """Make rows of WORK: of a task, by its number, a log, and what to do there."""
    return pa.Table.from_batches((batch_of(some, WORK) for some in in_batches(rows)), schema=WORK)


def give(results: Iterable[Sequence[Result]]) -> Iterator[pa.RecordBatch]:
    """Yield a task's results as rows of RESULTS, several in a batch; AGAIN comes first if it was attempted before."""
    context = TaskContext.get()
    earlier = 0 if context is None else context.attemptNumber()
    again: list[Sequence[Result]] = [[(AGAIN, False, str(earlier))]] if earlier else []
    return freezing(batch_of(some, RESULTS) for some in chain(again, results) if some)


def freezing(results: Iterable[T]) -> Iterator[T]:
    """Give a task's results; behind the last one, once in a worker, exempt from collection what is loaded by then.

    A worker collects garbage when a task ends, and begins its next one only then. With this library loaded, that takes
    tens of milliseconds for some 100,000 objects, modules and functions mostly, of which none is ever garbage.
    """
    yield from results
    # Elsewhere, in a driver or a test, what lives is not ours to exempt.
    if TaskContext.get() is not None:
        _freeze()


@cache
def _freeze() -> None:
    # Once in a process: what each task leaves in cycles must stay subject to collection.
    gc.collect()
    gc.freeze()
