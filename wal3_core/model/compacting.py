"""Key compaction as a manifest shows it: what earlier passes left clean, and the install that is announced.

Pure transitions. Keeps INV-41 to INV-44. Source: docs/protocol.md, "Key compaction".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.paths import MANIFEST, check_token
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.model.manifest import Manifest
    from wal3_core.model.strict_json import Fields, JsonObject

# Passes that a delete retention remembers one by one. With more, some tombstones stay until the next one's time.
CLEAN_MARKS_MAX = 32


@dataclass(frozen=True, slots=True)
class CleanMark:
    """A pass that left one record of each key below the offset ``limit``; ``timestamp_us`` is the store's time then."""

    limit: int
    timestamp_us: int

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"limit": self.limit, "timestamp_us": self.timestamp_us}

    @classmethod
    def from_json(cls, fields: Fields) -> CleanMark:
        """Read from a JSON object."""
        mark = cls(fields.integer("limit"), fields.integer("timestamp_us"))
        fields.finish()
        return mark


@dataclass(frozen=True, slots=True)
class Compaction:
    """How far a log is compacted: the number of passes, and what they left clean, each mark above the one before.

    Below the offset ``swept`` a pass has dropped the expired tombstones. Below ``arranged`` passes have arranged by key
    whatever they found; 0 if the last one did not arrange. ``token`` is the last pass's.
    """

    passes: int = 0
    token: str = ""
    clean: tuple[CleanMark, ...] = ()
    swept: int = 0
    arranged: int = 0

    @property
    def clean_limit(self) -> int:
        """The offset below which each key has one record; 0 before the first pass."""
        return self.clean[-1].limit if self.clean else 0

    def expired_below(self, now_us: int, delete_retention_s: int) -> int:
        """Return the offset below which tombstones have been clean for the delete retention; 0 for nowhere."""
        since_us = now_us - delete_retention_s * US_PER_S
        return max((mark.limit for mark in self.clean if mark.timestamp_us <= since_us), default=0)

    def passed(self, token: str, limit: int, timestamp_us: int, *, swept: int, arranged: int = 0) -> Compaction:
        """Return it after a pass that left everything below ``limit`` clean, and below ``swept`` no tombstones.

        Below ``arranged`` everything is arranged by key by now.
        """
        clean, swept = self.clean, max(self.swept, swept)
        if limit > self.clean_limit:
            # The store's clock does not run back; a mark that seems older than the one before counts from that one.
            latest_us = max((mark.timestamp_us for mark in clean), default=0)
            clean = _thinned((*clean, CleanMark(limit, max(timestamp_us, latest_us))), swept)
        return Compaction(self.passes + 1, token, clean, swept, arranged)

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        arranged: JsonObject = {"arranged": self.arranged} if self.arranged else {}
        return {
            "passes": self.passes,
            "token": self.token,
            "clean": [mark.to_json() for mark in self.clean],
            "swept": self.swept,
            **arranged,
        }

    @classmethod
    def of(cls, manifest: Fields) -> Compaction:
        """Read from a manifest's fields."""
        return cls.from_json(manifest.object("compaction")) if manifest.has("compaction") else cls()

    @classmethod
    def from_json(cls, fields: Fields) -> Compaction:
        """Read from a JSON object; CorruptError for marks that do not rise."""
        token = check_token(fields.string("token"), fields.what)
        marks = tuple(CleanMark.from_json(item) for item in fields.objects("clean", count_max=CLEAN_MARKS_MAX))
        arranged = fields.integer("arranged") if fields.has("arranged") else 0
        compaction = cls(fields.integer("passes"), token, marks, fields.integer("swept"), arranged)
        fields.finish()
        for before, after in pairwise(marks):
            if after.limit <= before.limit or after.timestamp_us < before.timestamp_us:
                message = f"{MANIFEST}: compaction: expected rising clean marks, found {before} before {after}"
                raise CorruptError(message)
        return compaction


def _thinned(marks: Sequence[CleanMark], swept: int) -> tuple[CleanMark, ...]:
    """Drop marks until they are few enough.

    First those whose tombstones were dropped, all but the last of them; then each time the one whose neighbours are the
    closest in time. So those that are left lie evenly between the oldest that counts and now, however often passes are
    made, and each comes to its time.
    """
    kept = list(marks)
    while len(kept) > CLEAN_MARKS_MAX and kept[1].limit <= swept:
        del kept[0]
    while len(kept) > CLEAN_MARKS_MAX:
        apart = [after.timestamp_us - before.timestamp_us for before, after in zip(kept, kept[2:], strict=False)]
        del kept[1 + apart.index(min(apart))]
    return tuple(kept)


NOT_COMPACTED = Compaction()


@dataclass(frozen=True, slots=True)
class CompactionAnnouncement:
    """A pass is about to replace fragments below the offset ``limit``: a cursor created below it withdraws this.

    ``token`` is the pass's; ``generation`` that of the manifest that announced it.
    """

    token: str
    limit: int
    generation: int

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return {"token": self.token, "limit": self.limit, "generation": self.generation}

    @classmethod
    def of(cls, manifest: Fields) -> CompactionAnnouncement | None:
        """Read from a manifest's fields."""
        return cls.from_json(manifest.object("compacting")) if manifest.has("compacting") else None

    @classmethod
    def from_json(cls, fields: Fields) -> CompactionAnnouncement:
        """Read from a JSON object."""
        token = check_token(fields.string("token"), fields.what)
        announcement = cls(token, fields.integer("limit"), fields.integer("generation"))
        fields.finish()
        return announcement


def announce_compaction(manifest: Manifest, token: str, limit: int) -> Manifest:
    """Announce that a pass is about to replace fragments below ``limit``; this withdraws an earlier one."""
    return replace(manifest, compacting=CompactionAnnouncement(token, limit, manifest.generation + 1))


def withdraw_compaction(manifest: Manifest) -> Manifest:
    """Withdraw that announcement: the pass is planned again."""
    return replace(manifest, compacting=None)


def move_fence(manifest: Manifest) -> Manifest:
    """Move the fence: no upload that began before is linked any more, so a pass that is announced is over, too."""
    return replace(withdraw_compaction(manifest), fence=manifest.fence + 1)
