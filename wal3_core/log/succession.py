"""Reading from a sealed log on into its successor, and into that one's.

Each log is read with its own checks; between two of them nothing is skipped: the successor must begin
where the sealed log ends, and still hold it. Keeps INV-10 of docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, optional
from wal3_core.errors import CorruptError, LogNotFoundError
from wal3_core.log.reader import LogReader
from wal3_core.log.scan import trim
from wal3_core.model import parquet
from wal3_core.model.paths import check_log_name
from wal3_core.model.position import AtTime, LogPosition, read_start
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import a_runtime
from wal3_core.storage.object_store import a_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.position import ReadStart
    from wal3_core.model.record import Record
    from wal3_core.runtime import Runtime
    from wal3_core.storage.object_store import ObjectStore

# Logs are sealed by people: more than this is a mistake.
_HOPS_MAX = 256


@checked(
    store=a_store,
    log=check_log_name,
    start=read_start,
    limits=instance_of(Limits),
    options=optional(instance_of(ReaderOptions)),
    runtime=optional(a_runtime),
)
def records_across(
    store: ObjectStore,
    log: str,
    start: ReadStart = None,
    limits: Limits = UNLIMITED,
    *,
    options: ReaderOptions | None = None,
    runtime: Runtime | None = None,
) -> Iterator[Record]:
    """Go through the records of a log and of those that go on from it, to the end as of now.

    ``start`` may lie in any of them; the limits hold for all together. LogNotFoundError when a successor
    is named and not there (it may yet have to be initialized), GarbageCollectedError when records
    between two logs are gone, CorruptError when a successor does not go on where the log before ends.
    """
    reading = _Reading(start, limits)
    before: tuple[str, Manifest] | None = None
    for _ in range(_HOPS_MAX):
        reader = _open(store, log, before, options=options, runtime=runtime)
        manifest = reader.manifest()
        if before is not None and not goes_on_from(before[1], manifest):
            message = (
                f"log {log}: expected it to go on from log {before[0]} at {before[1].next.position},"
                f" found one that begins at {manifest.first.position}"
            )
            raise CorruptError(message)
        yield from reading.records(reader, manifest)
        successor = None if manifest.seal is None else manifest.seal.successor
        if successor is None or reading.ends_in(manifest):
            return
        reading.go_on_after(manifest)
        before, log = (log, manifest), successor
    message = f"log {log}: expected to reach an open log within {_HOPS_MAX} successors, found none"
    raise CorruptError(message)


def goes_on_from(sealed: Manifest, found: Manifest) -> bool:
    """Tell whether a log is the one that was begun where this very sealed one ends; appended to since, maybe."""
    return found.follows == sealed.log_id and found.first.seq_no >= sealed.next.seq_no


def _open(
    store: ObjectStore,
    log: str,
    before: tuple[str, Manifest] | None,
    *,
    options: ReaderOptions | None,
    runtime: Runtime | None,
) -> LogReader:
    try:
        return LogReader.open(store, log, options=options, runtime=runtime)
    except LogNotFoundError as error:
        if before is None:
            raise
        message = (
            f"log {before[0]}: sealed, and said to go on in {log} from {before[1].next.position}, which is not"
            f" there: initialize the successor"
        )
        raise LogNotFoundError(message) from error


class _Reading:
    """How far a read has come, and what its limits leave."""

    def __init__(self, start: ReadStart, limits: Limits) -> None:
        self._start = start
        self._limits = limits
        self._begun = False
        self.finished = False

    def records(self, reader: LogReader, manifest: Manifest) -> Iterator[Record]:
        """Go through the records that one log holds of the range."""
        if manifest.seal is not None and self._lies_beyond(manifest):
            return
        limits, end = self._limits, manifest.next.position.offset
        # What is appended meanwhile is no part of the read: it ends at one manifest, as reading one log does.
        bounded = replace(limits, offset=end if limits.offset is None else min(end, limits.offset))
        for fragment, begin in reader.fragments(self._start, bounded):
            taken = trim(fragment.table, begin, bounded).slice(0, self._limits.records)
            self._count(len(taken), fragment.pointer.num_bytes)
            self._begun = self._begun or len(taken) > 0
            yield from parquet.records_of(taken)
            if self.finished:
                return

    def ends_in(self, manifest: Manifest) -> bool:
        """Tell whether nothing behind a log belongs to the read: a successor's time may begin earlier."""
        until_us = self._limits.timestamp_us
        return self.finished or (until_us is not None and until_us <= manifest.next.position.timestamp_us)

    def go_on_after(self, manifest: Manifest) -> None:
        """Begin in the next log where this one ended, unless the start lies further on."""
        nothing_yet = self._start is None and manifest.first == manifest.next
        searching = isinstance(self._start, AtTime) and not self._begun
        if not (nothing_yet or searching or self._lies_beyond(manifest)):
            self._start = manifest.next.position

    def _lies_beyond(self, manifest: Manifest) -> bool:
        offset = self._start.offset if isinstance(self._start, LogPosition) else self._start
        return isinstance(offset, int) and offset > manifest.next.position.offset

    def _count(self, num_records: int, num_bytes: int) -> None:
        limits = self._limits
        self._limits = replace(
            limits,
            records=_less(limits.records, num_records),
            num_bytes=_less(limits.num_bytes, num_bytes),
            fragments=_less(limits.fragments, 1),
        )
        self.finished = 0 in (self._limits.records, self._limits.num_bytes, self._limits.fragments)


def _less(limit: int | None, amount: int) -> int | None:
    return None if limit is None else max(0, limit - amount)
