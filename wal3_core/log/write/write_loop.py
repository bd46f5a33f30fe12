"""From appends to durable fragments: batch, upload (several at a time), commit (in order, one at a time).

Where an append is, and what moves it on:

| state | held in | next state | when |
|---|---|---|---|
| accepted | inbox (``Admission``) | queued | there is room within ``bytes_held_max`` |
| accepted | inbox | overloaded | its caller gave up waiting for room |
| queued | queue (``BatchQueue``) | in flight | ``_may_cut``: its batch is due, and may be uploaded |
| queued | queue | condition not met | it is first, nothing is in flight, and the log ends elsewhere |
| queued | queue | refused | it is first, nothing is in flight, and the log takes none without a key, or of its view |
| in flight, uploading | flights | in flight, uploaded | the PUT of its fragment was answered |
| in flight, uploading | flights | queued, or not durable | the PUT failed; an append with time left is queued again |
| in flight, uploaded | flights | committing | it is at the head of the flights and no commit is under way |
| committing | flights | durable | ``Committed``, and it is marked or need not be |
| committing | flights | unmarked | ``Committed``, and its mark has no outcome yet |
| unmarked | ``Marking`` | durable, or failed as unmarked | its mark has an outcome |
| committing | flights | queued, or contended | ``Displaced``: another writer took its place, or it is refused now |
| committing | flights | sealed | ``SealedOut`` |
| committing | flights | queued, or not durable | ``Failed``: no CAS was applied |
| committing | flights | unknown | ``Undetermined``: a CAS has no answer |

One lock guards the state. Only workers take steps (``_steps``): after an upload or a commit, on a batch's timer, or
when a caller wakes one. A caller may be interrupted anywhere, so it only appends to the inbox and wakes a worker.
Nothing runs while nothing is queued. Source: docs/protocol.md, "Append".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from itertools import chain, takewhile
from typing import TYPE_CHECKING

from wal3_core.errors import ClosedError, LogError
from wal3_core.format.manifest import Durability
from wal3_core.format.position import LogPosition
from wal3_core.log.write.appends import Admission, Append, BatchQueue, InFlightFragment, Marking, Marks, WritePosition
from wal3_core.log.write.commit import CommitResult, Committed, Committer, LogClock, Undetermined
from wal3_core.log.write.commit_results import (
    CommitResultHandler,
    HaltState,
    ResumeReport,
    WriterState,
    call_each,
    determined,
)
from wal3_core.log.write.pacing import BatchDeadline, WorkerWakeup, YieldPause
from wal3_core.log.write.snapshotter import Snapshotter
from wal3_core.log.write.stats import Meter, Report, WriterStats
from wal3_core.options import WriterOptions
from wal3_core.runtime import Runtime, Timer, callbacks_held
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import share_of
from wal3_core.store.retrying import for_store, until_answered, within
from wal3_core.workers import Share

if TYPE_CHECKING:
    _Calls = list[Callable[[], None]]
    # May return the step that follows it in the same thread.
    _Step = Callable[[], "_Step | None"]


# The loop whose step this thread is taking.
_DOING: ContextVar[object] = ContextVar("wal3-doing", default=None)
# In place of a store: callbacks share workers only with each other, not with work that they may wait for.
_CALLBACKS = "callbacks"


class WriteLoop:
    """Runs a writer: cuts batches, uploads them, commits them.

    It is bound to the incarnation of the log that ``manifests`` has seen: it fails if the log is destroyed and created
    again.
    """

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
        self._url, self._store = manifests.url, manifests.objects
        self._share = share_of(self._store)
        log = self._share.log.rstrip("/")
        self._runtime, self._options, self._manifests = runtime, options, manifests
        self._retry = for_store(options.retry, manifests)
        self._snapshots = SnapshotStore(manifests, runtime, loaded_max=options.snapshots.loaded_max)
        self._meter, self._report = Meter(runtime, log), Report(self._url, log, runtime)
        self._snapshotter = Snapshotter(self._snapshots, runtime, options, self._share, self._meter, self._drive_on)
        amend = self._snapshotter.amend
        self._committer = Committer(manifests, self._snapshots, runtime, options, amend=amend, meter=self._meter)
        self._pause, self._deadline = YieldPause(runtime), BatchDeadline(options, self._meter, runtime)
        self._clock = LogClock(self._store, runtime, options)
        self._marking = Marking(marks, log, manifests, runtime, options, self._drive_on)
        self.lock = runtime.lock()
        self._in_flight: deque[InFlightFragment] = deque()
        self.halt = HaltState(self._url, ordered=ordered)
        state = WriterState(
            queue=BatchQueue(options),
            in_flight=self._in_flight,
            position=WritePosition(base, runtime, self._clock, options.view),
            meter=self._meter,
            report=self._report,
            marking=self._marking,
            halt=self.halt,
        )
        self._queue, self.position = state.queue, state.position
        self._results = CommitResultHandler(self._url, runtime, options, state)
        self._acks, self._fairness = self._results.acks, self._results.fairness
        self.admission = Admission(self._url, options.bytes_held_max, self._acks)
        self.waker = WorkerWakeup(self._spawn)
        self._uploading, self._committing, self._recovering = 0, False, False
        self._closed = False
        # ``hurry`` sets it: bytes accepted up to this total are cut at once, not when their batch is full or old.
        self._bytes_hurried = 0
        self._timer: Timer | None = None
        self._timer_due_s = 0.0

    # ------------------------------------------------------------------ what callers ask for

    def accept(self, append: Append, *, may_wait: bool) -> None:
        """Put an append into the inbox; if there is no room, it is to wait for its ``admitted``, or OverloadedError."""
        try:
            with self.lock:
                self._check_open(append)
                self.admission.accept(append, may_wait=may_wait and not self.driven_here)
            self.waker.wake()
        except LogError:
            # Not accepted: there is nothing to drive.
            raise
        except BaseException:
            # An interrupt may have come between the two, and an accepted append needs a worker.
            self._spawn()
            raise

    def _check_open(self, append: Append) -> None:
        if self._closed:
            raise ClosedError(f"log {self._url}: expected an open writer, found it closed")
        refusal = self._results.refusal() or self._results.refusal_of(append)
        if refusal is not None:
            raise refusal

    def withdraw(self, append: Append) -> LogError:
        """Take an append out of the inbox, if it is still there; return the error for one that found no room."""
        with self.lock:
            # A worker admits appends under the lock: one still in the inbox was not admitted.
            self.admission.withdraw(append)
            overloaded = self.admission.overloaded()
        if append.withdrawn:
            self.waker.wake()
        return overloaded

    def hurry(self) -> list[Future[LogPosition]]:
        """Have all that was accepted cut at once; return the futures that have no outcome yet."""
        with self.lock:
            futures = self._acks.futures()
            futures += [append.future for flight in self._in_flight for append in flight.appends]
            futures += self._queue.futures() + self.admission.futures()
            self._bytes_hurried = self.admission.bytes_accepted
        if futures:
            self.waker.wake()
        return futures

    def close(self) -> None:
        """Accept no more appends."""
        with self.lock:
            self._closed = True

    def resume(self) -> ResumeReport | None:
        """Let an ordered writer continue; None if it has halted again meanwhile, or appends are under way.

        UnavailableError while the outcome of its appends is unknown, or they are unmarked.
        """
        undetermined = self.halt.undetermined
        verdict: Durability | None = None
        if undetermined:
            verdict = until_answered(
                lambda: determined(undetermined, self._manifests, self._snapshots), self._retry, self._runtime
            )
            if verdict is Durability.DURABLE:
                self._marking.ensure(undetermined)
        with self.lock:
            # Another caller may have resumed it meanwhile, and it may have halted again.
            under_way = self.halt.failure is None and (self._in_flight or self._queue or self.admission)
            if self.halt.undetermined is not undetermined or under_way:
                return None
            return self.halt.resume(verdict)

    def stats(self) -> WriterStats:
        """Return what waits, and the counts so far."""
        with self.lock:
            now_s, meter, acks = self._runtime.monotonic_s(), self._meter, self._acks
            oldest = [waiting.oldest.accepted_s for waiting in (self._queue, self.admission) if waiting]
            oldest += [flights[0].oldest_s for flights in (self._in_flight, self._marking.held) if flights]
            commit_s_p50, commit_s_max = meter.commit_s_p50_and_max()
            return WriterStats(
                bytes_held=self.admission.bytes_held,
                appends_waiting=self.num_waiting(),
                oldest_age_s=max(0.0, now_s - min(oldest, default=now_s)),
                appends=acks.appends,
                appends_failed=acks.appends_failed,
                num_records=acks.num_records,
                num_bytes=acks.num_bytes,
                num_fragments=meter.fragments,
                num_commits=meter.commits,
                commits_per_s=meter.commits_per_s(),
                commit_s=meter.commit_s,
                commit_s_p50=commit_s_p50,
                commit_s_max=commit_s_max,
                last_commit_age_s=meter.last_commit_age_s(),
                next_offset=self.position.next_offset,
                requests_retried=meter.requests_retried,
                contentions=meter.contentions,
                rebases=meter.rebases,
                rolls_failed=meter.rolls_failed,
                halted=self.halt.failure is not None,
            )

    def num_waiting(self) -> int:
        """Return how many appends have no outcome."""
        in_flight = sum(len(flight.appends) for flight in (*self._marking.held, *self._in_flight))
        return in_flight + len(self._queue) + len(self.admission)

    @property
    def driven_here(self) -> bool:
        """Whether this thread is taking a step of this loop right now."""
        return _DOING.get() is self

    # ------------------------------------------------------------------ steps, under the lock

    def _steps(self, *, cuts: bool = True) -> tuple[list[_Step], _Calls]:
        """Take every step the state allows, cutting only if ``cuts``; return tasks, and calls that deliver outcomes."""
        tasks: list[_Step] = []
        self._acks.acknowledge_marked()
        if not self._committing and self._in_flight and self._in_flight[0].error is not None:
            self._results.drop_failed_head()
        self._admit()
        while self._results.refuse_unmet():
            # That made room for more.
            self._admit()
        if self._queue and not self._in_flight and not self._recovering and self._results.must_load():
            self._recovering = True
            tasks.append(self._recover)
        while cuts and self._may_cut():
            flight = self._cut_batch()
            tasks.append(lambda flight=flight: self._upload(flight))  # type: ignore[misc]  # of a default, mypy infers no type
        if cuts:
            self._set_timer()
        uploaded = self._in_flight and self._in_flight[0].pointer is not None
        if uploaded and not self._committing and not self._snapshotter.awaited:
            self._committing = True
            tasks.append(self._commit)
        self._report.held(self.admission.bytes_held)
        return tasks, self._acks.take()

    def _go_on(self, tasks: list[_Step], deliveries: _Calls, *, here: bool = False) -> _Step | None:
        """Start the tasks on workers, and complete the futures.

        With ``here``, and no futures, return the last task for the caller to run, which saves a switch of threads.
        """
        own = tasks[-1:] if here and not deliveries else []
        for task in tasks[: len(tasks) - len(own)]:
            self._runtime.spawn(partial(self._drive, task), share=self._share)
        callbacks: list[Callable[[], None]] = []
        try:
            with callbacks_held(callbacks):
                call_each(deliveries)
        finally:
            if callbacks:
                # Callers' code: it may wait for any outcome, and for this log's workers.
                self._runtime.spawn(partial(call_each, callbacks), share=Share(_CALLBACKS, self._url))
        return own[0] if own else None

    def _admit(self) -> None:
        """Queue what there is room for from the inbox; all of it, to be refused, when the writer accepts nothing."""
        refusal = self._results.refusal()
        self.admission.drop_withdrawn()
        self.admission.move_into(self._queue, all_of_it=refusal is not None)
        if refusal is not None:
            self._results.refuse_queued(refusal)

    def _may_cut(self) -> bool:
        if not self._queue or self._recovering or self._results.head_waits():
            return False
        if any(flight.error for flight in self._in_flight) or self._uploading >= self._options.uploads_max:
            return False
        return len(self._in_flight) < self._options.fragments_in_flight_max and self._wait_s() <= 0

    def _wait_s(self) -> float:
        """Seconds until the queue's first batch is due."""
        now_s = self._runtime.monotonic_s()
        pause_s = self._fairness.not_before_s - now_s
        if (
            pause_s > 0
            or not self._in_flight
            or self._queue.full
            or self._queue.oldest.bytes_accepted <= self._bytes_hurried
        ):
            return pause_s
        return self._deadline.due_s(self._queue.oldest.accepted_s) - now_s

    def _set_timer(self) -> None:
        """Set a timer for when the first batch is due, unless a step under way will end before."""
        if not self._queue or self.position.base is None or self._recovering:
            return
        # A batch already due waits for the step under way; if there is none, it may have become due just now.
        wait_s = self._wait_s()
        if wait_s <= 0 and (self._in_flight or self._uploading):
            return
        wait_s = max(wait_s, 0.0)
        due_s = self._runtime.monotonic_s() + wait_s
        if self._timer is not None and self._timer_due_s <= due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        step = partial(self._drive, self._on_timer)
        self._timer, self._timer_due_s = self._runtime.call_later(wait_s, step, share=self._share), due_s

    def _drive(self, step: _Step | None) -> None:
        """Take a step in a worker's thread, then, not in it, what follows: nothing they call waits for this loop."""
        doing = _DOING.set(self)
        try:
            while step is not None:
                step = step()
        finally:
            _DOING.reset(doing)

    def _drive_on(self) -> None:
        """Take the steps that the state allows, in this thread."""
        self._drive(self._advance)

    def _spawn(self) -> None:
        """Have a worker take the steps that the state allows."""
        self._runtime.spawn(self._drive_on, share=self._share)

    def _advance(self) -> _Step | None:
        """Take the steps that ``waker`` asked for."""
        with self.lock:
            self.waker.answered()
            tasks, calls = self._steps()
        return self._go_on(tasks, calls, here=True)

    def _on_timer(self) -> _Step | None:
        with self.lock:
            self._timer = None
            tasks, calls = self._steps()
        return self._go_on(tasks, calls, here=True)

    def _cut_batch(self) -> InFlightFragment:
        flight = self.position.place(self._queue.take(self.position.offset, keyed=self.position.keyed))
        self._in_flight.append(flight)
        self._uploading += 1
        self._deadline.cut()
        return flight

    # ------------------------------------------------------------------ tasks, without the lock

    def _upload(self, flight: InFlightFragment) -> _Step | None:
        base = self.position.base
        if base is not None and flight.seq_no == flight.term.epoch.first_seq_no:
            self._snapshotter.begin(base.manifest)
        left_s = self._results.until_s(flight.appends) - self._runtime.monotonic_s()
        self._marking.begin(flight)
        if flight.error is None:
            flight.upload(self._store, within(self._options.retry, left_s), self._runtime, self._meter)
        with self.lock:
            self._uploading -= 1
            tasks, calls = self._steps()
        return self._go_on(tasks, calls, here=True)

    def _commit(self) -> None:
        interrupt: BaseException | None = None
        try:
            self._pause.take(self._meter.commit_s, self._head_left_s)
        except BaseException as error:  # noqa: BLE001 - raised again below: others wait for the commit
            interrupt = error
        with self.lock:
            ready = list(takewhile(lambda flight: flight.pointer is not None, self._in_flight))
            self._deadline.commit_began(len(self._in_flight) - len(ready))
            base = self.position.base
        assert base is not None
        pointers = [flight.pointer for flight in ready if flight.pointer is not None]
        keyless = any(flight.keyless for flight in ready)
        began_s = self._runtime.monotonic_s()
        until_s = self._results.until_s(chain.from_iterable(flight.appends for flight in ready))
        result: CommitResult
        try:
            refused = self._clock.refusal(base, pointers, until_s)
            result = refused or self._committer.commit(base, ready[0].term, pointers, until_s, keyless=keyless)
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            # Raised after a CAS was sent: an error before that is a result.
            result = Undetermined(f"{type(error).__name__}: {error}")
        took_s = self._runtime.monotonic_s() - began_s
        self._pause.committed()
        with self.lock:
            self._committing = False
            self._meter.commit_took(took_s)
            self._results.resolve(result, ready, began_s)
            self._deadline.commit_ended(len(self._in_flight))
            tasks, calls = self._steps(cuts=False)
        self._report.committed(result, ready, took_s)
        if isinstance(result, Committed):
            self._runtime.publish(self._url)
            self._snapshotter.committed(result.base.manifest)
        # Another worker cuts the next batch when its turn comes: what is appended until then goes into it.
        if self._queue:
            self.waker.wake()
        self._go_on(tasks, calls)
        if interrupt is not None:
            raise interrupt

    def _head_left_s(self) -> float:
        with self.lock:
            return self._results.until_s(self._in_flight[0].appends) - self._runtime.monotonic_s()

    def _recover(self) -> None:
        """Load the manifest again: its state is unknown, or an append's condition has to be checked."""
        began_s = self._runtime.monotonic_s()
        with self.lock:
            until_s = self._results.until_s([self._queue.oldest]) if self._queue else began_s
        try:
            retry = within(self._options.retry, until_s - began_s)
            base: Installed | None = until_answered(self._manifests.load, retry, self._runtime)
            failure: BaseException | None = None
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            base, failure = None, error
        with self.lock:
            self._recovering = False
            if base is not None:
                self._results.loaded(base, began_s, until_s)
            elif failure is not None:
                self._results.give_up_loading(failure)
            tasks, calls = self._steps()
        self._go_on(tasks, calls)
