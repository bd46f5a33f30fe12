"""What a pass would do, what it did, and the setsums that prove it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core.options import FRAGMENT_EXPANDED_BYTES_MAX, REBASES_MAX, Options, RetryOptions, SnapshotOptions, within

if TYPE_CHECKING:
    from collections.abc import Iterable

    from wal3_core.compaction.retried import Retried
    from wal3_core.format.manifest import Manifest
    from wal3_core.format.pass_record import PassRecord, Proof
    from wal3_core.format.paths import LogId
    from wal3_core.format.strict_json import JsonObject

_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactorOptions(Options):
    """How passes of key compaction run.

    ``snapshots`` is the shape of the tree that the log's writers keep. ``requests_ahead`` objects are read or written
    at a time. A change of the manifest is tried ``rebases_max`` times; a pass is planned again ``plans_max`` times when
    maintenance or a cursor got in its way. ``bytes_per_s_max`` limits what it reads and writes of fragments, all tasks
    together, None for no limit.
    ``fragment_expanded_bytes_max`` limits the memory for one fragment.
    """

    snapshots: SnapshotOptions = field(default_factory=SnapshotOptions)
    requests_ahead: int = field(default=4, metadata=within(1, _COUNT_MAX))
    rebases_max: int = field(default=REBASES_MAX, metadata=within(1, _COUNT_MAX))
    plans_max: int = field(default=8, metadata=within(1, _COUNT_MAX))
    # Slower than a kilobyte a second is a mistake, and 0 would never end.
    bytes_per_s_max: int | None = field(default=None, metadata=within(1024, 2**63 - 1))
    fragment_expanded_bytes_max: int = field(default=FRAGMENT_EXPANDED_BYTES_MAX, metadata=within(1, 2**63 - 1))
    snapshots_loaded_max: int = field(default=256, metadata=within(0, _COUNT_MAX))
    retry: RetryOptions = field(default_factory=RetryOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionPlan:
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

    @property
    def dirty_percent(self) -> int:
        """The share of the bytes below the bound that no pass has looked at; 0 for none."""
        return 100 * self.dirty_bytes // self.held_bytes if self.held_bytes else 0

    @property
    def dirty_records_percent(self) -> int:
        """The share of the records below the bound that no pass has looked at; 0 for none."""
        return 100 * self.dirty_records // self.held_records if self.held_records else 0

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "log": self.log,
            "log_id": self.log_id,
            "first": self.first,
            "limit": self.limit,
            "clean_limit": self.clean_limit,
            "expired_below": self.expired_below,
            "bound": self.bound,
            "due": self.due,
            "dirty_bytes": self.dirty_bytes,
            "held_bytes": self.held_bytes,
            "dirty_percent": self.dirty_percent,
            "dirty_records": self.dirty_records,
            "held_records": self.held_records,
            "dirty_records_percent": self.dirty_records_percent,
            "overdue_s": self.overdue_s,
            "held_back_s": self.held_back_s,
            "tombstones_expired": self.expired,
            "fragments": self.num_fragments,
            "fragments_read": self.num_read,
            "superseded": self.num_superseded,
            "expired": self.num_expired,
            "groups": self.num_groups,
            "fragments_rewritten": self.num_rewritten,
            "bytes_rewritten": self.bytes_rewritten,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCompactionReport:
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

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {
            "plan": self.plan.to_json(),
            "proof": self.proof.to_json(),
            "token": self.token,
            "installed": self.installed,
            "superseded": self.num_superseded,
            "expired": self.num_expired,
            "merged": self.num_merged,
            "fragments_written": self.num_written,
            "bytes_read": self.bytes_read,
            "bytes_written": self.bytes_written,
            "overtaken": self.num_overtaken,
            "garbage": list(self.garbage),
            **({} if self.retried is None else {"retried": self.retried.to_json()}),
        }


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
