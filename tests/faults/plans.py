"""Which fault happens at which store call: drawn per seed, or listed call by call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from random import Random

Kind = Literal["put", "read", "list", "delete"]

# put: fails before it is sent; applied but unanswered; applied up to 30 s later; 409; 409 to what a proxy repeated,
# and applied before or up to 30 s later; 403 for a while; no space for a while; 503 to everything for a while; takes
# seconds.
# read: no answer; the body is cut, or has a flipped bit. list: no answer; a page of it fails; it is seconds old.
FAULTS: dict[Kind, tuple[str, ...]] = {
    "put": (
        *("before", "after", "late", "conflict", "conflict-after", "conflict-late"),
        *("denied", "full", "burst", "slow"),
    ),
    "read": ("read-unavailable", "read-truncated", "read-flipped", "read-slow", "denied", "burst"),
    "list": ("list-unavailable", "list-partial", "list-stale"),
    "delete": ("delete-before", "delete-after", "delete-late"),
}
# The process dies: before the request is sent, after it was applied, or while it is under way.
CRASHES: dict[Kind, tuple[str, ...]] = {
    "put": ("crash-before", "crash-after", "crash-late"),
    "read": ("crash-before",),
    "list": ("crash-before",),
    "delete": ("crash-before", "crash-after", "crash-late"),
}
# The faults that last.
OUTAGES = ("denied", "full", "burst")
SPOILING = frozenset({"read-truncated", "read-flipped"})
SWARM = tuple(dict.fromkeys(fault for faults in FAULTS.values() for fault in faults))


class Plan(Protocol):
    """Decides what happens to a store call."""

    @property
    def may_spoil(self) -> bool:
        """Whether bytes may arrive damaged."""
        ...

    @property
    def quiet(self) -> bool:
        """Whether nothing can happen at all."""
        ...

    def fault(self, index: int, kind: Kind, dice: Random) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Swarm:
    """Each seed has some kinds of fault and not others, each at a drawn rate."""

    rates: Mapping[str, float]

    @classmethod
    def drawn(cls, dice: Random, *, brief: bool = False) -> Swarm:
        """Draw the rates; at the usual rates outages would fill a brief story."""
        if dice.random() < (0.3 if brief else 0.05):
            return cls({})
        # Deletes are few.
        often = {fault: 0.4 if fault in FAULTS["delete"] else dice.choice((0.01, 0.05, 0.2)) for fault in SWARM}
        often |= dict.fromkeys(OUTAGES, 0.002) if brief else {}
        return cls({fault: rate for fault, rate in often.items() if dice.random() < 0.35})

    @property
    def may_spoil(self) -> bool:
        return not SPOILING.isdisjoint(self.rates)

    @property
    def quiet(self) -> bool:
        return not self.rates

    def fault(self, index: int, kind: Kind, dice: Random) -> str | None:  # noqa: ARG002 - a script needs it
        for fault in FAULTS[kind]:
            if fault in self.rates and dice.random() < self.rates[fault]:
                return fault
        return None


@dataclass(frozen=True, slots=True)
class Script:
    """Faults by the number of the store call, for exhaustive runs and for shrunk seeds."""

    faults: Mapping[int, str] = field(default_factory=dict)

    @property
    def may_spoil(self) -> bool:
        return not SPOILING.isdisjoint(self.faults.values())

    @property
    def quiet(self) -> bool:
        return not self.faults

    def fault(self, index: int, kind: Kind, dice: Random) -> str | None:  # noqa: ARG002 - a swarm needs it
        fault = self.faults.get(index)
        return fault if fault in FAULTS[kind] or fault in CRASHES[kind] else None
