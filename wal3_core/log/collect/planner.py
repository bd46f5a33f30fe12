"""Plans what a collection of one log would delete, and why: reads only, changes nothing.

A plan is a proposal: the cursors are read once more after the announcement (log/collect/collector.py). Keeps INV-13 and
INV-14. Source: docs/protocol.md, "Collection".

``first_younger`` tells by the process's clock and by the store's which records are young enough to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import checked, instance_of, integer, optional
from wal3_core.errors import CollectionRefusedError, CorruptError, LogReplacedError, OutdatedPlanError
from wal3_core.format.garbage import Cut, cut_below
from wal3_core.format.manifest import Boundary
from wal3_core.format.paths import LOG_ID, WRITER_CURSOR, LogId
from wal3_core.format.position import AtTime
from wal3_core.format.setsum import SETSUM, Setsum
from wal3_core.format.snapshot import count_fragments, sum_setsums
from wal3_core.format.strict_json import INTEGER, TEXT, Member, Stored, nested
from wal3_core.log.collect.references import every_path
from wal3_core.log.read.scan import select
from wal3_core.options import UNLIMITED
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from wal3_core.format.manifest import Manifest
    from wal3_core.format.policy import Policy
    from wal3_core.format.snapshot import Snapshot, SnapshotPointer
    from wal3_core.log.log_stores import LogStores
    from wal3_core.options import CollectorOptions
    from wal3_core.store.documents.manifest_store import Installed

    Load = Callable[[SnapshotPointer], Snapshot]


ONLY_COMPACTED = "its policy compacts it, and does not let collections prune it"
KEPT_WHOLE = "its policy keeps everything"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(Stored):
    """What a collection would delete, and why; nothing was changed for it.

    ``first`` is where the log would begin; ``held_bytes`` and ``held_records`` are the log's now.
    """

    log: str
    log_id: LogId
    reason: str
    first: Boundary
    setsum: Setsum
    num_fragments: int
    num_records: int
    num_bytes: int
    held_records: int
    held_bytes: int

    MEMBERS = (
        Member("log", TEXT),
        Member("log_id", LOG_ID),
        Member("reason", TEXT),
        Member("first", nested(Boundary)),
        Member("setsum", SETSUM),
        *(
            Member(name, INTEGER)
            for name in ("num_fragments", "num_records", "num_bytes", "held_records", "held_bytes")
        ),
    )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to delete."""
        return self.num_fragments == 0

    @property
    def fraction(self) -> float:
        """The fraction of the log's bytes that would be deleted."""
        return self.num_bytes / self.held_bytes if self.held_bytes else 0.0


