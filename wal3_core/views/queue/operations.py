"""The operations of a queue that change it, as values: what ``DelayQueue.submit`` takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.arguments import flag, instance_of, integer, make_plain, optional, record_bytes, several, text
from wal3_core.errors import InvalidRequestError
from wal3_core.views.queue.definition import QueueDefinition
from wal3_core.views.queue.items import LEASE_S_MAX, ItemState, NewItem, a_delay, a_time, check_one_time, positive

if TYPE_CHECKING:
    from collections.abc import Iterable

# What one operation may carry: it becomes part of one fragment.
ITEMS_MAX = 10_000
BYTES_MAX = 32 * 2**20


def _a_lease_time(value: object, name: str) -> float:
    plain = a_delay(value, name)
    if not 0 < plain <= LEASE_S_MAX:
        message = f"{name}: expected a number of seconds above 0, up to {LEASE_S_MAX}, found {plain}"
        raise InvalidRequestError(message)
    return plain


@dataclass(frozen=True, slots=True)
class Enqueue:
    """Add items, all or none: at most 10,000 of them, and 32 MiB. Its result is a list of Enqueued."""

    items: tuple[NewItem, ...]

    def __post_init__(self) -> None:
        """Refuse what one append cannot take."""
        several(self.items, "items")
        object.__setattr__(self, "items", tuple(self.items))
        for item in self.items:
            instance_of(NewItem)(item, "items")
        num_bytes = sum(len(item.value) + len(item.dedupe_key or b"") for item in self.items)
        if not 1 <= len(self.items) <= ITEMS_MAX or num_bytes > BYTES_MAX:
            message = (
                f"enqueue: expected 1 to {ITEMS_MAX} items of at most {BYTES_MAX} bytes together,"
                f" found {len(self.items)} items of {num_bytes} bytes"
            )
            raise InvalidRequestError(message)


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
        """Refuse values of a wrong type or out of range."""
        make_plain(
            self,
            count=positive,
            timeout_s=_a_timeout,
            lease_s=optional(_a_lease_time),
            bytes_max=optional(positive),
        )
        if self.count > ITEMS_MAX:
            message = f"dequeue: expected a count of at most {ITEMS_MAX}, found {self.count}"
            raise InvalidRequestError(message)


def _a_timeout(value: object, name: str) -> float:
    return a_delay(min(value, 10**11) if isinstance(value, int | float) else value, name)


@dataclass(frozen=True, slots=True)
class _OfLeases:
    """Leased items; each is an id and a token."""

    leases: tuple[tuple[int, str], ...]

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        several(self.leases, "leases")
        plain = []
        for lease in self.leases:
            if not isinstance(lease, tuple | list) or len(lease) != 2:  # noqa: PLR2004 - a pair
                message = f"leases: expected pairs of an id and a token, found {type(lease).__name__}"
                raise InvalidRequestError(message)
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
        """Refuse values of a wrong type or out of range."""
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
        """Refuse values of a wrong type or out of range."""
        make_plain(self, id=integer, token=text, lease_s=_a_lease_time)


@dataclass(frozen=True, slots=True)
class Reclaim:
    """Put leased items back, due now, without their tokens: all or none. Its result is a list of Enqueued.

    Those that were handed out as often as they may be go to the dead letters.
    """

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range."""
        several(self.ids, "ids")
        object.__setattr__(self, "ids", tuple(dict.fromkeys(integer(item_id, "id") for item_id in self.ids)))
        if not 1 <= len(self.ids) <= ITEMS_MAX:
            message = f"reclaim: expected 1 to {ITEMS_MAX} items, found {len(self.ids)}"
            raise InvalidRequestError(message)


@dataclass(frozen=True, slots=True)
class Bury:
    """Put a leased item among the dead letters. Its result is None."""

    id: int
    token: str

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
        make_plain(self, id=integer, token=text)


@dataclass(frozen=True, slots=True)
class Kick:
    """Make dead letters pending again, due now: the first ``count`` buried, or those with these ids.

    Its result is a list of their ids.
    """

    count: int = 1
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse values of a wrong type or out of range."""
        make_plain(self, count=positive)
        if self.ids is not None:
            several(self.ids, "ids")
            object.__setattr__(self, "ids", tuple(dict.fromkeys(integer(item_id, "id") for item_id in self.ids)))
        if max(self.count, len(self.ids or ())) > ITEMS_MAX:
            message = f"kick: expected at most {ITEMS_MAX} items, found {max(self.count, len(self.ids or ()))}"
            raise InvalidRequestError(message)


@dataclass(frozen=True, slots=True)
class Purge:
    """Remove all items of these states, some thousands in each fragment. Its result is their number.

    Items that are added meanwhile may be removed, too.
    """

    pending: bool = True
    leased: bool = False
    dead: bool = False

    def __post_init__(self) -> None:
        """Refuse values of a wrong type."""
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
        """Refuse values of a wrong type."""
        make_plain(self, definition=instance_of(QueueDefinition))


Operation = Enqueue | Dequeue | Release | GiveBack | Requeue | Extend | Reclaim | Bury | Kick | Purge | Retime | Define


def listed(items: Iterable[NewItem]) -> Enqueue:
    """Make the operation that adds these items."""
    several(items, "items")
    return Enqueue(tuple(items))
