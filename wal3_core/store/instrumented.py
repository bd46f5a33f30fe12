"""A store whose requests are measured, and reported when they go unanswered.

``open_store`` wraps every store in it. A request is sent exactly once, as by the store itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from wal3_core.errors import CorruptError, StoreDeniedError, UnavailableError
from wal3_core.runtime import Runtime
from wal3_core.runtime.loggers import STORE, WAITING
from wal3_core.runtime.observer import RequestEnd
from wal3_core.runtime.threads import LATE_S, WATCH
from wal3_core.store.object_store import WRITES, ObjectMeta, ObjectStore, Refused, StoreWrapper, Unknown

T = TypeVar("T")

# The time after a report in which a store's next silence is not reported.
_QUIET_S = 60.0
# The time after a failed request without another one when its caller has given up: longer than a retry's pause.
_GAVE_UP_S = 10.0
# The ends of requests whose outcome is not Done.
_ENDS: dict[type, RequestEnd] = {Refused: RequestEnd.REFUSED, Unknown: RequestEnd.UNKNOWN}
# The names of requests for people.
_VERBS = {"read": "GET", "get": "GET", "create": "PUT", "replace": "PUT"}


class InstrumentedStore(StoreWrapper):
    """Another store's objects; every request to it is measured."""

    def __init__(self, store: ObjectStore, runtime: Runtime) -> None:
        super().__init__(store)
        self._runtime = runtime
        self._name = store.url.partition("?")[0]
        self._outages_seen = _OutageReport(self._name, runtime)

    def list_objects(self, folder: str, *, start_after: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below a folder: measured as one request, to the first object or the end."""
        listing = iter(self._store.list_objects(folder, start_after=start_after))
        found = self._sent("list", folder, lambda: next(listing, None))
        while found is not None:
            yield found
            found = self._watched("list", folder, lambda: next(listing, None))

    def _sent(self, kind: str, path: str, send: Callable[[], T]) -> T:
        """Send a request and report it."""
        began_s, end = self._runtime.monotonic_s(), None
        try:
            outcome = self._watched(kind, path, send)
            end = _ENDS.get(type(outcome), RequestEnd.DONE)
        except UnavailableError as error:
            end = RequestEnd.DENIED if isinstance(error, StoreDeniedError) else RequestEnd.UNAVAILABLE
            raise
        except CorruptError:
            end = RequestEnd.DAMAGED
            raise
        finally:
            # None: the request was not sent, or was interrupted.
            if end is not None:
                self._runtime.observer.requested(self._name, kind, end, self._runtime.monotonic_s() - began_s)
        return outcome

    def _watched(self, kind: str, path: str, send: Callable[[], T]) -> T:
        """Call the store; report it as waiting while it does not answer."""
        began_s = self._runtime.monotonic_s()
        try:
            with WATCH.over(
                lambda: self._outages_seen.lasts(kind, path, began_s),
                lambda: f"store {self._name}: {_verb(kind)} {path}",
            ):
                outcome = send()
        except StoreDeniedError:
            self._outages_seen.ends(kind)
            raise
        except UnavailableError as error:
            self._outages_seen.failed(kind, path, began_s, str(error))
            raise
        if isinstance(outcome, Unknown):
            self._outages_seen.failed(kind, path, began_s, outcome.cause)
        else:
            self._outages_seen.ends(kind)
        return outcome


class _Outage:
    """A time without an answer: from when to when so far, and how many requests have failed in it."""

    __slots__ = ("cause", "failed", "reported", "seen_s", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = self.seen_s = since_s
        self.failed = 0
        self.cause = ""
        self.reported = False


class _OutageReport:
    """Reports that a store does not answer: once for each outage of two seconds, and at most once a minute.

    Reads and writes have outages of their own: a store may answer the ones and not the others. There is no lock,
    since any thread may be interrupted anywhere: two threads at once may report the same outage.
    """

    def __init__(self, name: str, runtime: Runtime) -> None:
        self._name = name
        self._runtime = runtime
        # By whether the requests are writes.
        self._outages: dict[bool, _Outage] = {}
        self._quiet_until_s = float("-inf")

    def failed(self, kind: str, path: str, began_s: float, cause: str) -> None:
        """Note a request without an answer."""
        STORE.debug("store %s: %s %s: not answered: %s", self._name, _verb(kind), path, cause)
        outage = self._outage(kind, began_s)
        outage.failed += 1
        outage.cause = cause
        self._report(outage, kind, path, outage.failed)

    def lasts(self, kind: str, path: str, began_s: float) -> None:
        """Note that a request has no answer yet."""
        outage = self._outage(kind, began_s)
        self._report(outage, kind, path, outage.failed + 1)

    def ends(self, kind: str) -> None:
        """Note an answer."""
        outage = self._outages.pop(kind in WRITES, None) if self._outages else None
        if outage is not None and outage.reported:
            STORE.info("store %s: answers again after %.1f s", self._name, self._runtime.monotonic_s() - outage.since_s)

    def _outage(self, kind: str, began_s: float) -> _Outage:
        """Return the outage that a request without an answer belongs to."""
        found = self._outages.get(kind in WRITES)
        if found is None or began_s - found.seen_s > _GAVE_UP_S:
            # Before it, no request was sent for a while: nothing was waiting.
            found = self._outages[kind in WRITES] = _Outage(began_s)
        found.seen_s = self._runtime.monotonic_s()
        return found

    def _report(self, outage: _Outage, kind: str, path: str, tries: int) -> None:
        now_s = self._runtime.monotonic_s()
        silent_s = now_s - outage.since_s
        if outage.reported or silent_s < LATE_S or now_s < self._quiet_until_s:
            return
        outage.reported, self._quiet_until_s = True, now_s + _QUIET_S
        cause = f", last error: {outage.cause}" if outage.cause else ""
        text = "waiting for %s: %s %s: no answer for %.1f s, try %d%s"
        WAITING.warning(text, self._name, _verb(kind), path, silent_s, tries, cause)


def _verb(kind: str) -> str:
    return _VERBS.get(kind, kind.upper())
