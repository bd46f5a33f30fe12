"""What was last recorded of each log for an asset: kept by the instance, with a value of its own for each log.

A sweep over many logs compares with it and records only what changed; a check of the whole store is the sum of
it. One value per log and asset, so that two runs over different logs never overwrite what the other one found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from dagster import DagsterInstance

from wal3_orchestration.framework.scope import StoreScope

_KEY = "wal3/log"
# Below the number of variables that a statement of any SQLite may have.
_KEYS_AT_ONCE = 500
_CHARS_MAX = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProblem:
    """What a check found wrong with a log, whether that stops later steps, and the URL of the damaged object.

    ``log_id`` is the life of the log that it was found in, where that matters: the name may have another log by now.
    ``found_by`` is the run that found it last, and which try of its step: a step ends only what it knew when it began.
    """

    problem: str
    blocking: bool = False
    file: str | None = None
    log_id: str | None = None
    found_by: str | None = None


_PROBLEM_FIELDS = [each.name for each in fields(KnownProblem)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """The state that was recorded last, how many states were before it, and the problems of each check.

    ``due_s`` is since when garbage waits to be pruned, in seconds since 1970; 0 when none does. ``due_from`` says where
    the log began then, and which life of it that was. ``unproven`` is the token of a pass that a run has begun to
    install, and not verified yet. ``figures`` are those by which the fleet's logs are compared.
    """

    state: str = ""
    number: int = 0
    problems: Mapping[str, KnownProblem] = field(default_factory=dict)
    due_s: float = 0.0
    due_from: str = ""
    unproven: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    def to_text(self) -> str:
        """Format; short, because there is one for each log and asset."""
        problems = {
            check: [known.problem[:_CHARS_MAX], known.blocking, known.file, known.log_id, known.found_by]
            for check, known in self.problems.items()
        }
        said = {
            "state": self.state,
            "number": self.number,
            "problems": problems,
            "due": [self.due_s, self.due_from] if self.due_s else None,
            "unproven": self.unproven,
            "figures": dict(self.figures),
        }
        return json.dumps({label: value for label, value in said.items() if value})

    @classmethod
    def from_text(cls, text: str) -> LogRecord:
        """Read what ``to_text`` wrote."""
        found: dict[str, Any] = json.loads(text)
        due_s, due_from = found.get("due", (0.0, ""))
        return cls(
            state=found.get("state", ""),
            number=found.get("number", 0),
            problems={
                # Those that an earlier version wrote have fewer fields.
                check: KnownProblem(**dict(zip(_PROBLEM_FIELDS, known, strict=False)))
                for check, known in found.get("problems", {}).items()
            },
            due_s=due_s,
            due_from=due_from,
            unproven=found.get("unproven", ""),
            figures=found.get("figures", {}),
        )


NOTHING = LogRecord()


class LogRecords:
    """The records of a scope's logs for one asset."""

    def __init__(self, scope: StoreScope, instance: DagsterInstance, asset: str) -> None:
        self._storage = instance.daemon_cursor_storage
        self._prefix = f"{_KEY}/{scope.name}/{asset}/"

    def load(self, logs: Iterable[str]) -> dict[str, LogRecord]:
        """Return the record of each log that has one, in the order of ``logs``."""
        keys = [f"{self._prefix}{log}" for log in logs]
        found: dict[str, str] = {}
        for some in _few(keys):
            found.update(self._storage.get_cursor_values(set(some)))
        return {key.removeprefix(self._prefix): LogRecord.from_text(found[key]) for key in keys if key in found}

    def changed(self, states: Mapping[str, str]) -> dict[str, str]:
        """Return the logs whose state is not the one that was recorded last, each with the key of a run for it.

        A repeated tick finds the same keys. The same change at another time has another key, since Dagster starts
        only one run per key, and a log may be lost, restored, and lost again.
        """
        known = self.load(states)
        before = {log: known.get(log, NOTHING) for log in states}
        return {
            log: f"{log}/{before[log].number}/{state}" for log, state in states.items() if before[log].state != state
        }

    def save(self, records: Mapping[str, LogRecord]) -> None:
        """Remember each log's record; writes only what is new."""
        texts = {f"{self._prefix}{log}": record.to_text() for log, record in records.items()}
        for some in _few(list(texts)):
            self._save({key: texts[key] for key in some})

    def _save(self, texts: Mapping[str, str]) -> None:
        if not texts:
            return
        before = self._storage.get_cursor_values(set(texts))
        changed = {key: text for key, text in texts.items() if key in before and before[key] != text}
        if changed:
            self._storage.set_cursor_values(changed)
        new = {key: text for key, text in texts.items() if key not in before}
        if new:
            # SQLite's storage drops new keys that come with one that exists, which another run may have set just now.
            self._storage.set_cursor_values(new)
            there = self._storage.get_cursor_values(set(new))
            self._save({key: text for key, text in new.items() if key not in there})


def _few(items: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(items), _KEYS_AT_ONCE):
        yield items[start : start + _KEYS_AT_ONCE]
