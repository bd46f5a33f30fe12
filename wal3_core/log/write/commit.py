"""One commit: uploaded fragments become part of the log, or what became of them is determined.

The outcome of a CAS that was refused or went unanswered is never guessed: the manifest is loaded, and its
epoch table decides. Every CAS of one commit carries the same fragments and names the version it
replaces, so once the manifest has moved on, none of them can still be applied.
Source: docs/protocol.md, "Append".

Before it, ``LogClock`` bounds the fragments' times. A log's time never runs back, so one clock far ahead would move it
for good: records would no longer grow old. The store's clock is read by a HEAD of a fragment that was just uploaded: at
a writer's first commit and then once an hour, as long as the writer appends. A fragment whose timestamp is too far
ahead gets a new one, and is uploaded again. Source: docs/protocol.md, "Positions and records".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError, LogError, StoreDeniedError, UnavailableError
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Boundary, Durability, Epoch, Manifest
from wal3_core.format.snapshot import Snapshot, SnapshotPointer
from wal3_core.log.read.scan import select
from wal3_core.options import Limits, View, WriterOptions
from wal3_core.runtime import US_PER_S, Runtime, wall_us
from wal3_core.store.documents.manifest_store import Installed, InstallOutcome, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import REFUSED, ObjectStore, Refused, Unknown
from wal3_core.store.retrying import attempts, until_answered, within

if TYPE_CHECKING:
    from wal3_core.log.write.stats import Meter


@dataclass(frozen=True, slots=True)
class WriterTerm:
    """One stay of a writer in the log: its epoch, and the fence it saw before its first upload."""

    epoch: Epoch
    fence: int


@dataclass(frozen=True, slots=True)
class Committed:
    """All fragments are durable."""

    base: Installed


@dataclass(frozen=True, slots=True)
class Displaced:
    """None of the fragments is durable, nor will be: another writer's are in their place, or maintenance did this.

    ``contended`` is true in the first case. In the second the fence moved, or the log became keyed.
    """

    base: Installed
    cause: str
    contended: bool


@dataclass(frozen=True, slots=True)
class SealedOut:
    """None of the fragments is durable, nor will be: the log is sealed."""

    base: Installed


@dataclass(frozen=True, slots=True)
class Failed:
    """None of the fragments is durable, nor will be: the store refuses or does not answer."""

    cause: str
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class Undetermined:
    """It is unknown whether the fragments are durable, or will be."""

    cause: str


@dataclass(frozen=True, slots=True)
class _Moved:
    """The manifest has changed: every CAS of ours is resolved, and ``base`` shows how.

    ``ambiguous``: one of them was sent and not done as far as is known, so it may be one that changed the manifest.
    """

    base: Installed
    ambiguous: bool


CommitResult = Committed | Displaced | SealedOut | Failed | Undetermined


class Committer:
    """Commits fragments of one log, one commit at a time.

    ``amend`` adds finished snapshots to a manifest about to be installed. ``snapshots`` are searched for fragments
    whose epoch has left the table. ``meter`` counts each CAS that is sent again.
    """

    def __init__(
        self,
        manifests: ManifestStore,
        snapshots: SnapshotStore,
        runtime: Runtime,
        options: WriterOptions,
        *,
        amend: Callable[[Manifest], Manifest],
        meter: Meter,
    ) -> None:
        self._manifests = manifests
        self._snapshots = snapshots
        self._runtime = runtime
        self._options = options
        self._amend = amend
        self._meter = meter

    def commit(
        self,
        base: Installed,
        term: WriterTerm,
        fragments: Sequence[FragmentPointer],
        until_s: float,
        *,
        keyless: bool = False,
        copies: bool = False,
    ) -> CommitResult:
        """Commit the fragments onto ``base`` or what maintenance made of it; unanswered, retry until ``until_s``.

        ``keyless``: one of their records has no key, so a keyed log does not take them. What ``copies`` is of the log's
        view, whichever that is.
        """
        ambiguous, view = False, base.manifest.view if copies else self._options.view
        for rebases in range(self._options.rebases_max + 1):
            verdict = judge(base, term, fragments, keyless=keyless, view=view)
            if verdict is not None:
                return self._final(verdict, base, fragments[0], ambiguous=ambiguous)
            if rebases == self._options.rebases_max:
                break
            if rebases:
                self._meter.rebased()
            result = self._commit_onto(base, term, fragments, until_s)
            if not isinstance(result, _Moved):
                return result
            # Without a pause, in which the manifest just loaded would become outdated.
            base, ambiguous = result.base, ambiguous or result.ambiguous
        return Failed(f"maintenance changed the manifest {self._options.rebases_max} times over", None)

    def _final(
        self, verdict: Durability | Displaced, base: Installed, first: FragmentPointer, *, ambiguous: bool
    ) -> CommitResult:
        match verdict:
            case Durability.DURABLE:
                return Committed(base)
            case Durability.NOT_DURABLE:
                return SealedOut(base)
            case Displaced():
                return verdict
        # An idle writer's first CAS is refused in this way, too.
        found = self._search(base.manifest, first) if ambiguous else Durability.NOT_DURABLE
        match found:
            case Durability.DURABLE:
                return Committed(base)
            case Durability.NOT_DURABLE:
                cause = "so many other writers took over that the epoch has left the table"
                return Displaced(base, cause, contended=True)
            case Durability.UNKNOWN:
                return Undetermined("the epoch has left the manifest's table, and the log does not show it any more")

    def _search(self, manifest: Manifest, first: FragmentPointer) -> Durability:
        try:
            return searched(manifest, first, self._snapshots.load)
        except LogError:
            return Durability.UNKNOWN

    def _commit_onto(
        self, base: Installed, term: WriterTerm, fragments: Sequence[FragmentPointer], until_s: float
    ) -> Committed | Failed | Undetermined | _Moved:
        """Send the CAS until it is done, or the manifest has changed and no CAS of ours can be applied any more.

        A refusal while the manifest stays the same says nothing about an earlier request, which is perhaps under way.
        """
        unresolved = cause = ""
        failure: BaseException | None = None
        for attempt in attempts(within(self._options.retry, until_s - self._runtime.monotonic_s()), self._runtime):
            if attempt > 1:
                self._meter.retried()
            outcome, current = self._try(base, term, fragments)
            if isinstance(outcome, Installed):
                return Committed(outcome)
            cause, failure = _cause(outcome), outcome if isinstance(outcome, UnavailableError) else None
            if isinstance(outcome, Unknown):
                unresolved = cause
            if isinstance(current, Exception) and hopeless(current):
                return Undetermined(unresolved) if unresolved else Failed(_cause(current), current)
            if isinstance(outcome, Refused):
                unresolved = cause
            if isinstance(current, Installed) and current.etag != base.etag:
                return _Moved(current, ambiguous=bool(unresolved))
        return Undetermined(unresolved) if unresolved else Failed(cause, failure or UnavailableError(cause))

    def _try(
        self, base: Installed, term: WriterTerm, fragments: Sequence[FragmentPointer]
    ) -> tuple[InstallOutcome | Exception, Installed | Exception | None]:
        """Send one CAS; unless it was applied, also return the manifest as it is now, or the error of loading it."""
        try:
            changed = base.manifest.apply_fragments(term.epoch, fragments)
            prepared = self._manifests.prepare(self._amend(changed), base)
        except Exception as error:  # noqa: BLE001 - whatever it was, nothing was sent
            return error, error
        outcome: InstallOutcome | UnavailableError
        try:
            outcome = self._manifests.send(prepared, base)
        except UnavailableError as error:
            # Certainly not applied.
            outcome = error
            if isinstance(error, StoreDeniedError):
                return outcome, error
        if isinstance(outcome, Installed):
            return outcome, None
        try:
            return outcome, self._manifests.load()
        except (UnavailableError, CorruptError) as error:
            # Only the manifest shows whether there was a conflict.
            return Unknown(_cause(outcome)) if isinstance(outcome, Refused) else outcome, error
        except LogError as error:
            return outcome, error


def _cause(outcome: Refused | Unknown | Exception) -> str:
    match outcome:
        case Refused():
            return REFUSED
        case Unknown(cause):
            return cause
        case LogError():
            return str(outcome)
        case _:
            return f"{type(outcome).__name__}: {outcome}"


def hopeless(found: BaseException | None) -> bool:
    """Tell whether an error makes trying again useless."""
    return isinstance(found, StoreDeniedError) or not isinstance(found, UnavailableError)


def judge(
    base: Installed,
    term: WriterTerm,
    fragments: Sequence[FragmentPointer],
    *,
    keyless: bool,
    view: View | None,
) -> Durability | Displaced | None:
    """Say what a manifest means for fragments that wait for their commit.

    DURABLE: it holds them. NOT_DURABLE: the log is sealed without them. UNKNOWN: the epoch is too
    old to tell. Displaced: they cannot be committed under their names. None: they can be.
    """
    manifest, first = base.manifest, fragments[0]
    durability = manifest.durability(term.epoch.epoch, term.epoch.token, first.seq_no)
    if durability is not Durability.NOT_DURABLE:
        return durability
    if manifest.seal is not None:
        return Durability.NOT_DURABLE
    if (manifest.next.seq_no, manifest.next.position.offset) != (first.seq_no, first.start.offset):
        return Displaced(base, f"another writer went on from fragment {first.seq_no}", contended=True)
    if manifest.fence != term.fence:
        cause = f"the fence moved from {term.fence} to {manifest.fence} during the upload"
        return Displaced(base, cause, contended=False)
    refused = "" if manifest.is_of(view) else f"the log takes appends of the view {manifest.view} alone"
    if manifest.keyed and keyless:
        refused = "a record in the same commit has no key, and the log is keyed"
    return Displaced(base, refused, contended=False) if refused else None


def searched(manifest: Manifest, ours: FragmentPointer, load: Callable[[SnapshotPointer], Snapshot]) -> Durability:
    """Search the log itself for a fragment, once its epoch has left the manifest's table.

    UNKNOWN when what lay in its place was collected or compacted.
    """
    if ours.seq_no < manifest.first.seq_no:
        return Durability.UNKNOWN
    at = ours.start.offset
    found = next(select(manifest.pointers, at, Limits(offset=at + 1), load), None)
    # Its records may be ours, under another path: a pass may also write a fragment alone, all of it, in another order.
    if found is not None and (found.compacted or (found.path != ours.path and found.setsum == ours.setsum)):
        return Durability.UNKNOWN
    return Durability.DURABLE if found == ours else Durability.NOT_DURABLE


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
    """One writer's clock: the process's, but never far beyond that of ``store``, the log's own.

    One commit at a time calls ``refusal``.
    """

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
