"""The callers' side of a writer: submit, resume, flush, close. The write loop does the rest in workers' threads."""

from __future__ import annotations

import atexit
import contextlib
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakKeyDictionary

from wal3_core.errors import ClosedError, InvalidRequestError, LogError, UnknownDurabilityError
from wal3_core.log.write.commit_results import OutcomeLookup, ResumeReport
from wal3_core.log.write.stats import WriterStats
from wal3_core.log.write.write_loop import WriteLoop
from wal3_core.model.manifest import Durability
from wal3_core.model.parquet.writing import import_what_arrow_uses
from wal3_core.runtime import Outcome, ThreadRuntime, reentered
from wal3_core.runtime.loggers import WRITER
from wal3_core.runtime.threads import HUNG_S_MAX, WATCHED
from wal3_core.storage.retrying import delivery_s_of, for_store

if TYPE_CHECKING:
    from concurrent.futures import Future

    from wal3_core.log.write.batch import Entry
    from wal3_core.log.write.marking import Marks
    from wal3_core.model.paths import LogId
    from wal3_core.model.position import LogPosition
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.documents.manifest_store import Installed, ManifestStore

T = TypeVar("T")

# Of real processes, with the logs' addresses; that of a writer which its program forgot lives as long as it has work.
_loops: WeakKeyDictionary[WriteLoop, tuple[str, ThreadRuntime]] = WeakKeyDictionary()

# An append that waits looks so often whether others get their outcomes, and so many times before it gives up.
_LOOK_S = 5.0
_LOOKS_MAX = 6


