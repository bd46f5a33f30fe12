"""Writing to many logs of a store from one process: logs are opened when they are used, and closed for others.

All logs share the process's workers, which take turns by log, and one dirty log. Source: docs/fleet.md.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, integer, optional, seconds, several, text
from wal3_core.errors import (
    ClosedError,
    InvalidRequestError,
    LogError,
    OverloadedError,
    UnknownDurabilityError,
    UnmarkedError,
)
from wal3_core.fleet.dirty.back_pressure import BackPressure
from wal3_core.fleet.dirty.dirty_log import DirtyLog
from wal3_core.fleet.outcomes import ends_writer
from wal3_core.format.paths import DIRTY, check_log_name, is_dirty_log
from wal3_core.format.position import LogPosition
from wal3_core.format.record import Message
from wal3_core.log.write.columns import a_table, check_records, check_table, one_record
from wal3_core.log.write.writer import LogWriter, num_offsets_held, result_of, submit_columns
from wal3_core.options import FleetOptions
from wal3_core.runtime import Closing, Outcome, Runtime, reentered, shared_runtime
from wal3_core.store.object_store import ObjectStore, a_store, log_store, share_of

if TYPE_CHECKING:
    from wal3_core.log.write.columns import Columns, Rows


@dataclass(slots=True, eq=False)
class Slot:
    """The place of one log: open once ``opened`` has its writer; ``opening`` once a worker is at it.

    ``users`` counts the callers that use it just now or hold it open; ``appends`` those without an outcome.
    """

    log: str
    opened: Outcome[LogWriter] = field(default_factory=Outcome)
    opening: bool = False
    users: int = 1
    appends: int = 0

    @property
    def idle(self) -> bool:
        """Whether it may be closed."""
        return not self.users and not self.appends and self.opened.done()


@dataclass(slots=True, eq=False)
class Use:
    """What one caller has counted: a user of ``slot``, and ``num_bytes`` of an append there.

    A caller may be interrupted wherever it calls something. So a count and its entry here change together, without a
    call between them, and taking a count back does nothing if that is done already.
    """

    slot: Slot | None = None
    used: bool = False
    num_bytes: int | None = None


class OpenLogs:
    """The open logs of a fleet, within its limits. Safe to share between threads."""

    def __init__(
        self, store: ObjectStore, open_writer: Callable[[str], LogWriter], options: FleetOptions, runtime: Runtime
    ) -> None:
        self._store = store
        self._open_writer = open_writer
        self._options = options
        self._runtime = runtime
        self.lock = runtime.lock()
        # All slots are guarded by the lock.
        self._slots: dict[str, Slot] = {}
        # Those that may be closed, in the order in which their last work ended.
        self._idle: OrderedDict[str, Slot] = OrderedDict()
        # Removed ones with work under way.
        self._removed: set[Slot] = set()
        # Callers that wait for room.
        self._waiting: list[Outcome[None]] = []
        self.bytes_held = self.appends = self.appends_failed = self.opened = self.closed_for_others = 0
        self._closed = False

    def check_reentry(self) -> None:
        """Refuse a call that interrupts another one of the same thread, and could only wait for it."""
        self._runtime.check_process()
        if self.lock.owned():
            raise reentered(f"fleet of {self._store.url}")

    def close(self) -> list[Slot]:
        """Refuse all calls from now on; return the slots."""
        with self.lock:
            self._closed = True
            slots = list(self)
        self._wake()
        return slots

    # ------------------------------------------------------------------ slots

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        """Iterate over the slots, and over those removed that still have work under way."""
        return chain(self._slots.values(), self._removed)

    def take(self, log: str, use: Use, until_s: float | None) -> LogWriter:
        """Use a log's slot, and return its writer; opens it first if need be. To be left, whatever comes of it."""
        while (room := self._use(log, use)) is not None:
            self._await_room(room, log, until_s, f"room within {self._options.logs_open_max} open logs")
        assert use.slot is not None
        try:
            return self._runtime.wait(use.slot.opened, self.left_s(until_s))
        except TimeoutError:
            raise self._overloaded(log, "the log to be opened in time") from None
        except LogError as error:
            # Each caller raises its own: raising one adds to its traceback.
            raise copy.copy(error) from error.__cause__

    def leave(self, use: Use) -> None:
        """Count one user of a slot less. May be repeated."""
        try:
            self._leave(use)
        except BaseException:
            # Interrupted: others would wait for ever for what it still counts.
            self._leave(use)
            raise

    def _leave(self, use: Use) -> None:
        slot = use.slot
        if slot is None:
            return
        with self.lock:
            if use.used:
                slot.users -= 1
                use.used = False
            self._changed(slot)
        if not slot.opening:
            # The caller was interrupted, perhaps before it asked a worker for that; others may wait for the log.
            self._ask_to_open(slot)
        self._wake()

    def _use(self, log: str, use: Use) -> Outcome[None] | None:
        """Count one more user of a log's slot, which is being opened if it is new; or return what to wait for first."""
        with self.lock:
            self._check_open()
            slot = self._slots.get(log)
            if slot is not None:
                slot.users += 1
                use.slot, use.used = slot, True
                self._idle.pop(log, None)
                return None
            if len(self._slots) >= self._options.logs_open_max:
                if not self._idle:
                    return self._wait_for_room()
                # An open writer without appends has no thread and no request: there is nothing else to close.
                oldest, _ = self._idle.popitem(last=False)
                del self._slots[oldest]
                self.closed_for_others += 1
            slot = Slot(log)
            self._slots[log] = slot
            use.slot, use.used = slot, True
        self._ask_to_open(slot)
        return None

    def _changed(self, slot: Slot) -> None:
        """Record that a slot may be idle now. Called with the lock, as ``_remove``."""
        if not slot.idle:
            return
        self._removed.discard(slot)
        if self._slots.get(slot.log) is slot:
            self._idle[slot.log] = slot

    def _remove(self, slot: Slot) -> None:
        """Remove a slot: the log is opened again at its next use."""
        if self._slots.get(slot.log) is slot:
            del self._slots[slot.log]
            self._idle.pop(slot.log, None)
            if not slot.idle:
                self._removed.add(slot)

    def _ask_to_open(self, slot: Slot) -> None:
        # By a worker: a caller may give up waiting, or be interrupted, while others wait for the same log.
        self._runtime.spawn(partial(self._open, slot), share=share_of(log_store(self._store, slot.log)))

    def _open(self, slot: Slot) -> None:
        with self.lock:
            begun, slot.opening = slot.opening, True
        if begun:
            return
        try:
            writer = self._open_writer(slot.log)
        except BaseException as error:  # noqa: BLE001 - every caller that waits for it raises it
            slot.opened.set_exception(error)
            with self.lock:
                self._remove(slot)
        else:
            slot.opened.set_result(writer)
            with self.lock:
                self.opened += 1
                # Those that asked for it may have given up.
                self._changed(slot)
        self._wake()

    # ------------------------------------------------------------------ room

    def begin(self, use: Use, num_bytes: int, until_s: float | None) -> None:
        """Wait until there is room for an append of so many bytes, and count it. To be ended, whatever comes of it."""
        slot = use.slot
        assert slot is not None
        while True:
            with self.lock:
                self._check_open()
                # A fleet that holds nothing accepts an append of any size.
                if not self.bytes_held or self.bytes_held + num_bytes <= self._options.bytes_held_max:
                    self.bytes_held += num_bytes
                    slot.appends += 1
                    use.num_bytes = num_bytes
                    return
                room = self._wait_for_room()
            self._await_room(room, slot.log, until_s, f"room within {self._options.bytes_held_max} bytes")

    def end(self, use: Use, error: BaseException | None) -> None:
        """Count an append that has its outcome, or was not accepted. May be repeated."""
        try:
            self._end(use, error)
        except BaseException:
            self._end(use, error)
            raise

    def _end(self, use: Use, error: BaseException | None) -> None:
        slot = use.slot
        if slot is None:
            return
        with self.lock:
            if use.num_bytes is not None:
                slot.appends -= 1
                self.bytes_held -= use.num_bytes
                self.appends += error is None
                self.appends_failed += error is not None
                use.num_bytes = None
            self._changed(slot)
            if ends_writer(error):
                # The next append opens the log that has the name now.
                self._remove(slot)
        self._wake()

    def left_s(self, until_s: float | None) -> float | None:
        """Return how many seconds are left until a time of the monotonic clock."""
        return None if until_s is None else max(0.0, until_s - self._runtime.monotonic_s())

    def _wait_for_room(self) -> Outcome[None]:
        room: Outcome[None] = Outcome()
        self._waiting.append(room)
        return room

    def _wake(self) -> None:
        """Let the callers look again that wait for room."""
        if not self._waiting:
            return
        with self.lock:
            for room in self._waiting:
                room.set_or_rouse()
            self._waiting.clear()

    def _await_room(self, room: Outcome[None], log: str, until_s: float | None, what: str) -> None:
        try:
            self._runtime.wait(room, self.left_s(until_s))
        except TimeoutError:
            raise self._overloaded(log, what) from None

    def _overloaded(self, log: str, what: str) -> OverloadedError:
        with self.lock:
            working = sum(slot.appends > 0 for slot in self)
        return OverloadedError(
            f"log {log}: expected {what}, found {working} logs at work with {self.bytes_held} bytes: the append was"
            f" not begun"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"fleet of {self._store.url}: expected it open, found it closed")


