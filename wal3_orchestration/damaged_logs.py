"""Which logs were damaged when they were last verified: kept by the instance, with a value of its own for each log.

One value per log, so that two runs over different logs never overwrite what the other one found.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from dagster import DagsterInstance

    from wal3_orchestration.scope import Scope

_KEY = "wal3/damaged"
# Below the number of variables that a statement of any SQLite may have.
_KEYS_AT_ONCE = 500
_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDamage:
    """What a verification found in a log, and the URL of the first damaged object."""

    problem: str
    file: str | None = None


class DamagedLogs:
    """The damaged ones of a scope's known logs."""

    def __init__(self, scope: Scope, instance: DagsterInstance) -> None:
        self._scope = scope
        self._instance = instance

    def record(self, found: Mapping[str, KnownDamage | None]) -> None:
        """Remember each log's damage, None for a sound one; writes only what is new."""
        before = self._read(found)
        texts = {log: "" if damage is None else _text(damage) for log, damage in found.items()}
        changed = {log: text for log, text in texts.items() if text != before.get(log, "")}
        # SQLite's storage drops new keys that come with one that exists.
        self._write({log: text for log, text in changed.items() if log not in before})
        self._write({log: text for log, text in changed.items() if log in before})

    def load(self) -> dict[str, KnownDamage]:
        """Return the damage of each damaged log, in the order of the partitions."""
        known = self._scope.known_logs(self._instance)
        read = self._read(known)
        return {log: KnownDamage(**json.loads(read[log])) for log in known if read.get(log)}

    def _read(self, logs: Iterable[str]) -> dict[str, str]:
        keys = {self._key(log): log for log in logs}
        read = self._instance.daemon_cursor_storage.get_cursor_values
        values = (read(set(some)).items() for some in _few(list(keys)))
        return {keys[key]: text for found in values for key, text in found}

    def _write(self, texts: Mapping[str, str]) -> None:
        for some in _few(list(texts)):
            self._instance.daemon_cursor_storage.set_cursor_values({self._key(log): texts[log] for log in some})

    def _key(self, log: str) -> str:
        return f"{_KEY}/{self._scope.name}/{log}"


def _few(items: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), _KEYS_AT_ONCE):
        yield items[start : start + _KEYS_AT_ONCE]


def _text(damage: KnownDamage) -> str:
    return json.dumps(asdict(KnownDamage(problem=damage.problem[:_CHARS_MAX], file=damage.file)))
