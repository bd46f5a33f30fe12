"""Fetching fragments inside a task, a few ahead of the work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.options import Limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.log.read.reader import LogReader
    from wal3_core.model.parquet import Fragment
    from wal3_core.model.paths import LogId
    from wal3_core.model.position import ReadStart


@dataclass(frozen=True, slots=True)
class Run:
    """Records of one life of a log, by offset, and the size of the fragments that hold them."""

    log: str
    log_id: LogId
    start: int
    limit: int
    num_bytes: int


def fragments(reader: LogReader, run: Run) -> Iterator[tuple[Fragment, ReadStart]]:
    """Fetch the fragments that hold a run's records, in order; CorruptError unless they reach its limit."""
    reached = run.start
    for fragment, begin in reader.fragments(run.start, Limits(offset=run.limit)):
        yield fragment, begin
        reached = fragment.pointer.limit.offset
    if reached < run.limit:
        message = (
            f"log {run.log}: expected records from {run.start} to {run.limit} as planned, found its end at {reached}"
        )
        raise CorruptError(message)
