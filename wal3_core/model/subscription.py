"""What a cursor says beyond its position when it is that of a subscription to a feed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from wal3_core.errors import CorruptError
from wal3_core.model.offset_ranges import OffsetRanges
from wal3_core.model.paths import check_token

if TYPE_CHECKING:
    from wal3_core.model.strict_json import Fields, JsonObject, JsonValue

PATTERNS_MAX = 100


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

    def to_json(self, offset: int) -> JsonObject:
        """Return as a JSON object, beside a cursor at the offset."""
        unpinned: JsonObject = {} if self.pins else {"unpinned": True}
        done: JsonObject = {"done": self.done.to_text(offset)} if self.done.ranges else {}
        topics: list[JsonValue] = [{"pattern": each} for each in self.topics]
        return {"token": self.token, "topics": topics, **unpinned, **done}

    @classmethod
    def from_json(cls, fields: Fields, offset: int) -> Subscribed:
        """Read from a JSON object, beside a cursor at the offset."""
        subscribed = cls(
            token=check_token(fields.string("token"), fields.what),
            topics=tuple(map(_pattern, fields.objects("topics", count_max=PATTERNS_MAX))),
            pins=not fields.is_set("unpinned"),
            done=_done(fields, offset),
        )
        if not subscribed.topics:
            message = f"{fields.what}: expected a pattern of topics, found none"
            raise CorruptError(message)
        fields.finish()
        return subscribed


def _pattern(fields: Fields) -> str:
    pattern = fields.string("pattern")
    fields.finish()
    return pattern


def _done(fields: Fields, offset: int) -> OffsetRanges:
    if not fields.has("done"):
        return OffsetRanges()
    done = OffsetRanges.from_text(fields.string("done"), offset, f"{fields.what}.done")
    if not done.ranges:
        message = f"{fields.what}: expected ranges as done, or no such field, found none"
        raise CorruptError(message)
    return done
