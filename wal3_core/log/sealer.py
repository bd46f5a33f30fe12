"""Seals a log for good, and begins the log that goes on from it.

The seal is a part of the manifest, set by CAS: it comes before or after every commit, for everybody,
so nothing is acknowledged after it. A successor is initialized only from a sealed log, at its end.
Source: docs/protocol.md, "Seal".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, optional, text
from wal3_core.errors import InvalidRequestError, LogExistsError, SealedError, UnavailableError
from wal3_core.log.log_clock import bounded
from wal3_core.log.succession import goes_on_from
from wal3_core.model.manifest import Manifest, Seal
from wal3_core.model.paths import check_log_name
from wal3_core.options import CLOCK_AHEAD_S_MAX, RetryOptions
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.manifest_store import Installed, ManifestStore, new_log_id
from wal3_core.storage.object_store import a_store, log_store
from wal3_core.storage.patient import patient
from wal3_core.storage.retry import attempts, until_answered

if TYPE_CHECKING:
    from wal3_core.storage.object_store import ObjectStore

# Each try that is refused means that a writer has committed meanwhile.
_REBASES_MAX = 256


@checked(
    store=a_store,
    log=check_log_name,
    reason=text,
    sealed_by=optional(text),
    successor=optional(check_log_name),
    runtime=optional(a_runtime),
)
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

    A log that has this seal already (the same reason, successor and ``sealed_by``) is left as it is, and
    the seal it has is returned, so a call that names ``sealed_by`` can be repeated. SealedError tells
    of another seal. A successor must not exist yet: it begins with ``initialize_successor``.
    """
    runtime = runtime or shared_runtime()
    if not reason.strip():
        # A seal is never lifted: whoever meets it must learn why it is there.
        message = f"log {log}: expected a reason to seal it, found none"
        raise InvalidRequestError(message)
    if successor is not None:
        _check_successor(log, successor)
    wanted = Seal(
        reason=reason,
        # The token makes the seal this call's own: another's is never taken for it.
        sealed_by=sealed_by or f"{runtime.process_name()} {runtime.token()}",
        timestamp_us=runtime.now_us(),
        successor=successor,
    )
    store = patient(store, runtime)
    sealing = _Sealing(ManifestStore(log_store(store, check_log_name(log)), runtime), runtime)
    base = sealing.load()
    if base.manifest.seal is None and successor is not None:
        _check_absent(store, log, successor, runtime)
    return sealing.install(wanted, base)


@checked(store=a_store, log=check_log_name, runtime=optional(a_runtime))
def initialize_successor(store: ObjectStore, log: str, *, runtime: Runtime | None = None) -> str:
    """Begin the log that a sealed one names as its successor, and return its name; harmless to repeat.

    It begins where the sealed log ends, and its checksum goes on from there; at the sealed log's time, unless
    that lies so far beyond the store's that only a wrong clock explains it. InvalidRequestError when
    the log is not sealed or names none, LogExistsError when another log has taken the name.
    """
    runtime = runtime or shared_runtime()
    store = patient(store, runtime)
    ending = ManifestStore(log_store(store, check_log_name(log)), runtime)
    sealed = ending.load().manifest
    if sealed.seal is None or sealed.seal.successor is None:
        found = "it open" if sealed.seal is None else f"a seal that names none: {sealed.seal.reason}"
        message = f"log {log}: expected it sealed, with a successor, found {found}"
        raise InvalidRequestError(message)
    name = check_log_name(sealed.seal.successor)
    manifests = ManifestStore(log_store(store, name), runtime)
    try:
        # The store's time when the log was sealed, or later: what was appended before then lies at most so far beyond.
        first = bounded(sealed.next, ending.changed_us(), CLOCK_AHEAD_S_MAX)
        begun = Manifest.successor(sealed, log_id=new_log_id(runtime), writer=runtime.process_name())
        manifests.initialize(replace(begun, first=first, next=first))
    except LogExistsError as error:
        if not goes_on_from(sealed, manifests.load().manifest):
            raise _usurped(log, name) from error
    return name


@checked(store=a_store, log=check_log_name, successor=check_log_name, reason=text, runtime=optional(a_runtime))
def migrate(
    store: ObjectStore,
    log: str,
    successor: str,
    *,
    reason: str,
    runtime: Runtime | None = None,
) -> Seal:
    """Seal a log and begin its successor; a call that was cut short at any point is finished by the next.

    Appends that race get SealedError, which names the successor. SealedError is also raised here when
    the log was sealed for another successor, or for none.
    """
    runtime = runtime or shared_runtime()
    store = patient(store, runtime)
    try:
        found = seal(store, log, reason=reason, successor=successor, runtime=runtime)
    except SealedError:
        sealed = ManifestStore(log_store(store, check_log_name(log)), runtime).load().manifest
        if sealed.seal is None or sealed.seal.successor != successor:
            raise
        found = sealed.seal
    initialize_successor(store, log, runtime=runtime)
    return found


class _Sealing:
    """One call's CAS loop."""

    def __init__(self, manifests: ManifestStore, runtime: Runtime) -> None:
        self._manifests = manifests
        self._runtime = runtime
        self._retry = RetryOptions()

    def load(self) -> Installed:
        return until_answered(self._manifests.load, self._retry, self._runtime)

    def install(self, wanted: Seal, base: Installed) -> Seal:
        """Swap the seal in; a CAS that was refused or unanswered is settled by what the manifest then says."""
        pauses = attempts(self._retry, self._runtime)
        next(pauses)
        for _ in range(_REBASES_MAX):
            found = base.manifest.seal
            if found is not None:
                return self._checked(found, wanted)
            if isinstance(self._manifests.install(base.manifest.apply_seal(wanted), base), Installed):
                return wanted
            before, base = base, self.load()
            # The same version: the store is busy, not a writer quicker.
            if base.etag == before.etag and next(pauses, None) is None:
                break
        message = f"{self._manifests.what}: not sealed yet, and no telling whether it will be: seal it again"
        raise UnavailableError(message)

    def _checked(self, found: Seal, wanted: Seal) -> Seal:
        if replace(found, timestamp_us=wanted.timestamp_us) == wanted:
            return found
        successor = f"; it goes on in {found.successor}" if found.successor else ""
        message = f"{self._manifests.what}: sealed already, by {found.sealed_by}: {found.reason}{successor}"
        raise SealedError(message)


def _check_successor(log: str, successor: str) -> None:
    if check_log_name(successor) == log:
        message = f"log {log}: expected a successor of another name, found its own"
        raise InvalidRequestError(message)


def _check_absent(store: ObjectStore, log: str, successor: str, runtime: Runtime) -> None:
    """Refuse a successor that could not be begun: the seal would stay, and nothing go on from it."""
    manifests = ManifestStore(log_store(store, successor), runtime)
    try:
        manifests.refuse_taken(manifests.look())
    except LogExistsError as error:
        raise _usurped(log, successor) from error


def _usurped(log: str, successor: str) -> LogExistsError:
    return LogExistsError(
        f"log {log}: expected its successor {successor} not to exist yet, found another log of that name:"
        f" destroy that one, or name another"
    )
