"""Cutting work into tasks of about equal cost, and logs along their trees, with memory per task, not per fragment.

A task costs tens of milliseconds whatever it does, so there is one for each core, a few where there is much to do, and
never one for each fragment. A snapshot is opened only where a task begins or ends in it; the tasks open the others. The
cuts are the same as those of one list of all fragments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import LogError
from wal3_core.fleet.outcomes import try_log
from wal3_core.log.read.reader import LogReader
from wal3_core.model.snapshot import SnapshotPointer, count_fragments
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.model.snapshot import Pointer
    from wal3_core.storage.object_store import ObjectStore

T = TypeVar("T")

TASK_COST_MIN = 4 * 2**20
# Beside so much work a task costs little of its own, and a few on each core even out cores that are slow or busy.
TASK_COST_AMPLE = 256 * 2**20
TASKS_PER_CORE = 4
# Of tiny objects, a task of so many bytes' cost would be over before Python has started in its executor.
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
    for _ in range(max((_depth(piece) for piece in pieces), default=0)):
        placed = _opened(store, placed, count, total)
    for before, piece in placed:
        # The task that the piece's middle falls into.
        yield min(count - 1, (2 * before + piece.cost) * count // (2 * total)), piece


def _depth(piece: LogPiece) -> int:
    return piece.pointer.depth if isinstance(piece.pointer, SnapshotPointer) else 0


def _placed(before: int, pieces: Iterable[LogPiece]) -> Iterator[tuple[int, LogPiece]]:
    """Yield pieces with the cost of all pieces before each."""
    for piece in pieces:
        yield before, piece
        before += piece.cost


def _opened(
    store: ObjectStore, placed: Iterable[tuple[int, LogPiece]], count: int, total: int
) -> Iterator[tuple[int, LogPiece]]:
    """Open the snapshots that a cut goes through, one level of them, many at a time."""
    open_one = partial(_open_where_cut, store, count, total)
    for pieces in map_ahead(shared_runtime(), open_one, placed, count=_OPENED_AT_ONCE):
        yield from pieces


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
