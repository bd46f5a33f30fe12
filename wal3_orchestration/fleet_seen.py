"""What discovery saw of the fleet, kept as the sensor's cursor, and the keys of runs for its changes."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from wal3_core.runtime import shared_runtime

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSeen:
    """The logs' fingerprints, and a token that is new whenever one of them changed."""

    token: str = ""
    logs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_cursor(cls, cursor: str | None) -> Self:
        """Read what the last tick wrote; an unknown form counts as nothing seen, so all logs are looked at."""
        found = json.loads(cursor or "{}")
        token, logs = found.get("token"), found.get("logs")
        return cls(token=token, logs=logs) if isinstance(token, str) and isinstance(logs, dict) else cls()

    def to_cursor(self) -> str:
        """Format as the sensor's cursor."""
        return json.dumps({"token": self.token, "logs": self.logs})

    def then(self, found: Mapping[str, str]) -> FleetSeen:
        """Return the next value after the fingerprints ``found``; itself if none changed."""
        return self if found == self.logs else FleetSeen(token=shared_runtime().token(), logs=found)

    def run_key(self, covered: Sequence[str], found: Mapping[str, str]) -> str:
        """Name a run by its change: from what was seen, under this token, to what was found.

        A repeated tick requests the same run. The same change at another time requests another run, since
        Dagster starts only one run per key, and a log may be lost, restored, and lost again.
        """
        changes = [(log, self.logs.get(log), found[log]) for log in covered]
        return hashlib.sha256(json.dumps([self.token, changes]).encode()).hexdigest()
