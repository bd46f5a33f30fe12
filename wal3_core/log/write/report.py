"""What operators see of a writer: log lines and metrics.

Called without the writer's lock, except ``held`` and what the ``Meter`` reports: a handler of log lines is the
program's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import ConditionNotMetError, HaltedError, SealedError, UnknownDurabilityError, UnmarkedError
from wal3_core.log.write.commit import CommitResult, Committed, Displaced, Failed, SealedOut, Undetermined
from wal3_core.options import SLOW_COMMIT_S
from wal3_core.runtime import SILENT, AppendEnd, CommitEnd
from wal3_core.runtime.loggers import WRITER, Seldom

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.errors import AppendError, LogError
    from wal3_core.log.write.batch import Entry
    from wal3_core.log.write.in_flight import InFlightFragment
    from wal3_core.runtime import Runtime

_COMMIT_ENDS = {
    Committed: CommitEnd.COMMITTED,
    Displaced: CommitEnd.DISPLACED,
    SealedOut: CommitEnd.SEALED,
    Failed: CommitEnd.FAILED,
    Undetermined: CommitEnd.UNKNOWN,
}
# Answers that the caller has asked for, or has got before.
_EXPECTED = (ConditionNotMetError, HaltedError, SealedError)


class Report:
    """Reports the life of one writer; ``url`` and ``log`` name its log."""

    def __init__(self, url: str, log: str, runtime: Runtime) -> None:
        self._url = url
        self._log = log
        self._runtime = runtime
        self._displaced, self._slow, self._failed, self._unmarked = (Seldom(runtime, WRITER) for _ in range(4))
        self._held = 0
        self._held_for = SILENT

    def committed(self, result: CommitResult, flights: Sequence[InFlightFragment], took_s: float) -> None:
        """Report a commit of fragments."""
        self._runtime.observer.committed(self._log, _COMMIT_ENDS[type(result)], took_s)
        if took_s > SLOW_COMMIT_S:
            self._slow.warn("log %s: a commit of %d fragments took %.1f s", self._url, len(flights), took_s)
        if isinstance(result, Displaced) and result.contended:
            text = (
                "log %s: another writer took over at fragment %d, the manifest's last change is by %s: %d appends wait"
            )
            changed_by = result.base.manifest.writer.partition(" ")[0]
            appends = sum(len(flight.entries) for flight in flights)
            self._displaced.warn(text, self._url, flights[0].seq_no, changed_by, appends)

    def durable(self, entries: Sequence[Entry]) -> None:
        """Report appends that are durable."""
        self._appended(entries, AppendEnd.DURABLE)

    def failed(self, entries: Sequence[Entry], error: LogError) -> None:
        """Report appends that failed with one error."""
        ends = {UnknownDurabilityError: AppendEnd.UNKNOWN, UnmarkedError: AppendEnd.UNMARKED}
        end = ends.get(type(error), AppendEnd.NOT_DURABLE)
        self._appended(entries, end)
        if end is AppendEnd.UNKNOWN:
            WRITER.error("%d appends have an unknown outcome: %s", len(entries), error)
        elif end is AppendEnd.UNMARKED:
            self._unmarked.warn("%d appends are not marked: %s", len(entries), error)
        elif not isinstance(error, _EXPECTED):
            self._failed.warn("%d appends failed: %s", len(entries), error)

    def halted(self, error: AppendError) -> None:
        """Report that an ordered writer halts."""
        WRITER.error("log %s: the ordered writer halts until resume() is called: %s", self._url, error)

    def held(self, num_bytes: int) -> None:
        """Report how many bytes appends without an outcome take."""
        observer = self._runtime.observer
        if observer is not self._held_for:
            self._held, self._held_for = 0, observer
        if num_bytes != self._held:
            observer.held(self._log, num_bytes - self._held)
            self._held = num_bytes

    def _appended(self, entries: Sequence[Entry], end: AppendEnd) -> None:
        observer = self._runtime.observer
        if observer is SILENT:
            # The sums below are not free.
            return
        now_s = self._runtime.monotonic_s()
        observer.appended(
            self._log,
            end,
            num_records=sum(entry.columns.num_records for entry in entries),
            num_bytes=sum(entry.columns.num_bytes for entry in entries),
            waits_s=(now_s - entry.accepted_s for entry in entries),
        )
