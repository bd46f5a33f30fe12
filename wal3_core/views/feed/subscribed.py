"""What the cursor of a subscription to a feed says beyond its position."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.cursor import Extension
from wal3_core.model.offset_ranges import OffsetRanges
from wal3_core.model.paths import check_token
from wal3_core.model.strict_json import Fields
from wal3_core.views.feed.topics import PATTERNS_MAX

if TYPE_CHECKING:
    from wal3_core.model.cursor import Cursor
    from wal3_core.model.strict_json import JsonObject, JsonValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """One life of a subscription: what it receives, and what is acknowledged ahead of the cursor.

    ``token`` is new with each subscription that is created. One that does not ``pin`` keeps no records from being
    collected or compacted. ``done`` lies above the cursor's position.
    """

    token: str
    topics: tuple[str, ...]
    pins: bool = True
    done: OffsetRanges = field(default_factory=OffsetRanges)

    @property
    def done_limit(self) -> int:
        """The offset behind the last one that is acknowledged ahead; 0 if none is."""
        return self.done.ranges[-1][1] if self.done.ranges else 0

    def extension(self, offset: int) -> Extension:
        """Return what a cursor at the offset keeps of it; ``pins`` is the cursor's own."""
        topics: list[JsonValue] = [{"pattern": each} for each in self.topics]
        ahead: JsonObject = {"done": self.done.to_text(offset)} if self.done.ranges else {}
        return Extension(terms={"token": self.token, "topics": topics}, ahead=ahead, limit=self.done_limit)

    @classmethod
    def of(cls, cursor: Cursor, what: str) -> Subscribed:
        """Read it from its cursor; CorruptError names ``what`` when anything is off."""
        terms, ahead = Fields(cursor.extension.terms, what), Fields(cursor.extension.ahead, what)
        subscribed = cls(
            token=check_token(terms.string("token"), what),
            topics=tuple(map(_pattern, terms.objects("topics", count_max=PATTERNS_MAX))),
            pins=cursor.pins,
            done=_done(ahead, cursor.position.offset),
        )
        terms.finish()
        ahead.finish()
        if not subscribed.topics:
            message = f"{what}: expected a pattern of topics, found none"
            raise CorruptError(message)
        return subscribed


def _pattern(fields: Fields) -> str:
    pattern = fields.string("pattern")
    fields.finish()
    return pattern


def _done(ahead: Fields, offset: int) -> OffsetRanges:
    if not ahead.has("done"):
        return OffsetRanges()
    done = OffsetRanges.from_text(ahead.string("done"), offset, f"{ahead.what}.done")
    if not done.ranges:
        message = f"{ahead.what}: expected ranges as done, or no such field, found none"
        raise CorruptError(message)
    return done
