"""What a pass of key compaction may drop: checked of every pass as it is installed, from the records themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.simulator import START_US
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import pass_object_token
from wal3_core.format.policy import Policy
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from wal3_core import Record


@dataclass
class Passes:
    """The passes over one life of a log, the policies they could go by, and what they left clean."""

    # When each policy was written.
    policies: list[tuple[float, Policy]] = field(default_factory=lambda: [(0.0, Policy())])
    # The first one that may still be gone by: a change of a later one has returned.
    oldest: int = 0
    # Of those that were installed.
    tokens: set[str] = field(default_factory=set)
    # When the announced pass was announced.
    _announced_s: float = 0.0
    # Limit and time of the first pass above each offset; rising in both.
    _clean: list[tuple[int, float]] = field(default_factory=list)

    def begin(self, manifest: Manifest) -> None:
        """Take over what the source of a copy left clean."""
        self._clean = [(mark.limit, (mark.timestamp_us - START_US) / US_PER_S) for mark in manifest.compaction.clean]

    def returned(self, policy: Policy) -> None:
        """Note that the change to a policy has returned: no pass goes by an earlier one from now on."""
        self.oldest = max(self.oldest, next(at for at, (_, each) in enumerate(self.policies) if each == policy))

    def announced(self, before: Manifest, after: Manifest, now_s: float) -> None:
        """Note when a pass is announced."""
        if after.compacting is not None and after.compacting != before.compacting:
            self._announced_s = now_s

    def deleted(self, path: str) -> bool:
        """Check that a delete takes nothing of an installed pass; return whether it takes something of another one."""
        token = pass_object_token(path)
        assert token not in self.tokens, f"{path} was deleted, and its pass was installed"
        return token is not None

    def check(
        self,
        before: Manifest,
        after: Manifest,
        held: Mapping[int, Record],
        left: Mapping[int, Record],
        now_s: float,
    ) -> int:
        """Check an installed pass by the records held before and after it; return the offset it lies below."""
        assert after.compaction.passes == before.compaction.passes + 1, "two passes at once"
        assert before.compacting is not None, "a pass was installed that was not announced, or was withdrawn"
        assert after.compaction.token == before.compacting.token, "another pass than the announced one was installed"
        assert after.compacting is None, "announced for ever"
        self.tokens.add(after.compaction.token)
        assert (after.first, after.next) == (before.first, before.next), "a pass moved the log's ends"
        limit = before.compacting.limit
        if limit == 0:
            # It is to arrange the log by key, and nothing else.
            assert left == held, "a pass that keeps all has dropped or changed a record"
            assert after.compaction.clean == before.compaction.clean, "a pass that keeps all left something clean"
            assert any(policy.arrange_by_key for policy in self._in_force()), "no policy arranges the log"
            return limit
        assert left.items() <= held.items(), "a pass has changed a record"
        gone = [held[offset] for offset in held.keys() - left.keys()]
        assert all(record.offset < limit for record in gone), "a pass dropped a record above its bound"
        assert all(record.key is not None for record in gone), "a pass dropped a record without a key"
        newest = {record.key: record.offset for offset, record in sorted(held.items()) if offset < limit}
        expired = [record for record in gone if newest[record.key] == record.offset]
        assert all(record.body is None for record in expired), f"the newest value of a key was dropped: {expired}"
        counts = Counter(record.key for offset, record in left.items() if offset < limit and record.key is not None)
        assert all(count == 1 for count in counts.values()), f"a pass left several records of a key: {counts}"
        assert not {record.key for record in expired} & counts.keys(), "a key came back with its tombstone's end"
        assert after.follows is None or not expired, "a successor dropped tombstones of the logs before it"
        self._check_policy(limit, held, expired, now_s)
        self._note(after, limit, now_s)
        return limit

    def _check_policy(self, limit: int, held: Mapping[int, Record], expired: list[Record], now_s: float) -> None:
        """Some policy that was in force between announcement and install allows all of it."""
        possible = [policy for policy in self._in_force() if policy.compacts]
        wrong = [self._broken(policy, limit, held, expired, now_s) for policy in possible]
        assert None in wrong, f"no policy allows this pass: {wrong or 'they do not compact'}"

    def _in_force(self) -> list[Policy]:
        """Return the policies that a pass may have gone by that was announced last."""
        begun = sum(at_s <= self._announced_s for at_s, _ in self.policies) - 1
        return [policy for _, policy in self.policies[max(begun, self.oldest) :]]

    def _broken(
        self, policy: Policy, limit: int, held: Mapping[int, Record], expired: list[Record], now_s: float
    ) -> str | None:
        limits = policy.compaction_limits
        for tombstone in expired:
            cleaned_s = next((at_s for clean, at_s in self._clean if clean > tombstone.offset), now_s + 1)
            if now_s - cleaned_s < limits.delete_retention_s:
                return f"{tombstone} was dropped {now_s - cleaned_s} s after it was clean"
        young_us = START_US + (now_s - limits.min_compaction_lag_s) * US_PER_S
        young = [o for o, record in held.items() if o < limit and record.timestamp_us > young_us]
        return f"{young} are too young" if limits.min_compaction_lag_s and young else None

    def _note(self, after: Manifest, limit: int, now_s: float) -> None:
        if limit <= max((clean for clean, _ in self._clean), default=0):
            return
        mark = after.compaction.clean[-1]
        marked_s = (mark.timestamp_us - START_US) / US_PER_S
        assert mark.limit == limit, "a pass left no mark"
        # Its time is between its announcement and its install, but for what clocks drift.
        assert marked_s >= self._announced_s, "a mark is older than its pass's announcement"
        # A CAS may be applied long after it was sent. What it left clean counts from when it was sent.
        self._clean.append((limit, min(marked_s, now_s)))
