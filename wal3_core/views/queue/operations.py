"""What callers of a queue give and get: its definition, its items, its operations as values, and their results.

Times are microseconds since the Unix epoch, whole milliseconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum

from wal3_core.arguments import (
    flag,
    instance_of,
    integer,
    make_plain,
    number,
    optional,
    positive,
    record_bytes,
    several,
    text,
    wrong,
)
from wal3_core.errors import CorruptError, InvalidRequestError
from wal3_core.format.strict_json import (
    INTEGER,
    Kind,
    Shown,
    check_format_version,
    dump_checksummed,
    dump_members,
    load_checksummed,
    member,
    read_members,
)
from wal3_core.options import MIB, Options, ReaderOptions, View, WriterOptions, of_view, within

PRIORITY_MAX = 255
DEFAULT_PRIORITY = 100
DEDUPE_BYTES_MAX = 255
# The longest lease, 30 days: an item whose worker is gone comes back then.
LEASE_S_MAX = 30 * 24 * 60 * 60
# The latest time, in some 30,000 years: sums of times fit 64 bits.
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


def check_one_time(what: str, deadline_us: int | None, delay_s: float | None) -> None:
    """Refuse a deadline beside a delay."""
    if deadline_us is not None and delay_s is not None:
        raise InvalidRequestError(f"{what}: expected a deadline or a delay, found both")


_FORMAT_VERSION = 1
MS_PER_S = 1000
_DEFINITION_BYTES_MAX = 2**16
_COUNT_MAX = 2**31 - 1
# The largest value: a record has at most 16 MiB, with its key and a header.
_VALUE_BYTES_MAX = 8 * MIB
# What a definition's record holds.
_STORED = (
    # An earlier version took longer leases.
    member(
        "lease_ms", Kind(lambda fields, name: min(fields.integer(name) / MS_PER_S, LEASE_S_MAX), whole_ms), "lease_s"
    ),
    member("value_bytes_max", INTEGER),
    member("max_deliveries", INTEGER, default=None),
    member("items_max", INTEGER, default=None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDefinition(Options):
    """What holds for a queue's items.

    A lease lasts ``lease_s`` seconds, 30 days at most, unless the call says otherwise. An item that was handed out
    ``max_deliveries`` times and comes back goes to the dead letters; None: never. A value has at most
    ``value_bytes_max`` bytes. A queue that has ``items_max`` items refuses more with QueueFullError; None: never.
    """

    lease_s: float = field(default=60.0, metadata=within(1 / MS_PER_S, LEASE_S_MAX))
    max_deliveries: int | None = field(default=None, metadata=within(1, _COUNT_MAX))
    value_bytes_max: int = field(default=MIB, metadata=within(1, _VALUE_BYTES_MAX))
    items_max: int | None = field(default=None, metadata=within(1, _COUNT_MAX))

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        # It is stored in whole milliseconds.
        object.__setattr__(self, "lease_s", whole_ms(self.lease_s) / MS_PER_S)

    def to_json(self) -> dict[str, float | None]:
        """Show as a JSON object."""
        return asdict(self)

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON, with times in milliseconds."""
        return dump_checksummed({"format_version": _FORMAT_VERSION, **dump_members(self, _STORED)})

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> QueueDefinition:
        """Decode; CorruptError names ``what`` when anything is off."""
        fields = load_checksummed(data, what=what, bytes_max=_DEFINITION_BYTES_MAX)
        check_format_version(fields, _FORMAT_VERSION)
        try:
            definition = cls(**read_members(fields, _STORED))
        except InvalidRequestError as error:
            raise CorruptError(f"{what}: expected a queue's definition, found another value: {error}") from error
        fields.finish()
        return definition


