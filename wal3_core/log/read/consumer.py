"""A consumer: goes through the records of logs, waits for more, and saves in a cursor what is processed.

At least once: a cursor moves past a record only when the caller has processed it, so no record is skipped,
whatever fails when. Source: docs/consuming.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self, cast

from wal3_core.arguments import checked, instance_of, several, wrong
from wal3_core.errors import (
    CursorConflictError,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    LogNotFoundError,
    UnavailableError,
)
from wal3_core.format.cursor import NO_EXTENSION, Extension, Owner
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LogId, check_cursor_name, check_log_name
from wal3_core.format.position import AtTime, LogPosition, read_start
from wal3_core.format.record import Record, position_after
from wal3_core.log.belongings import take_cursor
from wal3_core.log.read.following import Following, Waiting
from wal3_core.log.read.reader import LogReader
from wal3_core.log.read.scan import check_start
from wal3_core.log.read.succession import continuing, goes_on_from
from wal3_core.options import REBASES_MAX, ConsumerOptions, Limits, ReaderOptions
from wal3_core.runtime import US_PER_S, Runtime, shared_runtime
from wal3_core.store.documents.cursor_store import CursorStore, Witness
from wal3_core.store.documents.manifest_store import ManifestStore
from wal3_core.store.object_store import ObjectStore, log_store
from wal3_core.store.retrying import with_retries

# Where a consumer starts that has no cursor yet.
ConsumerStart = Literal["beginning", "end"] | int | LogPosition | AtTime


@dataclass(frozen=True, slots=True)
class ConsumedRecord(Record):
    """A record, and the name of the log that holds it."""

    log: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a consumer is behind the end of a log.

    ``records`` counts the offsets that are not processed yet; where records were dropped, these are more than the
    records. ``seconds`` is the age of the last processed record
    when the log's newest one was appended, by the log's own clock; 0 when all are processed.
    """

    records: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """With what a consumer opens a log; with a ``log_id``, only that life of it, else LogReplacedError."""

    store: ObjectStore
    name: str
    start: ConsumerStart
    options: ConsumerOptions
    runtime: Runtime
    log_id: LogId | None = None
    owner: Owner = Owner.CONSUMER
    extension: Extension = NO_EXTENSION

    def place(self, log: str, before: Place | None = None) -> Place:
        """Open a log, and the consumer's cursor in it, which is created when there is none.

        In a successor, a new cursor begins where the log before it ends. InvalidRequestError for the cursor of
        something else.
        """
        life = self.log_id if before is None else None
        reader = LogReader(self.store, log, options=self.options.reader, runtime=self.runtime, log_id=life)
        manifest = reader.manifest()
        start = self.start
        if before is not None:
            sealed = before.reader.manifest()
            continuing(manifest, log, (before.log, sealed))
            start = sealed.next.position
        retry = self.options.reader.retry
        cursors = CursorStore(self.store, log, runtime=self.runtime, retry=retry, log_id=manifest.log_id)
        witness = cursors.load(self.name, self.owner) or self._created(
            cursors, log, start, _first_position(reader, manifest, start)
        )
        return Place(self, log, reader, cursors, witness)

    def _created(self, cursors: CursorStore, log: str, start: ConsumerStart, position: LogPosition) -> Witness:
        try:
            # Left where it is, it would make the next start skip what this one reports.
            stays = start == "beginning"
            return cursors.create(self.name, position, owner=self.owner, extension=self.extension, stays=stays)
        except CursorConflictError:
            # Another consumer of this name has created it since.
            witness = cursors.load(self.name, self.owner)
            if witness is None:
                raise
            return witness
        except GarbageCollectedError as error:
            if start == "beginning" and (witness := cursors.load(self.name, self.owner)) is not None:
                # It is at the first record that is kept.
                return witness
            raise GarbageCollectedError(
                f"log {log}, consumer {self.name}: expected to begin at offset {position.offset}, found that a"
                f" collection takes it: set the cursor to where to begin"
            ) from error


def _first_position(reader: LogReader, manifest: Manifest, start: ConsumerStart) -> LogPosition:
    if start == "beginning":
        return manifest.first_kept.position
    if start == "end":
        return manifest.next.position
    if isinstance(start, LogPosition):
        check_start(manifest, start)
        return start
    for record in reader.records(start, Limits(records=1), manifest=manifest):
        offset = record.offset if isinstance(start, AtTime) else start
        return LogPosition(offset, record.timestamp_us)
    return manifest.next.position


