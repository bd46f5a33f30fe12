"""From queued appends to durable fragments: seal, upload (several at a time), commit (in order, one at a time).

A state machine under one lock. Workers alone change its state and take the next steps: one that
uploaded, one woken by the timer of a batch or by a caller. A caller, who may be interrupted anywhere,
does no more than put its append into the inbox, by a single call, and wake a worker; one that finds
too many bytes held waits there, first come, first served. Nothing runs while nothing is queued.
Source: docs/protocol.md, "Append".
"""

from __future__ import annotations

import contextlib
from collections import deque
from dataclasses import dataclass
from itertools import chain, takewhile
from typing import TYPE_CHECKING

from wal3_core.errors import (
    AppendReplacedError,
    ClosedError,
    ContentionError,
    LogError,
    LogReplacedError,
    NotDurableError,
    SealedError,
    UnknownDurabilityError,
)
from wal3_core.log.batch import BatchQueue, Entry, join
from wal3_core.log.commit import (
    CommitResult,
    Committed,
    Committer,
    Displaced,
    Failed,
    Incarnation,
    Lost,
    SealedOut,
)
from wal3_core.log.log_clock import LogClock
from wal3_core.log.snapshotter import Snapshotter
from wal3_core.model.fragment import FragmentPointer
from wal3_core.model.manifest import Epoch, Place
from wal3_core.model.parquet import FragmentSource, encode
from wal3_core.model.paths import fragment_path
from wal3_core.model.position import FragmentSeqNo, LogPosition
from wal3_core.runtime import Outcome
from wal3_core.storage.immutable import write_immutable
from wal3_core.storage.object_store import share_of
from wal3_core.storage.retry import until_answered
from wal3_core.storage.snapshot_store import SnapshotStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime, Timer
    from wal3_core.storage.manifest_store import Installed, ManifestStore

# Weight of the newest measurement in the moving average of a commit's duration.
_COMMIT_WEIGHT = 0.3
_BACKOFF_DOUBLINGS_MAX = 6
_BACKOFF_S_MIN = 0.005


@dataclass(slots=True, eq=False)
class Flight:
    """A sealed fragment on its way: uploading until it has a pointer or an error."""

    entries: list[Entry]
    start: LogPosition
    seq_no: FragmentSeqNo
    incarnation: Incarnation
    pointer: FragmentPointer | None = None
    error: BaseException | None = None