class Pipeline:
    """What a writer calls for its callers."""

    def __init__(
        self,
        manifests: ManifestStore,
        base: Installed | None,
        runtime: Runtime,
        options: WriterOptions,
        *,
        ordered: bool = False,
        marks: Marks | None = None,
    ) -> None:
        import_what_arrow_uses()
        self._url = manifests.url
        self._runtime = runtime
        self._retry = for_store(options.retry, manifests)
        self._manifests = manifests
        self._loop = WriteLoop(manifests, base, runtime, options, ordered=ordered, marks=marks)
        if isinstance(runtime, ThreadRuntime):
            _keep_count(self._loop, self._url, runtime)
        self._closed = False
        self._hung_s_max = delivery_s_of(options, manifests.url) + HUNG_S_MAX

    # ------------------------------------------------------------------ what the writer calls

    @property
    def log_id(self) -> LogId:
        """Which life of the log it appends to."""
        return self._manifests.log_id()

    def submit(self, entry: Entry, timeout_s: float | None = None) -> None:
        """Queue an append; blocks while too many bytes wait to become durable.

        OverloadedError after ``timeout_s``, or when a call of the store never returns.
        """
        self._check_reentry()
        try:
            with self._loop.lock:
                self._check_open(entry)
                at_once = timeout_s is not None and timeout_s <= 0
                self._loop.admission.accept(entry, may_wait=not at_once and not self._loop.driven_here)
            self._loop.waker.wake()
        except LogError:
            # Not accepted: there is nothing to drive.
            raise
        except BaseException:
            # An interrupt may have come between the two, and an accepted append needs a worker.
            self._loop.spawn()
            raise
        if entry.admitted is not None:
            self._await_room(entry, entry.admitted, timeout_s)

    def _await_room(self, entry: Entry, admitted: Outcome[None], timeout_s: float | None) -> None:
        try:
            if timeout_s is None:
                self._wait_until_done(admitted)
            self._runtime.wait(admitted, timeout_s)
        except Exception as error:
            with self._loop.lock:
                # A worker admits entries under the lock: one still in the inbox was not admitted.
                self._loop.admission.withdraw(entry)
                overloaded = self._loop.admission.overloaded()
            if entry.withdrawn:
                self._loop.waker.wake()
            # Withdrawn, whatever was raised: an append reported as not begun must not begin.
            if not isinstance(error, TimeoutError | UnknownDurabilityError):
                raise
            if entry.withdrawn:
                raise overloaded from (None if isinstance(error, TimeoutError) else error)

    def resume(self) -> ResumeReport:
        """Let an ordered writer continue; UnavailableError while the outcome of its appends is unknown or unmarked."""
        self.check_awaited_here()
        halt = self._loop.resolver.halt
        if not halt.ordered:
            message = f"log {self._url}: expected an ordered writer to resume, found one that is not"
            raise InvalidRequestError(message)
        while True:
            if halt.failure is None:
                # Appends in flight may still become durable, or halt the writer: count them now, not later.
                self.flush()
            undetermined = halt.undetermined
            verdict: Durability | None = None
            if undetermined is not None:
                lookup = OutcomeLookup(self._manifests, self._loop.snapshots, self._runtime)
                verdict = lookup.look_up(undetermined, self._retry)
                if verdict is Durability.DURABLE:
                    self._loop.marking.ensure(undetermined.flights)
            with self._loop.lock:
                # Another caller may have resumed it meanwhile, and it may have halted again.
                under_way = halt.failure is None and (self._loop.in_flight or self._loop.queue or self._loop.admission)
                if halt.undetermined is undetermined and not under_way:
                    return halt.resume(verdict)

    def stats(self) -> WriterStats:
        """Return what waits, and the counts so far."""
        self._runtime.check_process()
        with self._loop.lock:
            now_s = self._runtime.monotonic_s()
            oldest = [waiting.oldest.accepted_s for waiting in (self._loop.queue, self._loop.admission) if waiting]
            oldest += [self._loop.in_flight[0].oldest_s] if self._loop.in_flight else []
            held = self._loop.marking.held
            oldest += [held[0].oldest_s] if held else []
            commit_s_p50, commit_s_max = self._loop.meter.commit_s_p50_and_max()
            return WriterStats(
                bytes_held=self._loop.admission.bytes_held,
                appends_waiting=_num_waiting(self._loop),
                oldest_age_s=max(0.0, now_s - min(oldest, default=now_s)),
                appends=self._loop.outcomes.appends,
                appends_failed=self._loop.outcomes.appends_failed,
                num_records=self._loop.outcomes.num_records,
                num_bytes=self._loop.outcomes.num_bytes,
                num_fragments=self._loop.meter.fragments,
                num_commits=self._loop.meter.commits,
                commits_per_s=self._loop.meter.commits_per_s(),
                commit_s=self._loop.meter.commit_s,
                commit_s_p50=commit_s_p50,
                commit_s_max=commit_s_max,
                last_commit_age_s=self._loop.meter.last_commit_age_s(),
                next_offset=self._loop.resolver.next_offset,
                requests_retried=self._loop.meter.requests_retried,
                places_lost=self._loop.meter.places_lost,
                rebases=self._loop.meter.rebases,
                rolls_failed=self._loop.meter.rolls_failed,
                halted=self._loop.resolver.halt.failure is not None,
            )

    @property
    def num_offsets_held(self) -> int:
        """How many offsets the log holds, as far as the writer knows; 0 while its state is unknown."""
        return self._loop.resolver.num_offsets_held

    def close(self) -> None:
        """Accept no more appends, and block until those queued have their outcome."""
        self.check_awaited_here()
        with self._loop.lock:
            self._closed = True
        self.flush()

    def flush(self) -> None:
        """Block until everything queued so far has its outcome, without waiting for fuller batches."""
        self.check_awaited_here()
        with self._loop.lock:
            waited_for = self._loop.outcomes.futures()
            waited_for += [entry.future for flight in self._loop.in_flight for entry in flight.entries]
            waited_for += self._loop.queue.futures() + self._loop.admission.futures()
            self._loop.bytes_hurried = self._loop.admission.bytes_accepted
        if waited_for:
            self._loop.waker.wake()
        for future in waited_for:
            self._wait_until_done(future)

    def outcome_of(self, future: Future[LogPosition]) -> LogPosition:
        """Block until an append has its outcome; UnknownDurabilityError when a call of the store never returns."""
        self._wait_until_done(future)
        return future.result()

    def _wait_until_done(self, future: Future[T]) -> None:
        """Raise UnknownDurabilityError once the oldest append should have its outcome, and none gets any."""
        ended, looks = -1, 0
        while not future.done():
            with contextlib.suppress(TimeoutError, LogError):
                self._runtime.wait(future, _LOOK_S)
                return
            stats = self.stats()
            # Looks are counted, too: in a process that was stopped, nothing could end.
            looks, ended = (
                looks + 1 if ended == stats.appends + stats.appends_failed else 0,
                (stats.appends + stats.appends_failed),
            )
            if looks >= _LOOKS_MAX and stats.oldest_age_s > self._hung_s_max:
                raise self._hung(stats)

    def _hung(self, stats: WriterStats) -> UnknownDurabilityError:
        longest = WATCHED.watch.longest()
        message = (
            f"log {self._url}: {stats.appends_waiting} appends have no outcome after {stats.oldest_age_s:.0f} s:"
            f" {longest or 'a call of the store does not return'}: unknown whether they are in the log, or will be"
        )
        WRITER.error("%s", message)
        return UnknownDurabilityError(message)

    def check_awaited_here(self) -> None:
        """Refuse to wait for an append where the wait would block it, as in a ``__del__`` called during a step."""
        self._check_reentry()
        if self._loop.driven_here:
            raise reentered(f"log {self._url}")

    def _check_reentry(self) -> None:
        self._runtime.check_process()
        if self._loop.lock.owned():
            raise reentered(f"log {self._url}")

    def _check_open(self, entry: Entry) -> None:
        if self._closed:
            message = f"log {self._url}: expected an open writer, found it closed"
            raise ClosedError(message)
        refusal = self._loop.resolver.refusal() or self._loop.resolver.refusal_of(entry)
        if refusal is not None:
            raise refusal


def _num_waiting(loop: WriteLoop) -> int:
    """Return how many appends have no outcome."""
    in_flight = sum(len(flight.entries) for flight in (*loop.marking.held, *loop.in_flight))
    return in_flight + len(loop.queue) + len(loop.admission)


def _keep_count(loop: WriteLoop, url: str, runtime: ThreadRuntime) -> None:
    if not _loops:
        # Again, if it was before: what is registered last runs first, and the runtime's end forgets what waits.
        atexit.unregister(_name_unfinished)
        atexit.register(_name_unfinished)
    _loops[loop] = url, runtime


def _name_unfinished() -> None:
    """Say how many appends the process may end without: their writers were not closed."""
    for loop, (url, runtime) in list(_loops.items()):
        with contextlib.suppress(LogError):
            # A fork has its parent's writers.
            runtime.check_process()
            count = _num_waiting(loop)
            if count:
                text = (
                    "log %s: the process ends without an outcome of %d appends, which may not be in the log: close the"
                    " writer, or wait for their futures"
                )
                WRITER.warning(text, url, count)