def keep_successors(
    store: ObjectStore, name: str, witness: Witness, sealed: Manifest, *, options: ReaderOptions, runtime: Runtime
) -> None:
    """Create a cursor of a sealed log in each successor that exists by now and has none of its name.

    One that a call is about to begin, it begins after it has looked at the sealed log's cursors again. So successors
    keep their records until its owner has come there. One that has lost its first records gets none: the owner
    learns that when it comes there. StoreDeniedError where this process may not create it: records would be lost.
    """
    known: set[str] = set()
    while sealed.seal is not None and sealed.seal.successor is not None and sealed.seal.successor not in known:
        successor, begins = sealed.seal.successor, sealed.next.position
        known.add(successor)
        patiently = with_retries(log_store(store, successor), runtime, options.retry)
        manifest = _begun(ManifestStore(patiently, runtime, options.retry), sealed)
        if (
            manifest is None
            or not goes_on_from(sealed, manifest)
            or manifest.first_kept.position.offset > begins.offset
        ):
            return
        cursors = CursorStore(store, successor, runtime=runtime, retry=options.retry, log_id=manifest.log_id)
        cursor = take_cursor(name, replace(witness.cursor, log_id=sealed.log_id), begins, begins, migrates=True)
        if cursor is not None and cursors.load(name) is None:
            try:
                cursors.carry(name, cursor, None, stays=False)
            except CursorConflictError:
                # Another process has just created it.
                pass
            except GarbageCollectedError:
                return
        sealed = manifest


def _begun(names: ManifestStore, sealed: Manifest) -> Manifest | None:
    """Load the successor of a sealed log; None if there is none: who begins it looks at the cursors after this."""
    for _ in range(REBASES_MAX):
        seen = names.look()
        entry = None if seen is None else seen.document
        if isinstance(entry, Manifest):
            return entry
        # A call that holds this claim may have listed the cursors already: it can begin nothing with an older version.
        if entry is None or not entry.is_kept_for(sealed.log_id) or names.swap(entry, seen) is not None:
            return None
    raise UnavailableError(f"log {names.url}: the manifest changed {REBASES_MAX} times over")


class Place:
    """A consumer's place in one log: what was given, what is processed, and the cursor, which says what is saved."""

    def __init__(self, opening: Opening, log: str, reader: LogReader, cursors: CursorStore, witness: Witness) -> None:
        self.log = log
        self.topic = log_store(opening.store, log).url
        self.reader = reader
        self._name, self._owner = opening.name, opening.owner
        self._cursors = cursors
        self._witness = witness
        self._runtime = opening.runtime
        self.processed = witness.cursor.position
        # The offset after the last record that the caller was given.
        self.given = self.processed.offset

    def keep_successors(self, opening: Opening) -> None:
        """Have the successors that exist by now keep their records for it, if the log is sealed."""
        keep_successors(
            opening.store,
            self._name,
            self._witness,
            self.reader.manifest(),
            options=opening.options.reader,
            runtime=opening.runtime,
        )

    def finish(self, record: Record) -> None:
        """Count a record, and all before it, as processed."""
        if record.offset >= self.processed.offset:
            self.processed = position_after(record)

    def save(self) -> None:
        """Save how far the log is processed; CursorConflictError when another process has moved the cursor."""
        saved = self._witness.cursor.position.offset
        if self.processed.offset <= saved:
            return
        try:
            self._witness = self._cursors.save(self._name, self.processed, self._witness, owner=self._owner)
        except CursorConflictError as error:
            raise CursorConflictError(self._conflict()) from error
        self._runtime.observer.consumed(self.log, self._name, self.processed.offset - saved)

    def _conflict(self) -> str:
        found = self._cursors.load(self._name)
        what = f"log {self.log}, consumer {self._name}: expected its cursor where it was saved last, found it"
        again = f"the records up to offset {self.processed.offset} are processed but that is not saved"
        if found is None:
            return f"{what} deleted: {again}; start again to begin as on a first run"
        return (
            f"{what} at {found.cursor.position.offset}, moved by {found.cursor.writer}: {again}; run one consumer of"
            f" a name at a time, or give each its own name; then start again, to continue at the cursor"
        )

    def lag(self) -> Lag:
        """Measure how much of the log is not processed: one small request."""
        end = self.reader.manifest().next.position
        records = max(0, end.offset - self.processed.offset)
        behind_us = max(0, end.timestamp_us - self.processed.timestamp_us) if records else 0
        return Lag(records=records, seconds=behind_us / US_PER_S)


