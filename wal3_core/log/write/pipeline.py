"""From appends to durable fragments: batch, upload (several at a time), commit (in order, one at a time).

Where an append is, and what moves it on:

| state | held in | next state | when |
|---|---|---|---|
| accepted | inbox (``Admission``) | queued | there is room within ``bytes_held_max`` |
| accepted | inbox | overloaded | its caller gave up waiting for room |
| queued | queue (``BatchQueue``) | in flight | ``_may_cut``: its batch is due, and may be uploaded |
| queued | queue | condition not met | it is first, nothing is in flight, and the log ends elsewhere |
| in flight, uploading | flights | in flight, uploaded | the PUT of its fragment was answered |
| in flight, uploading | flights | queued, or not durable | the PUT failed; an append with time left is queued again |
| in flight, uploaded | flights | committing | it is at the head of the flights and no commit is under way |
| committing | flights | durable | ``Committed`` |
| committing | flights | queued, or contended | ``Displaced``: another writer took its place |
| committing | flights | sealed | ``SealedOut`` |
| committing | flights | queued, or not durable | ``Failed``: no CAS was applied |
| committing | flights | unknown | ``Lost``: a CAS has no answer |

One lock guards the state. Only workers take steps (``_steps``): after an upload or a commit, on a batch's timer, or
when a caller wakes one. A caller may be interrupted anywhere, so it only appends to the inbox and wakes a worker.
Nothing runs while nothing is queued. Source: docs/protocol.md, "Append".
"""

from __future__ import annotations

import contextlib
from collections import deque
from contextvars import ContextVar
from functools import partial
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any

from wal3_core.errors import ClosedError, InvalidRequestError, LogError
from wal3_core.log.write.admission import Admission
from wal3_core.log.write.batch import BatchQueue
from wal3_core.log.write.breath import Breath
from wal3_core.log.write.commit import CommitResult, Committed, Committer, Displaced, Failed, Undetermined
from wal3_core.log.write.halt import OutcomeLookup, ResumeReport
from wal3_core.log.write.log_clock import LogClock
from wal3_core.log.write.outcomes import call_each
from wal3_core.log.write.resolver import AppendResolver, Underway
from wal3_core.log.write.snapshotter import Snapshotter
from wal3_core.log.write.stats import Meter, WriterStats
from wal3_core.log.write.tail import Tail
from wal3_core.runtime import Outcome, callbacks_held, reentered
from wal3_core.storage.documents.snapshot_store import SnapshotStore
from wal3_core.storage.object_store import share_of
from wal3_core.storage.retry import for_store, until_answered, within
from wal3_core.workers import Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from wal3_core.log.write.batch import Entry
    from wal3_core.log.write.in_flight import InFlightFragment
    from wal3_core.log.write.outcomes import Delivery
    from wal3_core.model.fragment import FragmentPointer
    from wal3_core.model.manifest import Durability
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime, Timer
    from wal3_core.storage.documents.manifest_store import Installed, ManifestStore


# The pipeline that this thread takes a step of.
_DOING: ContextVar[object] = ContextVar("wal3-doing", default=None)
# In place of a store: callbacks share workers with each other, and with nothing that they may wait for.
_CALLBACKS = "callbacks"
# An append that has less time than this is committed without giving way to anybody.
_LEFT_S_MIN = 10.0


