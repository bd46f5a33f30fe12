"""Appends on their way into the log: in the inbox, in the queue, then in a fragment in flight.

Callers put appends into the inbox; workers move them into the queue as far as ``bytes_held_max`` allows, first come,
first served, and from there into fragments. A fragment has a place, an upload, and, where logs are marked, a mark: it
says that the log has grown, so that maintenance finds it without looking at every log. Source: docs/protocol.md,
"Append", and docs/protocol/dirty-logs.md, "Dirty logs". Guarded by the write loop's lock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from wal3_core.errors import OverloadedError, SealedError, UnavailableError, UnmarkedError, ViewRequiredError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import TAG_DIGITS, Boundary, Epoch, Manifest, Seal
from wal3_core.format.marker import Marker
from wal3_core.format.parquet import FragmentSource, encode
from wal3_core.format.parquet.encoding import EncodedFragment
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.log.write.columns import Columns, join
from wal3_core.log.write.commit import LogClock, WriterTerm
from wal3_core.options import RetryOptions, View, WriterOptions
from wal3_core.runtime import Outcome, Runtime, Timer
from wal3_core.store.documents.document_store import write_immutable
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.object_store import ObjectStore
from wal3_core.store.retrying import delivery_s_of

if TYPE_CHECKING:
    from wal3_core.log.write.commit_results import OutcomeQueue
    from wal3_core.log.write.stats import Meter


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
                self._outcomes.note(partial(append.admitted.set_result, None))

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
                # A flush may be waiting for it.
                self._outcomes.note(partial(append.future.set_exception, self.overloaded()))
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


def pointer_to(
    encoded: EncodedFragment, seq_no: FragmentSeqNo, token: str, start: LogPosition, num_records: int
) -> FragmentPointer:
    """Return the pointer to a fragment whose records have adjacent offsets, and one time."""
    return FragmentPointer(
        path=fragment_path(seq_no, token),
        first_seq_no=seq_no,
        seq_no=seq_no,
        start=start,
        limit=LogPosition(start.offset + num_records, start.timestamp_us),
        setsum=encoded.setsum,
        num_bytes=len(encoded.data),
        num_records=num_records,
    )


def sealed_error(url: str, seal: Seal) -> SealedError:
    """Return the error of a log that takes no more appends."""
    successor = f"; it goes on in {seal.successor}" if seal.successor else ""
    return SealedError(
        f"log {url}: sealed by {seal.sealed_by}: {seal.reason}{successor}", successor=seal.successor or ""
    )


def view_required(url: str, owner: View | None, found: View | None) -> ViewRequiredError:
    """Return the error of a log that takes appends of one view alone."""
    return ViewRequiredError(
        f"log {url}: expected an append of the view {owner}, found one of {found or 'none'}: the policy says whose the"
        f" log is: append as that view does, to another log, or change the policy (`wal3 policy LOG --no-view`)"
    )


@dataclass(slots=True, eq=False)
class InFlightFragment:
    """A fragment in flight: uploading until it has a pointer or an error."""

    appends: list[Append]
    start: LogPosition
    seq_no: FragmentSeqNo
    term: WriterTerm
    pointer: FragmentPointer | None = None
    error: BaseException | None = None
    mark: Future[None] | None = None
    # The end of its appends' wait for the mark, once it is committed.
    mark_until_s: float = 0.0

    @property
    def num_records(self) -> int:
        """How many records it holds."""
        return sum(append.columns.num_records for append in self.appends)

    @property
    def oldest_s(self) -> float:
        """When its first append was accepted."""
        return self.appends[0].accepted_s

    @property
    def keyless(self) -> bool:
        """Whether a record has no key, so that a keyed log does not take it."""
        return any(append.columns.keyless for append in self.appends)

    def upload(self, store: ObjectStore, retry: RetryOptions, runtime: Runtime, meter: Meter) -> None:
        """Encode the fragment and make it durable; a failure is kept as its ``error``."""
        began_s = runtime.monotonic_s()
        try:
            columns, token = join([append.columns for append in self.appends]), self.term.epoch.token
            encoded = encode(
                FragmentSource(
                    start=self.start, seq_no=self.seq_no, token=token, keys=columns.keys, bodies=columns.bodies
                )
            )
            pointer = pointer_to(encoded, self.seq_no, token, self.start, columns.num_records)
            # Fragment first: an orphan is garbage, a dangling pointer is loss.
            write_immutable(store, pointer.path, encoded.data, retry, runtime, meter.retried)
            self.pointer = pointer
            meter.upload_took(runtime.monotonic_s() - began_s)
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            self.error = error


class WritePosition:
    """The manifest that a writer builds on, its writer term, and its next place. Guarded by its owner's lock."""

    def __init__(self, base: Installed | None, runtime: Runtime, clock: LogClock, view: View | None = None) -> None:
        self._view = view
        self._runtime = runtime
        self._clock = clock
        # Its tokens begin with these digits: by them, writers that take turns know each other.
        self.tag = runtime.token()[:TAG_DIGITS]
        # None when its state is unknown: it has to be loaded.
        self.base: Installed | None = None
        # Where the log ended in the newest manifest seen so far; None before there was one.
        self.next_offset: int | None = None
        # Set if that manifest took only records with keys.
        self.keyed = False
        # The view that this manifest belongs to, unless it is the writer's own.
        self.other_view: View | None = None
        # ``base`` was the newest manifest at some time at or after this.
        self.seen_s = -math.inf
        self._term: WriterTerm | None = None
        self._place: Boundary | None = None
        if base is not None:
            # It was loaded before: how long ago is not known here.
            self.begin_term(base, -math.inf)

    @property
    def seal(self) -> Seal | None:
        """How the log was sealed, as far as this writer knows."""
        return None if self.base is None else self.base.manifest.seal

    @property
    def offset(self) -> int:
        """Where the next record lands if everything in flight is committed."""
        assert self._place is not None
        return self._place.position.offset

    def go_on(self, base: Installed, seen_s: float) -> None:
        """Adopt the manifest of this writer's own commit; places that were given out stay."""
        self.base, self.seen_s = base, seen_s
        self._take_terms(base.manifest)

    def _take_terms(self, manifest: Manifest) -> None:
        self.next_offset, self.keyed = manifest.next.position.offset, manifest.keyed
        self.other_view = None if manifest.is_of(self._view) else manifest.view

    def refuses(self, append: Append) -> bool:
        """Whether that manifest takes no such append."""
        return self.other_view is not None or (self.keyed and append.columns.keyless)

    def confirm(self, base: Installed, seen_s: float) -> None:
        """Adopt a manifest while nothing is in flight: the next place is where it ends."""
        if self.base is not None and self.base.etag == base.etag and self._place == base.manifest.next:
            self.seen_s = seen_s
        else:
            self.begin_term(base, seen_s)

    def begin_term(self, base: Installed, seen_s: float) -> None:
        """Build on a manifest as a new epoch, under a new token: paths of the old one are not used again."""
        manifest = base.manifest
        token = self.tag + self._runtime.token()[TAG_DIGITS:]
        epoch = Epoch(manifest.last_epoch + 1, token, manifest.next.seq_no)
        self.base, self.seen_s, self._place = base, seen_s, manifest.next
        self._take_terms(manifest)
        self._term = WriterTerm(epoch, manifest.fence)

    def place(self, appends: list[Append]) -> InFlightFragment:
        """Give appends their places: the next fragment."""
        assert self._place is not None
        assert self._term is not None
        count = sum(append.columns.num_records for append in appends)
        before = self._place.position
        start = LogPosition(before.offset, max(self._clock.now_us(), before.timestamp_us))
        flight = InFlightFragment(appends, start, self._place.seq_no, self._term)
        self._place = Boundary(FragmentSeqNo(flight.seq_no + 1), LogPosition(start.offset + count, start.timestamp_us))
        return flight


