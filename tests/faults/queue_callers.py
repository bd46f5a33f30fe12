"""A caller of an open delay queue in a story: asks for anything, and checks each answer against the queue's log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from tests.faults.queue_ledger import DEAD, LEASED, PENDING, Change, Ledger
from tests.faults.simulator import START_US
from wal3_core.errors import (
    ClosedError,
    FencedError,
    InvalidRequestError,
    LogError,
    NotDurableError,
    QueueFullError,
    StaleTokenError,
    UnknownDurabilityError,
    UnknownItemError,
)
from wal3_core.views.queue.operations import Enqueued, Leased, NewItem, QueueDefinition, whole_ms

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.store import SimStore
    from wal3_core import Message
    from wal3_core.views.queue.delay_queue import DelayQueue

T = TypeVar("T")
QUEUE = "queue"
US_PER_MS = 1000
# After these, what was asked for was not done, and will not be.
NOT_DONE = (NotDurableError, InvalidRequestError, FencedError, StaleTokenError, UnknownItemError, QueueFullError)
# How often each kind of caller does what.
PRODUCER = {"enqueue": 10, "look": 1, "checkpoint": 1}
WORKER = {"dequeue": 5, "finish": 10}
KEEPER = {
    "enqueue": 4,
    "dequeue": 4,
    "finish": 6,
    "kick": 4,
    "purge": 1,
    "look": 3,
    "checkpoint": 2,
    "define": 1,
    "reclaim": 1,
}


def records_of(stage: Stage) -> list[Message]:
    """Return every record that the queue's log ever held."""
    return stage.world.names[QUEUE].life.records


def drawn_definition(dice: Random) -> QueueDefinition:
    """Short leases, few deliveries, and sometimes little room."""
    return QueueDefinition(
        lease_s=dice.choice((0.3, 3.0, 30.0)),
        max_deliveries=dice.choice((None, None, 2, 3)),
        items_max=dice.choice((None, None, 15)),
    )


