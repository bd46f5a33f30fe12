"""What a commit, an upload or a manifest means for each append: acknowledged, failed, or given another place.

``CommitResultHandler`` decides it, ``HaltState`` stops an ordered writer at its first failure, and ``OutcomeQueue``
keeps what was decided until the writer's lock is released: then it is reported, and delivered to the callers.
Source: docs/protocol.md, "Append".
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING

from wal3_core.errors import (
    AppendError,
    AppendReplacedError,
    ConditionNotMetError,
    ContentionError,
    HaltedError,
    KeyRequiredError,
    LogError,
    LogReplacedError,
    NotDurableError,
    UnavailableError,
    UnknownDurabilityError,
    ViewRequiredError,
)
from wal3_core.format.manifest import Durability
from wal3_core.format.position import LogPosition
from wal3_core.log.write.appends import (
    Append,
    BatchQueue,
    InFlightFragment,
    Marking,
    WritePosition,
    sealed_error,
    view_required,
)
from wal3_core.log.write.commit import (
    CommitResult,
    Committed,
    Displaced,
    Failed,
    SealedOut,
    Undetermined,
    hopeless,
    searched,
)
from wal3_core.log.write.pacing import WriterFairness
from wal3_core.options import WriterOptions
from wal3_core.runtime import Runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.retrying import delivery_s_of

if TYPE_CHECKING:
    from collections import deque

    from wal3_core.log.write.stats import Meter, Report


# The age, when an append without a key or of another view was accepted, of a manifest that refuses it: at most this.
_KEYED_KNOWN_S = 1.0
# The key of a minimum over thousands of appends.
_ACCEPTED_S = attrgetter("accepted_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterState:
    """What a writer has under way: appends that wait, fragments in flight in order, and where the next one goes."""

    queue: BatchQueue
    in_flight: deque[InFlightFragment]
    position: WritePosition
    meter: Meter
    report: Report
    marking: Marking
    halt: HaltState


class CommitResultHandler:
    """Decides what becomes of appends; shares the write loop's state and its lock."""

    def __init__(self, url: str, runtime: Runtime, options: WriterOptions, state: WriterState) -> None:
        self._url = url
        self._runtime = runtime
        self._options = options
        self._queue, self._in_flight, self._position = state.queue, state.in_flight, state.position
        self._meter, self._halt = state.meter, state.halt
        self._delivery_timeout_s = delivery_s_of(options, url)
        self.acks = OutcomeQueue(state.report, state.marking)
        self.fairness = WriterFairness(state.position.tag, options, state.meter, runtime)

    def until_s(self, appends: Iterable[Append]) -> float:
        """When the oldest of some appends must have its outcome, by the monotonic clock."""
        oldest_s: float = min(map(_ACCEPTED_S, appends))
        return oldest_s + self._delivery_timeout_s

    def refusal(self) -> NotDurableError | None:
        """Return why the writer accepts nothing; None when it does."""
        return sealed_error(self._url, self._position.seal) if self._position.seal is not None else self._halt.refusal()

    def refusal_of(self, append: Append) -> KeyRequiredError | ViewRequiredError | None:
        """Return why the log does not take an append that was just made; None when it does, or may by now."""
        append.doubted = self._position.refuses(append)
        return self._refusal_of(append) if append.doubted and self._knows_keyed(append) else None

    def refuse_queued(self, refusal: NotDurableError) -> None:
        """Fail everything in the queue."""
        self.acks.give_up(self._queue.take_all(), refusal, self._halt.failure)

    def refuse_unmet(self) -> bool:
        """Fail appends at the head of the queue that the log does not take; whether there were any.

        Those that certainly cannot land at their offset, by a manifest that was the newest after the append was
        accepted; and those without a key or of another view, by one that is as new.
        Decided only while nothing is in flight: an ordered writer that halts has the outcomes of all appends before.
        """
        before = len(self._queue)
        while self._head_is_refused() and not self._in_flight and self._knows_keyed(self._queue.oldest):
            append = self._queue.pop()
            # As if it had been refused at once, a doubted one counts as not submitted.
            refuse = self.acks.give_up if append.doubted else self._fail
            refuse([append], self._refusal_of(append), None)
        while self._head_is_unmet() and not self._in_flight and self._position.seen_s >= self._queue.oldest.accepted_s:
            append = self._queue.pop()
            message = (
                f"log {self._url}: expected {append.expect_next} as the next offset, found {self._position.offset}"
            )
            self._fail([append], ConditionNotMetError(message, next_offset=self._position.offset), None)
        return len(self._queue) < before

    def head_waits(self) -> bool:
        """Whether the head of the queue must wait: for what is in flight, or for the manifest to be loaded."""
        return self._head_needs_manifest() or self.fairness.waits(idle=not self._in_flight)

    def must_load(self) -> bool:
        """Whether it waits for the manifest, and it is time to load it; asked while nothing is in flight."""
        return self._head_needs_manifest() or (self.fairness.waits(idle=True) and self.fairness.may_look())

    def _head_needs_manifest(self) -> bool:
        return self._position.base is None or self._head_is_refused() or self._head_is_unmet()

    def _head_is_refused(self) -> bool:
        if not self._queue or self._position.base is None or self._halt.failure is not None:
            return False
        return self._position.refuses(self._queue.oldest)

    def _knows_keyed(self, append: Append) -> bool:
        """Whether it is known that the log took no such append when it was made, or just before."""
        return self._position.seen_s >= append.accepted_s - _KEYED_KNOWN_S

    def _head_is_unmet(self) -> bool:
        if not self._queue or self._position.base is None or self._halt.failure is not None:
            return False
        return not self._queue.oldest.may_land_at(self._position.offset)

    def resolve(self, result: CommitResult, ready: list[InFlightFragment], began_s: float) -> None:
        """Apply the result of a commit of the first fragments in flight."""
        match result:
            case Committed(base):
                self._position.go_on(base, began_s)
                self._meter.committed(len(ready))
                self.fairness.committed(base.manifest, began_s)
                for flight in ready:
                    self._in_flight.popleft()
                    self.acks.acknowledge(flight)
                    self._halt.durable(flight)
                if not self._in_flight:
                    # Another writer may have appended behind them before this outcome was known.
                    self._position.confirm(base, began_s)
            case Displaced():
                self._give_new_places(result, began_s)
            case SealedOut(base):
                self._position.begin_term(base, began_s)
                assert base.manifest.seal is not None
                self.acks.give_up(self._take_flights(), sealed_error(self._url, base.manifest.seal), None)
            case Failed(cause, failure):
                self._position.base = None
                error: AppendError = _not_durable(f"{self._what(ready[0])}: not committed: {cause}", failure)
                # A store that refuses will refuse those behind, too.
                failed = self._in_flight if hopeless(failure) else ready
                self._fail_flights(list(failed), error, failure)
            case Undetermined(cause):
                self._position.base = None
                error = UnknownDurabilityError(f"{self._what(ready[0])}: unknown whether it was committed: {cause}")
                self._lose(ready, error)

    def drop_failed_head(self) -> None:
        """Fail the callers of a fragment that could not be uploaded; give those behind it new places."""
        head, base = self._in_flight[0], self._position.base
        assert base is not None
        error = NotDurableError(f"{self._what(head)}: not uploaded: {head.error}")
        seen_s = self._position.seen_s
        self._fail_flights([head], error, head.error)
        self._position.begin_term(base, seen_s)

    def loaded(self, base: Installed, began_s: float, until_s: float) -> None:
        """Go on with a manifest that was loaded at ``began_s`` or later, for appends that have time ``until_s``."""
        self._position.confirm(base, began_s)
        self.fairness.observe(base.manifest, overdue=self._runtime.monotonic_s() >= until_s)

    def give_up_loading(self, failure: BaseException) -> None:
        """Fail the appends that wait for a manifest that could not be loaded, or keep those that have time left."""
        error = _not_durable(f"log {self._url}: {failure}", failure)
        failed, kept = self._overdue(self._queue.take_all(), failure)
        self._fail(failed, error, failure)
        self._put_back(kept, str(failure))

    def _fail_flights(
        self, flights: Sequence[InFlightFragment], error: AppendError, cause: BaseException | None
    ) -> None:
        """Fail the first fragments in flight; appends with time left and those of later fragments are queued again."""
        count = sum(len(flight.appends) for flight in flights)
        appends = self._take_flights()
        failed, kept = self._overdue(appends[:count], cause)
        self._fail(failed, error, cause)
        self._put_back([*kept, *appends[count:]], str(cause))

    def _overdue(self, appends: Sequence[Append], cause: BaseException | None) -> tuple[list[Append], list[Append]]:
        """Divide appends into those that fail now and those that are tried again; all fail where that is useless.

        If none has timed out, the retry limit was reached first: then all fail.
        """
        due_s = self._runtime.monotonic_s() - self._delivery_timeout_s
        late = [append for append in appends if append.accepted_s <= due_s]
        if not late or hopeless(cause):
            return list(appends), []
        return late, [append for append in appends if append.accepted_s > due_s]

    def _lose(self, ready: Sequence[InFlightFragment], error: AppendError) -> None:
        """Fail appends of unknown outcome. Those behind them were in no commit yet, so they get new places."""
        lost = list(chain.from_iterable(flight.appends for flight in ready))
        behind = self._take_flights()[len(lost) :]
        self._fail(lost, error, None, tuple(ready))
        self._put_back(behind, str(error))

    def _put_back(self, appends: Sequence[Append], cause: str) -> None:
        """Queue appends for new places, ahead of the others; those that have had their last try fail."""
        kept: list[Append] = []
        spent: list[Append] = []
        for append in appends:
            (kept if self._gets_new_place(append) else spent).append(append)
        self._queue.put_back(kept)
        text = f"log {self._url}: not in the log within its {self._delivery_timeout_s} s: {cause}"
        self._fail(spent, NotDurableError(text), None)

    def _gets_new_place(self, append: Append) -> bool:
        """Whether an append that lost its place gets another: until its time is over, and once after that."""
        had_last_try = append.last_try
        append.last_try = self.until_s([append]) <= self._runtime.monotonic_s()
        # A halted writer refuses it anyway, with the reason.
        return not had_last_try or self._halt.failure is not None

    def _give_new_places(self, displaced: Displaced, began_s: float) -> None:
        kept: list[Append] = []
        for append in self._take_flights():
            # Maintenance is not contention: it has its own bound, which only a defect reaches.
            append.contentions += displaced.contended
            append.rebases += not displaced.contended
            # An append with a condition fails by it, or lands at its offset.
            conditional = displaced.contended and append.expect_next is not None
            too_often = append.contentions > self._options.contentions_max or append.rebases > self._options.rebases_max
            over = too_often or not self._gets_new_place(append)
            if over and not conditional and self._halt.failure is None:
                times = append.contentions + append.rebases
                text = f"log {self._url}: records lost their place {times} times: {displaced.cause}"
                self._fail([append], ContentionError(text), None)
            else:
                kept.append(append)
        self._meter.displaced(contended=displaced.contended)
        self._queue.put_back(kept)
        # If the clock is the cause, no manifest was loaded since: this one may be older than the commit.
        seen_s = self._position.seen_s if displaced.base is self._position.base else began_s
        self._position.begin_term(displaced.base, seen_s)
        if displaced.contended:
            self.fairness.lost(displaced.base.manifest)
        else:
            self.fairness.pause()

    def _fail(
        self,
        appends: Sequence[Append],
        error: AppendError,
        cause: BaseException | None,
        undetermined: Sequence[InFlightFragment] = (),
    ) -> None:
        """Fail appends; an ordered writer halts, and what is queued behind them is refused in the next step."""
        if appends and self._halt.stop(copy.copy(error), undetermined):
            self.acks.note(partial(self.acks.report.halted, error))
        self.acks.give_up(appends, error, cause)

    def _take_flights(self) -> list[Append]:
        appends = [append for flight in self._in_flight for append in flight.appends]
        self._in_flight.clear()
        return appends

    def _refusal_of(self, append: Append) -> KeyRequiredError | ViewRequiredError:
        if self._position.other_view is not None:
            return view_required(self._url, self._position.other_view, self._options.view)
        columns = append.columns
        record = f"record {columns.first_without_key} of {columns.num_records}"
        found = "expected a key, found none: the log is keyed, since its policy compacts it"
        return KeyRequiredError(f"log {self._url}: {record}: {found}")

    def _what(self, flight: InFlightFragment) -> str:
        return f"log {self._url}: fragment {flight.seq_no}"


