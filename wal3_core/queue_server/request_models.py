"""The bodies of requests. Types are strict: a number in quotes is no number. Ranges are the queue's to check."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from wal3_core.queue_server.item_json import new_item, value_of
from wal3_core.views.queue import (
    Bury,
    Dequeue,
    Enqueue,
    Extend,
    Kick,
    NewItem,
    Purge,
    QueueDefinition,
    Release,
    Requeue,
)

_DEFAULTS = QueueDefinition()


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class _ValueBody(_Body):
    value: Annotated[str | None, Field(description="the value, as base64")] = None
    text: Annotated[str | None, Field(description="the value, if it is text: in place of `value`")] = None


_DeadlineUs = Annotated[int | None, Field(description="microseconds since 1970")]
_DelayS = Annotated[float | None, Field(description="seconds from now")]


class ItemBody(_ValueBody):
    """An item to enqueue: due at `deadline_us`, or after `delay_s`, or at once."""

    deadline_us: _DeadlineUs = None
    delay_s: _DelayS = None
    priority: Annotated[int, Field(description="0 to 255; the smallest is handed out first")] = 100
    dedupe_key: Annotated[
        str | None, Field(description="while the queue has an item with this key, no other is added")
    ] = None

    def item(self) -> NewItem:
        """Make the item; InvalidRequestError as for any item."""
        return new_item(self.model_dump())


class ItemsBody(_Body):
    """Items to enqueue, all or none."""

    items: Annotated[list[ItemBody], Field(min_length=1)]

    def operation(self) -> Enqueue:
        """Make the operation."""
        return Enqueue(tuple(each.item() for each in self.items))


class DefinitionBody(_Body):
    """What holds for a queue's items."""

    lease_s: Annotated[float, Field(description="how long a lease lasts unless a dequeue says otherwise")] = (
        _DEFAULTS.lease_s
    )
    max_deliveries: Annotated[
        int | None, Field(description="an item that comes back after so many goes to the dead letters; null: never")
    ] = _DEFAULTS.max_deliveries
    value_bytes_max: int = _DEFAULTS.value_bytes_max
    items_max: Annotated[int | None, Field(description="more items are refused with 503; null: never")] = (
        _DEFAULTS.items_max
    )

    def definition(self) -> QueueDefinition:
        """Make the definition; InvalidRequestError for a value out of range."""
        return QueueDefinition(
            lease_s=self.lease_s,
            max_deliveries=self.max_deliveries,
            value_bytes_max=self.value_bytes_max,
            items_max=self.items_max,
        )


class CreateBody(DefinitionBody):
    """A queue to create."""

    queue: Annotated[str, Field(description="its name: letters, digits, _ and -")]


class DequeueBody(_Body):
    """Which items to lease. `text`: a value that is UTF-8 comes as `text` in place of `value`."""

    count: Annotated[int, Field(description="at most so many")] = 1
    timeout_s: Annotated[float, Field(description="how long to wait for the first one")] = 0
    lease_s: Annotated[float | None, Field(description="null: as the queue is defined")] = None
    text: bool = False

    def operation(self, count: int, timeout_s: float) -> Dequeue:
        """Make the operation, for so many items and so long."""
        return Dequeue(min(self.count, count), min(self.timeout_s, timeout_s), self.lease_s)


class LeaseBody(_Body):
    """A leased item."""

    id: int
    token: str

    def release(self) -> Release:
        """Make the operation that removes it."""
        return Release(((self.id, self.token),))

    def bury(self) -> Bury:
        """Make the operation that puts it among the dead letters."""
        return Bury(self.id, self.token)


class LeasesBody(_Body):
    """Leased items, all or none."""

    leases: Annotated[list[LeaseBody], Field(min_length=1)]

    def operation(self) -> Release:
        """Make the operation that removes them."""
        return Release(tuple((each.id, each.token) for each in self.leases))


class RequeueBody(_ValueBody):
    """A leased item to put back: due at `deadline_us`, or after `delay_s`, or at once; perhaps with another value."""

    id: int
    token: str
    deadline_us: _DeadlineUs = None
    delay_s: _DelayS = None

    def operation(self) -> Requeue:
        """Make the operation."""
        return Requeue(self.id, self.token, self.deadline_us, self.delay_s, value_of(self.value, self.text))


class ExtendBody(LeaseBody):
    """A lease to end `lease_s` seconds from now."""

    lease_s: float

    def operation(self) -> Extend:
        """Make the operation."""
        return Extend(self.id, self.token, self.lease_s)


class KickBody(_Body):
    """Dead letters to make pending: those with these ids, or the `count` that were buried first."""

    count: int = 1
    ids: list[int] | None = None

    def operation(self) -> Kick:
        """Make the operation."""
        return Kick(self.count, None if self.ids is None else tuple(self.ids))


class PurgeBody(_Body):
    """Which items to remove."""

    pending: bool = True
    leased: bool = False
    dead: bool = False

    def operation(self) -> Purge:
        """Make the operation."""
        return Purge(self.pending, self.leased, self.dead)
