"""Writing an object whose path is unique to its writer or its content."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import StoreDeniedError, UnavailableError
from wal3_core.storage.object_store import Buffer, Done, ObjectStore, PutOutcome, Unknown, object_url
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
    """Make ``data`` durable at ``path``, where no other bytes are ever written.

    Finding the path taken by these bytes means that an earlier try succeeded. Raises UnavailableError
    when it could not be written; the object may then still appear, and nothing may refer to it.
    ``retried`` is called for each try after the first.
    """
    # One byte more shows that the object is longer.
    cause, length = "refused", len(data) + 1
    for attempt in attempts(for_store(retry, store), runtime):
        if attempt > 1:
            retried()
        outcome = _create(store, path, data)
        if isinstance(outcome, Done):
            return
        if isinstance(outcome, Unknown):
            cause = outcome.cause
        # Refused may also be a conflict that wrote nothing: only the object itself shows which.
        found = _read(store, path, length)
        if found is not None and found != data:
            # The difference may be damage in transit.
            found = _read(store, path, length)
        if found == data:
            return
        if found is not None:
            expected = f"expected the {len(data)} bytes written here, found {len(found)} others"
            message = f"{object_url(store, path)}: {expected}"
            raise UnavailableError(message)
    message = f"{object_url(store, path)}: not written in {attempt} tries: {cause}"
    raise UnavailableError(message)


def _create(store: ObjectStore, path: str, data: Buffer) -> PutOutcome:
    try:
        return store.create(path, data)
    except StoreDeniedError:
        raise
    except UnavailableError as error:
        # It was not sent, for lack of a lock or a file descriptor: retried while there is time.
        return Unknown(str(error))


def _read(store: ObjectStore, path: str, length: int) -> bytes | None:
    try:
        return store.read(path, length=length)
    except StoreDeniedError:
        raise
    except UnavailableError:
        return None