@dataclass
class Caller:
    """One caller; ``over`` once the queue is another broker's, or closed."""

    stage: Stage
    store: SimStore
    queue: DelayQueue
    ledger: Ledger
    name: str
    dice: Random = field(init=False)
    held: list[Leased] = field(default_factory=list)
    over: bool = False
    # By token, until when a lease of a known length goes on by the monotonic clock of its broker.
    until_s: dict[str, float] = field(default_factory=dict)
    _num_values: int = 0

    def __post_init__(self) -> None:
        self.dice = self.stage.simulation.dice(self.name)

    def play(self, role: Mapping[str, int], count: int) -> None:
        for _ in range(count):
            self.stage.simulation.pause(self.dice.choice((0.0, 0.0, 0.02, 0.3, 2.0)))
            what = self.dice.choices([*role], [*role.values()])[0]
            getattr(self, what)()
            if self.over:
                return

    @property
    def is_broker(self) -> bool:
        """Whether the log says that the queue is still this one's."""
        return self.ledger.broker == self.queue._broker._token

    def _do(self, changes: Sequence[Change], call: Callable[[], T], check: Callable[[T], None]) -> bool:
        """Ask for these changes; check the answer, or what its error claims."""
        self.ledger.ask(changes)
        try:
            answer = call()
        except LogError as error:
            self.ledger.read(records_of(self.stage))
            explain(self.stage, self.store, self.ledger, error)
            self.ledger.seen[type(error).__name__] += 1
            if isinstance(error, NOT_DONE):
                self.ledger.take_back(changes)
            self.over |= isinstance(error, FencedError | ClosedError)
            return False
        self.ledger.read(records_of(self.stage))
        check(answer)
        return True

    def _is_done(self, changes: Sequence[Change]) -> None:
        for change in changes:
            is_done = self.ledger.done[change] or change in self.ledger.either
            assert is_done, f"answered, and not in the log: {change}"

    # ------------------------------------------------------------------ items

    def _value(self) -> bytes:
        self._num_values += 1
        return f"{self.name}/{self._num_values}".encode() + b"." * self.dice.choice((0, 0, 100))

    def _time(self) -> dict[str, float]:
        """Draw a deadline, by the start of the story or by this process's clock, or a delay, or nothing."""
        dice, later_us = self.dice, self.dice.choice((-(10**7), 10**4, 10**6, 10**7))
        return dice.choice(
            (
                {},
                {},
                {"delay_s": dice.choice((0.0, 0.05, 1.0, 20.0))},
                {"deadline_us": START_US + int(self.stage.simulation.now_s * 1e6) + later_us},
                {"deadline_us": self.store.process.now_us() + later_us},
            )
        )

    def _new_item(self) -> NewItem:
        dice = self.dice
        key = dice.choice((None, None, b"k1", b"k2", b"k3"))
        return NewItem(self._value(), priority=dice.choice((100, 100, 0, 200)), dedupe_key=key, **self._time())

    def enqueue(self) -> None:
        items = [self._new_item() for _ in range(self.dice.choice((1, 1, 2, 6)))]
        changes, began = [("enqueue", item.value) for item in items], self.ledger.turns

        def check(answer: list[Enqueued]) -> None:
            for new, item in zip(answer, items, strict=True):
                self._check_enqueued(new, item, began)

        self._do(changes, lambda: self.queue.enqueue_many(items), check)

    def _check_enqueued(self, new: Enqueued, item: NewItem, began: int) -> None:
        assert new.id in self.ledger.enqueued, f"answered, and not in the log: {new}"
        first, floor_ms = self.ledger.enqueued[new.id]
        if new.duplicate:
            assert first.dedupe_key == item.dedupe_key is not None, f"{new} has another key than {item}"
            assert self.ledger.removed.get(new.id, began) >= began, f"a duplicate of an item that was gone: {new}"
            self.ledger.take_back([("enqueue", item.value)])
            self.ledger.seen["duplicate"] += 1
            return
        assert (first.value, first.priority, first.dedupe_key) == (item.value, item.priority, item.dedupe_key)
        wanted_ms = first.enqueued_ms + whole_ms(item.delay_s or 0.0)
        if item.deadline_us is not None:
            wanted_ms = -(-item.deadline_us // US_PER_MS)
        expected = max(wanted_ms, floor_ms), wanted_ms < floor_ms
        assert (new.deadline_us // US_PER_MS, new.advanced) == expected, f"{new}, expected {expected}"
        assert first.deadline_ms == expected[0], f"{first}, answered {new}"

    def dequeue(self) -> None:
        dice = self.dice
        count, lease_s = dice.choice((1, 1, 3, 10)), dice.choice((None, None, 0.2, 5.0, 60.0))
        timeout_s = dice.choice((0.0, 0.0, 0.5, 5.0))
        self.ledger.read(records_of(self.stage))
        due, was_broker = self.ledger.due(), self.is_broker
        began_s, num_leases = self.store.process.monotonic_s(), self.ledger.seen["lease"]

        def check(answer: list[Leased]) -> None:
            self.until_s |= {each.token: began_s + lease_s for each in answer if lease_s is not None}
            assert len(answer) <= count
            places = [self._check_leased(each) for each in answer]
            assert places == sorted(places), f"handed out in another order: {answer}"
            passed_over = [item for item in self.ledger.due().values() if item is due.get(item.id)]
            # An item that was due all the time, and none of another broker's by then; and none was handed out that
            # is not answered, because its value was read damaged.
            alone = was_broker and self.is_broker and self.ledger.seen["lease"] - num_leases == len(answer)
            assert not (alone and len(answer) < count and passed_over), f"{answer}, and not {passed_over}"
            self.held += answer

        self._do((), lambda: self.queue.dequeue(count, timeout_s=timeout_s, lease_s=lease_s), check)

    def _check_leased(self, found: Leased) -> tuple[int, int, int]:
        assert found.token in self.ledger.leases, f"handed out, and not in the log: {found}"
        assert found.token not in self.ledger.given, f"one lease for two callers: {found}"
        self.ledger.given.add(found.token)
        item = self.ledger.leases[found.token]
        requeued_ms = -1 if found.requeued_us is None else found.requeued_us // US_PER_MS
        answered = (
            found.id,
            found.value,
            found.deadline_us // US_PER_MS,
            found.priority,
            found.deliveries,
            found.enqueued_us // US_PER_MS,
            requeued_ms,
            found.lease_until_us // US_PER_MS,
            found.dedupe_key,
        )
        expected = (
            item.id,
            item.value,
            item.deadline_ms,
            item.priority,
            item.deliveries,
            item.enqueued_ms,
            item.requeued_ms,
            item.until_ms,
            item.dedupe_key,
        )
        assert answered == expected, f"handed out {answered}, the log has {expected}"
        return item.place

    # ------------------------------------------------------------------ what was handed out

    def finish(self) -> None:
        """Do one of the things that a worker does with an item; sometimes nothing."""
        if not self.held:
            return
        item = self.held.pop(self.dice.randrange(len(self.held)))
        ways = (self.release, self.requeue, self.extend, self.bury, None)
        way = self.dice.choices(ways, (10, 4, 2, 2, 2))[0]
        if way is not None and not way(item) and self.dice.random() < 0.5:
            # The outcome may be unknown: it tries again, perhaps otherwise.
            self.held.append(item)

    def release(self, item: Leased) -> bool:
        several = [item]
        while self.held and self.dice.random() < 0.3:
            several.append(self.held.pop())
        changes = [("release", each.token) for each in several]

        def check(_: None) -> None:
            self._is_done(changes)
            assert all(each.id in self.ledger.removed for each in several)

        done = self._do(changes, lambda: self.queue.release_many([(each.id, each.token) for each in several]), check)
        if not done:
            now_s = self.store.process.monotonic_s()
            early = [each for each in several if now_s < self.until_s.get(each.token, 0) and self._has_ended(each)]
            assert not early, f"leases have ended before their time by the monotonic clock: {early}"
        return done

    def _has_ended(self, item: Leased) -> bool:
        return item.token in self.ledger.ended and self.is_broker

    def requeue(self, item: Leased) -> bool:
        value = self._value() if self.dice.random() < 0.3 else None
        changes: list[Change] = [("requeue", item.token)]
        if value is not None:
            changes.append(("new value", value))

        def check(answer: Enqueued) -> None:
            self._is_done(changes)
            assert (answer.id, answer.deadline_us) == (item.id, self.ledger.requeued[item.token] * US_PER_MS)

        wanted = self._time()
        return self._do(changes, lambda: self.queue.requeue(item.id, item.token, value=value, **wanted), check)

    def extend(self, item: Leased) -> bool:
        def check(until_us: int) -> None:
            assert until_us // US_PER_MS in self.ledger.extended.get(item.token, ()), f"not in the log: {item}"
            self.held.append(item)

        lease_s = self.dice.choice((0.3, 5.0, 60.0))
        # Whatever is answered, it may end by then.
        self.until_s.pop(item.token, None)
        return self._do([("extend", item.token)], lambda: self.queue.extend(item.id, item.token, lease_s), check)

    def reclaim(self) -> None:
        """Take back items that others have, or that are not leased any more."""
        self.ledger.read(records_of(self.stage))
        ids = [item.id for item in self.ledger.of(LEASED)][:2]
        if ids:
            changes: list[Change] = [("reclaim", item_id) for item_id in ids]
            self._do(changes, lambda: self.queue.reclaim(ids), lambda _: self._is_done(changes))

    def bury(self, item: Leased) -> bool:
        changes = [("bury", item.token)]
        return self._do(changes, lambda: self.queue.bury(item.id, item.token), lambda _: self._is_done(changes))

    # ------------------------------------------------------------------ the queue

    def kick(self) -> None:
        count = self.dice.choice((1, 3))

        def check(ids: list[int]) -> None:
            assert all(self.ledger.kicked[item_id] for item_id in ids), f"kicked, and not in the log: {ids}"
            self.ledger.take_back([("kick", "")] * (count - len(ids)))

        self._do([("kick", "")] * count, lambda: self.queue.kick(count), check)

    def purge(self) -> None:
        kinds = self.dice.choice(((PENDING,), (LEASED,), (DEAD,), (PENDING, LEASED, DEAD)))
        # Asked for from now on: a purge that fails may have removed some, in earlier turns.
        self.ledger.ask([("purge", kind) for kind in kinds])
        before = self.ledger.seen["purge"]

        def check(num_removed: int) -> None:
            assert self.ledger.seen["purge"] - before >= num_removed, f"the log has not removed {num_removed}"

        self._do(
            (),
            lambda: self.queue.purge(pending=PENDING in kinds, leased=LEASED in kinds, dead=DEAD in kinds),
            check,
        )

    def look(self) -> None:
        """Ask without changing anything: what is shown is in the log, though another broker may have changed it."""

        def check_known(ids: list[int]) -> None:
            assert all(item_id in self.ledger.enqueued for item_id in ids), f"not in the log: {ids}"

        item_id = self.dice.randrange(1, self.ledger.last_id + 2)
        calls: tuple[Callable[[], list[int]], ...] = (
            lambda: [each.id for each in self.queue.peek(5)],
            lambda: [each.id for each in self.queue.dead()],
            lambda: [self.queue.item(item_id).id],
            lambda: [*range(1, self.queue.stats().last_id + 1)],
        )
        self._do((), self.dice.choice(calls), check_known)

    def checkpoint(self) -> None:
        self._do((), self.queue.checkpoint, lambda _: None)

    def define(self) -> None:
        definition = drawn_definition(self.dice)
        self._do((), lambda: self.queue.define(definition), lambda _: None)


def explain(stage: Stage, store: SimStore, ledger: Ledger, error: LogError) -> None:
    """Fail the story for an error that nothing in it explains."""
    if isinstance(error, FencedError):
        assert ledger.num_brokers > 1, f"no other broker: {error}"
    elif isinstance(error, UnknownDurabilityError):
        assert store.ambiguous or store.unread, f"no outcome of an append was unknown: {error}"
    elif type(error) is NotDurableError:
        assert store.troubles, f"no fault explains it: {error}"
    else:
        stage.excuse(error)
