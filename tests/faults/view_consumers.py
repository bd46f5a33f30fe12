"""Durable subscriptions and keyed consumers in a story: what was saved as done stays done, and nothing is skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.actors import Stage, append_once
from tests.faults.store import LOG, SimStore
from wal3_core import (
    Delivery,
    FeedSubscription,
    Gap,
    KeyedConsumer,
    KeyedLog,
    KeyedOptions,
    LogError,
    LogNotFoundError,
    LogWriter,
    Message,
    ReaderOptions,
    Record,
    Stray,
    SubscriptionOptions,
    WriterOptions,
)
from wal3_core.errors import CursorConflictError
from wal3_core.options import RetryOptions
from wal3_core.views.feed.messages import packed

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess
    from wal3_core.views.feed.outstanding import Item

NAME = "s"
TOPICS = ("chat", "chat/a", "chat/ab", "other")
TOPIC, PREFIX = "chat*", b"chat"
# What begins the body of a record that is no message.
STRAY = b"\xc1"
RETRY = RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5)
READING = ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, retry=RETRY, poll_s_min=0.05, poll_s_max=0.5)


@dataclass
class Ledger:
    """What all processes of one subscription, or of one consumer, did together, by offset."""

    # The first offset that it was ever to get; None until it is opened.
    start: int | None = None
    opened_s: float = 0.0
    # Acknowledged or finished by any process, and by a save that returned.
    done: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    # Reported as gone.
    gone: set[int] = field(default_factory=set)
    given: Counter[int] = field(default_factory=Counter)

    def opened(self, stage: Stage, floor: int) -> None:
        """Note where it was opened: two that open it at once, for the first time, may begin at different places."""
        if self.start is None or not self.given:
            self.start = min(floor, self.start or floor)
            self.opened_s = stage.simulation.now_s

    def check_complete(self, stage: Stage, wanted: dict[int, Message]) -> None:
        """Check that each message in the log's history was done by a process, or reported as gone.

        What had been compacted away before it was opened was never to be given.
        """
        assert self.start is not None
        dropped = {offset for offset, at_s in stage.world.oracle.dropped.items() if at_s <= self.opened_s}
        seen = self.done | self.gone | dropped
        skipped = [offset for offset in wanted if offset >= self.start and offset not in seen]
        assert not skipped, f"skipped: {skipped}"
        stage.world.fired["given"] += len(self.given)
        stage.world.fired["given again"] += sum(count > 1 for count in self.given.values())


def _operated(stage: Stage, operator: SimProcess) -> SimStore:
    """Make sure that there is a log: the publishers may all have died before."""
    store = SimStore(stage.world, operator)
    LogWriter.open_or_create(store, LOG, runtime=operator).close()
    return store


def _wanted(stage: Stage) -> dict[int, Message]:
    """Return the records with a topic that is subscribed to, by offset: all that the log ever held."""
    return {
        offset: record
        for offset, record in enumerate(stage.world.oracle.records, start=1)
        if record.key is not None and record.key.startswith(PREFIX)
    }


def _repeat(stage: Stage, process: SimProcess, rounds: int, work: Callable[[Stage, SimStore, Random], None]) -> None:
    """Open it again and again; another process of its name may end a round."""
    for _ in range(rounds):
        stage.simulation.pause(process.random.random())
        try:
            work(stage, SimStore(stage.world, process), process.random)
        except (LogNotFoundError, CursorConflictError):
            stage.simulation.pause(1.0)
        except LogError as error:
            stage.excuse(error)


@dataclass(frozen=True, slots=True)
class Publisher:
    """Appends messages of several topics, and records that are none; creates the log when it finds none."""

    options: WriterOptions
    appends: int
    pause_s_max: float
    # A log that is compacted by key takes no records without one.
    keyless: bool = False

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/topics")
        try:
            writer = LogWriter.open_or_create(store, LOG, options=self.options, runtime=process)
        except LogError as error:
            stage.excuse(error)
            return
        for number in range(self.appends):
            stage.simulation.pause(dice.random() * self.pause_s_max)
            names = [f"{process.name}/{number}/{n}" for n in range(dice.choice((1, 1, 3)))]
            append_once(stage, store, writer, tuple(self._record(name, dice) for name in names))
        writer.close()

    def _record(self, name: str, dice: Random) -> Message:
        if dice.random() < 0.9:
            return Message(packed(name), dice.choice(TOPICS).encode())
        key = None if self.keyless and dice.random() < 0.5 else dice.choice(TOPICS).encode()
        return Message(STRAY + name.encode(), key)


@dataclass(frozen=True, slots=True)
class Subscribing:
    """Opens the subscription several times, and acknowledges in any order; it is closed, or left as it is."""

    ledger: Ledger
    options: SubscriptionOptions
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        _repeat(stage, process, self.rounds, self._receive)

    def open(self, stage: Stage, store: SimStore) -> FeedSubscription:
        opened = FeedSubscription.open(store, LOG, NAME, topics=TOPIC, options=self.options, runtime=store.process)
        self.ledger.opened(stage, opened.floor)
        return opened

    def _receive(self, stage: Stage, store: SimStore, dice: Random) -> None:
        saved = set(self.ledger.saved)
        subscription = self.open(stage, store)
        held: list[Item] = []
        acked: set[int] = set()
        for _ in range(dice.randrange(1, 25)):
            item = subscription.recv(dice.choice((0.0, 0.5, 3.0)))
            if item is not None:
                self.see(stage, item, saved | acked)
                if isinstance(item, Stray):
                    acked.add(item.offset)
                else:
                    held.append(item)
                self._put_off(subscription, item, dice)
            if held and dice.random() < 0.6:
                acked |= self.acknowledge(subscription, held.pop(dice.randrange(len(held))))
            if dice.random() < 0.1:
                self._keep(subscription.save, acked)
        if dice.random() < 0.7:
            self._keep(subscription.close, acked)

    def _put_off(self, subscription: FeedSubscription, item: Item, dice: Random) -> None:
        match dice.randrange(8):
            case 0:
                subscription.nak(item, dice.choice((0.0, 1.0)))
            case 1:
                subscription.in_progress(item)
            case 2 if dice.random() < 0.2:
                for dead in subscription.dead_letters():
                    if isinstance(dead, Delivery):
                        subscription.redeliver(dead)

    def _keep(self, save: Callable[[], None], acked: set[int]) -> None:
        now = set(acked)
        save()
        self.ledger.saved |= now

    def see(self, stage: Stage, item: Item, done: set[int]) -> None:
        """Check an item as it is given; none of ``done`` may come."""
        oracle = stage.world.oracle
        if isinstance(item, Gap):
            assert not self.options.pins, f"a subscription that pins has lost {item}"
            assert oracle.manifest is not None
            first = oracle.manifest.first.position.offset
            left = [offset for offset in range(max(first, item.start), item.limit) if offset not in oracle.dropped]
            assert not left, f"{item}, and the log still has {left}"
            stage.world.fired["gaps of compaction"] += item.limit > first
            twice = done.intersection(range(item.start, item.limit))
            stage.world.fired["gaps"] += 1
        elif isinstance(item, Stray):
            record = oracle.records[item.offset - 1]
            assert (record.body or b"").startswith(STRAY), f"no stray: {item}"
            twice = done & {item.offset}
            # Given once, it is done.
            self.ledger.done.add(item.offset)
            stage.world.fired["strays"] += 1
        else:
            record = oracle.records[item.offset - 1]
            assert (packed(item.message), item.topic.encode()) == (record.body, record.key), f"altered: {item}"
            twice = done & {item.offset}
            self.ledger.given[item.offset] += 1
        assert not twice, f"given again after its acknowledgement: {item}"

    def acknowledge(self, subscription: FeedSubscription, item: Item) -> set[int]:
        """Acknowledge an item; return its offsets."""
        offsets = set(range(item.start, item.limit)) if isinstance(item, Gap) else {item.offset}
        # Before the call: it may save, and then fail.
        (self.ledger.gone if isinstance(item, Gap) else self.ledger.done).update(offsets)
        subscription.acknowledge(item)
        return offsets

    def drain(self, stage: Stage, operator: SimProcess) -> None:
        """With every fault healed, all that is left is given once."""
        store = _operated(stage, operator)
        with self.open(stage, store) as subscription:
            done = set(self.ledger.saved)
            while (item := subscription.recv(0)) is not None:
                self.see(stage, item, done)
                done |= self.acknowledge(subscription, item)
            # Also those that are there since a receive has passed them.
            for dead in subscription.dead_letters():
                self.see(stage, dead, done)
                done |= self.acknowledge(subscription, dead)
                stage.world.fired["dead letters"] += 1
        with self.open(stage, store) as subscription:
            assert subscription.recv(0) is None, "given again after it was closed"
        self.ledger.check_complete(stage, _wanted(stage))


@dataclass(frozen=True, slots=True)
class KeyConsuming:
    """Opens a keyed consumer several times, and finishes records of its keys; some keys fall behind."""

    ledger: Ledger
    options: KeyedOptions
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        _repeat(stage, process, self.rounds, self._consume)

    def _open(self, stage: Stage, store: SimStore) -> KeyedConsumer:
        log = KeyedLog.open(store, LOG, options=self.options, runtime=store.process)
        opened = log.consumer(NAME, prefix=PREFIX)
        self.ledger.opened(stage, opened.floor)
        return opened

    def _consume(self, stage: Stage, store: SimStore, dice: Random) -> None:
        saved = set(self.ledger.saved)
        consumer = self._open(stage, store)
        slow = dice.choice(TOPICS).encode()
        finished: set[int] = set()
        for record in consumer.follow(idle_s=dice.choice((0.0, 2.0))):
            self._see(stage, record, saved)
            if record.key != slow:
                finished |= self._finish(stage, consumer, record)
            if dice.random() < 0.2:
                now = set(finished)
                assert consumer.save() == 0
                self.ledger.saved |= now
            if dice.random() < 0.05:
                break
        assert consumer.save() == 0
        self.ledger.saved |= finished

    def _finish(self, stage: Stage, consumer: KeyedConsumer, record: Record) -> set[int]:
        consumer.finish(record)
        assert self.ledger.start is not None
        of_key = {
            offset
            for offset, each in _wanted(stage).items()
            if each.key == record.key and self.ledger.start <= offset <= record.offset
        }
        self.ledger.done |= of_key
        return of_key

    def _see(self, stage: Stage, record: Record, saved: set[int]) -> None:
        held = stage.world.oracle.records[record.offset - 1]
        assert (record.body, record.key) == (held.body, held.key), f"altered: {record}"
        assert record.offset not in saved, f"given again after it was saved as finished: {record}"
        self.ledger.given[record.offset] += 1

    def drain(self, stage: Stage, operator: SimProcess) -> None:
        """With every fault healed, all that is left is given, and the counts agree with it."""
        store, saved = _operated(stage, operator), set(self.ledger.saved)
        consumer = self._open(stage, store)
        lags, found = consumer.lags(), Counter[bytes]()
        for record in consumer.follow(idle_s=0.0):
            self._see(stage, record, saved)
            found[record.key or b""] += 1
            self._finish(stage, consumer, record)
        assert lags == dict(found), f"counted {lags}, given {dict(found)}"
        assert consumer.save() == 0
        again = self._open(stage, store)
        assert list(again.follow(idle_s=0.0)) == [], "given again after it was saved"
        self.ledger.check_complete(stage, _wanted(stage))


def drawn_subscribing(dice: Random) -> Subscribing:
    """A few messages at a time, so that every limit is reached."""
    options = SubscriptionOptions(
        ack_wait_s=dice.choice((0.5, 5.0, 60.0)),
        prefetch_max=dice.choice((1, 3, 50)),
        save_acks_max=dice.choice((1, 3, 1000)),
        save_s_max=dice.choice((0.0, 0.5, 5.0)),
        max_deliveries=dice.choice((None, None, 1, 3)),
        pins=dice.random() < 0.6,
        reader=READING,
    )
    return Subscribing(Ledger(), options, dice.choice((2, 6)))


def drawn_key_consuming(dice: Random) -> KeyConsuming:
    """A reader that keeps little, so that reads meet collections."""
    options = KeyedOptions(reader=READING, keys_cached_bytes_max=dice.choice((0, 2**20)), bodies_cached_bytes_max=0)
    return KeyConsuming(Ledger(), options, dice.choice((2, 6)))