class Pipeline:
    """The moving parts of one log's writer; the log is the life that ``manifests`` has seen, and no other."""

    def __init__(
        self, manifests: ManifestStore, base: Installed | None, runtime: Runtime, options: WriterOptions
    ) -> None:
        self._url = manifests.url
        self._store = manifests.objects
        self._share = share_of(self._store)
        self._runtime = runtime
        self._options = options
        self._manifests = manifests
        snapshots = SnapshotStore(manifests, runtime, loaded_max=options.snapshots.loaded_max)
        self._snapshotter = Snapshotter(snapshots, runtime, options, self._share, self._advance)
        self._committer = Committer(self._manifests, runtime, options, self._snapshotter.amend)
        self._clock = LogClock(self._manifests.objects, runtime, options)
        self._lock = runtime.lock()
        self._inbox: deque[Entry] = deque()
        self._queue = BatchQueue(options)
        self._flights: deque[Flight] = deque()
        self._uploading = 0
        self._committing = False
        self._recovering = False
        self._woken = False
        self._closed = False
        # All in bytes since the writer was opened: taken from the inbox, with their outcome, to be cut without waiting.
        self._bytes_admitted = 0
        self._bytes_released = 0
        self._bytes_hurried = 0
        self._told: list[list[Future[LogPosition]]] = []
        self._commit_s = 0.0
        self._not_before_s = 0.0
        self._timer: Timer | None = None
        self._timer_due_s = 0.0
        self._base = base
        self._incarnation: Incarnation | None = None
        self._tail: Place | None = None
        if base is not None:
            self._reincarnate(base)

    # ------------------------------------------------------------------ what the writer calls

    def submit(self, entry: Entry) -> None:
        """Queue an append; blocks while too many bytes wait to become durable."""
        self._runtime.check_process()
        try:
            with self._lock:
                self._check_open()
                held = self._bytes_accepted() - self._bytes_released
                if held and held + entry.bytes_held > self._options.bytes_held_max:
                    entry.admitted = Outcome()
                entry.bytes_accepted = self._bytes_accepted() + entry.bytes_held
                self._inbox.append(entry)
            self._wake()
        except LogError:
            # Not taken: there is nothing to drive.
            raise
        except BaseException:
            # An interrupt may have come between the two, and a queued append wants somebody to drive it.
            self._runtime.spawn(self._advance, share=self._share)
            raise
        if entry.admitted is not None:
            self._runtime.wait(entry.admitted)

    def close(self) -> None:
        """Take no more appends, and block until those queued have their outcome."""
        self._runtime.check_process()
        with self._lock:
            self._closed = True
        self.flush()

    def flush(self) -> None:
        """Block until everything queued so far has its outcome, without waiting for fuller batches."""
        self._runtime.check_process()
        with self._lock:
            waited_for = list(chain.from_iterable(self._told))
            waited_for += [entry.future for flight in self._flights for entry in flight.entries]
            waited_for += self._queue.futures() + [entry.future for entry in self._inbox]
            self._bytes_hurried = self._bytes_accepted()
        if waited_for:
            self._wake()
        for future in waited_for:
            with contextlib.suppress(LogError):
                self._runtime.wait(future)

    def _check_open(self) -> None:
        if self._closed:
            message = f"log {self._url}: expected an open writer, found it closed"
            raise ClosedError(message)
        if self._base is not None and self._base.manifest.seal is not None:
            raise self._sealed(self._base)

    def _bytes_accepted(self) -> int:
        return self._inbox[-1].bytes_accepted if self._inbox else self._bytes_admitted

    def _wake(self) -> None:
        """Have a worker look at the inbox; one that was asked to and has not begun yet will do."""
        try:
            if not self._woken:
                self._woken = True
                self._runtime.spawn(self._advance, share=self._share)
        except BaseException:
            # Nobody would be woken any more if the interrupt came between the two.
            self._runtime.spawn(self._advance, share=self._share)
            raise

    # ------------------------------------------------------------------ steps, under the lock

    def _steps(self, outcomes: list[Callable[[], None]]) -> list[Callable[[], None]]:
        """Take every step the state allows; return the tasks that follow, and add the outcomes to be told."""
        tasks: list[Callable[[], None]] = []
        self._drop_failed_head(outcomes)
        self._admit(outcomes)
        if self._base is None and self._queue and not self._flights and not self._recovering:
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
        return tasks

    def _go_on(self, tasks: Iterable[Callable[[], None]], outcomes: Iterable[Callable[[], None]]) -> None:
        # Tasks first: an outcome's callbacks are the callers' code, and may take their time.
        for task in tasks:
            self._runtime.spawn(task, share=self._share)
        first: BaseException | None = None
        for tell in outcomes:
            try:
                tell()
            except BaseException as error:  # noqa: BLE001 - one caller's callback; the others wait for theirs
                first = first or error
        if first is not None:
            raise first

    def _admit(self, actions: list[Callable[[], None]]) -> None:
        """Let in from the inbox what there is room for; all of it when the log is sealed, to be refused."""
        sealed = self._base is not None and self._base.manifest.seal is not None
        while self._inbox:
            entry = self._inbox[0]
            held = self._bytes_admitted - self._bytes_released
            if not sealed and held and held + entry.bytes_held > self._options.bytes_held_max:
                break
            self._bytes_admitted = entry.bytes_accepted
            self._queue.add(self._inbox.popleft())
            if entry.admitted is not None:
                actions.append(lambda admitted=entry.admitted: admitted.set_result(None))  # type: ignore[misc]
        if sealed and self._base is not None:
            self._give_up(self._queue.take_all(), self._sealed(self._base), None, actions)

    def _may_cut(self) -> bool:
        if not self._queue or self._base is None or any(flight.error for flight in self._flights):
            return False
        if self._uploading >= self._options.uploads_max:
            return False
        if len(self._flights) >= self._options.fragments_in_flight_max:
            return False
        return self._wait_s() <= 0

    def _wait_s(self) -> float:
        """Seconds until the queue's first batch is due."""
        now_s = self._runtime.monotonic_s()
        pause_s = self._not_before_s - now_s
        if (
            pause_s > 0
            or not self._flights
            or self._queue.full
            or self._queue.oldest.bytes_accepted <= self._bytes_hurried
        ):
            return pause_s
        # A batch waits at least as long as commits take: a slow store gets fewer and larger ones.
        age_s = max(self._options.batch_age_s_max, min(self._commit_s, self._options.commit_pause_s_max))
        return self._queue.oldest.accepted_s + age_s - now_s

    def _set_timer(self) -> None:
        """Come back when the first batch is due; not needed when a step under way will end before."""
        if not self._queue or self._base is None:
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
        self._timer, self._timer_due_s = self._runtime.call_later(wait_s, self._on_timer, share=self._share), due_s

    def _advance(self) -> None:
        """Take the steps that somebody asked for."""
        outcomes: list[Callable[[], None]] = []
        with self._lock:
            self._woken = False
            tasks = self._steps(outcomes)
        # In this thread, which has nothing else to do if there is nobody to tell: handing it on would only take time.
        here = [] if outcomes else tasks[:1]
        self._go_on(tasks[len(here) :], outcomes)
        for task in here:
            task()

    def _on_timer(self) -> None:
        outcomes: list[Callable[[], None]] = []
        with self._lock:
            self._timer = None
            tasks = self._steps(outcomes)
        self._go_on(tasks, outcomes)

    def _seal(self) -> Flight:
        assert self._tail is not None
        assert self._incarnation is not None
        entries = self._queue.take()
        count = sum(len(entry.columns.bodies) for entry in entries)
        before = self._tail.position
        start = LogPosition(before.offset, max(self._clock.now_us(), before.timestamp_us))
        flight = Flight(entries, start, self._tail.seq_no, self._incarnation)
        self._tail = Place(FragmentSeqNo(flight.seq_no + 1), LogPosition(start.offset + count, start.timestamp_us))
        self._flights.append(flight)
        self._uploading += 1
        return flight

    def _reincarnate(self, base: Installed) -> None:
        """Go on from a manifest as a new epoch, under a new token: paths of the old one are not used again."""
        manifest = base.manifest
        entry = Epoch(manifest.last_epoch + 1, self._runtime.token(), manifest.next.seq_no)
        self._base, self._tail = base, manifest.next
        self._incarnation = Incarnation(entry, manifest.fence)

    def _drop_failed_head(self, actions: list[Callable[[], None]]) -> None:
        """Fail the callers of a fragment that could not be uploaded; give those behind it new places."""
        if self._committing or not self._flights or self._flights[0].error is None:
            return
        head, *behind = self._flights
        cause = f"{self._what(head)}: not uploaded: {head.error}"
        self._give_up(head.entries, NotDurableError(cause), head.error, actions)
        self._queue.put_back(chain.from_iterable(flight.entries for flight in behind))
        self._flights.clear()
        assert self._base is not None
        self._reincarnate(self._base)

    # ------------------------------------------------------------------ tasks, without the lock

    def _upload(self, flight: Flight) -> None:
        base = self._base
        try:
            if base is not None and flight.seq_no == flight.incarnation.entry.first_seq_no:
                self._snapshotter.begin(base.manifest)
            flight.pointer = self._write_fragment(flight)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the callers must hear of it
            flight.error = error
        outcomes: list[Callable[[], None]] = []
        with self._lock:
            self._uploading -= 1
            tasks = self._steps(outcomes)
        self._go_on(tasks, outcomes)

    def _write_fragment(self, flight: Flight) -> FragmentPointer:
        columns = join([entry.columns for entry in flight.entries])
        source = FragmentSource(
            start=flight.start,
            seq_no=flight.seq_no,
            token=flight.incarnation.entry.token,
            keys=columns.keys,
            bodies=columns.bodies,
        )
        encoded = encode(source)
        path = fragment_path(flight.seq_no, source.token)
        # Fragment first: an orphan is garbage, a dangling pointer is loss.
        write_immutable(self._store, path, encoded.data, self._options.retry, self._runtime)
        count = len(source.bodies)
        return FragmentPointer(
            path=path,
            first_seq_no=flight.seq_no,
            seq_no=flight.seq_no,
            start=flight.start,
            limit=LogPosition(flight.start.offset + count, flight.start.timestamp_us),
            setsum=encoded.setsum,
            num_bytes=len(encoded.data),
            num_records=count,
        )

    def _commit(self) -> None:
        with self._lock:
            ready = list(takewhile(lambda flight: flight.pointer is not None, self._flights))
            base = self._base
        assert base is not None
        pointers = [flight.pointer for flight in ready if flight.pointer is not None]
        began_s = self._runtime.monotonic_s()
        try:
            refused = self._clock.look(base, pointers)
            result = refused or self._committer.commit(base, ready[0].incarnation, pointers)
        except BaseException as error:  # noqa: BLE001 - whatever it was, the callers must hear of it
            result = Lost(f"{type(error).__name__}: {error}")
        took_s = self._runtime.monotonic_s() - began_s
        with self._lock:
            self._committing = False
            self._commit_s += _COMMIT_WEIGHT * (took_s - self._commit_s) if self._commit_s else took_s
            outcomes = self._settle(result, ready)
            tasks = self._steps(outcomes)
        if isinstance(result, Committed):
            self._runtime.publish(self._url)
            self._snapshotter.committed(result.base.manifest)
        self._go_on(tasks, outcomes)

    def _recover(self) -> None:
        """Load the manifest anew after its state was lost track of."""
        try:
            base: Installed | None = until_answered(self._manifests.load, self._options.retry, self._runtime)
            failure: BaseException | None = None
        except BaseException as error:  # noqa: BLE001 - whatever it was, the callers must hear of it
            base, failure = None, error
        with self._lock:
            self._recovering = False
            outcomes: list[Callable[[], None]] = []
            if base is None:
                cause = _not_durable(f"log {self._url}: {failure}", failure)
                self._give_up(self._queue.take_all(), cause, failure, outcomes)
            else:
                self._reincarnate(base)
            tasks = self._steps(outcomes)
        self._go_on(tasks, outcomes)

    # ------------------------------------------------------------------ outcomes, under the lock

    def _settle(self, result: CommitResult, ready: list[Flight]) -> list[Callable[[], None]]:
        actions: list[Callable[[], None]] = []
        match result:
            case Committed(base):
                self._base = base
                for flight in ready:
                    self._flights.popleft()
                    self._acknowledge(flight, actions)
            case Displaced():
                self._give_new_places(result, actions)
            case SealedOut(base):
                self._reincarnate(base)
                self._give_up(self._take_flights(), self._sealed(base), None, actions)
            case Failed(cause, failure):
                self._base = None
                error: LogError = _not_durable(f"{self._what(ready[0])}: not committed: {cause}", failure)
                self._give_up(self._take_flights(), error, failure, actions)
            case Lost(cause):
                self._base = None
                error = UnknownDurabilityError(f"{self._what(ready[0])}: no telling whether it was committed: {cause}")
                self._give_up([entry for flight in ready for entry in flight.entries], error, None, actions)
                # Those behind were in no commit yet, so they can not come to be in the log.
                behind = self._take_flights()[sum(len(flight.entries) for flight in ready) :]
                self._give_up(behind, NotDurableError(f"{self._what(ready[-1])}: {error}"), None, actions)
        return actions

    def _give_new_places(self, displaced: Displaced, actions: list[Callable[[], None]]) -> None:
        kept: list[Entry] = []
        for entry in self._take_flights():
            # Maintenance is no contention: it has a bound of its own, which nothing but a defect comes to.
            entry.reseals += displaced.contended
            entry.rebases += not displaced.contended
            if entry.reseals > self._options.reseals_max or entry.rebases > self._options.rebases_max:
                times = entry.reseals + entry.rebases
                text = f"log {self._url}: records lost their place {times} times: {displaced.cause}"
                self._give_up([entry], ContentionError(text), None, actions)
            else:
                kept.append(entry)
        self._queue.put_back(kept)
        self._reincarnate(displaced.base)
        doublings = min(max((entry.reseals for entry in kept), default=0), _BACKOFF_DOUBLINGS_MAX)
        backoff_s = max(self._commit_s, _BACKOFF_S_MIN) * 2**doublings * self._runtime.jitter()
        self._not_before_s = self._runtime.monotonic_s() + min(backoff_s, self._options.commit_pause_s_max)

    def _take_flights(self) -> list[Entry]:
        entries = [entry for flight in self._flights for entry in flight.entries]
        self._flights.clear()
        return entries

    def _acknowledge(self, flight: Flight, actions: list[Callable[[], None]]) -> None:
        offset = flight.start.offset
        for entry in flight.entries:
            position = LogPosition(offset, flight.start.timestamp_us)
            offset += len(entry.columns.bodies)
            actions.append(lambda entry=entry, position=position: entry.future.set_result(position))  # type: ignore[misc]
        self._release(flight.entries)

    def _give_up(
        self,
        entries: Sequence[Entry],
        error: LogError,
        cause: BaseException | None,
        actions: list[Callable[[], None]],
    ) -> None:
        for entry in entries:
            # Each caller gets an exception of its own: raising one adds to its traceback.
            own = type(error)(*error.args)
            own.__cause__ = cause
            actions.append(lambda entry=entry, own=own: entry.future.set_exception(own))  # type: ignore[misc]
        self._release(entries)

    def _release(self, entries: Sequence[Entry]) -> None:
        self._bytes_released += sum(entry.bytes_held for entry in entries)
        # They have their outcomes once the lock is let go; who flushes waits for that, too.
        self._told = [futures for futures in self._told if not futures[-1].done()]
        if entries:
            self._told.append([entry.future for entry in entries])

    def _sealed(self, base: Installed) -> SealedError:
        seal = base.manifest.seal
        assert seal is not None
        successor = f"; it goes on in {seal.successor}" if seal.successor else ""
        return SealedError(f"log {self._url}: sealed by {seal.sealed_by}: {seal.reason}{successor}")

    def _what(self, flight: Flight) -> str:
        return f"log {self._url}: fragment {flight.seq_no}"


def _not_durable(message: str, cause: BaseException | None) -> NotDurableError:
    """Make the error of an append that is not in the log, by what its caller does next."""
    return (AppendReplacedError if isinstance(cause, LogReplacedError) else NotDurableError)(message)
