"""What a pass would do, what it did, and the setsums that prove it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from wal3_core.format.manifest import Manifest
from wal3_core.format.pass_record import PassRecord, Proof
from wal3_core.format.paths import LogId
from wal3_core.format.strict_json import JsonObject, Shown

REASONS_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried(Shown):
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

    SHOWN = "tasks=num_tasks executors=num_executors stages=num_stages copies=num_copies reasons attempts_only"

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
        return {**Shown.to_json(self), "reasons": [{"reason": text, "count": count} for text, count in self.reasons]}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionPlan(Shown):
    """What a pass over a log would do now, and why.

    It looks at the records of [first, limit); ``bound`` says what keeps those from ``limit`` on. Records from
    ``clean_limit`` on are dirty. ``due`` says why a pass should run now, None if it should not.

    ``overdue_s`` is how long the oldest dirty record has been older than the policy's largest lag, 0 if it is not;
    ``held_back_s`` is the same for the oldest record that the bound keeps from being compacted. Tombstones below
    ``expired_below`` are dropped; ``expired`` says that some of them may have expired since the last pass.

    ``num_read`` of ``num_fragments`` fragments had to be looked at; these and the numbers after them are 0 in an
    outline, and in the plan of a pass that is not due.
    """

    log: str
    log_id: LogId
    first: int
    limit: int
    clean_limit: int
    expired_below: int
    bound: str
    due: str | None
    dirty_bytes: int
    held_bytes: int
    overdue_s: int
    dirty_records: int = 0
    held_records: int = 0
    held_back_s: int = 0
    expired: bool = False
    num_fragments: int = 0
    num_read: int = 0
    num_superseded: int = 0
    num_expired: int = 0
    num_groups: int = 0
    num_rewritten: int = 0
    bytes_rewritten: int = 0

    SHOWN = (
        "log log_id first limit clean_limit expired_below bound due dirty_bytes held_bytes dirty_percent dirty_records"
        " held_records dirty_records_percent overdue_s held_back_s tombstones_expired=expired fragments=num_fragments"
        " fragments_read=num_read superseded=num_superseded expired=num_expired groups=num_groups"
        " fragments_rewritten=num_rewritten bytes_rewritten"
    )

    @property
    def dirty_percent(self) -> int:
        """The share of the bytes below the bound that no pass has looked at; 0 for none."""
        return 100 * self.dirty_bytes // self.held_bytes if self.held_bytes else 0

    @property
    def dirty_records_percent(self) -> int:
        """The share of the records below the bound that no pass has looked at; 0 for none."""
        return 100 * self.dirty_records // self.held_records if self.held_records else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionReport(Shown):
    """What a pass did. Without ``token`` it changed nothing: it was not due, or it was a dry run.

    ``installed`` says that the log has the result; a pass that was only merged has changed nothing in the log.
    ``garbage`` are the documents that name the replaced objects, to be deleted an interval later. ``retried`` says what
    Spark ran again; None where the work was done in one process.
    """

    plan: KeyCompactionPlan
    proof: Proof
    token: str | None = None
    num_superseded: int = 0
    num_expired: int = 0
    num_merged: int = 0
    num_written: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    num_overtaken: int = 0
    installed: bool = False
    garbage: tuple[str, ...] = ()
    # How it ran, and not what it did.
    retried: Retried | None = field(default=None, compare=False)

    SHOWN = (
        "plan proof token installed superseded=num_superseded expired=num_expired merged=num_merged"
        " fragments_written=num_written bytes_read bytes_written overtaken=num_overtaken garbage"
    )

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {**Shown.to_json(self), **({} if self.retried is None else {"retried": self.retried.to_json()})}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyInstallReport:
    """What became of a merged pass: installed, unless ``overtaken`` says why it never will be.

    ``repeated`` says that it had been installed before. ``garbage`` are the documents written now that name the
    replaced objects.
    """

    log: str
    record: PassRecord
    overtaken: str | None = None
    repeated: bool = False
    garbage: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The logs to compact now, those that are due and have to wait, the most urgent first, and those that are not."""

    chosen: tuple[KeyCompactionPlan, ...]
    waiting: tuple[KeyCompactionPlan, ...]
    idle: tuple[KeyCompactionPlan, ...]


def choose(plans: Iterable[KeyCompactionPlan], *, logs_max: int) -> Choice:
    """Choose up to ``logs_max`` of the logs that are due.

    The most overdue first, then those with expired tombstones, then by the share that is dirty, of bytes or of records,
    largest first.
    """
    plans = list(plans)
    due = sorted((plan for plan in plans if plan.due is not None), key=_urgency)
    idle = tuple(plan for plan in plans if plan.due is None)
    return Choice(chosen=tuple(due[:logs_max]), waiting=tuple(due[logs_max:]), idle=idle)


def _urgency(plan: KeyCompactionPlan) -> tuple[int, bool, float, int, str]:
    share = max(_share(plan.dirty_bytes, plan.held_bytes), _share(plan.dirty_records, plan.held_records))
    return -plan.overdue_s, not plan.expired, -share, -plan.dirty_bytes, plan.log


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def may_be_due(manifest: Manifest) -> bool:
    """Return whether a log has anything that a pass could ever do as it is; its outline says whether one is due.

    The manifest does not say whether passes drop records: one that only arranges the log leaves none of it clean.
    """
    compaction, last = manifest.compaction, next(reversed(manifest.pointers), None)
    # Only the last record is left to sweep, which stays as long as nothing is behind it.
    swept = last is not None and last.num_records == 1 and last.start.offset <= compaction.swept
    dirty = manifest.next.position.offset > max(compaction.clean_limit, manifest.first.position.offset)
    return manifest.keyed and (dirty or (compaction.clean_limit > compaction.swept and not swept))
