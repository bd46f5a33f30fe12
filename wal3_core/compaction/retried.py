"""What Spark ran again of a job: the result is the same, and an operator learns of failing machines."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.format.strict_json import JsonObject

REASONS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """Counts of what was run again, at least so many, and the most frequent reasons of failures.

    ``num_tasks`` attempts of tasks failed, or went with one of ``num_executors`` executors that were lost.
    ``num_stages`` stages ran again, as results of theirs were lost. ``num_copies`` copies of slow tasks were started,
    which are no failures. With ``attempts_only``, as with Spark Connect, all that is known is how many attempts there
    were beside those that gave results, in ``num_tasks``: failed ones, and also one of a slow task and its copy; and in
    ``num_stages`` stages that ran again in part.
    """

    num_tasks: int = 0
    num_executors: int = 0
    num_stages: int = 0
    num_copies: int = 0
    reasons: tuple[tuple[str, int], ...] = ()
    attempts_only: bool = False

    def __add__(self, other: Retried) -> Retried:
        """Add up two jobs. An executor that both lost tasks with is counted twice."""
        reasons = Counter(dict(self.reasons))
        reasons.update(dict(other.reasons))
        return Retried(
            num_tasks=self.num_tasks + other.num_tasks,
            num_executors=self.num_executors + other.num_executors,
            num_stages=self.num_stages + other.num_stages,
            num_copies=self.num_copies + other.num_copies,
            reasons=tuple(reasons.most_common(REASONS_MAX)),
            attempts_only=self.attempts_only or other.attempts_only,
        )

    @property
    def failed(self) -> bool:
        """Whether anything failed or was lost; a slow task that has a copy is not."""
        return bool(self.num_tasks or self.num_executors or self.num_stages)

    def __str__(self) -> str:
        """Say it in a line."""
        if self.attempts_only:
            again = f", {self.num_stages} stages ran again" if self.num_stages else ""
            return f"at least {self.num_tasks} attempts of tasks failed, or were overtaken by a copy{again}"
        text = (
            f"at least {self.num_tasks} attempts of tasks failed or lost their executor, {self.num_executors} executors"
            f" were lost, {self.num_stages} stages ran again, {self.num_copies} copies of slow tasks were started"
        )
        return f"{text}: {self.why}" if self.reasons else text

    @property
    def why(self) -> str:
        """The reasons, each with its count if it is not the only failure."""
        return "; ".join(text if count == 1 else f"{text} ({count} times)" for text, count in self.reasons)

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "tasks": self.num_tasks,
            "executors": self.num_executors,
            "stages": self.num_stages,
            "copies": self.num_copies,
            "reasons": [{"reason": text, "count": count} for text, count in self.reasons],
            "attempts_only": self.attempts_only,
        }
