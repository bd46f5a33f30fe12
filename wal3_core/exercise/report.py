"""What an exercise reports: figures of its processes, added up, and what the check found."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

from wal3_core.errors import UnavailableError
from wal3_core.exercise.ledger import HARMLESS, AppendOutcome, Violation, ViolationKind

# List prices of S3 Standard in us-east-1, in US dollars per 1,000 requests, by the library's name of a request; DELETE
# is free. Source: https://aws.amazon.com/s3/pricing/, as of 2026-11.
PRICE_PER_1000 = {
    "create": 0.005,
    "replace": 0.005,
    "list": 0.005,
    "get": 0.0004,
    "read": 0.0004,
    "head": 0.0004,
    "delete": 0.0,
}
# Findings of each kind that the summary has in full.
FINDINGS_SHOWN_MAX = 20
# Counts that the summary has under the name by which processes count them.
_COUNTS = ("closed", "killed", "collections", "records_collected", "objects_deleted", "snapshot_steps")
_RATIO = 1.02
_FIRST_S = 0.0001


class Histogram:
    """Durations, counted by size; a percentile is at most 2 % too large."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.max_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        self._counts[max(0, math.ceil(math.log(max(seconds, _FIRST_S) / _FIRST_S, _RATIO)))] += 1
        self.max_s = max(self.max_s, seconds)

    def percentile(self, share: float) -> float:
        """Return the duration in seconds that so large a share does not exceed; 0 if there is none."""
        left = math.ceil(share * self._counts.total())
        for size in sorted(self._counts):
            left -= self._counts[size]
            if left <= 0:
                return min(_FIRST_S * _RATIO**size, self.max_s)
        return 0.0

    def to_json(self) -> dict[str, object]:
        """Show the percentiles in milliseconds."""
        shown = {f"p{share}": self.percentile(share / 100) for share in (50, 90, 99)} | {"max": self.max_s}
        return {name: round(seconds * 1000, 2) for name, seconds in shown.items()}


def price_usd(requests: Mapping[str, int]) -> float:
    """Estimate the price of requests in US dollars."""
    return sum(PRICE_PER_1000[kind] / 1000 * count for kind, count in requests.items())


@dataclass(frozen=True, slots=True)
class Figures:
    """Counts by name, as processes write them; ``requests`` by kind."""

    counts: Counter[str] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.counts + other.counts, self.requests + other.requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What the check of some logs has seen: appends by outcome, bytes acknowledged, records read, findings."""

    outcomes: Counter[AppendOutcome] = field(default_factory=Counter)
    latencies: Histogram = field(default_factory=Histogram)
    found: Counter[ViolationKind] = field(default_factory=Counter)
    shown: list[Violation] = field(default_factory=list)
    sizes: Counter[str] = field(default_factory=Counter)

    def add_findings(self, findings: Iterable[Violation]) -> None:
        """Count findings, and keep the first ones of each kind."""
        for finding in findings:
            self.found[finding.kind] += 1
            if self.found[finding.kind] <= FINDINGS_SHOWN_MAX:
                self.shown.append(finding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of an exercise. ``load_s`` is how long the load lasted; ``kept`` where its logs and ledgers are."""

    run: str
    store: str
    seed: int
    logs: int
    load_s: float
    checked: Checked
    figures: Figures
    kept: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Whether every promise was kept; late records break none."""
        return not any(count for kind, count in self.checked.found.items() if kind not in HARMLESS)

    def check_tried(self) -> None:
        """Refuse to take nothing for a proof: UnavailableError when no append became durable."""
        if not self.checked.outcomes[AppendOutcome.DURABLE]:
            raise UnavailableError(
                f"exercise {self.run}: expected appends to become durable, found none in {self.load_s:.0f} s: nothing"
                f" is known of the store"
            )

    def per_million(self) -> dict[str, float] | None:
        """Return the requests, and their price in US dollars, for a million durable appends; None if there was none."""
        durable = self.checked.outcomes[AppendOutcome.DURABLE]
        if not durable:
            return None
        requests = self.figures.requests
        return {
            "requests": round(requests.total() / durable * 1e6),
            "price_usd_estimate": round(price_usd(requests) / durable * 1e6, 2),
        }

    def to_json(self) -> dict[str, object]:
        """Return as a JSON object; docs/exercise.md describes it."""
        checked, counts = self.checked, self.figures.counts
        durable = checked.outcomes[AppendOutcome.DURABLE]
        return {
            "run": self.run,
            "store": self.store,
            "seed": self.seed,
            "logs": self.logs,
            "load_s": round(self.load_s, 1),
            "sound": self.sound,
            "findings": {kind.value: checked.found[kind] for kind in ViolationKind},
            "shown": list(map(asdict, checked.shown)),
            "appends": {outcome.value: checked.outcomes[outcome] for outcome in AppendOutcome},
            "conditional": checked.sizes["conditional"],
            "unmarked": counts["unmarked"],
            "bytes": checked.sizes["bytes"],
            "largest_bytes": checked.sizes["largest"],
            "records_read": checked.sizes["read"],
            "records_followed": checked.sizes["followed"],
            "scrubbed": checked.sizes["scrubbed"],
            "appends_per_s": round(durable / self.load_s, 1) if self.load_s else 0.0,
            "bytes_per_s": round(checked.sizes["bytes"] / self.load_s) if self.load_s else 0,
            "latency_ms": checked.latencies.to_json(),
            "requests": {kind: self.figures.requests[kind] for kind in PRICE_PER_1000},
            "requests_unanswered": counts["unanswered"],
            "retries": counts["retries"],
            "throttled": counts["throttled"],
            "throttled_s": round(counts["throttled_ms"] / 1000, 1),
            "slow_downs": counts["slow_downs"],
            "price_usd_estimate": round(price_usd(self.figures.requests), 4),
            "per_million_appends": self.per_million(),
            **{name: counts[name] for name in _COUNTS},
            "kept": list(self.kept),
        }
