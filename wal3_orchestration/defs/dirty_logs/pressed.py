"""Logs whose consumers are too far behind, so that fleets refuse appends to them.

A refused log is marked no more. So the names of those that were found are kept, and looked at again until they are
within their limit.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from wal3_core.fleet.pressure import over_limit
from wal3_core.model.policy import UNPROCESSED_MIN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dagster import DagsterInstance

    from wal3_core.model.pressure import Pressure
    from wal3_core.storage.object_store import ObjectStore
    from wal3_orchestration.defs.dirty_logs.looks import Look
    from wal3_orchestration.resources import RollUpResource
    from wal3_orchestration.scope import Scope


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


def find_over(store: ObjectStore, logs: Iterable[str], limits: RollUpResource) -> list[Pressure]:
    """Return those of these logs that are over their limit; two small requests for each."""
    return over_limit(store, set(logs), unprocessed_max=limits.unprocessed_max or None)


def marked(looks: Iterable[Look], *, grown: bool = False) -> set[str]:
    """Return the logs that are marked; with ``grown``, only by as many records as the least limit."""
    plans = [look.plan for look in looks if look.plan is not None]
    least = UNPROCESSED_MIN if grown else 0
    return {each.log for plan in plans for each in plan.dirty if each.num_records >= least}
