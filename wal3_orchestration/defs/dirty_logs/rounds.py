"""Roll-ups that are under way: plans of dirty logs, and the maintenance that they ask for.

The instance keeps a round from before its runs are asked for until its plans are finished. A tick may end anywhere,
and be repeated: it asks for the same runs under the same keys, which Dagster starts once. A plan is finished only when
Dagster has launched or queued a run for each of its logs.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from dagster import DagsterRunStatus, RunsFilter

from wal3_core.errors import LogError
from wal3_core.fleet.dirty.rollup_plan import Decision, MarkedLog, RollUpPlan
from wal3_orchestration.defs.maintenance import request_maintenance
from wal3_orchestration.framework.scope import ROLLED_UP, RUN_KEY_TAG

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from dagster import DagsterInstance, RunRequest

    from wal3_orchestration.framework.scope import Scope

_KEY = "wal3/rollup"
_LAUNCHED = [status for status in DagsterRunStatus if status is not DagsterRunStatus.NOT_STARTED]
_NAMED_MAX = 3
_DIGEST_CHARS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Plans whose selected logs are maintained in the same runs.

    ``collected`` are dirty logs that are collected themselves, each with the offset of its cursor. ``attempt`` is part
    of the round's name: a quiet dirty log stays where it is, and asks for another run only under another name.
    """

    plans: tuple[RollUpPlan, ...]
    collected: Mapping[str, int] = field(default_factory=dict)
    attempt: int = 0

    @property
    def logs(self) -> list[str]:
        """The logs to maintain, in the order of their names."""
        return sorted({*self.collected, *(log for plan in self.plans for log in plan.selected)})

    @property
    def keyed(self) -> list[str]:
        """Those of the logs that are compacted by key, in the order of their names."""
        logs = (each for plan in self.plans for each in plan.logs)
        return sorted({each.log for each in logs if each.keyed and each.decision is Decision.SELECTED})

    @property
    def name(self) -> str:
        """The round's name, and why its runs are asked for.

        The same for the same ranges of markers, if these logs were found to end at the same offsets: a run of this name
        began after everything was committed that it stands for.
        """
        marker_ranges = sorted(json.dumps(plan.marker_range.to_json(), sort_keys=True) for plan in self.plans)
        logs = sorted(
            f"{each.log} {each.marker.life} {_decided(each)}"
            for plan in self.plans
            for each in plan.logs
            if each.decision is Decision.SELECTED
        )
        own = sorted(f"{name} {offset} {self.attempt}" for name, offset in self.collected.items())
        digest = hashlib.sha256("\n".join([*marker_ranges, "", *logs, "", *own]).encode()).hexdigest()[:_DIGEST_CHARS]
        places = {
            **self.collected,
            **{plan.marker_range.dirty_log: plan.marker_range.limit.offset for plan in self.plans},
        }
        named = ", ".join(f"{name} to {offset}" for name, offset in sorted(places.items())[:_NAMED_MAX])
        more = f" and {len(places) - _NAMED_MAX} more" if len(places) > _NAMED_MAX else ""
        return f"{ROLLED_UP} {digest}: {named}{more}"

    def requests(self, scope: Scope) -> list[RunRequest]:
        """Return the runs that maintain the logs: the same ones each time."""
        return request_maintenance(scope, self.logs, self.name, keyed=self.keyed)

    def to_text(self) -> str:
        """Format, to be kept by the instance."""
        plans = [plan.to_json() for plan in self.plans]
        return json.dumps({"plans": plans, "collected": dict(self.collected), "attempt": self.attempt})

    @classmethod
    def from_text(cls, text: str) -> Round | None:
        """Read what ``to_text`` wrote; None for another form: without a round, the dirty logs are read again."""
        try:
            found = json.loads(text)
            plans = tuple(RollUpPlan.from_text(json.dumps(plan)) for plan in found["plans"])
            collected = {str(name): int(at) for name, at in found["collected"].items()}
            return cls(plans=plans, collected=collected, attempt=int(found.get("attempt", 0)))
        except (ValueError, TypeError, KeyError, AttributeError, LogError):
            return None


class RoundKind(StrEnum):
    """Which round: the one that a run has planned, or the one whose runs were asked for."""

    PLANNED = "planned"
    ASKED = "asked"


class Rounds:
    """The rounds of a scope. Only the sensor writes the one that was asked for."""

    def __init__(self, scope: Scope, instance: DagsterInstance) -> None:
        self._storage = instance.daemon_cursor_storage
        self._prefix = f"{_KEY}/{scope.name}/"

    def load(self, kept: RoundKind) -> Round | None:
        """Return a round; None when there is none."""
        key = f"{self._prefix}{kept}"
        text = self._storage.get_cursor_values({key}).get(key)
        return Round.from_text(text) if text else None

    def save(self, kept: RoundKind, found: Round | None) -> None:
        """Keep a round in place of the one before; None keeps none."""
        self._storage.set_cursor_values({f"{self._prefix}{kept}": "" if found is None else found.to_text()})

    def clear(self) -> None:
        """Keep no round. No mark is lost: the dirty logs are read again."""
        for kept in RoundKind:
            self.save(kept, None)


def missing(instance: DagsterInstance, requests: Iterable[RunRequest]) -> list[RunRequest]:
    """Return the requests of which Dagster has no run that was launched, or waits in the queue.

    A tick that ended may have asked in vain: someone may have stopped the sensor while it asked. And Dagster stores a
    run before it launches it: where that fails, such as while the code location is loaded again, the run stays as it
    is until it is asked for again.
    """
    return [each for each in requests if not instance.get_run_records(_filter(each), limit=1)]


def _filter(request: RunRequest) -> RunsFilter:
    assert request.run_key is not None
    return RunsFilter(job_name=request.job_name, tags={RUN_KEY_TAG: request.run_key}, statuses=_LAUNCHED)


def _decided(marked: MarkedLog) -> int:
    """Return up to where a log's marked records were committed when it was looked up."""
    return marked.marker.limit.offset if marked.rest is None else marked.rest.start
