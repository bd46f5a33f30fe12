"""How many records of a log its consumers have not processed, and whether that is too many. Pure.

What is processed is what every cursor has passed, as for a roll-up that is given a cursor: in a log without cursors,
nothing is. Source: docs/fleet.md, "Back-pressure".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.policy import Policy
    from wal3_core.model.strict_json import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """A log's unprocessed records, from the offset ``processed`` to ``next``, exclusive, and their limit.

    ``processed`` lies at most as many offsets before ``next`` as the log holds records.
    ``consumer`` names the cursor that is farthest behind; None: the log has no cursor. ``limit`` is that of the log's
    policy, or else the one that was asked for; None: none.
    """

    log: str
    consumer: str | None
    processed: int
    next: int
    limit: int | None

    @property
    def unprocessed(self) -> int:
        """How many records are unprocessed."""
        return self.next - self.processed

    @property
    def over(self) -> bool:
        """Whether these are more than the limit."""
        return self.limit is not None and self.unprocessed > self.limit

    @property
    def reason(self) -> str:
        """What is behind, in a sentence, with the command to look at it."""
        expected = "" if self.limit is None else f"expected at most {self.limit} unprocessed records, "
        found = f"log {self.log}: {expected}found {self.unprocessed}"
        if self.consumer is None:
            return f"{found}, and no cursor: create its consumer's (`wal3 cursor set {self.log} NAME first`)"
        return f"{found}: the consumer {self.consumer} is farthest behind: wake it (`wal3 cursor list {self.log}`)"

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {
            "log": self.log,
            "unprocessed": self.unprocessed,
            "processed": self.processed,
            "next": self.next,
            "over": self.over,
            **({} if self.consumer is None else {"consumer": self.consumer}),
            **({} if self.limit is None else {"limit": self.limit}),
        }


def _needs_no_cursor(policy: Policy) -> bool:
    """Whether a log without cursors is as its owner wants it: what is compacted alone holds what is newest."""
    return policy.without_cursors or not policy.collects


def pressure_of(
    log: str, manifest: Manifest, cursors: Mapping[str, int] | None, policy: Policy | None, unprocessed_max: int | None
) -> Pressure:
    """Measure a log by the offsets of its cursors, and by its policy if it has one.

    ``cursors`` None: they were not read, and all that the log holds counts as unprocessed. These have no limit: a
    sealed log, whose appends fail for good, and a log without cursors that needs none by its policy, unless that sets a
    limit.
    """
    limit = unprocessed_max
    if policy is not None and policy.unprocessed_max is not None:
        limit = policy.unprocessed_max
    elif policy is not None and _needs_no_cursor(policy) and cursors is not None and not cursors:
        limit = None
    if manifest.seal is not None:
        limit = None
    first, next_offset = manifest.first.position.offset, manifest.next.position.offset
    offset, consumer = min(((offset, name) for name, offset in (cursors or {}).items()), default=(first, None))
    # A cursor may have moved on since the manifest was loaded.
    processed = min(max(first, offset), next_offset)
    # No more than it holds: where records were dropped, there are fewer than offsets.
    processed = max(processed, next_offset - manifest.num_records)
    return Pressure(log=log, consumer=consumer, processed=processed, next=next_offset, limit=limit)
