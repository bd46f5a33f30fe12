"""Queues by name: the queue NAME is the log PREFIX/NAME."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError, LogNotFoundError
from wal3_core.fleet.discovery import list_logs
from wal3_core.model.paths import is_name_part
from wal3_core.runtime import map_ahead, shared_runtime
from wal3_core.storage.object_store import share_of
from wal3_core.views.queue import is_queue

if TYPE_CHECKING:
    from collections.abc import Collection

    from wal3_core.storage.object_store import ObjectStore

PREFIX = "queues"
_LOOKS_AT_ONCE = 16


def log_of(prefix: str, name: str) -> str:
    """Return the log of a queue. InvalidRequestError for a name that no queue below a prefix may have."""
    if not is_name_part(name):
        message = (
            f"queue: expected a name of [A-Za-z0-9_-], at most 255 characters and none that is reserved for a log's own"
            f" folders, found {ascii(name)[:80]}"
        )
        raise InvalidRequestError(message)
    return f"{prefix}/{name}" if prefix else name


def names_below(store: ObjectStore, prefix: str, known: Collection[str] = ()) -> list[str]:
    """Return the names of the queues below a prefix: a listing and a GET for each log there, many at a time.

    Logs ``known`` to be queues are taken for some, if they are there.
    """
    folder = f"{prefix}/" if prefix else ""
    names = (log.removeprefix(folder) for log in list_logs(store, prefix) if log != prefix)
    looked = map_ahead(
        shared_runtime(),
        lambda name: (name, name in known or _is_queue(store, f"{folder}{name}")),
        filter(is_name_part, names),
        count=_LOOKS_AT_ONCE,
        share=share_of(store),
    )
    return [name for name, found in looked if found]


def _is_queue(store: ObjectStore, log: str) -> bool:
    try:
        return is_queue(store, log)
    except LogNotFoundError:
        # Destroyed meanwhile.
        return False
