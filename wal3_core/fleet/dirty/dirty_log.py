"""A server's dirty log: a log of markers, one for each fragment that the server adds to any of its logs.

Maintenance reads it to find the logs that have grown, so its cost follows what was written, not how many logs there
are. A log commits one batch at a time, and a marker that had to wait for a commit under way would delay its append:
while its first log is busy, a server uses further ones, its lanes. Source: docs/protocol/dirty-logs.md, "Dirty logs".
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, integer, optional, several, text
from wal3_core.errors import ClosedError, InvalidRequestError, LogError
from wal3_core.fleet.discovery import list_logs
from wal3_core.fleet.outcomes import ends_writer
from wal3_core.format.marker import Marker
from wal3_core.format.paths import DIRTY, check_log_name
from wal3_core.format.position import LogPosition
from wal3_core.log.write.columns import check_records
from wal3_core.log.write.writer import LogWriter, submit_columns
from wal3_core.options import WriterOptions
from wal3_core.runtime import Closing, Outcome, Runtime, shared_runtime
from wal3_core.runtime.loggers import WRITER
from wal3_core.store.object_store import ObjectStore, a_store, log_store, share_of
from wal3_core.workers import Share

if TYPE_CHECKING:
    _Batch = list[tuple[Marker, Outcome[None]]]

# Lanes of a server: on S3 a marker waits some 4 ms for a free lane on average, a twentieth of what an append takes.
LANES_MAX = 12
# The time between batches, at least: on a fast store one lane is enough, and more would only cost requests.
_APART_S = 0.005
# Markers that come within this share of a commit's duration are appended together.
_LINGER_SHARE = 0.05
_LINGER_S_MAX = 0.002
# A share's name, in place of a store: outcomes of markers share workers only with each other.
_MARKS = "marks"
# The pause before another lane is tried, after one that could not be opened.
_OPEN_AGAIN_S = 5.0


@dataclass(slots=True, eq=False)
class _Lane:
    """One of a server's dirty logs, with at most one batch under way."""

    writer: LogWriter
    batch: _Batch = field(default_factory=list)