class Planner:
    """Plans the collection of one life of a log."""

    def __init__(self, stores: LogStores, options: CollectorOptions) -> None:
        self._stores = stores
        self._options = options

    @checked(limit_offset=optional(integer))
    def plan(self, limit_offset: int | None = None) -> Plan:
        """Plan to delete all that is below every cursor and ``limit_offset``, and that the policy does not keep.

        Changes nothing. The plan is empty when the policy only compacts the log. CollectionRefusedError when neither
        cursor nor policy says what can be deleted, or one cannot be read.
        """
        # Cursors before the manifest: they follow the log's end, which never moves back. A cursor that is moved below
        # the cutoff later is found by verify and prune; one that moves on makes the plan delete less than it could.
        policy, cursors = self._policy(), self._offsets()
        manifest = self._stores.manifests.load().manifest
        if not policy.collects:
            nothing = cut_below(manifest, manifest.first.position.offset, self._stores.snapshots.load)
            return self._plan(manifest, nothing, _uncollected(policy))
        candidates = self._candidates(manifest, policy, cursors)
        if limit_offset is not None:
            candidates["the limit given"] = limit_offset
        allowed = self._allowed(policy, cursors)
        cutoff, reason = self._cutoff(manifest, candidates if allowed else {})
        return self._plan(manifest, cut_below(manifest, cutoff, self._stores.snapshots.load), reason)

    @checked(plan=instance_of(Plan))
    def objects(self, plan: Plan) -> Iterator[str]:
        """Name every object that a plan deletes, in log order; each snapshot after what it holds."""
        cut = self._cut(self._stores.manifests.load().manifest, plan.first)
        yield from every_path(cut.dropped, self._stores.snapshots.load)
        yield from (pointer.path for pointer in cut.replaced)

    def _plan(self, manifest: Manifest, cut: Cut, reason: str) -> Plan:
        return Plan(
            log=self._stores.log,
            log_id=manifest.log_id,
            reason=reason,
            first=cut.first,
            setsum=sum_setsums(cut.dropped),
            num_fragments=count_fragments(cut.dropped),
            num_records=sum(pointer.num_records for pointer in cut.dropped),
            num_bytes=sum(pointer.num_bytes for pointer in cut.dropped),
            held_records=manifest.num_records,
            held_bytes=manifest.num_bytes,
        )

    def _offsets(self) -> dict[str, int]:
        try:
            return self._stores.cursors.offsets()
        except CorruptError as error:
            message = f"log {self._stores.url}: nothing is collected while a cursor cannot be read: {error}"
            raise CollectionRefusedError(message) from error

    def _allowed(self, policy: Policy, cursors: Mapping[str, int]) -> bool:
        """Tell whether a cursor says what was read, or the options or the policy allow that none does."""
        return is_consumed(cursors) or self._options.without_cursors or policy.without_cursors

    def _candidates(self, manifest: Manifest, policy: Policy, cursors: Mapping[str, int]) -> dict[str, int]:
        """Return the offsets from which on the log is kept, by what keeps it."""
        following = manifest.next.position.offset
        candidates = {f"cursor {name}": offset for name, offset in cursors.items()}
        beyond = {name: offset for name, offset in candidates.items() if offset > following}
        if beyond:
            # An older manifest was restored, or the cursor was copied here: what it allows to collect is not known.
            message = (
                f"log {self._stores.url}: expected cursors up to its end, {following}, found {beyond}:"
                f" delete or move them: nothing is collected until then"
            )
            raise CollectionRefusedError(message)
        if policy.retention_s is not None:
            kept = f"the first record younger than {policy.retention_s} s"
            candidates[kept] = first_younger(manifest, policy.retention_s, self._stores)
        return candidates

    def _policy(self) -> Policy:
        try:
            return self._stores.policies.load()
        except CorruptError as error:
            message = f"log {self._stores.url}: nothing is collected while its policy cannot be read: {error}"
            raise CollectionRefusedError(message) from error

    def _cutoff(self, manifest: Manifest, candidates: Mapping[str, int]) -> tuple[int, str]:
        following = manifest.next.position.offset
        if not candidates:
            message = (
                f"log {self._stores.url}: expected a cursor to say what is no longer needed, found none of a consumer:"
                " create one, or give the log a policy by which age alone decides, or one that keeps everything"
            )
            raise CollectionRefusedError(message, unclaimed=True)
        reason, offset = min(candidates.items(), key=lambda item: (item[1], item[0]))
        return min(offset, following), f"{reason} is at offset {offset}"

    @checked(plan=instance_of(Plan))
    def verify(self, plan: Plan) -> None:
        """Refuse a plan that deletes too much, or whose sums do not add up; CollectionRefusedError says which.

        Too much is more than ``fraction_max``, or the policy's ``percent_max``, of a log without a consumer's cursor.
        OutdatedPlanError when the log has changed since: plan again.
        """
        manifest = self._planned_on(plan).manifest
        fraction_max = max(self._options.fraction_max, (self._policy().percent_max or 0) / 100)
        if plan.fraction > fraction_max and not is_consumed(self._offsets()):
            message = (
                f"log {self._stores.url}: expected to collect at most {fraction_max:.0%} of its bytes, as no consumer's"
                f" cursor says that they were read, found {plan.fraction:.1%} ({plan.num_bytes} of {plan.held_bytes}):"
                f" find out why, then allow it"
            )
            raise CollectionRefusedError(message)
        cut = self._cut(manifest, plan.first)
        dropped = sum_setsums(cut.dropped)
        balance = sum_setsums(cut.pointers) + manifest.pruned + dropped
        if balance != manifest.setsum:
            message = (
                f"log {self._stores.url}: expected {manifest.setsum} in what is kept, pruned and dropped,"
                f" found {balance}"
            )
            raise CollectionRefusedError(message)
        if dropped != plan.setsum:
            message = (
                f"log {self._stores.url}: planned to drop {plan.setsum}, found {dropped}: collected meanwhile, or"
                f" compacted"
            )
            raise OutdatedPlanError(message)
        for name, offset in self._offsets().items():
            if offset < plan.first.position.offset:
                message = (
                    f"log {self._stores.url}: planned to begin at offset {plan.first.position.offset},"
                    f" found cursor {name} at {offset}"
                )
                raise OutdatedPlanError(message)

    def _planned_on(self, plan: Plan) -> Installed:
        """Load the manifest of the log that was planned for; LogReplacedError when another has its name."""
        base = self._stores.manifests.load()
        if base.manifest.log_id != plan.log_id:
            message = (
                f"log {self._stores.url}: expected log {plan.log_id}, which was planned for, found log"
                f" {base.manifest.log_id}: plan again"
            )
            raise LogReplacedError(message)
        return base

    def _cut(self, manifest: Manifest, first: Boundary) -> Cut:
        """Cut at the planned place: the same fragments, in whatever snapshots they are now."""
        cut = cut_below(manifest, first.position.offset, self._stores.snapshots.load)
        if cut.first.seq_no != first.seq_no:
            message = f"log {self._stores.url}: planned to begin at fragment {first.seq_no}, found {cut.first.seq_no}"
            raise OutdatedPlanError(message)
        return cut

    def _kept_below(self, manifest: Manifest, first: Boundary) -> str | None:
        """Return what keeps records below an announced cutoff, None if nothing does. The plan may be long outdated."""
        policy, cursors = self._policy(), self._offsets()
        if not policy.collects:
            return _uncollected(policy)
        if not self._allowed(policy, cursors):
            return "no consumer has a cursor any more"
        if any(offset > manifest.next.position.offset for offset in cursors.values()):
            # A cursor has moved on since that manifest was read, onto records appended meanwhile.
            manifest = self._stores.manifests.load().manifest
        candidates = self._candidates(manifest, policy, cursors)
        below = {name: offset for name, offset in candidates.items() if offset < first.position.offset}
        return f"kept below offset {first.position.offset}: {below}" if below else None


def is_consumed(cursors: Iterable[str]) -> bool:
    """Tell whether a cursor says that all below it was read; that of a writer that repeats appends does not."""
    return not all(name.startswith(WRITER_CURSOR) for name in cursors)


def _uncollected(policy: Policy) -> str:
    """Say why collections prune nothing of a log."""
    return ONLY_COMPACTED if policy.compacts else KEPT_WHOLE


def first_younger(manifest: Manifest, retention_s: int, stores: LogStores) -> int:
    """Return the offset from which on records are younger than ``retention_s``.

    The store is asked for its time only when something is old by the process's clock.
    """
    load = stores.snapshots.load
    own_us, age_us = stores.runtime.now_us(), retention_s * US_PER_S
    offset = _first_after(manifest, own_us - age_us, load)
    if offset <= manifest.first.position.offset:
        return offset
    # A clock that is ahead would let records be deleted too early.
    store_us = stores.store_now_us()
    return offset if own_us <= store_us else _first_after(manifest, store_us - age_us, load)


def _first_after(manifest: Manifest, timestamp_us: int, load: Load) -> int:
    young = next(select(manifest.pointers, AtTime(max(0, timestamp_us)), UNLIMITED, load), None)
    return manifest.next.position.offset if young is None else young.start.offset
