"""What callers of a queue give and get. Times are microseconds since the Unix epoch, whole milliseconds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from wal3_core.arguments import integer, make_plain, number, optional, record_bytes, wrong
from wal3_core.errors import InvalidRequestError

if TYPE_CHECKING:
    from wal3_core.model.strict_json import JsonObject

PRIORITY_MAX = 255
DEFAULT_PRIORITY = 100
DEDUPE_BYTES_MAX = 255
# A lease holds an item up for so long at most if its worker is gone: 30 days.
LEASE_S_MAX = 30 * 24 * 60 * 60
# Some 30,000 years: room for sums in 64 bits.
TIME_US_MAX = 10**18


def a_time(value: object, name: str) -> int:
    """Take microseconds since the Unix epoch."""
    plain = integer(value, name)
    if not 0 <= plain <= TIME_US_MAX:
        raise wrong(name, "microseconds since the Unix epoch, up to 10**18", value)
    return plain


def a_delay(value: object, name: str) -> float:
    """Take a number of seconds from 0: not cut to the longest wait, as nothing is due early."""
    plain = number(value, name)
    if not 0 <= plain <= TIME_US_MAX / 10**6:
        raise wrong(name, "a number of seconds from 0 to 10**12", value)
    return plain


def whole_ms(duration_s: float) -> int:
    """Return a number of seconds in whole milliseconds, rounded up from microseconds: nothing ends or is due early."""
    return -(-round(duration_s * 1_000_000) // 1000)


def positive(value: object, name: str) -> int:
    """Take an integer from 1."""
    plain = integer(value, name)
    if plain < 1:
        raise wrong(name, "an integer from 1", value)
    return plain


def check_one_time(what: str, deadline_us: int | None, delay_s: float | None) -> None:
    """Refuse a deadline beside a delay."""
    if deadline_us is not None and delay_s is not None:
        message = f"{what}: expected a deadline or a delay, found both"
        raise InvalidRequestError(message)


@dataclass(frozen=True, slots=True)
class NewItem:
    """An item to enqueue. It is due at ``deadline_us``, or ``delay_s`` seconds after it is enqueued, or at once.

    Of the items that are due, those of the smallest priority go first, 0 to 255, and of one priority the earliest
    deadline; of one deadline the first enqueued. While the queue has an item with the same ``dedupe_key``, at most 255
    bytes, no other one is added.
    """

    value: bytes
    deadline_us: int | None = None
    delay_s: float | None = None
    priority: int = DEFAULT_PRIORITY
    dedupe_key: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range."""
        make_plain(
            self,
            value=record_bytes,
            deadline_us=optional(a_time),
            delay_s=optional(a_delay),
            priority=integer,
            dedupe_key=optional(record_bytes),
        )
        check_one_time("item", self.deadline_us, self.delay_s)
        if not 0 <= self.priority <= PRIORITY_MAX:
            raise wrong("priority", f"an integer from 0 to {PRIORITY_MAX}", self.priority)
        if self.dedupe_key is not None and not 1 <= len(self.dedupe_key) <= DEDUPE_BYTES_MAX:
            message = f"dedupe_key: expected 1 to {DEDUPE_BYTES_MAX} bytes, found {len(self.dedupe_key)}"
            raise InvalidRequestError(message)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """An item that is in the queue now.

    ``advanced`` says that the deadline asked for lay before that of an item of its priority that was handed out
    already; it is that one's then. ``duplicate``: an item with the same ``dedupe_key`` is in the queue since earlier,
    and this is that one. ``dead``: it is among the dead letters; a duplicate of such an item does nothing until that is
    kicked or purged, and an item that was put back was handed out as often as it may be.
    """

    id: int
    deadline_us: int
    advanced: bool = False
    duplicate: bool = False
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Leased:
    """An item that was handed out: the caller's alone until ``lease_until_us``. ``deliveries`` counts this one."""

    id: int
    token: str
    value: bytes
    deadline_us: int
    priority: int
    lease_until_us: int
    deliveries: int
    enqueued_us: int
    requeued_us: int | None
    dedupe_key: bytes | None


@dataclass(frozen=True, slots=True)
class Peeked:
    """An item as it waits, or lies among the dead letters."""

    id: int
    value: bytes
    deadline_us: int
    priority: int
    deliveries: int
    enqueued_us: int
    requeued_us: int | None


class ItemState(StrEnum):
    """Where an item is: waiting, due or not; handed out; among the dead letters."""

    PENDING = "pending"
    LEASED = "leased"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class ItemStats:
    """What is known of an item, without its value."""

    id: int
    state: ItemState
    deadline_us: int
    priority: int
    enqueued_us: int
    requeued_us: int | None
    deliveries: int
    lease_until_us: int | None
    value_bytes: int

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return {**asdict(self), "state": self.state.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRepair:
    """What a repair found: how many items got another time, and how many fragments are damaged."""

    retimed: int
    damaged: int

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range."""
        make_plain(self, retimed=integer, damaged=integer)

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats:
    """What a queue holds: ``pending`` items, which are ``due`` or ``scheduled``, and those leased and dead.

    ``bytes`` are those of all their values. ``oldest_due_us`` is the earliest deadline of the due items,
    ``oldest_enqueued_us`` when the oldest item of all was enqueued, and ``next_deadline_us`` the earliest deadline of
    the scheduled ones. ``waiting`` calls of this process wait for an item. ``strays`` are records of others that were
    found in the log, since the newest checkpoint or since the queue was opened, the newest at ``stray_offset``;
    ``damaged`` fragments of it are left out.
    """

    pending: int
    due: int
    scheduled: int
    leased: int
    dead: int
    bytes: int
    oldest_due_us: int | None
    oldest_enqueued_us: int | None
    next_deadline_us: int | None
    last_id: int
    waiting: int
    strays: int = 0
    stray_offset: int | None = None
    damaged: int = 0

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        return asdict(self)