class Stream:
    """The records of one log and its successors, in order, a list at a time.

    ``ready`` are the records of the list, ``at`` the index of the next one to give. An interrupt in ``fill`` leaves
    ``torn`` set: the next call reads again from the last record that was given.
    """

    def __init__(self, opening: Opening, place: Place, waiting: Waiting) -> None:
        self._opening = opening
        self._waiting = waiting
        self.ended = False
        self._begin(place)

    def _begin(self, place: Place) -> None:
        self._following: Following = place.reader.following(place.given, self._waiting)
        self._clear()
        self.place = place

    def _clear(self) -> None:
        self.ready: list[ConsumedRecord] = []
        self.at = 0
        self.torn = False

    @property
    def waiting(self) -> bool:
        """Whether there is a record to give."""
        return self.at < len(self.ready) and not self.torn

    def fill(self, places: dict[str, Place]) -> bool:
        """Have records ready if the log, or its successor, holds more now; ``places`` gets each log that is opened."""
        if self.torn:
            self._following.go_back(self.place.given)
            self._clear()
        while not self.waiting and not self.ended:
            self.torn = True
            taken, log = self._following.take(self._opening.options.batch_records_max), self.place.log
            self.ready = [ConsumedRecord(each.offset, each.timestamp_us, each.key, each.body, log) for each in taken]
            self.at = 0
            self.torn = False
            if not taken and not self._goes_on(places):
                return False
        return not self.ended

    def _goes_on(self, places: dict[str, Place]) -> bool:
        """Open the successor of a log that is sealed and was given to its end, if it exists by now."""
        sealed = self._following.sealed
        if sealed is None or sealed.seal is None:
            return False
        successor = sealed.seal.successor
        if successor is None or successor in places:
            self.ended = True
            return False
        try:
            place = self._opening.place(successor, self.place)
        except LogNotFoundError:
            return False
        places[successor] = place
        self._begin(place)
        return True


# Seconds between two looks at the flag that ``stop`` sets, which a signal handler may call.
_SLICE_S = 0.1


