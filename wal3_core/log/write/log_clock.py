"""The timestamp of a log's next fragment: the process's clock, but never far beyond the store's.

A log's time never runs back, so one clock far ahead would move it for good: records would no longer grow old. The
store's clock is read by a HEAD of a fragment that was just uploaded, before it is committed: at a writer's first
commit and then once an hour, as long as the writer appends. A fragment whose timestamp is too far ahead gets a new
one, and is uploaded again. Source: docs/protocol.md, "Positions and records".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.errors import UnavailableError
from wal3_core.log.write.commit import Displaced, Failed
from wal3_core.runtime import US_PER_S, wall_us
from wal3_core.store.retrying import until_answered, within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.format.fragment import FragmentPointer
    from wal3_core.format.manifest import Boundary
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime
    from wal3_core.store.documents.manifest_store import Installed
    from wal3_core.store.object_store import ObjectStore

# The age of the store's time at which it is read again: until then, a monotonic clock that is off by 300 parts in a
# million is off by a second.
_ASKED_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """The store's clock read ``store_us`` or more when the monotonic one read ``at_s``; ours was ``lead_us`` ahead."""

    store_us: int
    at_s: float
    lead_us: int


class LogClock:
    """One writer's clock; ``store`` is the log's own. One commit at a time calls ``refusal``."""

    def __init__(self, store: ObjectStore, runtime: Runtime, options: WriterOptions) -> None:
        self._store = store
        self._runtime = runtime
        self._retry = options.retry
        self._ahead_us = int(options.clock_ahead_s_max * US_PER_S)
        self._seen: _Seen | None = None

    def now_us(self) -> int:
        """Return the next fragment's time: the process's, unless it is known to be too far ahead; makes no request."""
        own_us, seen = wall_us(self._runtime), self._seen
        if seen is None:
            return own_us
        store_us = self._store_us(seen)
        lead_us = own_us - store_us
        # Not the lead that was measured: the clock was set, or the monotonic one stood still. The commit asks again.
        if lead_us <= self._ahead_us or abs(lead_us - seen.lead_us) > self._ahead_us:
            return own_us
        return store_us + self._ahead_us

    def refusal(
        self, base: Installed, fragments: Sequence[FragmentPointer], until_s: float
    ) -> Displaced | Failed | None:
        """Return why uploaded fragments must not be committed onto ``base`` with their timestamps; None if they may.

        It asks the store until ``until_s`` by the monotonic clock. It sends no CAS, so that any error is a result: the
        commit has failed.
        """
        try:
            return self._refusal(base, fragments, until_s)
        except BaseException as error:  # noqa: BLE001 - any error is passed on to the callers
            return Failed(f"{type(error).__name__}: {error}", error)

    def _refusal(
        self, base: Installed, fragments: Sequence[FragmentPointer], until_s: float
    ) -> Displaced | Failed | None:
        last = fragments[-1]
        latest_us = last.limit.timestamp_us
        if latest_us <= base.manifest.next.position.timestamp_us or self._plausible(latest_us):
            return None
        retry = within(self._retry, until_s - self._runtime.monotonic_s())
        try:
            found = until_answered(lambda: self._store.head(last.path), retry, self._runtime)
        except UnavailableError as error:
            return Failed(f"the store's time is unknown: {error}", error)
        if found is None:
            # Marked for deletion, and deleted, while the writer slept.
            return Displaced(base, f"{last.path} is gone", contended=False)
        store_us = found.last_modified_us
        # Our clock now, not when the fragment was cut: the upload's duration is no part of the lead.
        self._seen = _Seen(store_us, self._runtime.monotonic_s(), wall_us(self._runtime) - store_us)
        if latest_us <= store_us + self._ahead_us:
            return None
        cause = f"the clock of {self._runtime.process_name()} is ahead of the store's: {latest_us} at {store_us}"
        return Displaced(base, cause, contended=False)

    def _plausible(self, timestamp_us: int) -> bool:
        """Tell whether a timestamp is acceptable without asking for the store's time."""
        seen = self._seen
        if seen is None or self._runtime.monotonic_s() - seen.at_s > _ASKED_AGAIN_S:
            return False
        return timestamp_us <= self._store_us(seen) + self._ahead_us

    def _store_us(self, seen: _Seen) -> int:
        return seen.store_us + int((self._runtime.monotonic_s() - seen.at_s) * US_PER_S)


def bounded(place: Boundary, store_us: int, ahead_s_max: float) -> Boundary:
    """Return a place to be inherited, its time at most ``ahead_s_max`` beyond the store's."""
    limit_us = store_us + int(ahead_s_max * US_PER_S)
    position = replace(place.position, timestamp_us=min(place.position.timestamp_us, limit_us))
    return replace(place, position=position)
