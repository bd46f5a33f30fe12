"""What the records of a delay queue's log say, folded without the library's queue: each turn is checked as it is read.

What callers ask for is noted before they ask, and taken back when an error says that it was not done. So every change
in the log has a caller who asked for it, and none happens twice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from wal3_core.views.queue import encoding
from wal3_core.views.queue.encoding import NEVER, NO_TOKEN, Meta, StateRecord, ValueHeader, id_of
from wal3_core.views.queue.operations import QueueDefinition

if TYPE_CHECKING:
    from wal3_core import Message

PENDING, LEASED, DEAD = encoding.PENDING, encoding.LEASED, encoding.DEAD
WHAT = "the log of the queue"
# The body of a record that is none of the queue's, whatever its key: shorter than the header that it announces.
STRAY = b"\xffstray"
# How far the queue's time may be ahead of the store's: what the log's may, and what appends and rounding take.
AHEAD_S_MAX = 61.0
# An operation, and what it is about: a value, a token, or the state of the items that are purged.
Change = tuple[str, object]


@dataclass(frozen=True, slots=True)
class Item:
    """One item at one time; times are in milliseconds. ``since`` is the turn that changed it last."""

    id: int
    value: bytes
    deadline_ms: int
    priority: int
    enqueued_ms: int
    dedupe_key: bytes | None
    since: int
    deliveries: int = 0
    requeued_ms: int = NEVER
    kind: bytes = PENDING
    until_ms: int = NEVER
    token: str = ""

    @property
    def place(self) -> tuple[int, int, int]:
        """Where it stands in line."""
        return self.priority, self.deadline_ms, self.id


class Counts(NamedTuple):
    """What a queue holds after a turn."""

    pending: int
    leased: int
    dead: int
    bytes: int
    last_id: int


class First(NamedTuple):
    """An item as it was enqueued, and the earliest deadline that it could have."""

    item: Item
    floor_ms: int


@dataclass
class Ledger:
    """The queue as its log has it, and all that ever happened to it."""

    items: dict[int, Item] = field(default_factory=dict)
    enqueued: dict[int, First] = field(default_factory=dict)
    # Items as they were handed out, by token, and the tokens that callers have got.
    leases: dict[str, Item] = field(default_factory=dict)
    given: set[str] = field(default_factory=set)
    # The turn in which an item was removed; by token, the deadline of a requeue and the ends of extended leases.
    removed: dict[int, int] = field(default_factory=dict)
    requeued: dict[str, int] = field(default_factory=dict)
    extended: dict[str, list[int]] = field(default_factory=dict)
    kicked: Counter[int] = field(default_factory=Counter)
    asked: Counter[Change] = field(default_factory=Counter)
    done: Counter[Change] = field(default_factory=Counter)
    # What was done, or the items were purged.
    either: set[Change] = field(default_factory=set)
    seen: Counter[str] = field(default_factory=Counter)
    counts: list[Counts] = field(default_factory=lambda: [Counts(0, 0, 0, 0, 0)])
    definition: QueueDefinition = field(default_factory=QueueDefinition)
    broker: bytes = NO_TOKEN
    now_ms: int = 0
    # A time that no process can have come to yet.
    latest_us: Callable[[], float] = lambda: math.inf
    # The store's clock.
    store_us: Callable[[], float] = lambda: math.inf
    num_brokers: int = 0
    # Of records of others, that say so in their bodies; how far clocks jump, by which no lease ends; and the leases
    # that have ended.
    num_foreign: int = 0
    jumps_ms: float = 0.0
    ended: set[str] = field(default_factory=set)
    _created_ms: int = 0
    _as_of: int = 0
    _floors_ms: dict[int, int] = field(default_factory=dict)
    _num_read: int = 0
    _turn: list[Message] = field(default_factory=list)
    # Of the turn: new values that wait for the state.
    _values: dict[int, tuple[bytes, ValueHeader]] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """How many turns there were."""
        return len(self.counts) - 1

    @property
    def last_id(self) -> int:
        """The highest id that was ever given."""
        return len(self.enqueued)

    def of(self, kind: bytes) -> list[Item]:
        """Return the items in a state."""
        return [item for item in self.items.values() if item.kind == kind]

    def due(self) -> dict[int, Item]:
        """Return the pending items that are due."""
        return {item.id: item for item in self.of(PENDING) if item.deadline_ms <= self.now_ms}

    # ------------------------------------------------------------------ what is asked for

    def ask(self, changes: Iterable[Change]) -> None:
        self.asked.update(changes)

    def take_back(self, changes: Iterable[Change]) -> None:
        """Note that these were not done, and will not be."""
        self.asked.subtract(Counter(changes))
        for change in changes:
            assert self.done[change] <= self.asked[change], f"reported as not done: {change}"

    def _did(self, change: Change) -> None:
        self.done[change] += 1
        self.seen[change[0]] += 1
        assert self.done[change] <= self.asked[change], f"no caller asked for it, or not as often: {change}"

    # ------------------------------------------------------------------ the log

    def read(self, records: Sequence[Message]) -> None:
        """Read the records that the log has got since."""
        for record in records[self._num_read :]:
            if record.body == STRAY:
                self.num_foreign += 1
            elif record.key == encoding.META_KEY:
                assert record.body is not None
                self._end_turn(Meta.from_bytes(record.body, what=WHAT))
            elif record.key == encoding.BROKER_KEY:
                assert record.body is not None
                assert not self._turn, "a broker has taken the queue in the middle of a turn"
                self.broker = record.body
                self.num_brokers += 1
            elif (record.key or b"")[:1] in (encoding.VALUE, encoding.STATE, encoding.PART, encoding.DEFINITION_KEY):
                self._turn.append(record)
            else:
                self.num_foreign += 1
        self._num_read = len(records)
        assert not self._turn, "a turn without its end"

    def _end_turn(self, meta: Meta) -> None:
        assert meta.broker == self.broker, "a broker that has lost its queue has appended to it"
        assert meta.now_ms >= self.now_ms, f"time went back from {self.now_ms} to {meta.now_ms}"
        ahead_s = meta.now_ms / 1000 - self.latest_us() / 1_000_000
        assert ahead_s <= 0, f"time is {ahead_s} s ahead of every clock that was read, and of what passed since"
        ahead_s = meta.now_ms / 1000 - self.store_us() / 1_000_000
        assert ahead_s <= AHEAD_S_MAX, f"time is {ahead_s} s ahead of the store's clock"
        assert meta.as_of >= self._as_of, "an older checkpoint took the place of a newer one"
        self.seen["checkpoint"] += meta.as_of > self._as_of
        self.now_ms, self._created_ms, self._as_of = meta.now_ms, meta.created_ms, meta.as_of
        for record in self._turn:
            assert record.key is not None
            if record.key == encoding.DEFINITION_KEY:
                assert record.body is not None
                self.definition = QueueDefinition.from_bytes(record.body, what=WHAT)
            elif record.key.startswith(encoding.VALUE):
                self._value(id_of(record.key), record.body)
            elif record.key.startswith(encoding.STATE):
                self._state(id_of(record.key), record.body)
        assert not self._values, f"values without a state: {self._values}"
        self._turn = []
        assert meta.last_id == self.last_id, f"the highest id is {self.last_id}, found {meta.last_id}"
        assert meta.floors_ms == self._floors_ms, f"expected {self._floors_ms}, found {meta.floors_ms}"
        held = Counter(item.kind for item in self.items.values())
        num_bytes = sum(len(item.value) for item in self.items.values())
        self.counts.append(Counts(held[PENDING], held[LEASED], held[DEAD], num_bytes, self.last_id))

    def _put(self, item: Item) -> None:
        self.items[item.id] = replace(item, since=self.turns)

    def _value(self, item_id: int, body: bytes | None) -> None:
        if body is None:
            self._remove(item_id)
            return
        header = encoding.value_header(body, self._created_ms, WHAT)
        value = body[header.length :]
        if item_id in self.enqueued:
            self._values[item_id] = value, header
            return
        floor_ms = self._floors_ms.get(header.priority, 0)
        assert item_id == self.last_id + 1, f"id {item_id} after {self.last_id}"
        assert header.enqueued_ms == self.now_ms
        assert header.deadline_ms >= floor_ms, f"item {item_id}: before the last one that was handed out"
        keys = {item.dedupe_key for item in self.items.values()} - {None}
        assert header.dedupe_key not in keys, f"two items have the dedupe key {header.dedupe_key!r}"
        most = self.definition.items_max
        assert most is None or len(self.items) < most, "more items than the definition allows"
        self._put(Item(item_id, value, header.deadline_ms, header.priority, self.now_ms, header.dedupe_key, self.turns))
        self.enqueued[item_id] = First(self.items[item_id], floor_ms)
        self._did(("enqueue", value))

    def _remove(self, item_id: int) -> None:
        assert item_id in self.items, f"item {item_id}: removed twice, or before it was there"
        item = self.items.pop(item_id)
        release = "release", item.token
        live = item.kind == LEASED and self._is_live(item)
        released = live and self.done[release] < self.asked[release]
        if released and not self.asked["purge", item.kind]:
            self._did(release)
        else:
            # Of a lease whose release has no outcome, no record says whether that or a purge has ended it.
            self.either |= {release} if released else set()
            assert self.asked["purge", item.kind], f"no caller has it removed: {item}"
            self.seen["purge"] += 1
        self.removed[item_id] = self.turns

    def _state(self, item_id: int, body: bytes | None) -> None:
        if body is None:
            assert item_id not in self.items, f"item {item_id}: its state was removed, and its value was not"
            return
        assert item_id in self.items, f"item {item_id}: it was removed, and is back"
        new, item = encoding.state_record(body, WHAT), self.items[item_id]
        value = self._values.pop(item_id, None)
        if self._is_written_again(item, new, value):
            self.seen["written again"] += 1
        elif new.kind == LEASED:
            assert value is None
            self._lease(item, new)
        elif item.kind == DEAD:
            assert new == StateRecord(PENDING, self._floored(item, self.now_ms), 0, self.now_ms, NEVER, NO_TOKEN)
            self._put(replace(item, kind=PENDING, deadline_ms=new.deadline_ms, deliveries=0, requeued_ms=self.now_ms))
            self.kicked[item_id] += 1
            self._did(("kick", ""))
        else:
            assert item.kind == LEASED, f"item {item_id}: put back, and not handed out"
            assert (new.deliveries, new.until_ms, new.token) == (item.deliveries, NEVER, NO_TOKEN)
            back = replace(item, kind=new.kind, deadline_ms=new.deadline_ms, until_ms=NEVER, token="")
            if not self._is_live(item) or (item.until_ms <= self.now_ms and not self._is_given_back(item, new)):
                self._end_lease(item, back, new)
            else:
                self._give_back(item, back, new, value)

    def _is_written_again(self, item: Item, new: StateRecord, value: tuple[bytes, ValueHeader] | None) -> bool:
        """Whether a record says what the queue has: one of others had its key."""
        token = bytes.fromhex(item.token) if item.token else NO_TOKEN
        if new != (item.kind, item.deadline_ms, item.deliveries, item.requeued_ms, item.until_ms, token):
            return False
        if self.asked["extend", item.token] > self.done["extend", item.token] and value is None:
            return False
        assert self.num_foreign, f"{item}: written again, and nothing had its key"
        if value is not None:
            body, header = value
            assert body == item.value
            found = header.deadline_ms, header.enqueued_ms, header.priority, header.dedupe_key
            assert found == (item.deadline_ms, item.enqueued_ms, item.priority, item.dedupe_key)
        return True

    def _is_live(self, item: Item) -> bool:
        """Whether a lease has perhaps not ended: one goes on longer if the queue's time has jumped."""
        return item.until_ms + self.jumps_ms > self.now_ms

    def _is_given_back(self, item: Item, new: StateRecord) -> bool:
        asked = self.asked["requeue", item.token] > self.done["requeue", item.token]
        asked |= self.asked["reclaim", item.id] > self.done["reclaim", item.id]
        if new.requeued_ms == self.now_ms != item.requeued_ms:
            return asked
        asked = self.asked["bury", item.token] > self.done["bury", item.token]
        return asked and new.kind == DEAD and new.deadline_ms == item.deadline_ms

    def _floored(self, item: Item, deadline_ms: int) -> int:
        return max(deadline_ms, self._floors_ms.get(item.priority, 0))

    def _is_over(self, item: Item) -> bool:
        """Whether an item that comes back has been handed out as often as it may be."""
        most = self.definition.max_deliveries
        return most is not None and item.deliveries >= most

    def _lease(self, item: Item, new: StateRecord) -> None:
        token = new.token.hex()
        assert new.until_ms > self.now_ms, f"item {item.id}: a lease that has ended"
        assert (new.deadline_ms, new.requeued_ms) == (item.deadline_ms, item.requeued_ms)
        if item.kind == LEASED:
            assert token == item.token, f"item {item.id}: handed out twice at once"
            assert self._is_live(item), f"item {item.id}: a lease that had ended was extended"
            assert new.deliveries == item.deliveries
            self._put(replace(item, until_ms=new.until_ms))
            self.extended.setdefault(token, []).append(new.until_ms)
            self._did(("extend", token))
            return
        assert item.kind == PENDING, f"item {item.id}: a dead letter was handed out"
        assert token not in self.leases, f"token {token} was used before"
        assert new.deliveries == item.deliveries + 1
        first = min(self.due().values(), key=lambda each: each.place, default=None)
        assert first is item, f"handed out {item}, and before it comes {first}"
        self._put(replace(item, kind=LEASED, until_ms=new.until_ms, token=token, deliveries=new.deliveries))
        self.leases[token] = self.items[item.id]
        self._floors_ms[item.priority] = item.deadline_ms
        self.seen["lease"] += 1
        self.seen["lease again"] += new.deliveries > 1

    def _end_lease(self, item: Item, back: Item, new: StateRecord) -> None:
        assert not self._values
        expected = DEAD if self._is_over(item) else PENDING, self._floored(item, item.until_ms), item.requeued_ms
        assert (new.kind, new.deadline_ms, new.requeued_ms) == expected, f"{item}: came back as {new}"
        self._put(back)
        self.ended.add(item.token)
        self.seen["lease ended"] += 1

    def _give_back(self, item: Item, back: Item, new: StateRecord, value: tuple[bytes, ValueHeader] | None) -> None:
        unchanged = (new.deadline_ms, new.requeued_ms) == (item.deadline_ms, item.requeued_ms)
        if new.kind == DEAD and unchanged:
            assert value is None
            self._put(back)
            self._did(("bury", item.token))
            return
        assert new.requeued_ms == self.now_ms, f"{item}: given back as {new}"
        assert new.kind == (DEAD if self._is_over(item) else PENDING), f"{item}: given back as {new}"
        assert new.deadline_ms == self._floored(item, new.deadline_ms)
        if value is not None:
            body, header = value
            assert (header.deadline_ms, header.enqueued_ms) == (new.deadline_ms, item.enqueued_ms)
            assert (header.priority, header.dedupe_key) == (item.priority, item.dedupe_key)
            back = replace(back, value=body)
            self._did(("new value", body))
        self._put(replace(back, requeued_ms=self.now_ms))
        self.requeued[item.token] = new.deadline_ms
        if value is None and self.asked["reclaim", item.id] > self.done["reclaim", item.id]:
            if self.asked["requeue", item.token] > self.done["requeue", item.token]:
                # No record says which of the two it was.
                self.either |= {("requeue", item.token), ("reclaim", item.id)}
            else:
                self._did(("reclaim", item.id))
            return
        self._did(("requeue", item.token))
