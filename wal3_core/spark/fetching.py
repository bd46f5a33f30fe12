"""Fetching fragments inside a task, a few ahead of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, GarbageCollectedError
from wal3_core.log.read.scan import trim
from wal3_core.model.parquet.columns import table_setsum
from wal3_core.model.setsum import EMPTY, Setsum
from wal3_core.options import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.log.read.reader import LogReader
    from wal3_core.model.parquet import Fragment
    from wal3_core.model.paths import LogId
    from wal3_core.model.position import ReadStart


@dataclass(frozen=True, slots=True)
class Run:
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


def fragments(reader: LogReader, run: Run) -> Iterator[tuple[Fragment, ReadStart]]:
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
        message = (
            f"log {run.log}: expected records from {run.start} to {run.limit} as planned, found its end at {reached}"
        )
        raise CorruptError(message)
    if found != run.setsum:
        message = (
            f"log {run.log}: expected the records from {run.start} to {run.limit} as they were planned, found them"
            f" compacted since: load the DataFrame again"
        )
        raise GarbageCollectedError(message)


def _planned_setsum(fragment: Fragment, run: Run) -> Setsum:
    """Sum up a fragment's records that lie in the fragments that were planned."""
    pointer = fragment.pointer
    if run.first_offset <= pointer.start.offset and pointer.limit.offset <= run.next_offset:
        return pointer.setsum
    return table_setsum(trim(fragment.table, run.first_offset, Limits(offset=run.next_offset)))
