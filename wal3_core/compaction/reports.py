"""What a pass would do, what it did, and the setsums that prove it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.model.pass_record import PassRecord, Proof
    from wal3_core.model.paths import LogId
    from wal3_core.model.retried import Retried
    from wal3_core.model.strict_json import JsonObject


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