_MARK_S_LEAST = 0.5


class Marks(Protocol):
    """Where fragments are marked: a server's dirty log."""

    def mark(self, marker: Marker) -> Future[None]:
        """Have a marker written; never blocks, and never raises a LogError: the future gets it.

        A future that has an error already when it is returned says that nothing is marked at present.
        """
        ...


class Marking:
    """Has each fragment of a writer marked while it is uploaded, and holds its outcome back until it is.

    What it holds back is guarded by the writer's lock.
    """

    def __init__(
        self,
        marks: Marks | None,
        log: str,
        manifests: ManifestStore,
        runtime: Runtime,
        options: WriterOptions,
        wake: Callable[[], None],
    ) -> None:
        self._marks = marks
        self._log = log
        self._manifests = manifests
        self._url = manifests.url
        self._runtime = runtime
        self._wake = wake
        self._delivery_timeout_s = delivery_s_of(options, manifests.url)
        self._held: list[InFlightFragment] = []
        # Set while any is held: their marks have as much time as their appends.
        self._timer: Timer | None = None

    def begin(self, flight: InFlightFragment) -> None:
        """Have a fragment marked. When nothing can be marked, that is its ``error``, and it must not be uploaded."""
        if self._marks is None:
            return
        try:
            flight.mark = self._marks.mark(self._marker(flight))
            if flight.mark.done():
                flight.error = flight.mark.exception()
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            flight.error = error

    def hold(self, flight: InFlightFragment) -> Callable[[], None] | None:
        """Hold a committed fragment back unless it is marked; return the call to make once the lock is released."""
        if flight.mark is None or flight.mark.done():
            return None
        # One that took all of its time to be committed has a moment left for its mark, which was begun before.
        flight.mark_until_s = max(
            flight.oldest_s + self._delivery_timeout_s, self._runtime.monotonic_s() + _MARK_S_LEAST
        )
        self._held.append(flight)
        self._set_timer()
        return partial(flight.mark.add_done_callback, lambda _: self._wake())

    def take(self) -> list[InFlightFragment]:
        """Take the committed fragments whose marks have an outcome by now, or no time left, in order."""
        held, self._held = self._held, []
        taken: list[InFlightFragment] = []
        now_s = self._runtime.monotonic_s() if held else 0.0
        for flight in held:
            known = flight.mark is None or flight.mark.done() or flight.mark_until_s <= now_s
            (taken if known else self._held).append(flight)
        self._set_timer()
        return taken

    def _set_timer(self) -> None:
        if self._held and self._timer is None:
            due_s = min(flight.mark_until_s for flight in self._held)
            self._timer = self._runtime.call_later(max(0.0, due_s - self._runtime.monotonic_s()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        # It sets the next one.
        self._wake()

    def error_of(self, flight: InFlightFragment) -> UnmarkedError | None:
        """Return the error of a committed fragment whose mark failed, or has no outcome; None if it is marked."""
        cause: BaseException | None = None
        if flight.mark is not None and not flight.mark.done():
            cause = UnavailableError(f"its marker has no answer within the append's {self._delivery_timeout_s} s")
        elif flight.mark is not None:
            cause = flight.mark.exception()
        if cause is None:
            return None
        error = UnmarkedError(
            f"log {self._url}: {flight.num_records} records from offset {flight.start.offset} are in the log, but"
            f" maintenance may not learn of them: do not append them again: {cause}"
        )
        error.__cause__ = cause
        return error

    def ensure(self, flights: Iterable[InFlightFragment]) -> None:
        """Block until committed fragments are marked, marking them again if need be; UnavailableError if they are not.

        Called without the writer's lock.
        """
        for flight in flights:
            if self._marks is None or flight.mark is None:
                continue
            failure = self._failure(flight.mark)
            if failure is not None:
                failure = self._failure(self._marks.mark(self._marker(flight)))
            if failure is not None:
                message = f"log {self._url}: fragment {flight.seq_no} is in the log, but not marked: {failure}"
                raise UnavailableError(message) from failure

    def _marker(self, flight: InFlightFragment) -> Marker:
        return Marker.of_fragment(self._log, self._manifests.log_id(), flight.start, flight.num_records)

    def _failure(self, mark: Future[None]) -> Exception | None:
        try:
            self._runtime.wait(mark)
        except Exception as error:  # noqa: BLE001 - returned
            return error
        return None

    @property
    def held(self) -> Sequence[InFlightFragment]:
        """The committed fragments that wait for their marks."""
        return self._held

    def futures(self) -> list[Future[LogPosition]]:
        """Return the futures of the appends that wait for their marks."""
        return [append.future for append in chain.from_iterable(flight.appends for flight in self._held)]
