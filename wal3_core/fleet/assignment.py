"""Which dirty logs a store has, and which compactor pulls from which.

While the servers or the compactors change, two compactors may pull from one dirty log, which is harmless.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, several
from wal3_core.errors import InvalidRequestError
from wal3_core.fleet.discovery import list_logs
from wal3_core.model.paths import DIRTY
from wal3_core.storage.object_store import a_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.storage.object_store import ObjectStore


@checked(store=a_store)
def dirty_logs(store: ObjectStore) -> list[str]:
    """List the dirty logs of a store, in the order of their names: one listing for each of them, and one more."""
    return sorted(log for log in list_logs(store, DIRTY) if log != DIRTY)


@checked(dirty_logs=several, compactors=several)
def assigned(dirty_logs: Iterable[str], compactors: Iterable[str]) -> dict[str, list[str]]:
    """Assign each dirty log to one compactor; return each compactor's dirty logs.

    Rendezvous hashing: the same in every process, whatever the order of the names. One compactor more, or less, moves
    only the dirty logs that it takes, or had. InvalidRequestError when there is no compactor.
    """
    known = sorted(set(compactors))
    if not known:
        message = "compactors: expected at least one, found none"
        raise InvalidRequestError(message)
    mine: dict[str, list[str]] = {compactor: [] for compactor in known}
    for log in sorted(set(dirty_logs)):
        mine[max(known, key=lambda compactor: _weight(compactor, log))].append(log)
    return mine


def _weight(compactor: str, log: str) -> bytes:
    # The length separates the two names: no other pair has the same bytes.
    return hashlib.sha256(f"{len(compactor)}:{compactor}{log}".encode()).digest()
