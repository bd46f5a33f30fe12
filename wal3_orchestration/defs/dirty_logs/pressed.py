"""Logs whose consumers are too far behind, so that fleets refuse appends to them.

A refused log is marked no more. So the names of those that were found are kept, and looked at again until they are
within their limit, or gone. One that cannot be measured for a while stays among them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import LogError, LogNotFoundError
from wal3_core.fleet.dirty.back_pressure import measure_logs, over_limit
from wal3_core.model.policy import UNPROCESSED_MIN

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from dagster import DagsterInstance

    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.defs.dirty_logs.looks import Look
    from wal3_orchestration.resources import RollUpResource
    from wal3_orchestration.scope import Scope


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A log that is over its limit, and why; or that was, and cannot be measured now."""

    log: str
    reason: str


class Pressed:
    """The logs of a scope that ticks have found over their limit, or the last run did: the next one looks at them."""

    def __init__(self, scope: Scope, instance: DagsterInstance) -> None:
        self._storage = instance.daemon_cursor_storage
        self._key = f"wal3/pressed/{scope.name}"

    def load(self) -> list[str]:
        """Return their names."""
        text = self._storage.get_cursor_values({self._key}).get(self._key)
        return list(map(str, json.loads(text))) if text else []

    def save(self, logs: Iterable[str]) -> None:
        """Keep these names in place of those before."""
        self._storage.set_cursor_values({self._key: json.dumps(sorted(logs))})


def find_over(
    store: ObjectStore, known: Collection[str], marked: Collection[str], limits: RollUpResource
) -> list[Behind]:
    """Return those of these logs that are over their limit; two small requests for each.

    With them those of the ``known`` ones that cannot be measured now: nothing else would look at them again.
    """
    limit = limits.unprocessed_max or None
    again = measure_logs(store, known, limit, whole=False)
    over = over_limit(store, set(marked) - again.keys(), unprocessed_max=limit)
    over += [each for each in again.values() if not isinstance(each, LogError) and each.over]
    over.sort(key=lambda each: (-each.unprocessed, each.log))
    found = [Behind(log=each.log, reason=each.reason) for each in over]
    text = "log {}: over its limit when it was looked at last; it cannot be measured now: {}"
    return found + [
        Behind(log=log, reason=text.format(log, error))
        for log, error in again.items()
        if isinstance(error, LogError) and not isinstance(error, LogNotFoundError)
    ]


def marked(looks: Iterable[Look], *, grown: bool = False) -> set[str]:
    """Return the logs that are marked; with ``grown``, only by as many records as the least limit."""
    plans = [look.plan for look in looks if look.plan is not None]
    least = UNPROCESSED_MIN if grown else 0
    return {each.log for plan in plans for each in plan.dirty if each.num_records >= least}