# ---------------------------------------------------------------------- appends


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats:
    """A fleet at one moment; counts start when it was opened.

    ``logs_open`` are open, ``logs_working`` of them have appends without an outcome. ``appends_waiting`` and
    ``bytes_held`` (roughly, in memory) are those appends; ``appends`` counts the durable ones, ``appends_failed`` every
    append with an error. ``logs_opened`` and ``logs_closed`` count openings, and closings for other logs.
    ``dirty_logs`` is how many logs the markers go to. ``logs_refused`` have more unprocessed records than they may:
    their appends are refused.
    """

    logs_open: int
    logs_working: int
    appends_waiting: int
    bytes_held: int
    appends: int
    appends_failed: int
    logs_opened: int
    logs_closed: int
    dirty_logs: int
    logs_refused: int


def _check_written(log: object, what: str) -> str:
    """Check the name of a log to write. Names may come from a fleet's users: none of them is a dirty log's.

    A record there that is no marker would stop the roll-ups of all logs that are marked beside it.
    """
    name = check_log_name(log, what)
    if is_dirty_log(name):
        raise InvalidRequestError(f"{what} {name!r}: expected none below {DIRTY}/, where servers mark what they append")
    return name


# An append that takes longer is waited for as one whose store may hang.
_PROMPT_S = 5.0