class Pipeline:
    """The moving parts of one log's writer; the log is the life that ``manifests`` has seen, and no other."""

    def __init__(
        self,
        manifests: ManifestStore,
        base: Installed | None,
        runtime: Runtime,
        options: WriterOptions,
        *,
        ordered: bool = False,
    ) -> None:
        self._url = manifests.url
        self._store = manifests.objects
        self._share = share_of(self._store)
        self._runtime = runtime
        self._options = options
        self._retry = for_store(options.retry, manifests)
        self._manifests = manifests
        self._snapshots = SnapshotStore(manifests, runtime, loaded_max=options.snapshots.loaded_max)
        self._snapshotter = Snapshotter(self._snapshots, runtime, options, self._share, self._drive_on)
        self._meter = Meter(runtime)
        self._breath = Breath(runtime)
        self._committer = Committer(
            self._manifests, runtime, options, amend=self._snapshotter.amend, retried=self._meter.retried
        )
        self._lock = runtime.lock()
        self._queue = BatchQueue(options)
        self._flights: deque[InFlightFragment] = deque()
        self._uploading = 0
        self._committing = False
        self._recovering = False
        self._woken = False
        # By whom, but no worker was asked yet.
        self._waking: deque[None] = deque()
        self._closed = False
        # In bytes since the writer was opened: to be cut without waiting.
        self._bytes_hurried = 0
        self._timer: Timer | None = None
        self._timer_due_s = 0.0
        self._clock = LogClock(self._store, runtime, options)
        self._tail = Tail(base, runtime, self._clock)
        underway = Underway(self._queue, self._flights, self._tail, self._meter)
        self._resolver = AppendResolver(manifests.url, runtime, options, underway, ordered=ordered)
        self._outcomes = self._resolver.outcomes
        self._admission = Admission(self._url, options.bytes_held_max, self._outcomes)

    # ------------------------------------------------------------------ what the writer calls

    def submit(self, entry: Entry, timeout_s: float | None = None) -> None:
        """Queue an append; blocks while too many bytes wait to become durable, OverloadedError after ``timeout_s``."""
        self._check_reentry()
        try:
            self._accept(entry, at_once=timeout_s is not None and timeout_s <= 0)
            self._wake()
        except LogError:
            # Not taken: there is nothing to drive.
            raise
        except BaseException:
            # An interrupt may have come between the two, and a queued append wants somebody to drive it.
            self._runtime.spawn(self._drive_on, share=self._share)
            raise
        if entry.admitted is not None:
            self._await_room(entry, entry.admitted, timeout_s)

    def _accept(self, entry: Entry, *, at_once: bool) -> None:
        with self._lock:
            self._check_open()
            self._admission.accept(entry, may_wait=not at_once and _DOING.get() is not self)

    def _await_room(self, entry: Entry, admitted: Outcome[None], timeout_s: float | None) -> None:
        try:
            self._runtime.wait(admitted, timeout_s)
        except Exception as error:
            with self._lock:
                # A worker lets entries in under the lock, and tells after it: in the inbox, it was not let in.
                entry.withdrawn = entry in self._admission
                overloaded = self._admission.overloaded()
            if entry.withdrawn:
                self._wake()
            # Whatever it is that was raised, what the caller is told was not begun is not.
            if not isinstance(error, TimeoutError):
                raise
            if entry.withdrawn:
                raise overloaded from None

    def resume(self) -> ResumeReport:
        """Let an ordered writer go on; UnavailableError while there is no telling what became of its appends."""
        self.check_awaited_here()
        halt = self._resolver.halt
        if not halt.ordered:
            message = f"log {self._url}: expected an ordered writer to resume, found one that is not"
            raise InvalidRequestError(message)
        while True:
            if halt.failure is None:
                # What is on its way may yet be durable, or halt the writer: it is to be counted now, and not later.
                self.flush()
            undetermined = halt.undetermined
            verdict: Durability | None = None
            if undetermined is not None:
                lookup = OutcomeLookup(self._manifests, self._snapshots, self._runtime)
                verdict = lookup.look_up(undetermined, self._retry)
            with self._lock:
                # Another caller may have resumed it meanwhile, and it may have halted again.
                under_way = halt.failure is None and (self._flights or self._queue or self._admission)
                if halt.undetermined is undetermined and not under_way:
                    return halt.resume(verdict)

    def stats(self) -> WriterStats:
        """Say how the writer is doing."""
        self._runtime.check_process()
        with self._lock:
            now_s = self._runtime.monotonic_s()
            oldest = [waiting.oldest.accepted_s for waiting in (self._queue, self._admission) if waiting]
            oldest += [self._flights[0].oldest_s] if self._flights else []
            in_flight = sum(len(flight.entries) for flight in self._flights)
            return WriterStats(
                bytes_held=self._admission.bytes_held,
                appends_waiting=in_flight + len(self._queue) + len(self._admission),
                oldest_age_s=max(0.0, now_s - min(oldest, default=now_s)),
                appends=self._outcomes.appends,
                appends_failed=self._outcomes.appends_failed,
                num_records=self._outcomes.num_records,
                num_bytes=self._outcomes.num_bytes,
                num_fragments=self._meter.fragments,
                num_commits=self._meter.commits,
                commits_per_s=self._meter.commits_per_s(),
                commit_s=self._meter.commit_s,
                requests_retried=self._meter.requests_retried,
                places_lost=self._meter.places_lost,
                halted=self._resolver.halt.failure is not None,
            )

    def close(self) -> None:
        """Take no more appends, and block until those queued have their outcome."""
        self.check_awaited_here()
        with self._lock:
            self._closed = True
        self.flush()

    def flush(self) -> None:
        """Block until everything queued so far has its outcome, without waiting for fuller batches."""
        self.check_awaited_here()
        with self._lock:
            waited_for = self._outcomes.futures()
            waited_for += [entry.future for flight in self._flights for entry in flight.entries]
            waited_for += self._queue.futures() + self._admission.futures()
            self._bytes_hurried = self._admission.bytes_accepted
        if waited_for:
            self._wake()
        for future in waited_for:
            with contextlib.suppress(LogError):
                self._runtime.wait(future)

    def check_awaited_here(self) -> None:
        """Refuse to wait for an append where it would wait for itself, as in a ``__del__`` that comes in a step."""
        self._check_reentry()
        if _DOING.get() is self:
            raise reentered(f"log {self._url}")

    def _check_reentry(self) -> None:
        self._runtime.check_process()
        if self._lock.owned():
            raise reentered(f"log {self._url}")

    def _check_open(self) -> None:
        if self._closed:
            message = f"log {self._url}: expected an open writer, found it closed"
            raise ClosedError(message)
        refusal = self._resolver.refusal()
        if refusal is not None:
            raise refusal

    def _wake(self) -> None:
        """Have a worker look at the inbox; one that was asked to and has not begun yet will do."""
        if self._woken and not self._waking:
            return
        try:
            # Whoever comes in between, in a signal's handler that the worker is to wait for, asks for himself.
            self._waking.append(None)
            self._woken = True
            self._runtime.spawn(self._drive_on, share=self._share)
        except BaseException:
            # Nobody would be woken any more if the interrupt came between the two.
            self._runtime.spawn(self._drive_on, share=self._share)
            raise
        finally:
            with contextlib.suppress(IndexError):
                self._waking.pop()

    # ------------------------------------------------------------------ steps, under the lock

    def _steps(self) -> tuple[list[Callable[[], None]], list[Delivery[Any]]]:
        """Take every step the state allows; return the tasks that follow, and the outcomes to be told."""
        tasks: list[Callable[[], None]] = []
        if not self._committing and self._flights and self._flights[0].error is not None:
            self._resolver.drop_failed_head()
        self._admit()
        while self._resolver.refuse_unmet():
            # There is room for more now.
            self._admit()
        if self._queue and not self._flights and not self._recovering and self._resolver.head_waits():
            self._recovering = True
            tasks.append(self._recover)
        while self._may_cut():
            flight = self._seal()
            tasks.append(lambda flight=flight: self._upload(flight))  # type: ignore[misc]
        self._set_timer()
        uploaded = self._flights and self._flights[0].pointer is not None
        if uploaded and not self._committing and not self._snapshotter.awaited:
            self._committing = True
            tasks.append(self._commit)
        return tasks, self._outcomes.take()

    def _go_on(self, tasks: Iterable[Callable[[], None]], deliveries: Iterable[Delivery[Any]]) -> None:
        for task in tasks:
            self._runtime.spawn(partial(self._drive, task), share=self._share)
        callbacks: list[Callable[[], None]] = []
        try:
            with callbacks_held(callbacks):
                call_each(delivery.deliver for delivery in deliveries)
        finally:
            if callbacks:
                # The callers' code, which may wait for any outcome, and for what the workers of this log have to do.
                self._runtime.spawn(partial(call_each, callbacks), share=Share(_CALLBACKS, self._url))

    def _admit(self) -> None:
        """Let in from the inbox what there is room for; all of it when the writer takes nothing, to be refused."""
        refusal = self._resolver.refusal()
        self._admission.drop_withdrawn()
        self._admission.move_into(self._queue, all_of_it=refusal is not None)
        if refusal is not None:
            self._resolver.refuse_queued(refusal)

    def _may_cut(self) -> bool:
        if not self._queue or self._recovering or self._resolver.head_waits():
            return False
        if any(flight.error for flight in self._flights) or self._uploading >= self._options.uploads_max:
            return False
        if len(self._flights) >= self._options.fragments_in_flight_max:
            return False
        return self._wait_s() <= 0

    def _wait_s(self) -> float:
        """Seconds until the queue's first batch is due."""
        now_s = self._runtime.monotonic_s()
        pause_s = self._resolver.not_before_s - now_s
        if (
            pause_s > 0
            or not self._flights
            or self._queue.full
            or self._queue.oldest.bytes_accepted <= self._bytes_hurried
        ):
            return pause_s
        # A batch waits at least as long as commits take: a slow store gets fewer and larger ones.
        age_s = max(self._options.batch_age_s_max, min(self._meter.commit_s, self._options.commit_pause_s_max))
        return self._queue.oldest.accepted_s + age_s - now_s

    def _set_timer(self) -> None:
        """Come back when the first batch is due; not needed when a step under way will end before."""
        if not self._queue or self._tail.base is None or self._recovering:
            return
        # What is due already waits for a step under way to end; where there is none, it may have become due just now.
        wait_s = self._wait_s()
        if wait_s <= 0 and (self._flights or self._uploading):
            return
        wait_s = max(wait_s, 0.0)
        due_s = self._runtime.monotonic_s() + wait_s
        if self._timer is not None and self._timer_due_s <= due_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_due_s = (
            self._runtime.call_later(wait_s, partial(self._drive, self._on_timer), share=self._share),
            due_s,
        )

    def _drive(self, step: Callable[[], None]) -> None:
        """Take a step in a worker's thread, which must not wait for itself in what it comes to call."""
        doing = _DOING.set(self)
        try:
            step()
        finally:
            _DOING.reset(doing)

    def _drive_on(self) -> None:
        self._drive(self._advance)

    def _advance(self) -> None:
        """Take the steps that somebody asked for."""
        with self._lock:
            self._woken = False
            tasks, outcomes = self._steps()
        # In this thread, which has nothing else to do if there is nobody to tell: handing it on would only take time.
        here = [] if outcomes else tasks[:1]
        self._go_on(tasks[len(here) :], outcomes)
        for task in here:
            task()

    def _on_timer(self) -> None:
        with self._lock:
            self._timer = None
            tasks, outcomes = self._steps()
        self._go_on(tasks, outcomes)

    def _seal(self) -> InFlightFragment:
        flight = self._tail.place(self._queue.take(self._tail.offset))
        self._flights.append(flight)
        self._uploading += 1
        return flight

    # ------------------------------------------------------------------ tasks, without the lock

    def _upload(self, flight: InFlightFragment) -> None:
        base = self._tail.base
        if base is not None and flight.seq_no == flight.term.entry.first_seq_no:
            self._snapshotter.begin(base.manifest)
        left_s = self._resolver.until_s(flight.entries) - self._runtime.monotonic_s()
        flight.upload(self._store, within(self._options.retry, left_s), self._runtime, self._meter.retried)
        with self._lock:
            self._uploading -= 1
            tasks, outcomes = self._steps()
        self._go_on(tasks, outcomes)

    def _commit(self) -> None:
        interrupt: BaseException | None = None
        try:
            self._give_way()
        except BaseException as error:  # noqa: BLE001 - where this thread does it all: others wait for the commit
            interrupt = error
        with self._lock:
            ready = list(takewhile(lambda flight: flight.pointer is not None, self._flights))
            base = self._tail.base
        assert base is not None
        pointers = [flight.pointer for flight in ready if flight.pointer is not None]
        began_s = self._runtime.monotonic_s()
        until_s = self._resolver.until_s(chain.from_iterable(flight.entries for flight in ready))
        result: CommitResult
        try:
            refused = self._look_at_time(base, pointers, until_s)
            result = refused or self._committer.commit(base, ready[0].term, pointers, until_s)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the callers must hear of it
            # It came behind a CAS that was sent: what comes before one is a result.
            result = Undetermined(f"{type(error).__name__}: {error}")
        took_s = self._runtime.monotonic_s() - began_s
        self._breath.committed()
        with self._lock:
            self._committing = False
            self._meter.commit_took(took_s)
            self._resolver.resolve(result, ready, began_s)
            tasks, outcomes = self._steps()
        if isinstance(result, Committed):
            self._runtime.publish(self._url)
            self._snapshotter.committed(result.base.manifest)
        self._go_on(tasks, outcomes)
        if interrupt is not None:
            raise interrupt

    def _give_way(self) -> None:
        """Let others at the manifest when it is their turn, unless an append could be late for it."""
        pause_s = self._breath.due_s(self._meter.commit_s)
        if pause_s:
            with self._lock:
                left_s = self._resolver.until_s(self._flights[0].entries) - self._runtime.monotonic_s()
            if left_s > _LEFT_S_MIN:
                self._runtime.sleep(pause_s)
                self._breath.paused()

    def _look_at_time(
        self, base: Installed, fragments: Sequence[FragmentPointer], until_s: float
    ) -> Displaced | Failed | None:
        """Say why fragments must not be committed with the time they have; nothing was sent when that fails."""
        try:
            left_s = until_s - self._runtime.monotonic_s()
            return self._clock.look(base, fragments, within(self._options.retry, left_s))
        except BaseException as error:  # noqa: BLE001 - whatever it was, the callers must hear of it
            return Failed(f"{type(error).__name__}: {error}", error)

    def _recover(self) -> None:
        """Load the manifest anew: its state was lost track of, or an append's condition has to be looked at."""
        began_s = self._runtime.monotonic_s()
        with self._lock:
            until_s = self._resolver.until_s([self._queue.oldest]) if self._queue else began_s
        try:
            retry = within(self._options.retry, until_s - began_s)
            base: Installed | None = until_answered(self._manifests.load, retry, self._runtime)
            failure: BaseException | None = None
        except BaseException as error:  # noqa: BLE001 - whatever it was, the callers must hear of it
            base, failure = None, error
        with self._lock:
            self._recovering = False
            if base is not None:
                self._tail.confirm(base, began_s)
            elif failure is not None:
                self._resolver.give_up_loading(failure)
            tasks, outcomes = self._steps()
        self._go_on(tasks, outcomes)
