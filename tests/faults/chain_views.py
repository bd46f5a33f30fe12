"""Subscriptions and consumers by key that go on in the successor of a log, where they have a cursor of their name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.chain_owners import attempted, tell_gone
from tests.faults.store import SimStore
from tests.faults.view_consumers import PREFIX, TOPIC
from wal3_core import (
    Delivery,
    FeedMovedError,
    FeedSubscription,
    Gap,
    GarbageCollectedError,
    KeyedConsumer,
    KeyedLog,
    KeyedOptions,
    Message,
    Record,
    SubscriptionOptions,
)
from wal3_core.format.manifest import Manifest
from wal3_core.views.feed.messages import packed

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.chain_ledger import ChainLedger, Course
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess

EVERYTHING = 10_000


def of_topic(record: Message) -> bool:
    """Want the records of the topics that are subscribed to, which are those of the keys, too."""
    return record.key is not None and record.key.startswith(PREFIX)


@dataclass
class Visit:
    """What an owner has opened in one log: its course, once that is known, and what it has done since."""

    ledger: ChainLedger
    store: SimStore
    life: Oracle
    had: bool
    course: Course | None = None
    # Saved as done before it was opened; done since.
    before: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)

    def begin(self, name: str, *, pins: bool) -> Course | None:
        """Note that it was opened; None if it is not known what it has opened."""
        if self.ledger.stage.world.names[self.life.log].life is self.life:
            self.course = self.ledger.opened(name, self.life, of_topic, had=self.had, pins=pins)
        if self.course is not None:
            self.before = set(self.course.saved)
        return self.course

    def save(self, save: Callable[[], object]) -> None:
        """Save, and note what is saved when that returns."""
        assert self.course is not None
        now = set(self.acked)
        save()
        self.course.saved |= now

    def given(self, offset: int, record: Message | Record, key: bytes) -> None:
        """Check a record as it is given."""
        assert self.course is not None
        held = self.life.records[offset - 1]
        if (record.body, key) != (held.body, held.key):
            self.ledger.stage.fail(f"{self.course.name} in {self.life.log}: altered: {record}")
        self.check_again({offset})
        self.course.given[offset] += 1

    def check_again(self, offsets: set[int]) -> None:
        """Check that nothing is given that was saved as done before."""
        assert self.course is not None
        again = offsets & self.before
        if again and self.course.living:
            self.ledger.stage.fail(f"{self.course.name} in {self.life.log}: given again after it was saved: {again}")

    def finish(self, offsets: set[int]) -> None:
        """Note what is done, before the library learns of it: it may save that, and then fail."""
        assert self.course is not None
        self.course.done |= offsets
        self.acked |= offsets


@dataclass(frozen=True, slots=True)
class Owner:
    """Opens something with a cursor again and again; in the successor, once the log is done."""

    ledger: ChainLedger
    name: str
    log: str
    rounds: int
    pause_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice, log = stage.simulation.dice(f"{process.name}/owner"), self.log
        for _ in range(self.rounds):
            stage.simulation.pause(dice.random() * self.pause_s * 4)
            with attempted(stage):
                self._visit(stage, process, log, dice.randrange(1, 20), dice)
            log = self._next(stage, log)

    def drain(self, stage: Stage, operator: SimProcess, lives: Sequence[Oracle]) -> None:
        """Process all that is left in each log of a chain."""
        dice = stage.simulation.dice(f"operator drains {self.name}")
        for life in lives:
            self._visit(stage, operator, life.log, EVERYTHING, dice)

    def _visit(self, stage: Stage, process: SimProcess, log: str, items_max: int, dice: Random) -> None:
        life = stage.world.names[log].life
        visit = Visit(self.ledger, SimStore(stage.world, process), life, self.ledger.has(self.name, life))
        try:
            self.work(visit, items_max, dice)
        except GarbageCollectedError as error:
            tell_gone(stage, self.ledger, visit.course, process, error)

    def work(self, visit: Visit, items_max: int, dice: Random) -> None:
        """Open it, and process so many items, or all that there are."""
        raise NotImplementedError

    def _next(self, stage: Stage, log: str) -> str:
        """Return the successor of a log that is sealed and of which nothing is left."""
        entry, life = stage.world.names[log].entry, stage.world.names[log].life
        if not isinstance(entry, Manifest) or entry.seal is None or entry.seal.successor is None:
            return log
        course = self.ledger.living(self.name, life)
        if course is None or self.ledger.left(course, life):
            return log
        stage.world.fired["chain: a view went on"] += 1
        return entry.seal.successor


@dataclass(frozen=True, slots=True)
class Receiving(Owner):
    """A subscription, whose messages are acknowledged in any order; it is closed, or left as it is."""

    options: SubscriptionOptions

    def work(self, visit: Visit, items_max: int, dice: Random) -> None:
        store, log = visit.store, visit.life.log
        subscription = FeedSubscription.open(
            store, log, self.name, topics=TOPIC, options=self.options, runtime=store.process
        )
        if visit.begin(self.name, pins=self.options.pins) is None:
            subscription.close()
            return
        drains = items_max == EVERYTHING
        try:
            self._receive(visit, subscription, items_max, dice)
        except FeedMovedError as error:
            seal = visit.life.manifest and visit.life.manifest.seal
            if not seal or seal.successor != error.successor:
                self.ledger.stage.fail(f"{log}: moved elsewhere than its seal says, {seal}: {error}")
        if drains or dice.random() < 0.7:
            visit.save(subscription.close)

    def _receive(self, visit: Visit, subscription: FeedSubscription, items_max: int, dice: Random) -> None:
        held: list[Delivery | Gap] = []
        drains = items_max == EVERYTHING
        for _ in range(items_max):
            item = subscription.recv(0 if drains else dice.choice((0.0, 0.5, 2.0)))
            if item is not None:
                self._see(visit, item)
                held.append(item)
            elif drains:
                return
            if held and (drains or dice.random() < 0.7):
                self._acknowledge(visit, subscription, held.pop(dice.randrange(len(held))))
            if dice.random() < 0.1:
                visit.save(subscription.save)

    def _see(self, visit: Visit, item: Delivery | Gap) -> None:
        if not isinstance(item, Gap):
            visit.given(item.offset, Message(packed(item.message)), item.topic.encode())
            return
        life, stage = visit.life, self.ledger.stage
        if self.options.pins:
            stage.fail(f"a subscription that pins has lost {item}")
        assert life.manifest is not None
        first = life.manifest.first.position.offset
        left = [offset for offset in range(max(first, item.start), item.limit) if offset not in life.dropped]
        assert not left, f"{item}, and the log still has {left}"
        visit.check_again(set(range(item.start, item.limit)))
        stage.world.fired["chain: gaps"] += 1

    def _acknowledge(self, visit: Visit, subscription: FeedSubscription, item: Delivery | Gap) -> None:
        visit.finish(set(range(item.start, item.limit)) if isinstance(item, Gap) else {item.offset})
        subscription.acknowledge(item)


@dataclass(frozen=True, slots=True)
class KeyConsuming(Owner):
    """A consumer by key, some of whose keys fall behind."""

    options: KeyedOptions

    def work(self, visit: Visit, items_max: int, dice: Random) -> None:
        store, log, drains = visit.store, visit.life.log, items_max == EVERYTHING
        opened = KeyedLog.open(store, log, options=self.options, runtime=store.process)
        consumer = opened.consumer(self.name, prefix=PREFIX)
        course = visit.begin(self.name, pins=True)
        if course is None:
            return
        slow, place = b"" if drains else dice.choice((b"chat", b"chat/a", b"")), course.start(visit.life)
        for count, record in enumerate(consumer.follow(idle_s=0.0 if drains else dice.choice((0.0, 2.0))), 1):
            assert record.key is not None
            visit.given(record.offset, record, record.key)
            self.ledger.passed(course, visit.life, place, record.offset)
            place = record.offset + 1
            if record.key != slow:
                self._finish(visit, consumer, record)
            if dice.random() < 0.2:
                visit.save(consumer.save)
            if count >= items_max:
                break
        visit.save(consumer.save)

    def _finish(self, visit: Visit, consumer: KeyedConsumer, record: Record) -> None:
        begin = visit.course.start(visit.life) if visit.course else 0
        records = visit.life.records
        visit.finish({at for at in range(begin, record.offset + 1) if records[at - 1].key == record.key})
        consumer.finish(record)
