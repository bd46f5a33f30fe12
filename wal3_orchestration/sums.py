"""What a sweep adds up over its logs, and the first logs that it recorded: as much for ten logs as for ten thousand."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from wal3_orchestration.store_checks import table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_orchestration.outcomes import Outcome, Value

# What is the same for all logs of a step.
SAID_ONCE = "done_by"
# Each of these has an event of its own.
_RECORDED_ROWS_MAX = 10
# The numbers that can be added up over logs.
_ADDED = (
    "records",
    "bytes",
    "fragments",
    "snapshots",
    "steps",
    "objects",
    "orphans",
    "garbage_documents",
    "due",
    "superseded",
    "expired",
    "pending",
    "leased",
    "dead",
)


class Sums:
    """The sums of a sweep: over the logs that are done, of which those that are new have events of their own."""

    def __init__(self) -> None:
        self.num_done = 0
        self.num_new = 0
        self._totals: Counter[str] = Counter()
        self._ways: set[str] = set()
        self._first: list[Outcome] = []
        self._labels: set[str] = set()

    def add(self, done: Sequence[Outcome], new: Sequence[Outcome]) -> None:
        """Add what was found of some logs."""
        self.num_done += len(done)
        self.num_new += len(new)
        for each in done:
            # Also a label whose sum is zero is shown.
            self._totals.update({label: _number(each.metadata[label]) for label in _ADDED if label in each.metadata})
            if SAID_ONCE in each.metadata:
                self._ways.add(str(each.metadata[SAID_ONCE]))
        for each in new:
            self._labels.update(each.metadata)
        self._first += new[: _RECORDED_ROWS_MAX - len(self._first)]

    def metadata(self) -> dict[str, Value]:
        """Return the totals, and where the work was done."""
        totals: dict[str, Value] = {f"total {label}": self._totals[label] for label in _ADDED if label in self._totals}
        return {**totals, **({SAID_ONCE: ", ".join(sorted(self._ways))} if self._ways else {})}

    def first_table(self) -> str:
        """Return the numbers of the first new logs as a Markdown table."""
        labels = [label for label in _ADDED if label in self._labels]
        rows = [(each.log, *(str(each.metadata.get(label, "")) for label in labels)) for each in self._first]
        return table(("log", *labels), rows)


def _number(value: object) -> int:
    return int(value) if isinstance(value, int) else 0
