"""Marking: has each fragment of a log marked elsewhere while it is uploaded, and holds its outcome back until it is.

A mark says that the log has grown: maintenance finds it by its marks, without looking at every log. Source:
docs/protocol.md, "Dirty logs".
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from wal3_core.errors import UnavailableError, UnmarkedError
from wal3_core.format.marker import Marker
from wal3_core.store.retrying import delivery_s_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Future

    from wal3_core.format.position import LogPosition
    from wal3_core.log.write.in_flight import InFlightFragment
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime, Timer
    from wal3_core.store.documents.manifest_store import ManifestStore

_MARK_S_LEAST = 0.5


class Marks(Protocol):
    """Where fragments are marked: a server's dirty log."""

    def mark(self, marker: Marker) -> Future[None]:
        """Have a marker written; never blocks, and never raises a LogError: the future gets it.

        A future that has an error already when it is returned says that nothing is marked at present.
        """
        ...


class Marking:
    """Marks the fragments of one writer. What it holds back is guarded by the writer's lock."""

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