class Fleet(Closing):
    """Appends to any number of logs of one store.

    Safe to share between threads; close it, or use it as a context manager. An open log that is not written makes no
    requests. A callback of an append's future may make any call, and wait for it, as one of a ``LogWriter``. After an
    append that finds its log sealed, destroyed or replaced, the next one opens the log again that has the name then.
    """

    def __init__(self, store: ObjectStore, dirty_log: DirtyLog | None, options: FleetOptions, runtime: Runtime) -> None:
        open_log = LogWriter.open_or_create if options.creates else LogWriter.open
        open_writer = partial(open_log, store, options=options.writer, runtime=runtime, marks=dirty_log)
        self._logs = OpenLogs(store, open_writer, options, runtime)
        self._pressure = BackPressure(store, options, runtime, self._logs.lock)
        self._options = options
        self._dirty_log = dirty_log
        self._runtime = runtime
        # Outcomes that callers wait for.
        self._under_way: set[Outcome[LogPosition]] = set()

    @classmethod
    @checked(store=a_store, server=optional(text), options=optional(instance_of(FleetOptions)))
    def open(
        cls,
        store: ObjectStore,
        *,
        server: str | None = None,
        options: FleetOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a fleet. With the name of this server its appends are marked in ``dirty/SERVER``, for maintenance."""
        runtime, options = runtime or shared_runtime(), options or FleetOptions()
        dirty_log = None if server is None else DirtyLog.open_or_create(store, server, runtime=runtime)
        return cls(store, dirty_log, options, runtime)

    @checked(log=_check_written)
    def append(
        self, log: str, body: bytes | None, *, key: bytes | None = None, expect_next: int | None = None
    ) -> LogPosition:
        """Append one record to a log and block until it is durable; arguments and errors as ``LogWriter.append``.

        LogNotFoundError when there is no log of that name, unless the options say ``creates``. BackPressureError when
        the log's consumers are too far behind.
        """
        return self._outcome(log, self.submit(log, body, key=key, expect_next=expect_next))

    @checked(log=_check_written, records=several)
    def append_many(
        self, log: str, records: Iterable[bytes | Message], *, expect_next: int | None = None
    ) -> LogPosition:
        """Append records to a log at adjacent offsets, all or none; return the first one's position."""
        return self._outcome(log, self.submit_many(log, records, expect_next=expect_next))

    @checked(log=_check_written, table=a_table)
    def append_table(self, log: str, table: Rows, *, expect_next: int | None = None) -> LogPosition:
        """Append the rows of an Arrow table to a log, as ``LogWriter.append_table``."""
        return self._outcome(log, self.submit_table(log, table, expect_next=expect_next))

    @checked(log=_check_written, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit(
        self,
        log: str,
        body: bytes | None,
        *,
        key: bytes | None = None,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue one record for a log; the future gets what ``append`` returns or raises.

        Blocks while the log is opened, and while there is no room within ``bytes_held_max`` or
        ``logs_open_max``; for ``timeout_s`` seconds at most, then raises OverloadedError and the record is certainly
        not in the log. Raises BackPressureError at once when the log's consumers are too far behind.
        """
        self._logs.check_reentry()
        return self._submit(log, one_record(body, key, self._options.writer), expect_next, timeout_s)

    @checked(log=_check_written, records=several, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit_many(
        self,
        log: str,
        records: Iterable[bytes | Message],
        *,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue records for a log that stay together; the future gets what ``append_many`` returns or raises."""
        self._logs.check_reentry()
        # Also bounds what is taken from an iterable without an end.
        return self._submit(log, check_records(records, self._options.writer), expect_next, timeout_s)

    @checked(log=_check_written, table=a_table, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit_table(
        self, log: str, table: Rows, *, expect_next: int | None = None, timeout_s: float | None = None
    ) -> Future[LogPosition]:
        """Queue the rows of a table for a log; the future gets what ``append_table`` returns or raises."""
        self._logs.check_reentry()
        return self._submit(log, check_table(table, self._options.writer), expect_next, timeout_s)

    def _submit(
        self, log: str, columns: Columns, expect_next: int | None, timeout_s: float | None
    ) -> Future[LogPosition]:
        until_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        self._pressure.refuse(log)
        use = Use()
        outcome: Outcome[LogPosition] = Outcome()
        try:
            writer = self._logs.take(log, use, until_s)
            self._logs.begin(use, columns.bytes_held, until_s)
            self._under_way.add(outcome)
            # Not by a callback: those of other appends may wait for this outcome.
            on_complete = partial(self._ended, use, columns, outcome)
            submit_columns(writer, columns, on_complete, expect_next=expect_next, timeout_s=self._logs.left_s(until_s))
        except BaseException as error:
            # The caller never gets it, but ``flush`` may wait for it.
            self._pass_on(outcome, LogError(f"log {log}: the caller was interrupted"))
            self._logs.end(use, error)
            raise
        finally:
            self._logs.leave(use)
        return outcome

    def _outcome(self, log: str, future: Future[LogPosition]) -> LogPosition:
        """Wait as the log's writer does; a log that was closed for others has no append under way."""
        # Nearly all have their outcomes by then.
        with contextlib.suppress(TimeoutError):
            return self._runtime.wait(future, _PROMPT_S)
        with self._logs.lock:
            slot = next((slot for slot in self._logs if slot.log == log), None)
        if slot is None or not slot.opened.done() or slot.opened.exception() is not None:
            return self._runtime.wait(future)
        return result_of(slot.opened.result(), future)

    def _ended(self, use: Use, columns: Columns, outcome: Outcome[LogPosition], done: Future[LogPosition]) -> None:
        """Pass an outcome on once it is counted: a caller that knows it finds a log that is over opened again."""
        error = done.exception()
        try:
            self._logs.end(use, error)
            if use.slot is not None and (error is None or isinstance(error, UnmarkedError)):
                held = partial(num_offsets_held, use.slot.opened.result())
                self._pressure.appended(use.slot.log, held, columns.num_records)
        finally:
            self._pass_on(outcome, error or done.result())

    def _pass_on(self, outcome: Outcome[LogPosition], found: LogPosition | BaseException) -> None:
        # That of an interrupted caller is set already.
        with contextlib.suppress(InvalidStateError):
            if isinstance(found, BaseException):
                outcome.set_exception(found)
            else:
                outcome.set_result(found)
        self._under_way.discard(outcome)

    @checked(log=_check_written)
    def writer(self, log: str) -> HeldWriter:
        """Return a log's writer, opened now and kept open until it is closed; it is shared with all other users."""
        self._logs.check_reentry()
        use = Use()
        try:
            self._logs.take(log, use, None)
            return HeldWriter(self, log, partial(self._logs.leave, use))
        except BaseException:
            self._logs.leave(use)
            raise

    def stats(self) -> FleetStats:
        """Return what is open and waits, and the counts so far. Cheap; from any thread."""
        self._runtime.check_process()
        with self._logs.lock:
            working = [slot.appends for slot in self._logs if slot.appends]
            return FleetStats(
                logs_open=len(self._logs),
                logs_working=len(working),
                appends_waiting=sum(working),
                bytes_held=self._logs.bytes_held,
                appends=self._logs.appends,
                appends_failed=self._logs.appends_failed,
                logs_opened=self._logs.opened,
                logs_closed=self._logs.closed_for_others,
                dirty_logs=0 if self._dirty_log is None else self._dirty_log.lanes,
                logs_refused=self._pressure.num_refused(),
            )

    def flush(self) -> None:
        """Block until everything submitted so far has its outcome."""
        self._logs.check_reentry()
        with self._logs.lock:
            slots = [slot for slot in self._logs if slot.appends]
        under_way = tuple(self._under_way)
        for slot in slots:
            slot.opened.result().flush()
        self._await(under_way)

    def close(self) -> None:
        """Accept no more appends, and block until those submitted have their outcome."""
        self._logs.check_reentry()
        self._pressure.close()
        hung: UnknownDurabilityError | None = None
        for slot in self._logs.close():
            try:
                self._runtime.wait(slot.opened).close()
            except UnknownDurabilityError as error:
                # A call of the store does not return: the others are closed first.
                hung = hung or error
            except LogError:
                # One that cannot be opened has nothing to wait for.
                continue
        if hung is not None:
            raise hung
        self._await(tuple(self._under_way))
        if self._dirty_log is not None:
            self._dirty_log.close()

    def _await(self, outcomes: tuple[Outcome[LogPosition], ...]) -> None:
        for outcome in outcomes:
            with contextlib.suppress(LogError):
                self._runtime.wait(outcome)


class HeldWriter(Closing):
    """One log's writer, kept open by its fleet until this is closed. Its limits are those of the fleet."""

    def __init__(self, fleet: Fleet, log: str, leave: Callable[[], None]) -> None:
        self.log = log
        self.append = partial(fleet.append, log)
        self.append_many = partial(fleet.append_many, log)
        self.append_table = partial(fleet.append_table, log)
        self.submit = partial(fleet.submit, log)
        self.submit_many = partial(fleet.submit_many, log)
        self.submit_table = partial(fleet.submit_table, log)
        self._check_reentry = fleet._logs.check_reentry  # noqa: SLF001 - of this module
        self._leave = leave

    def close(self) -> None:
        """Let the fleet close the log for others; appends under way are not affected."""
        self._check_reentry()
        self._leave()
