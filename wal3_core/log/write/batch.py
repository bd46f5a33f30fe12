"""Appends that wait: in the inbox until there is room in memory, then in the queue to become part of a fragment.

Callers put appends into the inbox; workers move them into the queue as far as ``bytes_held_max`` allows, first come,
first served. Guarded by the write loop's lock.
"""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError, OverloadedError
from wal3_core.format.strict_json import U64_MAX
from wal3_core.runtime import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future

    from wal3_core.format.position import LogPosition
    from wal3_core.log.write.columns import Columns
    from wal3_core.log.write.commit_results import OutcomeQueue
    from wal3_core.options import WriterOptions


def check_expected(offset: int | None) -> int | None:
    """Check the offset at which an append has to land."""
    if offset is None:
        return None
    try:
        # Any type of integer, numpy's included, except bool.
        found = -1 if isinstance(offset, bool) else operator.index(offset)
    except TypeError:
        found = -1
    if not 1 <= found <= U64_MAX:
        message = f"append: expected an offset from 1 to 2**64 - 1 for expect_next, found {offset!r}"
        raise InvalidRequestError(message)
    return found


@dataclass(slots=True, eq=False)
class Append:
    """One append: its records stay together. ``contentions`` counts the places it lost to other writers.

    ``expect_next`` is the only offset at which the first record may land. ``bytes_accepted`` counts what the
    writer has accepted since it was opened, this append included. A caller that must wait for room waits
    for ``admitted``; ``withdrawn`` is set when it has given up. ``last_try`` is set when the append is
    queued again although its time is over. ``doubted``: it was accepted although the log took no such append, as far
    as the writer knew, and was in no fragment since.
    """

    columns: Columns
    future: Future[LogPosition]
    accepted_s: float
    expect_next: int | None = None
    bytes_accepted: int = 0
    admitted: Outcome[None] | None = None
    withdrawn: bool = False
    last_try: bool = False
    doubted: bool = False
    contentions: int = 0
    rebases: int = 0

    def may_land_at(self, offset: int) -> bool:
        """Whether the caller wants the records there."""
        return self.expect_next is None or self.expect_next == offset


class BatchQueue:
    """Appends in the order of their arrival. Guarded by its owner's lock."""

    def __init__(self, options: WriterOptions) -> None:
        self._options = options
        self._appends: deque[Append] = deque()
        self._num_bytes = 0
        self._num_records = 0

    def __len__(self) -> int:
        return len(self._appends)

    @property
    def oldest(self) -> Append:
        """The first one."""
        return self._appends[0]

    @property
    def full(self) -> bool:
        """Whether a whole batch waits."""
        return self._num_bytes >= self._options.batch_bytes_max or self._num_records >= self._options.batch_records_max

    def add(self, append: Append) -> None:
        """Queue an append behind the others."""
        self._appends.append(append)
        self._count(append, 1)

    def put_back(self, appends: Iterable[Append]) -> None:
        """Queue appends that were taken before, in their order, ahead of the others."""
        for append in reversed(list(appends)):
            self._appends.appendleft(append)
            self._count(append, 1)

    def take(self, offset: int, *, keyed: bool) -> list[Append]:
        """Take the appends of a batch that begins there: at least one, then as many as limits and conditions allow.

        Where the log is ``keyed``, it ends before one with a record without a key.
        """
        taken: list[Append] = []
        waiting, bytes_max, records_max = self._appends, self._options.batch_bytes_max, self._options.batch_records_max
        num_bytes = num_records = 0
        while waiting:
            append = waiting[0]
            columns = append.columns
            over = num_bytes + columns.num_bytes > bytes_max or num_records + columns.num_records > records_max
            if taken and (over or not append.may_land_at(offset + num_records) or (keyed and columns.keyless)):
                break
            taken.append(waiting.popleft())
            append.doubted = False
            num_bytes += columns.num_bytes
            num_records += columns.num_records
        self._num_bytes -= num_bytes
        self._num_records -= num_records
        return taken

    def pop(self) -> Append:
        """Take the first one."""
        append = self._appends.popleft()
        self._count(append, -1)
        return append

    def take_all(self) -> list[Append]:
        """Take everything."""
        taken = list(self._appends)
        self._appends.clear()
        self._num_bytes = self._num_records = 0
        return taken

    def futures(self) -> list[Future[LogPosition]]:
        """Return the futures of the appends that wait."""
        return [append.future for append in self._appends]

    def _count(self, append: Append, sign: int) -> None:
        self._num_bytes += sign * append.columns.num_bytes
        self._num_records += sign * append.columns.num_records


class Admission:
    """The inbox, and the bytes held from an append's acceptance to its outcome."""

    def __init__(self, url: str, bytes_held_max: int, outcomes: OutcomeQueue) -> None:
        self._url = url
        self._bytes_held_max = bytes_held_max
        self._outcomes = outcomes
        self._inbox: deque[Append] = deque()
        # Bytes moved from the inbox into the queue since the writer was opened.
        self._bytes_admitted = 0
        self._any_withdrawn = False

    def __len__(self) -> int:
        return len(self._inbox)

    @property
    def oldest(self) -> Append:
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
        return [append.future for append in self._inbox]

    def accept(self, append: Append, *, may_wait: bool) -> None:
        """Put an append into the inbox; OverloadedError when there is no room and its caller must not wait for it.

        When the caller has to wait, ``append.admitted`` is set.
        """
        accepted = self.bytes_accepted
        if not self._fits(append, accepted - self._outcomes.bytes_released):
            if not may_wait:
                raise self.overloaded()
            append.admitted = Outcome()
        append.bytes_accepted = accepted + append.columns.bytes_held
        # The caller may be interrupted anywhere: this one call is what accepts the append.
        self._inbox.append(append)

    def withdraw(self, append: Append) -> None:
        """Mark an append as ``withdrawn`` if it is still in the inbox: its caller has given up."""
        # First: a caller may be interrupted anywhere.
        self._any_withdrawn = True
        append.withdrawn = append in self._inbox

    def move_into(self, queue: BatchQueue, *, all_of_it: bool) -> None:
        """Move the appends that there is room for into the queue, or the whole inbox."""
        inbox, released = self._inbox, self._outcomes.bytes_released
        while inbox:
            append = inbox[0]
            if not all_of_it and not self._fits(append, self._bytes_admitted - released):
                return
            self._bytes_admitted = append.bytes_accepted
            queue.add(inbox.popleft())
            if append.admitted is not None:
                self._outcomes.admit(append.admitted)

    def drop_withdrawn(self) -> None:
        """Fail the appends whose callers gave up waiting for room."""
        if not self._any_withdrawn:
            return
        dropped = 0
        # Those behind it are renumbered.
        for append in list(self._inbox):
            append.bytes_accepted -= dropped
            if append.withdrawn:
                self._inbox.remove(append)
                dropped += append.columns.bytes_held
                self._outcomes.withdraw(append, self.overloaded())
        self._any_withdrawn = False

    def overloaded(self) -> OverloadedError:
        """Build the error for an append that found no room."""
        return OverloadedError(
            f"log {self._url}: expected room within {self._bytes_held_max} bytes,"
            f" found {self.bytes_held} that wait to become durable: the append was not begun"
        )

    def _fits(self, append: Append, bytes_held: int) -> bool:
        # A writer that holds nothing accepts an append of any size.
        return not bytes_held or bytes_held + append.columns.bytes_held <= self._bytes_held_max
