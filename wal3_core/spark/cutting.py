"""Cutting logs into tasks along their trees, with memory per task, not per fragment.

A snapshot is opened only where a task begins or ends in it; the tasks open the others. The cuts are the
same as those of one list of all fragments.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.fleet.asking import ask
from wal3_core.log.read.reader import LogReader
from wal3_core.model.snapshot import SnapshotPointer, count_fragments
from wal3_core.options import ReaderOptions
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.spark.tasks import cost, count_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.model.snapshot import Pointer
    from wal3_core.storage.object_store import ObjectStore

_OPENED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of one life of a log, as one pointer; an ``opened`` snapshot counts without what it holds."""

    log: str
    log_id: LogId
    pointer: Pointer
    opened: bool = False

    @property
    def cost(self) -> int:
        """Estimate the cost of reading the piece, in bytes."""
        return 0 if self.opened else cost(self.pointer.num_bytes, requests=count_fragments((self.pointer,)))


def pieces_of(log: str, manifest: Manifest) -> list[Piece]:
    """Take a log apart into the pointers of its manifest."""
    return [Piece(log, manifest.log_id, pointer) for pointer in manifest.pointers]


def count_pieces(pieces: Sequence[Piece], *, cores: int, task_bytes: int) -> int:
    """Return how many tasks to cut pieces into, none of which is opened."""
    num_bytes = sum(piece.pointer.num_bytes for piece in pieces)
    costs = [piece.cost for piece in pieces]
    return count_tasks(costs, cores=cores, task_bytes=task_bytes, num_bytes=num_bytes)


def cut(store: ObjectStore, pieces: Sequence[Piece], *, count: int) -> Iterator[tuple[int, Piece]]:
    """Cut pieces into ``count`` tasks about equal in cost, and yield each piece in order with its task's number.

    An opened snapshot comes before what it holds. One that cannot be opened stays whole: its task reports
    the error.
    """
    total = sum(piece.cost for piece in pieces)
    placed: Iterable[tuple[int, Piece]] = _placed(0, pieces)
    for _ in range(max((_depth(piece) for piece in pieces), default=0)):
        placed = _opened(store, placed, count, total)
    for before, piece in placed:
        # The task that the piece's middle falls into.
        yield min(count - 1, (2 * before + piece.cost) * count // (2 * total)), piece


def _depth(piece: Piece) -> int:
    return piece.pointer.depth if isinstance(piece.pointer, SnapshotPointer) else 0


def _placed(before: int, pieces: Iterable[Piece]) -> Iterator[tuple[int, Piece]]:
    """Yield pieces with the cost of all pieces before each."""
    for piece in pieces:
        yield before, piece
        before += piece.cost


def _opened(
    store: ObjectStore, placed: Iterable[tuple[int, Piece]], count: int, total: int
) -> Iterator[tuple[int, Piece]]:
    """Open the snapshots that a cut goes through, one level of them, many at a time."""
    open_one = partial(_open_where_cut, store, count, total)
    for pieces in map_ahead(shared_runtime(), open_one, placed, count=_OPENED_AT_ONCE):
        yield from pieces


def _open_where_cut(store: ObjectStore, count: int, total: int, placed: tuple[int, Piece]) -> list[tuple[int, Piece]]:
    before, piece = placed
    cuts = before * count // total != (before + piece.cost - 1) * count // total
    if piece.opened or not cuts:
        return [placed]
    below = open_piece(store, piece)
    return [placed] if below is None else list(_placed(before, below))


def open_piece(store: ObjectStore, piece: Piece) -> list[Piece] | None:
    """Return an opened snapshot and the pieces below it; None for a fragment, or a snapshot that cannot be opened."""
    if not isinstance(piece.pointer, SnapshotPointer):
        return None
    reader = LogReader(store, piece.log, options=ReaderOptions(), runtime=shared_runtime(), log_id=piece.log_id)
    found = ask(reader.load_snapshot, piece.pointer)
    if isinstance(found, LogError):
        return None
    return [replace(piece, opened=True), *(replace(piece, pointer=pointer) for pointer in found.pointers)]
