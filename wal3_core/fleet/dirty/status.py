"""How a fleet is doing: what waits in its dirty logs, and how far the consumers of the marked logs are behind.

Costs what ``RollUp.read`` costs for each dirty log, and what ``over_limit`` costs for each marked log; never anything
for a log that is not marked. Changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import LogError
from wal3_core.fleet.dirty.back_pressure import measure_logs
from wal3_core.fleet.dirty.dirty_log import dirty_logs
from wal3_core.fleet.dirty.rollup import RollUp
from wal3_core.fleet.dirty.rollup_plan import Decision
from wal3_core.fleet.outcomes import try_log
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from wal3_core.fleet.dirty.back_pressure import Pressure
    from wal3_core.fleet.dirty.rollup_plan import RollUpPlan
    from wal3_core.model.strict_json import JsonObject
    from wal3_core.storage.object_store import ObjectStore

# The other marked logs are gone, caught up, or wait for a commit.
_DIRTY = frozenset({Decision.KEPT, Decision.SELECTED})


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStatus:
    """A marked log with unprocessed records; ``age_s`` is the age of the oldest of its records that is marked."""

    pressure: Pressure
    age_s: float

    @property
    def log(self) -> str:
        """The log's name."""
        return self.pressure.log

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {**self.pressure.to_json(), "age_us": round(self.age_s * US_PER_S)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """A fleet at one moment.

    ``markers`` counts the markers that wait in each dirty log. ``logs`` are the marked logs with unprocessed records,
    the one marked first first. ``num_marked`` counts all marked logs, ``gone`` are those among them that do not exist.
    ``unreadable`` has the errors of marked logs and of dirty logs. ``guessed`` says why ages are by the clock of the
    machine that looked, if they are not by the store's.
    """

    markers: dict[str, int]
    num_marked: int
    logs: tuple[LogStatus, ...]
    gone: tuple[str, ...]
    unreadable: dict[str, str]
    guessed: str | None = None

    @property
    def num_unprocessed(self) -> int:
        """How many records of all logs are unprocessed."""
        return sum(each.pressure.unprocessed for each in self.logs)

    @property
    def age_s(self) -> float:
        """The age of the oldest marked record of a log that has unprocessed ones; 0 when there is none."""
        return max((each.age_s for each in self.logs), default=0.0)

    @property
    def over(self) -> tuple[Pressure, ...]:
        """The logs over their limit, the farthest behind first."""
        found = (each.pressure for each in self.logs if each.pressure.over)
        return tuple(sorted(found, key=lambda each: (-each.unprocessed, each.log)))

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "dirty_logs": [{"dirty_log": name, "markers": count} for name, count in self.markers.items()],
            "marked": self.num_marked,
            "unprocessed": self.num_unprocessed,
            "age_us": round(self.age_s * US_PER_S),
            "over": [each.log for each in self.over],
            "gone": list(self.gone),
            "unreadable": [{"log": log, "error": error} for log, error in self.unreadable.items()],
            "logs": [each.to_json() for each in self.logs],
        }


def fleet_status(store: ObjectStore, unprocessed_max: int | None = None) -> FleetStatus:
    """Look at the dirty logs of a store and at the logs marked there; the limit is for logs whose policy has none.

    An error of one log is in the answer. UnavailableError when the store does not answer.
    """
    plans: list[RollUpPlan] = []
    unreadable: dict[str, str] = {}
    for name in dirty_logs(store):
        plan = try_log(lambda name: RollUp(store, name).read(), name)
        if isinstance(plan, LogError):
            unreadable[name] = f"{type(plan).__name__}: {plan}"
        else:
            plans.append(plan)
    marked = [each for plan in plans for each in plan.logs]
    unreadable |= {each.log: each.reason for each in marked if each.decision is Decision.UNREADABLE}
    ages_s: dict[str, float] = {}
    for each in marked:
        if each.decision in _DIRTY:
            ages_s[each.log] = max(each.age_s, ages_s.get(each.log, 0.0))
    logs = []
    for log, pressure in measure_logs(store, ages_s, unprocessed_max).items():
        if isinstance(pressure, LogError):
            unreadable[log] = f"{type(pressure).__name__}: {pressure}"
        elif pressure.unprocessed:
            logs.append(LogStatus(pressure=pressure, age_s=ages_s[log]))
    return FleetStatus(
        markers={plan.marker_range.dirty_log: plan.marker_range.num_markers for plan in plans},
        num_marked=len({each.log for each in marked}),
        logs=tuple(sorted(logs, key=lambda each: (-each.age_s, each.log))),
        gone=tuple(sorted({each.log for each in marked if each.decision is Decision.GONE})),
        unreadable=unreadable,
        guessed=next((plan.guessed for plan in plans if plan.guessed is not None), None),
    )
