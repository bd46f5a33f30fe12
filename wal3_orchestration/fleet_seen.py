"""What discovery saw of the fleet, as its cursor, and how a run for a change of that is named."""

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
        """Read what the last tick wrote; nothing was seen where it is not of this form, so all logs are looked at."""
        found = json.loads(cursor or "{}")
        token, logs = found.get("token"), found.get("logs")
        return cls(token=token, logs=logs) if isinstance(token, str) and isinstance(logs, dict) else cls()

    def to_cursor(self) -> str:
        """Show as the sensor's cursor."""
        return json.dumps({"token": self.token, "logs": self.logs})

    def then(self, found: Mapping[str, str]) -> FleetSeen:
        """Return what is seen when the logs are as they were ``found``."""
        return self if found == self.logs else FleetSeen(token=shared_runtime().token(), logs=found)

    def run_key(self, covered: Sequence[str], found: Mapping[str, str]) -> str:
        """Name a run by the change it is for: from what was seen, that very time, to what was found.

        A tick that is repeated asks for the same run. The same change at another time asks for another
        one, for Dagster starts none twice by one key: a log may be lost, restored, and lost again.
        """
        changes = [(log, self.logs.get(log), found[log]) for log in covered]
        return hashlib.sha256(json.dumps([self.token, changes]).encode()).hexdigest()
