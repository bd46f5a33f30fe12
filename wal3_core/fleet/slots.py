"""The open logs of a fleet: which are open, in order of their use, and how much each has under way."""

from __future__ import annotations

from collections import OrderedDict
from itertools import chain
from typing import TYPE_CHECKING

from wal3_core.runtime import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.log.write.writer import LogWriter


class Slot:
    """The place of one log: open once ``opened`` has its writer; ``opening`` once a worker is at it.

    ``users`` counts the callers that use it just now or hold it open; ``appends`` those without an outcome.
    """

    __slots__ = ("appends", "log", "opened", "opening", "users")

    def __init__(self, log: str) -> None:
        self.log = log
        self.opened: Outcome[LogWriter] = Outcome()
        self.opening = False
        self.users = 1
        self.appends = 0

    @property
    def idle(self) -> bool:
        """Whether it may be closed."""
        return not self.users and not self.appends and self.opened.done()


class Use:
    """What one caller has counted: a user of ``slot``, and ``num_bytes`` of an append there.

    A caller may be interrupted wherever it calls something. So a count and its entry here change together, without a
    call between them, and taking a count back does nothing if that is done already.
    """

    __slots__ = ("num_bytes", "slot", "used")

    def __init__(self) -> None:
        self.slot: Slot | None = None
        self.used = False
        self.num_bytes: int | None = None


class Slots:
    """The slots of a fleet. Guarded by the fleet's lock."""

    def __init__(self, logs_open_max: int) -> None:
        self._logs_open_max = logs_open_max
        self._slots: dict[str, Slot] = {}
        # Those that may be closed, in the order in which their last work ended.
        self._idle: OrderedDict[str, Slot] = OrderedDict()
        # Removed ones with work under way.
        self._removed: set[Slot] = set()

    def __len__(self) -> int:
        return len(self._slots)

    def __iter__(self) -> Iterator[Slot]:
        """Iterate over the slots, and over those removed that still have work under way."""
        return chain(self._slots.values(), self._removed)

    @property
    def full(self) -> bool:
        """Whether there is no room for another slot."""
        return len(self._slots) >= self._logs_open_max

    def use(self, log: str, use: Use) -> bool:
        """Count one more user of a log's slot; return whether it has one."""
        slot = self._slots.get(log)
        if slot is None:
            return False
        slot.users += 1
        use.slot, use.used = slot, True
        self._idle.pop(log, None)
        return True

    def add(self, log: str, use: Use) -> None:
        """Add a slot, with one user, for a log that has none."""
        assert log not in self._slots
        slot = Slot(log)
        self._slots[log] = slot
        use.slot, use.used = slot, True

    def leave(self, use: Use) -> None:
        """Count one user less."""
        slot = use.slot
        if slot is None:
            return
        if use.used:
            slot.users -= 1
            use.used = False
        self.changed(slot)

    def changed(self, slot: Slot) -> None:
        """Record that a slot may be idle now."""
        if not slot.idle:
            return
        self._removed.discard(slot)
        if self._slots.get(slot.log) is slot:
            self._idle[slot.log] = slot

    def remove(self, slot: Slot) -> None:
        """Remove a slot: the log is opened again at its next use."""
        if self._slots.get(slot.log) is slot:
            del self._slots[slot.log]
            self._idle.pop(slot.log, None)
            if not slot.idle:
                self._removed.add(slot)

    def close_oldest(self) -> bool:
        """Remove the slot that has been idle longest; return whether there was one.

        An open writer without appends has no thread and no request: there is nothing else to close.
        """
        if not self._idle:
            return False
        log, _ = self._idle.popitem(last=False)
        del self._slots[log]
        return True
