"""What the cursor of a subscription to a feed says beyond its position."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from wal3_core.arguments import SECONDS_MAX
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.cursor import Cursor, Extension
from wal3_core.format.offset_ranges import RANGES_MAX, OffsetRanges
from wal3_core.format.paths import check_token
from wal3_core.format.strict_json import U64_MAX, Fields, JsonObject, JsonValue
from wal3_core.options import Options, ReaderOptions, within
from wal3_core.views.feed.topics import PATTERNS_MAX, Levels, Pattern

# Dead letters that a cursor's document has room for, and for the counts of them and of all that is outstanding.
DEAD_MAX = 500
# Dead letters that are saved: several processes may make them at once.
DEAD_SAVED_MAX = 2 * DEAD_MAX
DELIVERIES_MAX = RANGES_MAX + DEAD_MAX
# Deliveries that are counted; a larger count is saved as this.
ATTEMPTS_MAX = 9999
_DELIVERIES = re.compile(r"[0-9]{1,20}\*[1-9][0-9]{0,3}( [1-9][0-9]{0,19}\*[1-9][0-9]{0,3})*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a subscription is, from its cursor's position on: the offsets that are ``done``, above the position.

    ``deliveries`` counts by offset, and ``dead`` are dead letters: both of messages that are not done.
    """

    done: OffsetRanges = field(default_factory=OffsetRanges)
    deliveries: dict[int, int] = field(default_factory=dict)
    dead: OffsetRanges = field(default_factory=OffsetRanges)

    @property
    def done_limit(self) -> int:
        """The offset behind the last one that is acknowledged ahead; 0 if none is."""
        return self.done.ranges[-1][1] if self.done.ranges else 0

    @property
    def limit(self) -> int:
        """The offset behind the last one of which it says anything; 0 if there is none."""
        last = self.dead.ranges[-1][1] if self.dead.ranges else 0
        return max(self.done_limit, last, max(self.deliveries, default=-1) + 1)

    def to_json(self, offset: int) -> JsonObject:
        """Return it for a cursor at the offset; what says nothing is left out."""
        # Ranges are encoded as lying behind a place, and these may lie at it.
        before = offset - 1
        return {
            **({"done": self.done.to_text(offset)} if self.done.ranges else {}),
            **({"deliveries": _deliveries_text(self.deliveries, offset)} if self.deliveries else {}),
            **({"dead": self.dead.to_text(before)} if self.dead.ranges else {}),
        }

    @classmethod
    def from_json(cls, fields: Fields, offset: int) -> Progress:
        """Read it from the cursor at the offset; CorruptError when anything is off."""
        dead = _ranges(fields, "dead", offset - 1)
        if sum(limit - start for start, limit in dead.ranges) > DEAD_SAVED_MAX:
            message = f"{fields.what}.dead: expected at most {DEAD_SAVED_MAX} offsets, found {dead.ranges[:4]}"
            raise CorruptError(message)
        return cls(_ranges(fields, "done", offset), _deliveries_from(fields, offset), dead)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribed:
    """One life of a subscription: what it receives, and how far it is beside the cursor's position.

    ``token`` is new with each subscription that is created. One that does not ``pin`` keeps no records from being
    collected or compacted.
    """

    token: str
    topics: tuple[Pattern, ...]
    pins: bool = True
    progress: Progress = field(default_factory=Progress)

    def extension(self, offset: int) -> Extension:
        """Return what a cursor at the offset keeps of it; ``pins`` is the cursor's own."""
        topics: list[JsonValue] = [
            {"levels": each.pattern} if isinstance(each, Levels) else {"pattern": each} for each in self.topics
        ]
        ahead = self.progress.to_json(offset)
        return Extension(terms={"token": self.token, "topics": topics}, ahead=ahead, limit=self.progress.limit)

    @classmethod
    def of(cls, cursor: Cursor, what: str) -> Subscribed:
        """Read it from its cursor; CorruptError names ``what`` when anything is off."""
        terms, ahead = Fields(cursor.extension.terms, what), Fields(cursor.extension.ahead, what)
        subscribed = cls(
            token=check_token(terms.string("token"), what),
            topics=tuple(map(_pattern, terms.objects("topics", count_max=PATTERNS_MAX))),
            pins=cursor.pins,
            progress=Progress.from_json(ahead, cursor.position.offset),
        )
        terms.finish()
        ahead.finish()
        if not subscribed.topics:
            raise CorruptError(f"{what}: expected a pattern of topics, found none")
        return subscribed


