"""Reads from a sealed log on into its successor, and into that one's.

Each log is read with its own checks; between two of them nothing is skipped: the successor must begin
where the sealed log ends, and still hold that place. A read whose limits lie in a log looks no further, except
with a limit of time.
Keeps INV-10 and INV-19 of docs/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, optional, seconds
from wal3_core.errors import CorruptError, LogNotFoundError
from wal3_core.format import parquet
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LogId
from wal3_core.format.position import AtTime, LogPosition, ReadStart
from wal3_core.format.record import Record
from wal3_core.log.read.following import Waiting, destroyed
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import BegunAtTime, begun, first_rows, floor_of, trim, within
from wal3_core.options import UNLIMITED, Limits, ReaderOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import ObjectStore, log_store

if TYPE_CHECKING:
    # A log's name, and its last manifest.
    _Before = tuple[str, Manifest]


def records_across(
    store: ObjectStore,
    log: str,
    start: ReadStart = None,
    limits: Limits = UNLIMITED,
    *,
    options: ReaderOptions | None = None,
    runtime: Runtime | None = None,
) -> Iterator[Record]:
    """Go through the records of a log and of its successors, to the end as of now.

    ``start`` may lie in any of them. The limits hold for all together, except one of time, which holds in each:
    a successor may begin earlier than the log before it ended, so it is read, too. LogNotFoundError when a successor
    is named and does not exist (it may still have to be created), GarbageCollectedError when records
    between two logs are gone, or are collected before they are read, CorruptError when a successor does not
    continue where the log before it ends.
    """
    reading = _ChainRead(start, limits)
    before: _Before | None = None
    seen: set[LogId] = set()
    while True:
        try:
            reader = LogReader.open(store, log, options=options, runtime=runtime)
        except LogNotFoundError as error:
            if before is None:
                raise
            raise LogNotFoundError(
                f"log {before[0]}: sealed with successor {log} from {before[1].next.position}, which does not"
                f" exist: create the successor"
            ) from error
        manifest = continuing(reader.manifest(), log, before, seen)
        yield from reading.records(reader, manifest)
        successor = None if manifest.seal is None else manifest.seal.successor
        if successor is None or reading.ends_in(manifest):
            return
        reading.go_on_after(manifest)
        before, log = (log, manifest), successor


@checked(idle_s=optional(seconds))
def follow_across(
    store: ObjectStore,
    log: str,
    start: ReadStart = None,
    *,
    idle_s: float | None = None,
    options: ReaderOptions | None = None,
    runtime: Runtime | None = None,
) -> Iterator[Record]:
    """Follow a log and, once it is sealed, its successors; ends at a seal that names no successor.

    A successor that does not exist yet is waited for, as records are; ``idle_s`` seconds without a
    record end the call anywhere. Errors as ``records_across``.
    """
    runtime, options = runtime or shared_runtime(), options or ReaderOptions()
    reading, waiting = _ChainRead(start, UNLIMITED), Waiting(runtime, options, idle_s=idle_s)
    before: _Before | None = None
    seen: set[LogId] = set()
    while True:
        reader = _awaited(store, log, before, waiting=waiting, options=options, runtime=runtime)
        if reader is None:
            return
        manifest = continuing(reader.manifest(), log, before, seen)
        reading.begin(manifest)
        if manifest.seal is None or not reading.lies_beyond(manifest):
            following = reader.following(reading.start, waiting)
            for record in following.records():
                reading.start = record.offset + 1
                yield record
            if following.sealed is None:
                return
            manifest = following.sealed
        if manifest.doomed:
            # The start lies beyond its end.
            raise destroyed(log, manifest)
        if manifest.seal is None or manifest.seal.successor is None:
            return
        reading.go_on_after(manifest)
        before, log = (log, manifest), manifest.seal.successor


def continuing(found: Manifest, log: str, before: _Before | None, seen: set[LogId] | None = None) -> Manifest:
    """Return a log's manifest; CorruptError unless it goes on from the log before it, if there is one.

    CorruptError as well when it is among those ``seen``, to which it is added: their successors lead in a circle.
    """
    if before is not None and not goes_on_from(before[1], found):
        raise CorruptError(
            f"log {log}: expected it to go on from log {before[0]} at {before[1].next.position},"
            f" found one that begins at {found.first.position}"
        )
    if seen is not None:
        if found.log_id in seen:
            message = f"log {log}: expected a log that none of its successors leads to, found log {found.log_id} again"
            raise CorruptError(message)
        seen.add(found.log_id)
    return found


def goes_on_from(sealed: Manifest, found: Manifest) -> bool:
    """Tell whether a log is the successor of this sealed log; its first records may have been collected since."""
    return found.follows == sealed.log_id and found.first.seq_no >= sealed.next.seq_no


def _awaited(
    store: ObjectStore,
    log: str,
    before: _Before | None,
    *,
    waiting: Waiting,
    options: ReaderOptions,
    runtime: Runtime,
) -> LogReader | None:
    """Open a log; wait for a successor that does not exist yet. None when time is up."""
    topic = log_store(store, log).url
    version: int | None = runtime.await_topic(topic, -1, 0.0)
    while version is not None:
        try:
            return LogReader.open(store, log, options=options, runtime=runtime)
        except LogNotFoundError:
            if before is None:
                raise
        version = waiting.wait(topic, version)
    return None


class _ChainRead:
    """How far a read has come, and what its limits leave."""

    def __init__(self, start: ReadStart, limits: Limits) -> None:
        self.start = start
        self._limits = limits
        self._begun = False

    @property
    def _finished(self) -> bool:
        return 0 in (self._limits.records, self._limits.num_bytes, self._limits.fragments)

    def begin(self, manifest: Manifest) -> None:
        """Fix where the read starts by the first manifest it sees, unless it can only be in a later log."""
        start = begun(manifest, self.start)
        if manifest.seal is None or floor_of(start) != manifest.next.position.offset:
            self.start = start

    def records(self, reader: LogReader, manifest: Manifest) -> Iterator[Record]:
        """Go through the records that one log holds of the range, to where its manifest ends."""
        self.begin(manifest)
        if self._finished or (manifest.seal is not None and self.lies_beyond(manifest)):
            return
        bounded = within(self._limits, manifest)
        for fragment, begin in reader.fragments(self.start, bounded, manifest=manifest):
            taken = first_rows(trim(fragment.table, begin, bounded), self._limits.records)
            if len(taken):
                # A fragment with gaps may hold nothing of the range.
                self._count(len(taken), fragment.pointer.num_bytes)
                self._begun = True
            yield from parquet.records_of(taken)
            if self._finished:
                return

    def ends_in(self, manifest: Manifest) -> bool:
        """Tell whether nothing that comes after a log can lie within the limits.

        A limit of time never says that: a successor may begin earlier than the log before it ended.
        """
        offset = self._limits.offset
        return self._finished or (offset is not None and offset <= manifest.next.position.offset)

    def go_on_after(self, manifest: Manifest) -> None:
        """Begin in the next log where this one ended, unless the start lies further on."""
        if self.lies_beyond(manifest):
            return
        if isinstance(self.start, BegunAtTime) and not self._begun:
            self.start = replace(self.start, floor=manifest.next.position.offset)
        elif not (self.start is None or type(self.start) is AtTime):
            self.start = manifest.next.position

    def lies_beyond(self, manifest: Manifest) -> bool:
        """Tell whether the read starts in a later log."""
        offset = self.start.offset if isinstance(self.start, LogPosition) else self.start
        return isinstance(offset, int) and offset > manifest.next.position.offset

    def _count(self, num_records: int, num_bytes: int) -> None:
        limits = self._limits
        self._limits = replace(
            limits,
            records=_less(limits.records, num_records),
            num_bytes=_less(limits.num_bytes, num_bytes),
            fragments=_less(limits.fragments, 1),
        )


def _less(limit: int | None, amount: int) -> int | None:
    return None if limit is None else max(0, limit - amount)
