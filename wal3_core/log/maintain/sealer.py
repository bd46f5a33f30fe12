"""Seals a log for good, by CAS of its manifest, and begins its successor.

A successor's name is kept for it before the seal; it is created only from a sealed log, at its end.
Source: docs/protocol/copies.md, "Seal".
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from wal3_core.arguments import checked, optional, text
from wal3_core.errors import (
    InvalidRequestError,
    LogError,
    LogExistsError,
    LogReplacedError,
    MissingError,
    SealedError,
    UnavailableError,
)
from wal3_core.format.cursor import Cursor, Owner
from wal3_core.format.manifest import BEING_DESTROYED, Manifest, Seal
from wal3_core.format.paths import check_log_name, is_dirty_log
from wal3_core.format.vacancy import Vacancy, VacancyKind
from wal3_core.log.belongings import WITHOUT_SUCCESSOR, take_cursors, take_manifest, why_no_successor
from wal3_core.log.log_stores import LogStores
from wal3_core.log.maintain.copy.target import Claim, CopyTarget, delete_retired, load_cursors
from wal3_core.log.read.succession import goes_on_from
from wal3_core.log.write.commit import bounded
from wal3_core.options import CLOCK_AHEAD_S_MAX, REBASES_MAX
from wal3_core.runtime import Runtime, shared_runtime, wall_us
from wal3_core.runtime.loggers import MAINTAIN
from wal3_core.store.documents.cursor_store import CursorStore
from wal3_core.store.documents.document_store import LoadedDocument, stamp
from wal3_core.store.documents.manifest_store import Entry, Installed, ManifestStore, new_log_id
from wal3_core.store.object_store import ObjectStore, a_store, log_store
from wal3_core.store.retrying import attempts, for_store, with_retries


@checked(log=check_log_name, reason=text, sealed_by=optional(text), successor=optional(check_log_name))
def seal(
    store: ObjectStore,
    log: str,
    *,
    reason: str,
    sealed_by: str | None = None,
    successor: str | None = None,
    runtime: Runtime | None = None,
) -> Seal:
    """Close a log for good; no append is acknowledged after it. Returns the seal.

    InvalidRequestError for a successor of a queue's log or of a dirty log: it would be neither.
    A log that has this seal already (the same reason, successor and ``sealed_by``) is left as it is, and
    the seal it has is returned, so a call that names ``sealed_by`` can be repeated. SealedError when it
    has another seal. A successor must not exist yet: LogExistsError, and nothing changed. Its name is kept for it from
    then on, until ``create_successor`` begins it or the name is destroyed; also when the seal then fails.
    """
    runtime = runtime or shared_runtime()
    if reason.strip() in {"", BEING_DESTROYED}:
        # A seal is never lifted, so it must say why it was set.
        raise InvalidRequestError(f"log {log}: expected a reason to seal it, found {reason.strip()!r}")
    if successor == log:
        raise InvalidRequestError(f"log {log}: expected a successor of another name, found its own")
    wanted = Seal(
        reason=reason,
        # The token makes the seal this call's own: another's is never taken for it.
        sealed_by=sealed_by or stamp(runtime),
        timestamp_us=wall_us(runtime),
        successor=successor,
    )
    stores = LogStores(store, log, runtime=runtime)
    base = stores.manifests.load()
    if successor is None:
        return _install(stores, wanted, base)
    keeping = _Keeping(store, stores, successor)
    if base.manifest.seal is None:
        _check_goes_on(stores)
        try:
            keeping.keep()
        except LogExistsError:
            # Another call may have sealed the log, and begun just this successor.
            base = stores.manifests.load()
            if base.manifest.seal is None or base.manifest.seal.successor != successor:
                raise
    try:
        return _install(stores, wanted, base)
    except SealedError:
        with contextlib.suppress(LogError):
            keeping.let_go(stores.manifests.load().manifest.seal)
        raise


@checked(store=a_store, log=check_log_name)
def create_successor(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> str:
    """Begin the log that a sealed one names as its successor, and return its name; harmless to repeat.

    It begins where the sealed log ends, and its checksum continues from there; at the sealed log's time, unless
    that lies so far beyond the store's that only a wrong clock explains it. It has the sealed log's policy, and a
    cursor for each that the sealed log has. InvalidRequestError when the log is not sealed or names none,
    LogExistsError when another log has taken the name.
    """
    return _begin(store, log, None, runtime or shared_runtime())


def _begin(store: ObjectStore, log: str, seal: Seal | None, runtime: Runtime) -> str:
    """Begin a sealed log's successor; LogReplacedError when the name leads to a log without this seal by now."""
    ending = LogStores(store, log, runtime=runtime)
    sealed = ending.manifests.load().manifest
    if seal is not None and sealed.seal != seal:
        message = f"log {log}: expected the log that was sealed for {seal.successor}, found another one of its name"
        raise LogReplacedError(message)
    if sealed.seal is None or sealed.seal.successor is None:
        found = "it open" if sealed.seal is None else f"a seal that names none: {sealed.seal.reason}"
        raise InvalidRequestError(f"log {log}: expected it sealed, with a successor, found {found}")
    name = check_log_name(sealed.seal.successor)
    beginning = _Beginning(store, ending, sealed, name)
    for _ in attempts(for_store(ending.retry, ending), runtime):
        if beginning.try_to_begin():
            return name
    raise UnavailableError(
        f"log {log}: its successor {name} was not begun: other calls took it over again and again: repeat the call"
    )