def _pattern(fields: Fields) -> Pattern:
    has_levels = fields.has("levels")
    pattern = fields.string("levels" if has_levels else "pattern")
    fields.finish()
    try:
        return Levels(pattern) if has_levels else pattern
    except InvalidRequestError as error:
        raise CorruptError(f"{fields.what}: {error}") from error


def _ranges(fields: Fields, name: str, offset: int) -> OffsetRanges:
    if not fields.has(name):
        return OffsetRanges()
    found = OffsetRanges.from_text(fields.string(name), offset, f"{fields.what}.{name}")
    if not found.ranges:
        raise CorruptError(f"{fields.what}: expected ranges as {name}, or no such field, found none")
    return found


def _deliveries_text(deliveries: dict[int, int], offset: int) -> str:
    parts = []
    for each in sorted(deliveries):
        parts.append(f"{each - offset}*{deliveries[each]}")
        offset = each
    return " ".join(parts)


def _deliveries_from(fields: Fields, offset: int) -> dict[int, int]:
    if not fields.has("deliveries"):
        return {}
    text = fields.string("deliveries")
    found: dict[int, int] = {}
    parts = text.split(" ")
    if _DELIVERIES.fullmatch(text) and len(parts) <= DELIVERIES_MAX:
        for part in parts:
            apart, _, count = part.partition("*")
            offset += int(apart)
            found[offset] = int(count)
        if offset < U64_MAX:
            return found
    raise CorruptError(f"{fields.what}: expected at most {DELIVERIES_MAX} counts of deliveries, found {text[:80]!r}")


_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionOptions(Options):
    """How a subscription delivers, and how it saves what is acknowledged.

    A message that is not acknowledged within ``ack_wait_s`` seconds is delivered again. At most ``prefetch_max``
    messages are in memory at a time, delivered and not acknowledged, or about to be delivered; then ``recv`` waits.
    One that was delivered ``max_deliveries`` times, or without a limit for ever, becomes a dead letter. With a limit,
    deliveries are counted in the cursor before they are made.
    Acknowledgements are saved when there are ``save_acks_max`` of them, or ``save_s_max`` seconds after the first.
    ``pins`` says, when the subscription is created, whether it keeps its messages from being collected, or gets a
    ``Gap``. ``reader`` says how often it polls.
    """

    ack_wait_s: float = field(default=30.0, metadata=within(0.001, SECONDS_MAX))
    prefetch_max: int = field(default=256, metadata=within(1, RANGES_MAX - 1))
    max_deliveries: int | None = field(default=None, metadata=within(1, ATTEMPTS_MAX - 1))
    save_acks_max: int = field(default=1000, metadata=within(1, _COUNT_MAX))
    save_s_max: float = field(default=5.0, metadata=within(0, SECONDS_MAX))
    pins: bool = True
    reader: ReaderOptions = field(default_factory=ReaderOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionInfo:
    """How far a subscription is, in messages of its topics, as this process knows it.

    ``num_pending`` messages are in the log and were not delivered yet, ``num_ack_pending`` were and are not
    acknowledged, of which ``num_redelivered`` more than once; ``num_dead`` are dead letters. This process has passed
    ``num_strays`` records that are no messages. All below the offset ``ack_floor`` is done.
    """

    num_pending: int
    num_ack_pending: int
    num_redelivered: int
    num_dead: int
    num_strays: int
    ack_floor: int