def _not_durable(message: str, cause: BaseException | None) -> NotDurableError:
    """Make the error of an append that is not in the log; its class depends on what the caller does next."""
    return (AppendReplacedError if isinstance(cause, LogReplacedError) else NotDurableError)(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeReport:
    """The outcomes of the appends since an ordered writer was opened, or last resumed.

    The first ``appends`` of those submitted, ``records`` in all, are in the log, in their order and with no
    other of this writer's between; none behind them is, nor will be. ``next_offset`` follows the last of
    them, None when there is none. ``failure`` is what halted the writer; None when it was not halted.
    ``determined`` is true when an unknown outcome was determined.
    """

    appends: int
    records: int
    next_offset: int | None
    failure: AppendError | None
    determined: bool


class HaltState:
    """Whether the writer is halted and by what, and how much is durable so far. Guarded by its owner's lock."""

    def __init__(self, url: str, *, ordered: bool) -> None:
        self._url = url
        self.ordered = ordered
        self.failure: AppendError | None = None
        self.undetermined: Sequence[InFlightFragment] = ()
        self._appends = 0
        self._records = 0
        self._next_offset: int | None = None

    def durable(self, flight: InFlightFragment) -> None:
        """Count a fragment that is durable."""
        self._appends += len(flight.appends)
        self._records += flight.num_records
        self._next_offset = flight.start.offset + flight.num_records

    def stop(self, failure: AppendError, undetermined: Sequence[InFlightFragment] = ()) -> bool:
        """Halt an ordered writer at its first failure; return whether this was it."""
        if self.ordered and self.failure is None:
            self.failure, self.undetermined = failure, undetermined
            return True
        return False

    def refusal(self) -> HaltedError | None:
        """Return why nothing is appended; None when the writer is not halted."""
        if self.failure is None:
            return None
        return HaltedError(
            f"log {self._url}: not appended: an earlier append of this ordered writer failed"
            f" (resume() lets it continue): {self.failure}"
        )

    def resume(self, verdict: Durability | None) -> ResumeReport:
        """Continue, with the verdict on the undetermined fragments, and restart the counts."""
        if verdict is Durability.DURABLE and self.undetermined:
            for flight in self.undetermined:
                self.durable(flight)
        report = ResumeReport(
            appends=self._appends,
            records=self._records,
            next_offset=self._next_offset,
            failure=self.failure,
            determined=verdict is not None,
        )
        self.failure = self._next_offset = None
        self.undetermined = ()
        self._appends = self._records = 0
        return report


def determined(
    undetermined: Sequence[InFlightFragment], manifests: ManifestStore, snapshots: SnapshotStore
) -> Durability:
    """Return what finally became of a commit that went unanswered: DURABLE, or NOT_DURABLE and never will be.

    UnavailableError when the store does not answer, UnknownDurabilityError when the log no longer shows it.
    """
    found, first = manifests.load(), undetermined[0]
    verdict = found.manifest.durability(first.term.epoch.epoch, first.term.epoch.token, first.seq_no)
    if verdict is Durability.UNKNOWN:
        assert first.pointer is not None
        verdict = searched(found.manifest, first.pointer, snapshots.load)
        if verdict is not Durability.UNKNOWN:
            return verdict
        gone = "collected" if first.seq_no < found.manifest.first.seq_no else "compacted"
        message = f"{manifests.what}: fragment {first.seq_no} was {gone}: unknown whether it was ours"
        raise UnknownDurabilityError(message)
    if verdict is Durability.DURABLE or found.manifest.seal is not None:
        return verdict
    # A CAS of ours may still be under way: once the manifest is another version, none can be applied.
    if not isinstance(manifests.install(found.manifest, found), Installed):
        raise UnavailableError(f"{manifests.what}: still unknown what became of an unanswered commit")
    return verdict


class OutcomeQueue:
    """Outcomes that are known and not delivered yet, and counts of them.

    Guarded by the write loop's lock; outcomes that were taken are delivered without it.
    """

    def __init__(self, report: Report, marking: Marking) -> None:
        self.report = report
        self.marking = marking
        # Bytes of the appends that have an outcome, since the writer was opened.
        self.bytes_released = 0
        self.appends = 0
        self.appends_failed = 0
        self.num_records = 0
        self.num_bytes = 0
        self._pending: list[Callable[[], None]] = []
        # Taken, and not delivered yet: batches by number. A batch is removed by a single call, without the lock.
        self._taken: dict[int, Sequence[Append]] = {}
        self._batches = itertools.count()

    def acknowledge(self, flight: InFlightFragment) -> None:
        """Give the appends of a committed fragment their positions, once it is marked."""
        held = self.marking.hold(flight)
        if held is None:
            self._acknowledge(flight)
        else:
            self.note(held)

    def acknowledge_marked(self) -> None:
        """Give the appends of committed fragments their positions that have been marked meanwhile."""
        for flight in self.marking.take():
            self._acknowledge(flight)

    def _acknowledge(self, flight: InFlightFragment) -> None:
        unmarked = self.marking.error_of(flight)
        if unmarked is not None:
            offset = flight.start.offset
            for append in flight.appends:
                own = copy.copy(unmarked)
                own.offset = offset
                offset += append.columns.num_records
                self.give_up([append], own, unmarked.__cause__)
            return
        self.appends += len(flight.appends)
        self.note(partial(self.report.durable, flight.appends))
        self.num_records += flight.num_records
        self.num_bytes += sum(append.columns.num_bytes for append in flight.appends)
        self._pending.append(partial(_acknowledge_each, flight))
        self._release(flight.appends)

    def give_up(self, appends: Sequence[Append], error: LogError, cause: BaseException | None) -> None:
        """Fail appends."""
        self.appends_failed += len(appends)
        if appends:
            self.note(partial(self.report.failed, appends, error))
        for append in appends:
            # Each caller gets its own exception: raising one adds to its traceback.
            own = copy.copy(error)
            own.__cause__ = cause
            self._pending.append(partial(append.future.set_exception, own))
        self._release(appends)

    def note(self, call: Callable[[], None]) -> None:
        """Have something reported or delivered once the lock is released, before the outcomes that follow."""
        self._pending.append(call)

    def take(self) -> list[Callable[[], None]]:
        """Take the calls that report and deliver outcomes."""
        taken, self._pending = self._pending, []
        return taken

    def futures(self) -> list[Future[LogPosition]]:
        """Return the futures that have their outcomes, or will once what was taken is delivered or marked."""
        taken = chain.from_iterable(list(self._taken.values()))
        return [*(append.future for append in taken), *self.marking.futures()]

    def _release(self, appends: Sequence[Append]) -> None:
        self.bytes_released += sum(append.columns.bytes_held for append in appends)
        if appends:
            # They get their outcomes after the lock is released; a flush waits for that, too.
            batch = next(self._batches)
            self._taken[batch] = appends
            self._pending.append(partial(self._taken.__delitem__, batch))


def _acknowledge_each(flight: InFlightFragment) -> None:
    """Give the appends of a fragment their positions, as ``call_each`` would: there are thousands."""
    first: BaseException | None = None
    offset, timestamp_us = flight.start.offset, flight.start.timestamp_us
    for append in flight.appends:
        try:
            append.future.set_result(LogPosition(offset, timestamp_us))
        except BaseException as error:  # noqa: BLE001 - one caller's callback; the others wait for theirs
            first = first or error
        offset += append.columns.num_records
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
