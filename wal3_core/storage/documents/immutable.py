"""Writing an object whose path belongs to its writer or its content alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.storage.object_store import Buffer, Done, ObjectStore, PutOutcome, Unknown
from wal3_core.storage.retry import attempts, for_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.options import RetryOptions
    from wal3_core.runtime import Runtime


def write_immutable(
    store: ObjectStore,
    path: str,
    data: Buffer,
    retry: RetryOptions,
    runtime: Runtime,
    retried: Callable[[], None] = lambda: None,
) -> None:
    """Make ``data`` durable at ``path``, which nobody else writes anything else to.

    Finding the path taken after a try of ours means that the try succeeded. Raises UnavailableError
    when it did not work out; the object may then still appear, and nothing must come to refer to it.
    ``retried`` is called for each try behind the first.
    """
    # One byte more tells that there are more.
    cause, length = "refused", len(data) + 1
    for attempt in attempts(for_store(retry, store), runtime):
        if attempt > 1:
            retried()
        outcome = _create(store, path, data)
        if isinstance(outcome, Done):
            return
        if isinstance(outcome, Unknown):
            cause = outcome.cause
        # Refused may also be a conflict that left nothing there: only the object itself tells.
        found = _read(store, path, length)
        if found is not None and found != data:
            # What differs may have been damaged on the way.
            found = _read(store, path, length)
        if found == data:
            return
        if found is not None:
            message = f"{store.url}/{path}: expected {len(data)} bytes of our own, found {len(found)} others"
            raise UnavailableError(message)
    message = f"{store.url}/{path}: not written in {attempt} tries: {cause}"
    raise UnavailableError(message)


def _create(store: ObjectStore, path: str, data: Buffer) -> PutOutcome:
    try:
        return store.create(path, data)
    except StoreDeniedError:
        raise
    except UnavailableError as error:
        # It was not even sent, for want of a lock or a file descriptor: no reason to give up what has time left.
        return Unknown(str(error))


def _read(store: ObjectStore, path: str, length: int) -> bytes | None:
    try:
        return store.read(path, length=length)
    except StoreDeniedError:
        raise
    except UnavailableError:
        return None
