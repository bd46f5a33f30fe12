"""The logs that a fleet has open, and what its callers wait for: a log to be opened, and room for more."""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING

from wal3_core.errors import ClosedError, LogError, OverloadedError
from wal3_core.fleet.slots import Slot, Slots, Use
from wal3_core.fleet.writers import ends_writer
from wal3_core.log.write.writer import LogWriter
from wal3_core.runtime import Outcome, Runtime, reentered
from wal3_core.storage.object_store import log_store, share_of

if TYPE_CHECKING:
    from wal3_core.fleet.dirty_log import DirtyLog
    from wal3_core.fleet.fleet_options import FleetOptions
    from wal3_core.storage.object_store import ObjectStore


class OpenLogs:
    """The open logs of a fleet, within its limits. Safe to share between threads."""

    def __init__(self, store: ObjectStore, marks: DirtyLog | None, options: FleetOptions, runtime: Runtime) -> None:
        self._store = store
        self._marks = marks
        self._options = options
        self._runtime = runtime
        self.lock = runtime.lock()
        self.slots = Slots(options.logs_open_max)
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
            slots = list(self.slots)
        self._wake()
        return slots

    # ------------------------------------------------------------------ slots

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
            self.slots.leave(use)
        if not slot.opening:
            # The caller was interrupted, perhaps before it asked a worker for that; others may wait for the log.
            self._ask_to_open(slot)
        self._wake()

    def _use(self, log: str, use: Use) -> Outcome[None] | None:
        """Count one more user of a log's slot, which is being opened if it is new; or return what to wait for first."""
        with self.lock:
            self._check_open()
            if self.slots.use(log, use):
                return None
            if self.slots.full:
                if not self.slots.close_oldest():
                    return self._wait_for_room()
                self.closed_for_others += 1
            self.slots.add(log, use)
        assert use.slot is not None
        self._ask_to_open(use.slot)
        return None

    def _ask_to_open(self, slot: Slot) -> None:
        # By a worker: a caller may give up waiting, or be interrupted, while others wait for the same log.
        self._runtime.spawn(partial(self._open, slot), share=share_of(log_store(self._store, slot.log)))

    def _open(self, slot: Slot) -> None:
        with self.lock:
            begun, slot.opening = slot.opening, True
        if begun:
            return
        open_writer = LogWriter.open_or_initialize if self._options.creates else LogWriter.open
        options, runtime = self._options.writer, self._runtime
        try:
            writer = open_writer(self._store, slot.log, options=options, runtime=runtime, marks=self._marks)
        except BaseException as error:  # noqa: BLE001 - every caller that waits for it raises it
            slot.opened.set_exception(error)
            with self.lock:
                self.slots.remove(slot)
        else:
            slot.opened.set_result(writer)
            with self.lock:
                self.opened += 1
                # Those that asked for it may have given up.
                self.slots.changed(slot)
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
            # Interrupted, as in ``leave``.
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
            self.slots.changed(slot)
            if ends_writer(error):
                # The next append opens the log that has the name now.
                self.slots.remove(slot)
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
            working = sum(slot.appends > 0 for slot in self.slots)
        return OverloadedError(
            f"log {log}: expected {what}, found {working} logs at work with {self.bytes_held} bytes: the append was"
            f" not begun"
        )

    def _check_open(self) -> None:
        if self._closed:
            message = f"fleet of {self._store.url}: expected it open, found it closed"
            raise ClosedError(message)