_OPTION_MAX = 2**63 - 1
_SECONDS_MAX = 10**9
# The least that a queue's writer takes: a turn may end with an operation of 10,000 items and 32 MiB, and a checkpoint's
# part.
_WRITER_MIN = {"record_bytes_max": 9 * MIB, "fragment_bytes_max": 48 * MIB, "batch_records_max": 50_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions(Options):
    """Limits of one process that opens a queue.

    Values that were read or enqueued last take at most ``cache_bytes_max`` bytes of memory; those of items due within
    ``prefetch_s`` seconds are read ahead, ``prefetch_items`` of them. A checkpoint is written when
    ``checkpoint_records`` records came after the one before, and a quarter as many as there are items; or
    ``checkpoint_bytes`` bytes, and a quarter of those of all values; or ``checkpoint_fragments`` fragments, and one for
    each 500 items: a queue is loaded by reading them. Operations of at most ``bytes_waiting_max`` bytes
    wait for their turn; beyond that callers block. ``writer`` and ``reader`` are the log's; a writer takes records of
    9 MiB, and 48 MiB or 50,000 of them together.
    """

    cache_bytes_max: int = field(default=64 * MIB, metadata=within(0, _OPTION_MAX))
    prefetch_items: int = field(default=256, metadata=within(0, _COUNT_MAX))
    prefetch_s: float = field(default=5.0, metadata=within(0, _SECONDS_MAX))
    checkpoint_records: int = field(default=100_000, metadata=within(1, _COUNT_MAX))
    checkpoint_bytes: int = field(default=64 * MIB, metadata=within(1, _OPTION_MAX))
    checkpoint_fragments: int = field(default=500, metadata=within(1, _COUNT_MAX))
    bytes_waiting_max: int = field(default=64 * MIB, metadata=within(1, _OPTION_MAX))
    writer: WriterOptions = field(default_factory=lambda: WriterOptions(batch_age_s_max=0))
    reader: ReaderOptions = field(default_factory=ReaderOptions)

    def __post_init__(self) -> None:
        Options.__post_init__(self)
        object.__setattr__(self, "writer", of_view(self.writer, View.QUEUE))
        for name, least in _WRITER_MIN.items():
            found = getattr(self.writer, name)
            if found < least:
                raise InvalidRequestError(f"queue options: writer: {name}: expected at least {least}, found {found}")


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
class ItemStats(Shown):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRepair(Shown):
    """What a repair found: how many items got another time, and how many fragments are damaged."""

    retimed: int
    damaged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStats(Shown):
    """What a queue holds: ``pending`` items, which are ``due`` or ``scheduled``, and those leased and dead.

    ``bytes`` are those of all their values. ``oldest_due_us`` is the earliest deadline of the due items,
    ``oldest_enqueued_us`` when the oldest item of all was enqueued, and ``next_deadline_us`` the earliest deadline of
    the scheduled ones. ``waiting`` calls of this process wait for an item. ``strays`` are records of others that were
    found in the log, since the newest checkpoint or since the queue was opened, the newest at ``stray_offset``;
    ``damaged`` fragments of it are left out. Of the leased items, ``ended`` are due since ``oldest_ended_us`` at the
    earliest, as their leases ended and no broker has taken them back: a reader of the log alone finds such.
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
    ended: int = 0
    oldest_ended_us: int | None = None


# The items and bytes of one operation: it becomes part of one fragment.
ITEMS_MAX = 10_000
_OPERATION_BYTES_MAX = 32 * MIB


def _a_lease_time(value: object, name: str) -> float:
    plain = a_delay(value, name)
    if not 0 < plain <= LEASE_S_MAX:
        raise InvalidRequestError(f"{name}: expected a number of seconds above 0, up to {LEASE_S_MAX}, found {plain}")
    return plain


def _a_timeout(value: object, name: str) -> float:
    return a_delay(min(value, 10**11) if isinstance(value, int | float) else value, name)


def _ids(value: object, name: str) -> tuple[int, ...]:
    """Take ids of items, each once."""
    several(value, name)
    return tuple(dict.fromkeys(integer(item_id, "id") for item_id in value))  # type: ignore[attr-defined]  # several


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Add items, all or none: at most 10,000 of them, and 32 MiB. Its result is a list of Enqueued."""

    items: tuple[NewItem, ...]

    def __post_init__(self) -> None:
        several(self.items, "items")
        object.__setattr__(self, "items", tuple(self.items))
        for item in self.items:
            instance_of(NewItem)(item, "items")
        num_bytes = sum(len(item.value) + len(item.dedupe_key or b"") for item in self.items)
        if not 1 <= len(self.items) <= ITEMS_MAX or num_bytes > _OPERATION_BYTES_MAX:
            raise InvalidRequestError(
                f"enqueue: expected 1 to {ITEMS_MAX} items of at most {_OPERATION_BYTES_MAX} bytes together,"
                f" found {len(self.items)} items of {num_bytes} bytes"
            )


@dataclass(frozen=True, slots=True)
class Dequeue:
    """Lease up to ``count`` due items; wait up to ``timeout_s`` seconds for the first. Its result: a list of Leased.

    Their values have at most ``bytes_max`` bytes together, unless the first alone has more. To cancel its future takes
    it out of the line; what it was served by then is given back.
    """

    count: int = 1
    timeout_s: float = 0.0
    lease_s: float | None = None
    bytes_max: int | None = None

    def __post_init__(self) -> None:
        lease_s, bytes_max = optional(_a_lease_time), optional(positive)
        make_plain(self, count=positive, timeout_s=_a_timeout, lease_s=lease_s, bytes_max=bytes_max)
        if self.count > ITEMS_MAX:
            raise InvalidRequestError(f"dequeue: expected a count of at most {ITEMS_MAX}, found {self.count}")


@dataclass(frozen=True, slots=True)
class _OfLeases:
    """Leased items; each is an id and a token."""

    leases: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        several(self.leases, "leases")
        plain = []
        for lease in self.leases:
            if not isinstance(lease, tuple | list) or len(lease) != 2:  # noqa: PLR2004 - a pair
                raise InvalidRequestError(f"leases: expected pairs of an id and a token, found {type(lease).__name__}")
            plain.append((integer(lease[0], "id"), text(lease[1], "token")))
        if not 1 <= len(plain) <= ITEMS_MAX or len({item_id for item_id, _ in plain}) < len(plain):
            message = f"{type(self).__name__.lower()}: expected 1 to {ITEMS_MAX} items, each once, found {len(plain)}"
            raise InvalidRequestError(message)
        object.__setattr__(self, "leases", tuple(plain))


@dataclass(frozen=True, slots=True)
class Release(_OfLeases):
    """Remove leased items, all or none. Its result is None."""


@dataclass(frozen=True, slots=True)
class GiveBack(_OfLeases):
    """Put items back that no caller has got: they count as not handed out. Its result is None.

    Items whose leases have ended are left as they are.
    """


@dataclass(frozen=True, slots=True)
class Requeue:
    """Put a leased item back, perhaps with another deadline or value. Its result is an Enqueued."""

    id: int
    token: str
    deadline_us: int | None = None
    delay_s: float | None = None
    value: bytes | None = None

    def __post_init__(self) -> None:
        make_plain(
            self,
            id=integer,
            token=text,
            deadline_us=optional(a_time),
            delay_s=optional(a_delay),
            value=optional(record_bytes),
        )
        check_one_time("requeue", self.deadline_us, self.delay_s)


@dataclass(frozen=True, slots=True)
class Extend:
    """Let a lease end ``lease_s`` seconds from now. Its result is that time in microseconds."""

    id: int
    token: str
    lease_s: float

    def __post_init__(self) -> None:
        make_plain(self, id=integer, token=text, lease_s=_a_lease_time)


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Put leased items back, due now, without their tokens: all or none. Its result is a list of Enqueued.

    Those that were handed out as often as they may be go to the dead letters.
    """

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        make_plain(self, ids=_ids)
        if not 1 <= len(self.ids) <= ITEMS_MAX:
            raise InvalidRequestError(f"reclaim: expected 1 to {ITEMS_MAX} items, found {len(self.ids)}")


@dataclass(frozen=True, slots=True)
class Bury:
    """Put a leased item among the dead letters. Its result is None."""

    id: int
    token: str

    def __post_init__(self) -> None:
        make_plain(self, id=integer, token=text)


@dataclass(frozen=True, slots=True)
class Kick:
    """Make dead letters pending again, due now: the first ``count`` buried, or those with these ids.

    Its result is a list of their ids.
    """

    count: int = 1
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        make_plain(self, count=positive, ids=optional(_ids))
        found = max(self.count, len(self.ids or ()))
        if found > ITEMS_MAX:
            raise InvalidRequestError(f"kick: expected at most {ITEMS_MAX} items, found {found}")


@dataclass(frozen=True, slots=True)
class Purge:
    """Remove all items of these states, some thousands in each fragment. Its result is their number.

    Items that are added meanwhile may be removed, too.
    """

    pending: bool = True
    leased: bool = False
    dead: bool = False

    def __post_init__(self) -> None:
        make_plain(self, pending=flag, leased=flag, dead=flag)

    @property
    def states(self) -> list[ItemState]:
        """Which items are removed."""
        wanted = {ItemState.PENDING: self.pending, ItemState.LEASED: self.leased, ItemState.DEAD: self.dead}
        return [state for state, chosen in wanted.items() if chosen]


@dataclass(frozen=True, slots=True)
class Retime:
    """Set the queue's time back to the wall clock's, some thousands of items in each fragment.

    Its result is how many items have got another time: those that were enqueued, or handed out, when the queue's time
    was further than it is now.
    """


@dataclass(frozen=True, slots=True)
class Define:
    """Give the queue another definition. Its result is None."""

    definition: QueueDefinition

    def __post_init__(self) -> None:
        make_plain(self, definition=instance_of(QueueDefinition))


Operation = Enqueue | Dequeue | Release | GiveBack | Requeue | Extend | Reclaim | Bury | Kick | Purge | Retime | Define
