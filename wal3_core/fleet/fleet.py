"""Writing to many logs of a store from one process: logs are opened when they are used, and closed for others.

All logs share the process's workers, which take turns by log, and one dirty log. Source: docs/fleet.md.
"""

from __future__ import annotations

import contextlib
import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, integer, optional, seconds, several, text
from wal3_core.errors import ClosedError, LogError, LogReplacedError, OverloadedError
from wal3_core.fleet.dirty_log import DirtyLog
from wal3_core.fleet.fleet_options import FleetOptions
from wal3_core.fleet.slots import Slot, Slots
from wal3_core.log.write.writer import LogWriter
from wal3_core.model.paths import check_log_name
from wal3_core.model.record import Message
from wal3_core.runtime import Outcome, Runtime, a_runtime, reentered, shared_runtime
from wal3_core.storage.object_store import a_store, log_store, share_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from types import TracebackType

    from wal3_core.model.position import LogPosition
    from wal3_core.storage.object_store import ObjectStore

# Roughly what an append takes in memory beside its records.
_APPEND_BYTES = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStats:
    """A fleet at one moment; counts start when it was opened.

    ``logs_open`` are open, ``logs_working`` of them have appends without an outcome. ``appends_waiting`` and
    ``bytes_held`` (roughly, in memory) are those appends; ``appends`` counts the durable ones, ``appends_failed`` every
    append with an error. ``logs_opened`` and ``logs_closed`` count openings, and closings for other logs.
    ``dirty_logs`` is how many logs the markers go to.
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


class Fleet:
    """Appends to any number of logs of one store.

    Safe to share between threads; close it, or use it as a context manager. An open log that is not written makes no
    requests. A log that was destroyed, and created again, is opened anew by the append after the one that finds out.
    """

    def __init__(self, store: ObjectStore, dirty_log: DirtyLog | None, options: FleetOptions, runtime: Runtime) -> None:
        self._store = store
        self._dirty_log = dirty_log
        self._options = options
        self._runtime = runtime
        self._lock = runtime.lock()
        self._slots = Slots(options.logs_open_max)
        # Callers that wait for bytes, or for a slot.
        self._waiting: list[Outcome[None]] = []
        self._bytes_held = self._appends = self._failed = self._opened = self._closed_logs = 0
        self._closed = False

    @classmethod
    @checked(
        store=a_store,
        server=optional(text),
        options=optional(instance_of(FleetOptions)),
        runtime=optional(a_runtime),
    )
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
        dirty_log = None if server is None else DirtyLog.open(store, server, runtime=runtime)
        return cls(store, dirty_log, options, runtime)

    @checked(log=check_log_name)
    def append(
        self, log: str, body: bytes | None, *, key: bytes | None = None, expect_next: int | None = None
    ) -> LogPosition:
        """Append one record to a log and block until it is durable; arguments and errors as ``LogWriter.append``.

        LogNotFoundError when there is no log of that name, unless the options say ``creates``.
        """
        return self._runtime.wait(self.submit(log, body, key=key, expect_next=expect_next))

    @checked(log=check_log_name, records=several)
    def append_many(
        self, log: str, records: Iterable[bytes | Message], *, expect_next: int | None = None
    ) -> LogPosition:
        """Append records to a log at adjacent offsets, all or none; return the first one's position."""
        return self._runtime.wait(self.submit_many(log, records, expect_next=expect_next))

    @checked(log=check_log_name)
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
        not in the log.
        """
        return self.submit_many(log, (Message(body, key),), expect_next=expect_next, timeout_s=timeout_s)

    @checked(log=check_log_name, records=several, expect_next=optional(integer), timeout_s=optional(seconds))
    def submit_many(
        self,
        log: str,
        records: Iterable[bytes | Message],
        *,
        expect_next: int | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue records for a log that stay together; the future gets what ``append_many`` returns or raises."""
        self._check_reentry()
        until_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        listed = [record if isinstance(record, Message) else Message(record) for record in records]
        num_bytes = _APPEND_BYTES + sum(len(each.key or b"") + len(each.body or b"") for each in listed)
        slot = self._take(log, until_s)
        try:
            self._hold(num_bytes, log, until_s)
            with self._lock:
                slot.appends += 1
            try:
                writer = slot.opened.result()
                future = writer.submit_many(listed, expect_next=expect_next, timeout_s=self._left_s(until_s))
            except BaseException as error:
                self._end(slot, num_bytes, error)
                raise
        finally:
            self._leave(slot)
        future.add_done_callback(lambda done: self._end(slot, num_bytes, done.exception()))
        return future

    @checked(log=check_log_name)
    def writer(self, log: str) -> HeldWriter:
        """Return a log's writer, opened now and kept open until it is closed; it is shared with all other users."""
        self._check_reentry()
        return HeldWriter(self, self._take(log, None))

    def stats(self) -> FleetStats:
        """Return what is open and waits, and the counts so far. Cheap; from any thread."""
        self._runtime.check_process()
        with self._lock:
            working = [slot.appends for slot in self._slots if slot.appends]
            return FleetStats(
                logs_open=len(self._slots),
                logs_working=len(working),
                appends_waiting=sum(working),
                bytes_held=self._bytes_held,
                appends=self._appends,
                appends_failed=self._failed,
                logs_opened=self._opened,
                logs_closed=self._closed_logs,
                dirty_logs=0 if self._dirty_log is None else self._dirty_log.lanes,
            )

    def flush(self) -> None:
        """Block until everything submitted so far has its outcome."""
        self._check_reentry()
        with self._lock:
            slots = [slot for slot in self._slots if slot.appends]
        for slot in slots:
            with contextlib.suppress(LogError):
                slot.opened.result().flush()

    def close(self) -> None:
        """Accept no more appends, and block until those submitted have their outcome."""
        self._check_reentry()
        with self._lock:
            self._closed = True
            slots = list(self._slots)
        self._wake()
        for slot in slots:
            with contextlib.suppress(LogError):
                self._runtime.wait(slot.opened).close()
        if self._dirty_log is not None:
            self._dirty_log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ slots

    def _take(self, log: str, until_s: float | None) -> Slot:
        """Return a log's slot, open, for one more user; opens it first if need be."""
        while isinstance(slot := self._slot(log), Outcome):
            self._await_room(slot, log, until_s, f"room within {self._options.logs_open_max} open logs")
        try:
            self._runtime.wait(slot.opened, self._left_s(until_s))
        except TimeoutError:
            self._leave(slot)
            raise self._overloaded(log, "the log to be opened in time") from None
        except LogError as error:
            self._leave(slot)
            # Each caller raises its own: raising one adds to its traceback.
            raise copy.copy(error) from error.__cause__
        except BaseException:
            self._leave(slot)
            raise
        return slot

    def _slot(self, log: str) -> Slot | Outcome[None]:
        """Return a log's slot with one more user, being opened if it is new; or what to wait for first."""
        with self._lock:
            self._check_open()
            slot = self._slots.use(log)
            if slot is not None:
                return slot
            if self._slots.full:
                if not self._slots.close_oldest():
                    return self._wait_for_room()
                self._closed_logs += 1
            slot = self._slots.add(log)
        # By a worker: a caller may give up waiting, or be interrupted, while others wait for the same log.
        self._runtime.spawn(partial(self._open, slot), share=share_of(log_store(self._store, log)))
        return slot

    def _open(self, slot: Slot) -> None:
        open_writer = LogWriter.open_or_initialize if self._options.creates else LogWriter.open
        options, marks = self._options.writer, self._dirty_log
        try:
            writer = open_writer(self._store, slot.log, options=options, runtime=self._runtime, marks=marks)
        except BaseException as error:  # noqa: BLE001 - every caller that waits for it raises it
            slot.opened.set_exception(error)
            with self._lock:
                self._slots.remove(slot)
            self._wake()
            return
        slot.opened.set_result(writer)
        with self._lock:
            self._opened += 1
            # Those that asked for it may have given up.
            self._slots.changed(slot)
        self._wake()

    def _leave(self, slot: Slot) -> None:
        with self._lock:
            self._slots.leave(slot)
        self._wake()

    # ------------------------------------------------------------------ room

    def _hold(self, num_bytes: int, log: str, until_s: float | None) -> None:
        """Wait until there is room for so many bytes, and take it."""
        while True:
            with self._lock:
                self._check_open()
                # A fleet that holds nothing accepts an append of any size.
                if not self._bytes_held or self._bytes_held + num_bytes <= self._options.bytes_held_max:
                    self._bytes_held += num_bytes
                    return
                room = self._wait_for_room()
            self._await_room(room, log, until_s, f"room within {self._options.bytes_held_max} bytes")

    def _end(self, slot: Slot, num_bytes: int, error: BaseException | None) -> None:
        """Count an append that has its outcome, or was not accepted."""
        with self._lock:
            slot.appends -= 1
            self._slots.changed(slot)
            self._bytes_held -= num_bytes
            self._appends += error is None
            self._failed += error is not None
            if isinstance(error, LogReplacedError):
                # The next append opens the log that has the name now.
                self._slots.remove(slot)
        self._wake()

    def _wait_for_room(self) -> Outcome[None]:
        room: Outcome[None] = Outcome()
        self._waiting.append(room)
        return room

    def _wake(self) -> None:
        """Let the callers look again that wait for room."""
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for room in waiting:
            room.set_result(None)

    def _await_room(self, room: Outcome[None], log: str, until_s: float | None, what: str) -> None:
        try:
            self._runtime.wait(room, self._left_s(until_s))
        except TimeoutError:
            raise self._overloaded(log, what) from None

    def _left_s(self, until_s: float | None) -> float | None:
        return None if until_s is None else max(0.0, until_s - self._runtime.monotonic_s())

    def _overloaded(self, log: str, what: str) -> OverloadedError:
        stats = self.stats()
        return OverloadedError(
            f"log {log}: expected {what}, found {stats.logs_working} logs at work with {stats.bytes_held} bytes:"
            f" the append was not begun"
        )

    def _check_open(self) -> None:
        if self._closed:
            message = f"fleet of {self._store.url}: expected it open, found it closed"
            raise ClosedError(message)

    def _check_reentry(self) -> None:
        self._runtime.check_process()
        if self._lock.owned():
            raise reentered(f"fleet of {self._store.url}")


class HeldWriter:
    """One log's writer, kept open by its fleet until this is closed. Its limits are those of the fleet."""

    def __init__(self, fleet: Fleet, slot: Slot) -> None:
        self._fleet = fleet
        self._slot: Slot | None = slot
        self.log = slot.log
        self.append = partial(fleet.append, slot.log)
        self.append_many = partial(fleet.append_many, slot.log)
        self.submit = partial(fleet.submit, slot.log)
        self.submit_many = partial(fleet.submit_many, slot.log)

    def close(self) -> None:
        """Let the fleet close the log for others; appends under way are not affected."""
        slot, self._slot = self._slot, None
        if slot is not None:
            self._fleet._leave(slot)  # noqa: SLF001 - a part of the fleet

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
