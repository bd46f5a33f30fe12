"""What a writer counts, and what it shows of that.

What operators see of a writer: log lines and metrics.

Called without the writer's lock, except ``held`` and what the ``Meter`` reports: a handler of log lines is the
program's code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import (
    AppendError,
    ConditionNotMetError,
    HaltedError,
    LogError,
    SealedError,
    UnknownDurabilityError,
    UnmarkedError,
)
from wal3_core.log.write.commit import CommitResult, Committed, Displaced, Failed, SealedOut, Undetermined
from wal3_core.options import SLOW_COMMIT_S
from wal3_core.runtime import SILENT, AppendEnd, CommitEnd, Conflict, Runtime
from wal3_core.runtime.loggers import WRITER, Seldom

if TYPE_CHECKING:
    from wal3_core.log.write.appends import Append, InFlightFragment


# Weight of the newest measurement in a moving average of durations.
_WEIGHT = 0.3
# The rate of commits is that of these last seconds, or of this many commits if there were more in them.
_RATE_S = 10.0
_RATE_COMMITS_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterStats:
    """A writer at one moment; counts start when it was opened.

    ``bytes_held`` is roughly the memory that appends without an outcome take, ``appends_waiting`` how
    many they are, ``oldest_age_s`` how long the oldest has waited (0 when there is none). ``appends``,
    ``num_records``, ``num_bytes`` (of keys and bodies) and ``num_fragments`` count what is durable,
    ``appends_failed`` every append with an error.

    ``commit_s`` is the moving average of a commit's duration, ``commit_s_p50`` and ``commit_s_max`` the median and
    the maximum of the last 256 commits (0 before the first), whatever their result; ``commits_per_s`` is the rate
    over the last ten seconds, ``last_commit_age_s`` how long ago the last commit succeeded (None before the first).

    ``requests_retried`` counts tries after the first, ``contentions`` the commits that lost their place to another
    writer, ``rebases`` the commits made again because of maintenance, ``rolls_failed`` the times that pointers were not
    rolled into snapshots: the manifest, which each commit writes, grows until that succeeds. ``next_offset`` is where
    the log ends in the newest manifest that the writer has seen: other writers may have appended since. ``halted`` is
    true for an ordered writer that waits to be resumed.
    """

    bytes_held: int
    appends_waiting: int
    oldest_age_s: float
    appends: int
    appends_failed: int
    num_records: int
    num_bytes: int
    num_fragments: int
    num_commits: int
    commits_per_s: float
    commit_s: float
    commit_s_p50: float
    commit_s_max: float
    last_commit_age_s: float | None
    requests_retried: int
    contentions: int
    rebases: int
    rolls_failed: int
    next_offset: int | None
    halted: bool


class Meter:
    """Counts. Guarded by its owner's lock, except ``rebased``; ``retried``, ``roll_failed``, ``upload_took`` lock."""

    def __init__(self, runtime: Runtime, log: str) -> None:
        self._runtime = runtime
        self._log = log
        self._lock = runtime.lock()
        self._opened_s = runtime.monotonic_s()
        self._committed_s: deque[float] = deque(maxlen=_RATE_COMMITS_MAX)
        self._took_s: deque[float] = deque(maxlen=_RATE_COMMITS_MAX)
        self.commits = 0
        self.commit_s = self.upload_s = 0.0
        self.fragments = 0
        self.contentions = 0
        self.rebases = 0
        self.requests_retried = 0
        self.rolls_failed = 0
        self._unrolled = Seldom(runtime, WRITER)

    def retried(self) -> None:
        """Count a request that is sent again; from any thread."""
        with self._lock:
            self.requests_retried += 1
        self._runtime.observer.retried(self._log)

    def roll_failed(self, error: LogError) -> None:
        """Count a roll into snapshots that failed, and warn of it; from any thread, without the owner's lock."""
        with self._lock:
            self.rolls_failed += 1
        self._runtime.observer.unrolled(self._log)
        text = "log %s: pointers are not rolled into snapshots, so the manifest grows: %s"
        self._unrolled.warn(text, self._log, error)

    def rebased(self) -> None:
        """Count a commit that is made again because of maintenance; only from the one commit under way."""
        self.rebases += 1
        self._runtime.observer.conflicted(self._log, Conflict.REBASE)

    def displaced(self, *, contended: bool) -> None:
        """Count a commit whose records get new places: because of another writer, or else of maintenance."""
        if contended:
            self.contentions += 1
            self._runtime.observer.conflicted(self._log, Conflict.CONTENTION)
        else:
            self.rebased()

    def commit_took(self, seconds: float) -> None:
        """Record how long a commit took, whatever its result."""
        self.commit_s = _averaged(self.commit_s, seconds)
        self._took_s.append(seconds)

    def upload_took(self, seconds: float) -> None:
        """Record how long the upload of a fragment took; from any thread."""
        with self._lock:
            self.upload_s = _averaged(self.upload_s, seconds)

    def commit_s_p50_and_max(self) -> tuple[float, float]:
        """Return the median and the maximum of the last commits' durations; 0 when there was none."""
        took_s = sorted(self._took_s)
        return (took_s[len(took_s) // 2], took_s[-1]) if took_s else (0.0, 0.0)

    def last_commit_age_s(self) -> float | None:
        """Return how long ago the last commit was; None when there was none."""
        return self._runtime.monotonic_s() - self._committed_s[-1] if self._committed_s else None

    def committed(self, fragments: int) -> None:
        """Count a commit and its fragments."""
        self.commits += 1
        self.fragments += fragments
        self._committed_s.append(self._runtime.monotonic_s())

    def commits_per_s(self) -> float:
        """Return the rate over the last seconds."""
        now_s = self._runtime.monotonic_s()
        since_s = max(self._opened_s, now_s - _RATE_S)
        if len(self._committed_s) == _RATE_COMMITS_MAX:
            since_s = max(since_s, self._committed_s[0])
        count = sum(at_s >= since_s for at_s in self._committed_s)
        return count / (now_s - since_s) if now_s > since_s else 0.0


def _averaged(average: float, newest: float) -> float:
    return average + _WEIGHT * (newest - average) if average else newest


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
            appends = sum(len(flight.appends) for flight in flights)
            self._displaced.warn(text, self._url, flights[0].seq_no, changed_by, appends)

    def durable(self, appends: Sequence[Append]) -> None:
        """Report appends that are durable."""
        self._appended(appends, AppendEnd.DURABLE)

    def failed(self, appends: Sequence[Append], error: LogError) -> None:
        """Report appends that failed with one error."""
        ends = {UnknownDurabilityError: AppendEnd.UNKNOWN, UnmarkedError: AppendEnd.UNMARKED}
        end = ends.get(type(error), AppendEnd.NOT_DURABLE)
        self._appended(appends, end)
        if end is AppendEnd.UNKNOWN:
            WRITER.error("%d appends have an unknown outcome: %s", len(appends), error)
        elif end is AppendEnd.UNMARKED:
            self._unmarked.warn("%d appends are not marked: %s", len(appends), error)
        elif not isinstance(error, _EXPECTED):
            self._failed.warn("%d appends failed: %s", len(appends), error)

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

    def _appended(self, appends: Sequence[Append], end: AppendEnd) -> None:
        observer = self._runtime.observer
        if observer is SILENT:
            # The sums below are not free.
            return
        now_s = self._runtime.monotonic_s()
        observer.appended(
            self._log,
            end,
            num_records=sum(append.columns.num_records for append in appends),
            num_bytes=sum(append.columns.num_bytes for append in appends),
            waits_s=(now_s - append.accepted_s for append in appends),
        )
