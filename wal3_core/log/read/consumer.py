"""A consumer: goes through the records of logs, waits for more, and saves in a cursor what is processed.

At least once: a cursor moves past a record only when the caller has processed it, so no record is skipped,
whatever fails when. Source: docs/consuming.md.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self, cast

from wal3_core.arguments import checked, instance_of, several, wrong
from wal3_core.errors import CursorConflictError, InvalidRequestError, LogError
from wal3_core.format.paths import check_cursor_name, check_log_name
from wal3_core.format.position import LogPosition, read_start
from wal3_core.log.read.consumed import ConsumedRecord, Opening, Stream
from wal3_core.log.read.following import Waiting
from wal3_core.options import ConsumerOptions
from wal3_core.runtime import Runtime, shared_runtime

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from wal3_core.log.read.consumed import ConsumerStart, Lag, Place
    from wal3_core.store.object_store import ObjectStore

# Seconds between two looks at the flag that ``stop`` sets, which a signal handler may call.
_SLICE_S = 0.1


def _log_names(value: object, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        return (check_log_name(value, f"{name}: log"),)
    names = tuple(check_log_name(each, f"{name}: log") for each in cast("Sequence[object]", several(value, name)))
    if not names or len(set(names)) < len(names):
        message = f"{name}: expected one log or several different ones, found {list(names)}"
        raise InvalidRequestError(message)
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
            message = (
                f"log {record.log}, consumer {self._opening.name}: expected a record that it has given, found offset"
                f" {record.offset}"
            )
            raise InvalidRequestError(message)
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