@checked(store=a_store, log=check_log_name, successor=check_log_name, reason=text)
def migrate(store: ObjectStore, log: str, successor: str, *, reason: str, runtime: Runtime | None = None) -> Seal:
    """Seal a log and begin its successor; after a call that was cut short anywhere, the next one finishes it.

    Appends that race get SealedError, which names the successor. SealedError is also raised here when
    the log was sealed for another successor, or for none; LogReplacedError when it was destroyed and is another one.
    """
    runtime = runtime or shared_runtime()
    try:
        found = seal(store, log, reason=reason, successor=successor, runtime=runtime)
    except SealedError:
        sealed = LogStores(store, log, runtime=runtime).manifests.load().manifest
        if sealed.seal is None or sealed.seal.successor != successor:
            raise
        found = sealed.seal
    _begin(store, log, found, runtime)
    return found


def _install(stores: LogStores, wanted: Seal, base: Installed) -> Seal:
    """Swap the seal in; what became of a refused or unanswered CAS is read from the manifest."""
    manifests = stores.manifests
    pauses = attempts(for_store(stores.retry, stores), stores.runtime)
    next(pauses)
    for _ in range(REBASES_MAX):
        found = base.manifest.seal
        if found is not None:
            if replace(found, timestamp_us=wanted.timestamp_us) == wanted:
                return found
            successor = f"; it goes on in {found.successor}" if found.successor else ""
            raise SealedError(f"{manifests.what}: sealed already, by {found.sealed_by}: {found.reason}{successor}")
        if isinstance(manifests.install(base.manifest.apply_seal(wanted), base), Installed):
            MAINTAIN.info("log %s: sealed: %s", stores.url, wanted.reason)
            return wanted
        before, base = base, manifests.load()
        # The same version: no writer was faster, the store is busy.
        if base.etag == before.etag and next(pauses, None) is None:
            break
    raise UnavailableError(f"{manifests.what}: not sealed yet, unknown whether it will be: seal it again")


def _check_goes_on(stores: LogStores) -> None:
    """Refuse a successor to a log that could not go on in it."""
    why = why_no_successor({name: each.cursor for name, each in stores.cursors.list().items()})
    if why is None and is_dirty_log(stores.log):
        why = WITHOUT_SUCCESSOR[Owner.ROLLUP]
    if why is not None:
        raise InvalidRequestError(f"log {stores.log}: expected one that can go on in a successor, found {why}")


