"""Refuses the appends of a fleet to logs whose consumers are too far behind, and finds out in the background.

An append only looks whether its log is refused: checks are made by workers, after appends have their outcome, and
their cost follows what is written. A check that fails refuses nothing. Source: docs/fleet.md, "Back-pressure".
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

from wal3_core.errors import BackPressureError, LogError, LogNotFoundError, LogReplacedError
from wal3_core.fleet.pressure import measure
from wal3_core.log.write.writer import num_offsets_held
from wal3_core.model.policy import UNPROCESSED_MIN
from wal3_core.options import RetryOptions
from wal3_core.runtime.loggers import WRITER, Seldom
from wal3_core.storage.object_store import share_of

if TYPE_CHECKING:
    from wal3_core.fleet.fleet_options import FleetOptions
    from wal3_core.log.write.writer import LogWriter
    from wal3_core.model.pressure import Pressure
    from wal3_core.runtime import Lock, Runtime
    from wal3_core.storage.object_store import ObjectStore

# A log is checked when a fleet has appended this share of its limit since the last check; before its policy is known,
# or while it has no limit, after so many records at most.
_SHARE_OF_LIMIT = 4
_UNKNOWN_RECORDS = 10_000
# A log that is refused, and one whose check failed, is not checked again sooner.
_AGAIN_S = 5.0
# So long after a check it refuses appends: a check that cannot be repeated does not refuse them for ever.
_VALID_S = 60.0
# Checks under way at the same time: they leave most workers to appends.
_CHECKS_MAX = 4
# State is kept for so many times more logs than may be open: a log that is closed for others stays refused.
_KEPT_PER_OPEN = 4
# A check is repeated anyway.
_ONCE = RetryOptions(attempts_max=1)


class _Watched:
    """What is known of a log: ``due`` is after how many records it is checked, ``over`` why it is refused."""

    __slots__ = ("checked_s", "checking", "due", "not_before_s", "over", "records")

    def __init__(self, due: int, records: int) -> None:
        self.due = due
        self.records = records
        self.checking = False
        self.not_before_s = float("-inf")
        self.checked_s = float("-inf")
        self.over: Pressure | None = None


class BackPressure:
    """Which logs of a fleet are refused. Guarded by the fleet's lock, which is never held during a request."""

    def __init__(self, store: ObjectStore, options: FleetOptions, runtime: Runtime, lock: Lock) -> None:
        self._store = store
        self._unprocessed_max = options.unprocessed_max
        self._kept_max = _KEPT_PER_OPEN * options.logs_open_max
        self._runtime = runtime
        self._lock = lock
        self._share = share_of(store)
        self._watched: OrderedDict[str, _Watched] = OrderedDict()
        self._refused: dict[str, _Watched] = {}
        self._waiting: deque[str] = deque()
        self._running = 0
        self._closed = False
        self._refusals, self._failures = Seldom(runtime, WRITER), Seldom(runtime, WRITER)

    # ------------------------------------------------------------------ appends

    def refuse(self, log: str) -> None:
        """Raise BackPressureError while a log is over its limit; have it checked again from time to time."""
        if log not in self._refused:
            return
        with self._lock:
            watched = self._refused.get(log)
            over = None if watched is None else watched.over
            if watched is None or over is None:
                return
            self._watched.move_to_end(log)
            now_s = self._runtime.monotonic_s()
            valid = now_s < watched.checked_s + _VALID_S
            if not valid:
                self._accept(log, watched)
            begins = now_s >= watched.not_before_s and self._queue(log, watched)
        if begins:
            self._begin()
        if valid:
            self._runtime.observer.refused(log)
            raise _error(over)

    def appended(self, log: str, writer: LogWriter, num_records: int) -> None:
        """Count durable records, and have their log checked when it is due. From a worker; never raises a LogError."""
        with self._lock:
            watched = self._watched.get(log)
            if watched is None:
                watched = self._watch(log, writer)
            self._watched.move_to_end(log)
            watched.records += num_records
            is_due = watched.records >= watched.due and self._runtime.monotonic_s() >= watched.not_before_s
            begins = is_due and self._queue(log, watched)
        if begins:
            self._begin()

    def num_refused(self) -> int:
        """Count the logs that are refused. Called with the lock."""
        valid_s = self._runtime.monotonic_s() - _VALID_S
        return sum(watched.checked_s > valid_s for watched in self._refused.values())

    def close(self) -> None:
        """Begin no further check."""
        with self._lock:
            self._closed = True
            self._waiting.clear()

    def _watch(self, log: str, writer: LogWriter) -> _Watched:
        limit = self._unprocessed_max
        due = _UNKNOWN_RECORDS if limit is None else min(_UNKNOWN_RECORDS, limit // _SHARE_OF_LIMIT)
        # No more can be unprocessed than a log holds. Without a limit for all logs, few have one: no hurry.
        held = 0 if limit is None else num_offsets_held(writer)
        watched = self._watched[log] = _Watched(due, due if held >= UNPROCESSED_MIN else 0)
        while len(self._watched) > self._kept_max:
            oldest, _ = self._watched.popitem(last=False)
            self._refused.pop(oldest, None)
        return watched

    def _accept(self, log: str, watched: _Watched) -> None:
        self._refused.pop(log, None)
        watched.over = None

    # ------------------------------------------------------------------ checks

    def _queue(self, log: str, watched: _Watched) -> bool:
        """Have a log checked, unless it is about to be; return whether a worker is needed for that.

        A caller may be interrupted before it asks for one: then the next caller does.
        """
        if self._closed:
            return False
        if not watched.checking:
            watched.checking, watched.records = True, 0
            self._waiting.append(log)
        return bool(self._waiting) and self._running < _CHECKS_MAX

    def _begin(self) -> None:
        self._runtime.spawn(self._run, share=self._share)

    def _run(self) -> None:
        """Check the log that has waited longest, and let others take their turn before the next."""
        with self._lock:
            if not self._waiting or self._running >= _CHECKS_MAX:
                return
            log = self._waiting.popleft()
            self._running += 1
        try:
            self._check(log)
        finally:
            with self._lock:
                self._running -= 1
                more = bool(self._waiting)
            if more:
                self._begin()

    def _check(self, log: str) -> None:
        began_s, limit, found = self._runtime.monotonic_s(), self._unprocessed_max, None
        try:
            found = measure(self._store, log, unprocessed_max=limit, runtime=self._runtime, retry=_ONCE)
        except (LogNotFoundError, LogReplacedError):
            # Nothing is behind in a log that has just begun, or is gone.
            self._ended(log, began_s, None)
        except LogError as error:
            self._failed(log, began_s)
            self._failures.warn("log %s: not known how far its consumers are behind: %s", log, error)
        except BaseException:
            # Otherwise it would count as being checked for ever.
            self._failed(log, began_s)
            raise
        else:
            self._ended(log, began_s, found)

    def _failed(self, log: str, began_s: float) -> None:
        with self._lock:
            watched = self._watched.get(log)
            if watched is not None:
                watched.checking, watched.records = False, watched.due
                watched.not_before_s = began_s + _AGAIN_S

    def _ended(self, log: str, began_s: float, found: Pressure | None) -> None:
        with self._lock:
            watched = self._watched.get(log)
            if watched is None:
                return
            was_over, watched.checking = watched.over is not None, False
            # Also of a process that was suspended meanwhile: the answer is as old as the question.
            watched.checked_s, watched.not_before_s = began_s, began_s + _AGAIN_S
            over = None if found is None or not found.over else found
            if over is None:
                self._accept(log, watched)
                watched.not_before_s = began_s
            else:
                watched.over = over
                self._refused[log] = watched
            limit = None if found is None else found.limit
            watched.due = _UNKNOWN_RECORDS if limit is None else limit // _SHARE_OF_LIMIT
        if over is not None and not was_over:
            self._refusals.warn("appends are refused: %s", over.reason)
        elif was_over and over is None:
            WRITER.info("log %s: appends are accepted again", log)


def _error(over: Pressure) -> BackPressureError:
    assert over.limit is not None
    message = f"{over.reason}: the append was not begun; appends are accepted again once it has caught up"
    return BackPressureError(
        message, log=over.log, consumer=over.consumer or "", unprocessed=over.unprocessed, limit=over.limit
    )