def _log_names(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (check_log_name(value, f"{name}: log"),)
    names = tuple(check_log_name(each, f"{name}: log") for each in cast("Sequence[object]", several(value, name)))
    if not names or len(set(names)) < len(names):
        raise InvalidRequestError(f"{name}: expected one log or several different ones, found {list(names)}")
    return names


def consumer_start(value: object, name: str) -> object:
    """Take where a consumer starts that has no cursor yet."""
    if isinstance(value, str) and value in {"beginning", "end"}:
        return str(value)
    if value is None or isinstance(value, str):
        raise wrong(name, '"beginning", "end", an offset, a position or a time', value)
    return read_start(value, name)


class Consumer:
    """Goes through the records of one or several logs, in the order of each, and saves what is processed.

    A context manager and an iterator. A record is processed once the next one is asked for, or the block is left
    without an exception. The cursor ``name`` of each log is then moved past it, as ``ConsumerOptions`` say. After an
    exception in the block, the record in work is not processed: it is given again after a restart. A sealed log is
    followed into its successors, where the consumer has a cursor of the same name.

    Without a cursor, it starts at ``start`` and creates one. Errors are those of ``LogReader.follow``, and
    CursorConflictError when another consumer of this name, or an operator, has moved the cursor. One thread at a time
    may use it, except for ``stop`` and ``lag``.
    """

    @checked(logs=_log_names, name=check_cursor_name, start=consumer_start)
    def __init__(
        self,
        store: ObjectStore,
        logs: str | Sequence[str],
        name: str,
        *,
        start: ConsumerStart = "beginning",
        options: ConsumerOptions | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self._logs = cast("tuple[str, ...]", logs)
        if len(self._logs) > 1 and isinstance(start, int | LogPosition):
            message = f"start: expected no position in one log for {len(self._logs)} logs, found {start}"
            raise InvalidRequestError(message)
        self._options = options or ConsumerOptions()
        self._runtime = runtime or shared_runtime()
        self._opening = Opening(store=store, name=name, start=start, options=self._options, runtime=self._runtime)
        self._stopped = False
        self._close()

    def _close(self) -> None:
        self._places: dict[str, Place] = {}
        self._streams: deque[Stream] = deque()
        self._turn: Stream | None = None
        # The last record that was given, and how many records were given with it, while they are in work.
        self._work: tuple[Place, ConsumedRecord, int] | None = None
        # Records processed since the cursors were saved.
        self._unsaved = 0

    def __enter__(self) -> Self:
        """Open the logs and the cursors; LogNotFoundError for a log that does not exist.

        InvalidRequestError for the name of a subscription to a feed, or of a writer's cursor.
        """
        places = {log: self._opening.place(log) for log in self._logs}
        for place in places.values():
            place.keep_successors(self._opening)
        self._waiting = Waiting(self._runtime, self._options.reader, idle_s=self._options.idle_s)
        self._streams = deque(Stream(self._opening, place, self._waiting) for place in places.values())
        self._saved_s = self._runtime.monotonic_s()
        self._places = places
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Save what is processed; an error of that is added as a note to the exception that ended the block."""
        try:
            if error is None:
                self._finish()
            if self._options.auto_commit:
                self._save()
        except LogError as failure:
            if error is None:
                raise
            if not isinstance(error, CursorConflictError):
                error.add_note(f"{type(failure).__name__}: {failure}")
        finally:
            self._close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumedRecord:
        """Give the next record, as soon as there is one; the one before it is processed."""
        self._finish()
        stream = self._turn
        if stream is None or not stream.waiting or self._stopped:
            stream = self._next_stream()
        record, place = stream.ready[stream.at], stream.place
        # No calls from here: an interrupt comes before the record is given, or after.
        given = record.offset + 1
        stream.at += 1
        place.given = given
        self._work = place, record, 1
        return record

    def batches(self) -> Iterator[list[ConsumedRecord]]:
        """Give lists of at most ``batch_records_max`` records of one log, as soon as there are any.

        A list is processed, as a whole, when a single record would be.
        """
        while True:
            self._finish()
            try:
                stream = self._next_stream()
            except StopIteration:
                return
            batch, place = stream.ready[stream.at :], stream.place
            limit, work, count = len(stream.ready), batch[-1], len(batch)
            given = work.offset + 1
            stream.at = limit
            place.given = given
            self._work = place, work, count
            yield batch

    @checked(record=instance_of(ConsumedRecord))
    def commit(self, record: ConsumedRecord) -> None:
        """Save at once that this record, and all before it in its log, are processed; one that is already saved is not.

        InvalidRequestError for a record that this consumer has not given.
        """
        place = self._places.get(record.log)
        if place is None or record.offset >= place.given:
            raise InvalidRequestError(
                f"log {record.log}, consumer {self._opening.name}: expected a record that it has given, found offset"
                f" {record.offset}"
            )
        place.finish(record)
        place.save()

    def stop(self) -> None:
        """End the iteration after the record in work; may be called by other threads and by signal handlers."""
        self._stopped = True

    def lag(self) -> dict[str, Lag]:
        """Measure how far it is behind in each log, by name: one small request for each; from any thread."""
        return {place.log: place.lag() for place in tuple(self._places.values())}

    def _finish(self) -> None:
        """Count the records in work as processed, and save when it is time."""
        if not self._streams:
            message = f"consumer {self._opening.name}: expected to be used inside its block: `with Consumer(…) as …:`"
            raise InvalidRequestError(message)
        if self._work is None or not self._options.auto_commit:
            return
        place, record, count = self._work
        place.finish(record)
        self._work = None
        self._unsaved += count
        self._save_if_due()

    def _save_if_due(self) -> None:
        options = self._options
        if self._unsaved and (
            self._unsaved >= options.commit_records_max
            or self._runtime.monotonic_s() - self._saved_s >= options.commit_s_max
        ):
            self._save()

    def _save(self) -> None:
        failure: LogError | None = None
        for place in self._places.values():
            try:
                place.save()
            except LogError as error:
                # The other logs' cursors do not depend on this one.
                failure = failure or error
        if failure is not None:
            raise failure
        self._unsaved, self._saved_s = 0, self._runtime.monotonic_s()

    def _next_stream(self) -> Stream:
        """Wait for a log that has records ready; StopIteration when no more will come."""
        self._waiting.begin_again()
        while not self._stopped:
            seen = [self._runtime.await_topic(stream.place.topic, -1, 0.0) for stream in self._streams]
            for stream in tuple(self._streams):
                # Each log has its turn before one has a second.
                self._streams.rotate(-1)
                if stream.fill(self._places):
                    self._turn = stream
                    return stream
            if all(stream.ended for stream in self._streams) or not self._pause(seen):
                break
        self._turn = None
        raise StopIteration

    def _pause(self, seen: list[int]) -> bool:
        """Wait until it is time to look again; False when the consumer has been idle for its time."""
        pause_s = self._waiting.pause_s()
        if pause_s is None:
            return False
        limit_s = self._runtime.monotonic_s() + pause_s
        while not self._stopped and (left_s := limit_s - self._runtime.monotonic_s()) > 0:
            self._save_if_due()
            news = [
                self._runtime.await_topic(stream.place.topic, version, 0.0 if index else min(left_s, _SLICE_S))
                for index, (stream, version) in enumerate(zip(self._streams, seen, strict=True))
            ]
            if news != seen:
                break
        return True
