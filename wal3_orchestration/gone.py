"""Logs that are gone when a sweep comes to them: destroyed, or moved to another name, since discovery found them.

A sweep goes over what was known when it began, and stores have logs that come and go. So such a log is left out,
and discovery removes its partition. A run of chosen logs still fails for it: someone has named the log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.errors import UnavailableError
from wal3_orchestration.log_state import read_states
from wal3_orchestration.store_guard import require_few_lost

if TYPE_CHECKING:
    from collections.abc import Collection

    from wal3_orchestration.work import Work


def gone_logs(work: Work, failed: Collection[str], before: Collection[str]) -> set[str]:
    """Return those of a sweep's logs that failed because they no longer exist; one look at each that failed.

    A log of which fragments are left is not gone, but damaged. Failure when so many are gone, with those found gone
    ``before``, that it is more likely a fault of the store.
    """
    if not work.swept or not failed:
        return set()
    try:
        store = work.open()
        gone = set(failed) - {state.log for state in read_states(store, sorted(failed))}
    except UnavailableError:
        # The step fails for these, or is repeated.
        return set()
    if gone:
        known = work.scope.known_logs(work.instance)
        vanished = sorted((gone | set(before)) & set(known))
        require_few_lost(work.scope, store, known, vanished, work.scope.store(work.context))
    return gone