class _Beginning:
    """One call's tries to begin a successor."""

    def __init__(self, store: ObjectStore, ending: LogStores, sealed: Manifest, name: str) -> None:
        self._store, self._ending, self._sealed, self._name = store, ending, sealed, name
        self._runtime = ending.runtime
        self._target = CopyTarget(with_retries(log_store(store, name), ending.runtime), ending.runtime, ending.retry)
        self._names = self._target.names

    def try_to_begin(self) -> bool:
        """Begin the successor, or find it; False when another call has taken the claim over meanwhile."""
        seen = self._names.look()
        if seen is not None and isinstance(seen.document, Manifest):
            if not goes_on_from(self._sealed, seen.document):
                # The name was destroyed while it was kept, or the log was sealed without keeping it.
                remedy = "copy that one to another name and destroy it, then begin this one"
                raise _usurped(self._ending.log, self._name, remedy)
            self._check_begun(seen.document)
            return True
        self._names.refuse_taken(seen, self._sealed.log_id)
        claim = self._target.claim_successor(seen, source=_source(self._ending), sealed=self._sealed.log_id)
        if claim is None:
            return False
        try:
            self._fill(claim)
        except (LogExistsError, LogReplacedError):
            # Another call goes on, or has begun the successor.
            return False
        self._check_begun(self._names.load().manifest)
        return True

    def _check_begun(self, begun: Manifest) -> None:
        """Delete the cursors that were deleted since the sealed log's were listed.

        One that was created since needs no look: its owner has found the successor, or had the claim replaced.
        """
        ours = CursorStore(self._store, self._name, runtime=self._runtime, log_id=begun.log_id)
        delete_retired(self._ending.cursors, ours, self._sealed)

    def _fill(self, claim: Claim) -> None:
        """Write what the successor takes along, and make it a log."""
        sealed, ending = self._sealed, self._ending
        # The store's time when the log was sealed, or later: records appended before that lie at most so far beyond.
        first = bounded(sealed.next, ending.manifests.changed_us(), CLOCK_AHEAD_S_MAX)
        policy, found = ending.policies.saved(), self._cursors()
        claim.write_documents(take_cursors(found, first.position, first.position, migrates=True), policy)
        begun = take_manifest(sealed, policy, log_id=claim.log_id, writer=self._runtime.process_name(), migrates=True)
        claim.finish(replace(begun, first=first, next=first))

    def _cursors(self) -> dict[str, Cursor]:
        """Load the sealed log's cursors; maintenance goes on there, and may replace what its manifest leads to."""
        base = self._ending.manifests.load()
        while True:
            try:
                return load_cursors(self._ending, base.manifest)
            except MissingError as missing:
                base = self._ending.manifests.load_newer(base, missing)


def _source(stores: LogStores) -> str:
    """Return what a claim names as its source: the part after ? says how the store is asked, not which store it is."""
    return stores.url.partition("?")[0]


class _Keeping:
    """A successor's name, kept for the log that goes on from the life of a log that ``stores`` are of."""

    def __init__(self, store: ObjectStore, stores: LogStores, successor: str) -> None:
        self._stores, self._successor = stores, successor
        self._log_id, self._source = stores.manifests.log_id(), _source(stores)
        self._names = ManifestStore(with_retries(log_store(store, successor), stores.runtime), stores.runtime)

    def keep(self) -> None:
        """Keep the name before the seal, which is final: without the name the log could have no successor.

        LogExistsError when there is a log, or the name is kept for another.
        """
        for _ in range(REBASES_MAX):
            seen = self._names.look()
            entry = None if seen is None else seen.document
            if isinstance(entry, Vacancy) and entry.is_kept_for(self._log_id):
                # Kept by another call, or by one that was cut short: it serves any call that seals the log.
                return
            if isinstance(entry, Vacancy) and entry.kind is VacancyKind.FOLLOWING and entry.source == self._source:
                # Loaded after the name: our life is the later one, and the one that the name was kept for is over.
                self._stores.manifests.load()
            else:
                self._refuse_taken(seen)
            if self._names.swap(self._vacancy(VacancyKind.FOLLOWING), seen) is not None:
                return
        raise UnavailableError(f"log {self._names.url}: the manifest changed {REBASES_MAX} times over")

    def let_go(self, found: Seal | None) -> None:
        """Release the name when the log was sealed without naming it, which is final."""
        seen = self._names.look()
        kept = seen is not None and isinstance(seen.document, Vacancy) and seen.document.is_kept_for(self._log_id)
        if kept and found is not None and found.successor != self._successor:
            self._names.swap(self._vacancy(VacancyKind.DESTROYED), seen)

    def _vacancy(self, kind: VacancyKind) -> Vacancy:
        source, terms = (self._source, self._log_id) if kind is VacancyKind.FOLLOWING else ("", "")
        return Vacancy(kind=kind, log_id=new_log_id(self._stores.runtime), source=source, terms=terms)

    def _refuse_taken(self, seen: LoadedDocument[Entry] | None) -> None:
        try:
            self._names.refuse_taken(seen)
        except LogExistsError as error:
            if seen is not None and isinstance(seen.document, Manifest):
                raise _usurped(self._stores.log, self._successor, "destroy that one, or name another") from error
            message = f"log {self._stores.log}: expected its successor's name to be free: {error}"
            raise LogExistsError(message) from error


def _usurped(log: str, successor: str, remedy: str) -> LogExistsError:
    return LogExistsError(
        f"log {log}: expected its successor {successor} not to exist yet, found another log of that name: {remedy}"
    )
