"""The outcomes of appends: kept until the pipeline's lock is released, then reported and delivered to their callers."""

from __future__ import annotations

import copy
import itertools
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from wal3_core.model.position import LogPosition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from wal3_core.errors import LogError, UnmarkedError
    from wal3_core.log.write.batch import Entry
    from wal3_core.log.write.in_flight import InFlightFragment
    from wal3_core.log.write.marking import Marking
    from wal3_core.log.write.report import Report
    from wal3_core.runtime import Outcome


class Outcomes:
    """Outcomes that are known and not delivered yet, and counts of them.

    Guarded by the pipeline's lock; outcomes that were taken are delivered without it.
    """

    def __init__(self, report: Report, marking: Marking) -> None:
        self.report = report
        self.marking = marking
        # In bytes since the writer was opened: of appends with an outcome.
        self.bytes_released = 0
        self.appends = 0
        self.appends_failed = 0
        self.num_records = 0
        self.num_bytes = 0
        self._pending: list[Callable[[], None]] = []
        # Taken, and not delivered yet: batches by number. A batch is removed by a single call, without the lock.
        self._told: dict[int, Sequence[Entry]] = {}
        self._batches = itertools.count()

    def admit(self, admitted: Outcome[None]) -> None:
        """Let a caller continue that waits for room."""
        self._pending.append(partial(admitted.set_result, None))

    def acknowledge(self, flight: InFlightFragment) -> None:
        """Give the appends of a committed fragment their positions, once it is marked."""
        held = self.marking.hold(flight)
        if held is None:
            self._settle(flight)
        else:
            self.note(held)

    def acknowledge_marked(self) -> None:
        """Give the appends of committed fragments their positions that have been marked meanwhile."""
        for flight in self.marking.take():
            self._settle(flight)

    def _settle(self, flight: InFlightFragment) -> None:
        unmarked = self.marking.error_of(flight)
        if unmarked is not None:
            self._fail_unmarked(flight, unmarked)
            return
        self.appends += len(flight.entries)
        self.note(partial(self.report.durable, flight.entries))
        self.num_records += flight.num_records
        self.num_bytes += sum(entry.columns.num_bytes for entry in flight.entries)
        self._pending.append(partial(_acknowledge_each, flight))
        self._release(flight.entries)

    def _fail_unmarked(self, flight: InFlightFragment, error: UnmarkedError) -> None:
        offset = flight.start.offset
        for entry in flight.entries:
            own = copy.copy(error)
            own.offset = offset
            offset += entry.columns.num_records
            self.give_up([entry], own, error.__cause__)

    def give_up(self, entries: Sequence[Entry], error: LogError, cause: BaseException | None) -> None:
        """Fail appends."""
        self.appends_failed += len(entries)
        if entries:
            self.note(partial(self.report.failed, entries, error))
        for entry in entries:
            # Each caller gets its own exception: raising one adds to its traceback.
            own = copy.copy(error)
            own.__cause__ = cause
            self._pending.append(partial(entry.future.set_exception, own))
        self._release(entries)

    def withdraw(self, entry: Entry, error: LogError) -> None:
        """Fail an append whose caller has given up waiting for room: a flush may be waiting for it."""
        self._pending.append(partial(entry.future.set_exception, error))

    def note(self, report: Callable[[], None]) -> None:
        """Have something reported once the lock is released, before the outcomes that follow."""
        self._pending.append(report)

    def take(self) -> list[Callable[[], None]]:
        """Take the calls that report and deliver outcomes."""
        taken, self._pending = self._pending, []
        return taken

    def futures(self) -> list[Future[LogPosition]]:
        """Return the futures that have their outcomes, or will once what was taken is delivered or marked."""
        taken = chain.from_iterable(list(self._told.values()))
        return [*(entry.future for entry in taken), *self.marking.futures()]

    def _delivered(self, batch: int) -> None:
        del self._told[batch]

    def _release(self, entries: Sequence[Entry]) -> None:
        self.bytes_released += sum(entry.columns.bytes_held for entry in entries)
        if entries:
            # They get their outcomes after the lock is released; a flush waits for that, too.
            batch = next(self._batches)
            self._told[batch] = entries
            self._pending.append(partial(self._delivered, batch))


def _acknowledge_each(flight: InFlightFragment) -> None:
    """Give the appends of a fragment their positions, as ``call_each`` would: there are thousands."""
    first: BaseException | None = None
    offset, timestamp_us = flight.start.offset, flight.start.timestamp_us
    for entry in flight.entries:
        try:
            entry.future.set_result(LogPosition(offset, timestamp_us))
        except BaseException as error:  # noqa: BLE001 - one caller's callback; the others wait for theirs
            first = first or error
        offset += entry.columns.num_records
    if first is not None:
        raise first


def call_each(calls: Iterable[Callable[[], None]]) -> None:
    """Make every call, then raise the first error that any of them raised."""
    first: BaseException | None = None
    for call in calls:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - one caller's callback; the others wait for theirs
            first = first or error
    if first is not None:
        raise first
