"""Admission: which appends a writer accepts, and when there is room for them in memory.

Callers put appends into the inbox; the pipeline's workers move them into the queue as far as ``bytes_held_max`` allows,
first come, first served. Guarded by the pipeline's lock.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from wal3_core.errors import OverloadedError
from wal3_core.runtime import Outcome

if TYPE_CHECKING:
    from concurrent.futures import Future

    from wal3_core.log.write.batch import BatchQueue, Entry
    from wal3_core.log.write.outcomes import Outcomes
    from wal3_core.model.position import LogPosition


class Admission:
    """The inbox, and the bytes held from an append's acceptance to its outcome."""

    def __init__(self, url: str, bytes_held_max: int, outcomes: Outcomes) -> None:
        self._url = url
        self._bytes_held_max = bytes_held_max
        self._outcomes = outcomes
        self._inbox: deque[Entry] = deque()
        # In bytes since the writer was opened: moved from the inbox into the queue.
        self._bytes_admitted = 0
        self._any_withdrawn = False

    def __len__(self) -> int:
        return len(self._inbox)

    @property
    def oldest(self) -> Entry:
        """The first append in the inbox."""
        return self._inbox[0]

    @property
    def bytes_accepted(self) -> int:
        """How many bytes were accepted since the writer was opened, the inbox's included."""
        return self._inbox[-1].bytes_accepted if self._inbox else self._bytes_admitted

    @property
    def bytes_held(self) -> int:
        """How many bytes wait for their outcome."""
        return self.bytes_accepted - self._outcomes.bytes_released

    def futures(self) -> list[Future[LogPosition]]:
        """Return the futures of the appends in the inbox."""
        return [entry.future for entry in self._inbox]

    def accept(self, entry: Entry, *, may_wait: bool) -> None:
        """Put an append into the inbox; OverloadedError when there is no room and its caller must not wait for it.

        When the caller has to wait, ``entry.admitted`` is set.
        """
        accepted = self.bytes_accepted
        if not self._fits(entry, accepted - self._outcomes.bytes_released):
            if not may_wait:
                raise self.overloaded()
            entry.admitted = Outcome()
        entry.bytes_accepted = accepted + entry.columns.bytes_held
        # The caller may be interrupted anywhere: this one call is what accepts the append.
        self._inbox.append(entry)

    def withdraw(self, entry: Entry) -> None:
        """Mark an append as ``withdrawn`` if it is still in the inbox: its caller has given up."""
        # First: a caller may be interrupted anywhere.
        self._any_withdrawn = True
        entry.withdrawn = entry in self._inbox

    def move_into(self, queue: BatchQueue, *, all_of_it: bool) -> None:
        """Move the appends that there is room for into the queue, or the whole inbox."""
        inbox, released = self._inbox, self._outcomes.bytes_released
        while inbox:
            entry = inbox[0]
            if not all_of_it and not self._fits(entry, self._bytes_admitted - released):
                return
            self._bytes_admitted = entry.bytes_accepted
            queue.add(inbox.popleft())
            if entry.admitted is not None:
                self._outcomes.admit(entry.admitted)

    def drop_withdrawn(self) -> None:
        """Fail the appends whose callers gave up waiting for room."""
        if not self._any_withdrawn:
            return
        dropped = 0
        # Those behind it are renumbered.
        for entry in list(self._inbox):
            entry.bytes_accepted -= dropped
            if entry.withdrawn:
                self._inbox.remove(entry)
                dropped += entry.columns.bytes_held
                self._outcomes.withdraw(entry, self.overloaded())
        self._any_withdrawn = False

    def overloaded(self) -> OverloadedError:
        """Build the error for an append that found no room."""
        return OverloadedError(
            f"log {self._url}: expected room within {self._bytes_held_max} bytes,"
            f" found {self.bytes_held} that wait to become durable: the append was not begun"
        )

    def _fits(self, entry: Entry, bytes_held: int) -> bool:
        # A writer that holds nothing accepts an append of any size.
        return not bytes_held or bytes_held + entry.columns.bytes_held <= self._bytes_held_max
