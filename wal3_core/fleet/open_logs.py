"""The logs that a fleet has open, and what its callers wait for: a log to be opened, and room for more."""

from __future__ import annotations

import copy
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from wal3_core.errors import ClosedError, LogError, OverloadedError
from wal3_core.fleet.outcomes import ends_writer
from wal3_core.format.policy import UNPROCESSED_MAX, UNPROCESSED_MIN
from wal3_core.options import MIB, Options, WriterOptions, within
from wal3_core.runtime import Outcome, Runtime, reentered
from wal3_core.store.object_store import log_store, share_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.log.write.writer import LogWriter
    from wal3_core.store.object_store import ObjectStore

_LOGS_MAX = 10**6
_HELD_BYTES_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions(Options):
    """How many logs a fleet has open, and how much it holds in memory.

    At most ``logs_open_max`` logs are open at a time, each of which takes some 45 KiB; of those without work, the one
    used least recently is closed for another. At most ``bytes_held_max`` bytes of appends of all logs together wait
    to become durable; callers wait for more. With ``creates``, a log that does not exist is created at its first
    append. ``writer`` has the limits of each log's writer.

    Appends to a log with more than ``unprocessed_max`` unprocessed records are refused with BackPressureError; a log's
    policy may set another limit. None: only logs whose policy has a limit are refused.
    """

    logs_open_max: int = field(default=5000, metadata=within(1, _LOGS_MAX))
    bytes_held_max: int = field(default=512 * MIB, metadata=within(1, _HELD_BYTES_MAX))
    creates: bool = False
    unprocessed_max: int | None = field(default=None, metadata=within(UNPROCESSED_MIN, UNPROCESSED_MAX))
    writer: WriterOptions = field(default_factory=WriterOptions)


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
            message = f"fleet of {self._store.url}: expected it open, found it closed"
            raise ClosedError(message)