class DirtyLog(Closing):
    """Marks the logs that a server writes. Safe to share between threads; close it, or use it as a context manager.

    One for each server process. Pass it as ``marks`` to the writers that the process opens, and close it after them.
    Its markers lie in the log ``dirty/SERVER`` and, on a busy server, in up to ``lanes_max - 1`` logs below that.
    Two processes that share a server's name lose no marker, but slow each other down.
    """

    def __init__(
        self, store: ObjectStore, name: str, open_lane: Callable[[int], LogWriter], lanes_max: int, runtime: Runtime
    ) -> None:
        self.name = name
        self._open_lane = open_lane
        self._lanes_max = lanes_max
        self._runtime = runtime
        self._lock = runtime.lock()
        self._waiting: _Batch = []
        self._lanes = [_Lane(open_lane(0))]
        self._share = share_of(log_store(store, name))
        # The numbers of further lanes: those below this one have been tried, and some of them could not be opened.
        self._untried = 1
        self._unopened: deque[int] = deque()
        self._open_again_s = 0.0
        self._opening = self._timed = False
        self._sent_s = 0.0
        # Why no marker is taken any more.
        self._refusal: LogError | None = None

    @classmethod
    @checked(store=a_store, server=text, lanes_max=integer, options=optional(instance_of(WriterOptions)))
    def open_or_create(
        cls,
        store: ObjectStore,
        server: str,
        *,
        lanes_max: int = LANES_MAX,
        options: WriterOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open the dirty log of a server, ``dirty/SERVER``, creating it first when it does not exist."""
        if "/" in server:
            raise InvalidRequestError(f"server: expected a name without /, found {server[:80]!r}")
        name, runtime = check_log_name(f"{DIRTY}/{server}", "dirty log"), runtime or shared_runtime()
        if lanes_max < 1:
            raise InvalidRequestError(f"lanes_max: expected at least 1, found {lanes_max}")

        def open_lane(number: int) -> LogWriter:
            lane = f"{name}/{number}" if number else name
            return LogWriter.open_or_create(store, lane, options=options, runtime=runtime)

        return cls(store, name, open_lane, lanes_max, runtime)

    @checked(marker=instance_of(Marker))
    def mark(self, marker: Marker) -> Future[None]:
        """Append a marker, together with those of other logs; the future is done when it is durable.

        It gets the error of the append if that fails. Never blocks.
        """
        self._runtime.check_process()
        outcome: Outcome[None] = Outcome()
        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._waiting.append((marker, outcome))
        if refusal is None:
            self._go_on()
        else:
            outcome.set_exception(copy.copy(refusal))
        return outcome

    @property
    def lanes(self) -> int:
        """How many logs the markers go to."""
        return len(self._lanes)

    def flush(self) -> None:
        """Block until every marker so far has its outcome."""
        self._runtime.check_process()
        with self._lock:
            outcomes = [outcome for _, outcome in chain(self._waiting, *(lane.batch for lane in self._lanes))]
        for outcome in outcomes:
            with contextlib.suppress(LogError):
                self._runtime.wait(outcome)

    def close(self) -> None:
        """Take no more markers, and block until those so far have their outcome."""
        # Before the lock, which a thread of the parent may have held when this process was forked.
        self._runtime.check_process()
        with self._lock:
            self._refusal = self._refusal or ClosedError(f"dirty log {self.name}: expected it open, found it closed")
        self.flush()
        for lane in self._lanes:
            lane.writer.close()

    # ------------------------------------------------------------------ batches

    def _go_on(self) -> None:
        """Have the waiting markers sent as soon as a lane is free, and a lane opened if none is."""
        with self._lock:
            if not self._waiting or self._timed:
                return
            free = self._free()
            number = None if free is not None else self._next_lane()
            self._timed = free is not None
            self._opening = self._opening or number is not None
        if number is not None:
            self._runtime.spawn(partial(self._add_lane, number), share=self._share)
        if free is None:
            return
        try:
            linger_s = min(_LINGER_S_MAX, _LINGER_SHARE * free.writer.stats().commit_s)
            wait_s = max(linger_s, self._sent_s + _APART_S - self._runtime.monotonic_s())
            self._runtime.call_later(wait_s, self._send, share=self._share)
        except BaseException:
            # No timer was set: what waits is sent with the next marker.
            with self._lock:
                self._timed = False
            raise

    def _free(self) -> _Lane | None:
        return next((lane for lane in self._lanes if not lane.batch), None)

    def _next_lane(self) -> int | None:
        """Take the number of a lane to open, one that was not tried before if there is one; None for none now."""
        if self._opening or self._runtime.monotonic_s() < self._open_again_s:
            return None
        if self._untried < self._lanes_max:
            self._untried += 1
            return self._untried - 1
        return self._unopened.popleft() if self._unopened else None

    def _add_lane(self, number: int) -> None:
        lane = None
        try:
            lane = _Lane(self._open_lane(number))
        except LogError as error:
            WRITER.warning("dirty log %s: no further lane: %s", self.name, error)
        finally:
            with self._lock:
                self._opening = False
                if lane is None:
                    self._unopened.append(number)
                    self._open_again_s = self._runtime.monotonic_s() + _OPEN_AGAIN_S
                else:
                    self._lanes.append(lane)
        self._go_on()

    def _send(self) -> None:
        with self._lock:
            self._timed = False
            lane = self._free()
            if lane is None or not self._waiting:
                return
            count_max = lane.writer.options.batch_records_max
            batch, self._waiting = self._waiting[:count_max], self._waiting[count_max:]
            lane.batch = batch
            self._sent_s = self._runtime.monotonic_s()
        try:
            columns = check_records([marker.to_message() for marker, _ in batch], lane.writer.options)
            # Not blocking: the worker that runs this may be needed to make room.
            submit_columns(lane.writer, columns, partial(self._sent, lane, batch), timeout_s=0)
        except BaseException as error:
            self._end(lane, batch, error)
            if not isinstance(error, LogError):
                raise
        self._go_on()

    def _sent(self, lane: _Lane, batch: _Batch, future: Future[LogPosition]) -> None:
        # In a share of its own: appends wait for their marks, and callbacks of callers may wait for these appends.
        self._runtime.spawn(partial(self._end, lane, batch, future.exception()), share=Share(_MARKS, self.name))

    def _end(self, lane: _Lane, batch: _Batch, error: BaseException | None) -> None:
        with self._lock:
            if lane.batch is not batch:
                # An error of the call ended it before.
                return
            lane.batch = []
            if isinstance(error, LogError) and ends_writer(error):
                self._lanes.remove(lane)
                # Certainly not marked there: another lane takes them. Without one, none would ever send what waits.
                batch, self._waiting = batch + self._waiting, []
                if self._lanes:
                    batch, self._waiting = [], batch
                else:
                    self._refusal = self._refusal or error
        for _, outcome in batch:
            if error is None:
                outcome.set_result(None)
            else:
                # Each append raises its own copy: raising one adds to its traceback.
                outcome.set_exception(copy.copy(error))
        self._go_on()


@checked(store=a_store)
def dirty_logs(store: ObjectStore) -> list[str]:
    """List the dirty logs of a store, in the order of their names: one listing for each of them, and one more."""
    return sorted(log for log in list_logs(store, DIRTY) if log != DIRTY)


@checked(dirty_logs=several, compactors=several)
def assigned(dirty_logs: Iterable[str], compactors: Iterable[str]) -> dict[str, list[str]]:
    """Assign each dirty log to one compactor; return each compactor's dirty logs.

    Rendezvous hashing: the same in every process, whatever the order of the names. One compactor more, or less, moves
    only the dirty logs that it takes, or had. InvalidRequestError when there is no compactor.
    """
    known = sorted(set(compactors))
    if not known:
        raise InvalidRequestError("compactors: expected at least one, found none")
    mine: dict[str, list[str]] = {compactor: [] for compactor in known}
    for log in sorted(set(dirty_logs)):
        mine[max(known, key=lambda compactor: _weight(compactor, log))].append(log)
    return mine


def _weight(compactor: str, log: str) -> bytes:
    # The length separates the two names: no other pair has the same bytes.
    return hashlib.sha256(f"{len(compactor)}:{compactor}{log}".encode()).digest()
