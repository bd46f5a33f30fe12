"""Delay queues in a story: brokers that take a queue from each other, callers, and key compaction beside them."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar
from unittest.mock import patch

from greenlet import GreenletExit

from tests.faults.actors import Actor, Freezer, Part, Reaper, Stage, await_all, drawn_options
from tests.faults.collectors import Collecting, Packing
from tests.faults.compactors import RETRY, change_policy, drawn_key_compacting
from tests.faults.plans import Swarm
from tests.faults.queue_callers import KEEPER, PRODUCER, QUEUE, WORKER, Caller, drawn_definition, explain, records_of
from tests.faults.queue_ledger import DEAD, PENDING, STRAY, Counts, Ledger
from tests.faults.simulator import START_US, YEAR_US, SimProcess
from tests.faults.store import SimStore
from tests.faults.story import Story
from wal3_core import CursorStore, LogReader, LogWriter, Message, ReaderOptions, scrub
from wal3_core.errors import CorruptError, InvalidRequestError, LogError
from wal3_core.format.paths import QUEUE_CURSOR
from wal3_core.format.policy import COMPACTED_FRAGMENT_BYTES_MIN, Cleanup, Policy
from wal3_core.options import SnapshotCompactorOptions
from wal3_core.runtime.loggers import QUEUE as QUEUE_LOGGER
from wal3_core.store.object_store import Buffer, Etag, PutOutcome
from wal3_core.views.queue import broker, checkpoint
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.encoding import STATE, VALUE, id_key
from wal3_core.views.queue.loading import read_queue_head, read_queue_stats
from wal3_core.views.queue.operations import QueueDefinition, QueueOptions, QueueStats

if TYPE_CHECKING:
    from random import Random


T = TypeVar("T")
EVERYTHING = 10_000
# What a steady wall clock gains while a lease goes on: it goes a hundredth faster, and other processes let the log's
# time, by which it is bounded, come to be a minute ahead of the store's.
GAINED_MS = 61_000.0
# Later than every deadline that a process whose clock is wrong may have asked for.
LATER_S = 100 * YEAR_US / 1_000_000
# Those of a queue among them.
STRAY_KEYS = (b"intruder", b"b", b"d", id_key(VALUE, 2**40), id_key(STATE, 2**40))
# What a queue cannot do without: a pass drops it in favor of a stray, unless the queue's cursor keeps it.
NEEDED_KEYS = (b"m", *(id_key(kind, item_id) for kind in (VALUE, STATE) for item_id in range(1, 7)))
# Until there is a queue; and until one is opened, whatever fails.
TRIES_MAX, OPENINGS_MAX = 20, 4


def _of_the_living(record: logging.LogRecord) -> bool:
    """Drop what a broker reports while its task is ended with the simulation."""
    return record.exc_info is None or record.exc_info[0] is not GreenletExit


QUEUE_LOGGER.addFilter(_of_the_living)


@dataclass(frozen=True, slots=True)
class Serving:
    """Takes the queue several times, making it if there is none, with some callers; closes it, or leaves it open."""

    ledger: Ledger
    options: QueueOptions
    definition: QueueDefinition
    roles: tuple[Mapping[str, int], ...]
    count: int
    rounds: int
    # Its wall clock neither steps back nor years ahead.
    steady: bool

    def play(self, stage: Stage, process: SimProcess) -> None:
        process.steady = self.steady
        self.ledger.latest_us = stage.simulation.latest_us
        self.ledger.store_us = lambda: START_US + stage.simulation.now_s * 1e6
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/serving")
        for number in range(self.rounds):
            stage.simulation.pause(dice.choice((0.0, 0.1, 3.0)) * dice.random())
            queue = self._opened(stage, store, dice)
            if queue is not None:
                self._serve(stage, store, queue, f"{process.name}/{number}")
                if dice.random() < 0.7:
                    queue.close()

    def _opened(self, stage: Stage, store: SimStore, dice: Random) -> DelayQueue | None:
        for _ in range(OPENINGS_MAX):
            try:
                return DelayQueue.open_or_create(
                    store, QUEUE, self.definition, options=self.options, runtime=store.process
                )
            except LogError as error:
                self.ledger.read(records_of(stage))
                explain(stage, store, self.ledger, error)
                stage.simulation.pause(dice.random() * 3)
        return None

    def _serve(self, stage: Stage, store: SimStore, queue: DelayQueue, name: str) -> None:
        callers = [Caller(stage, store, queue, self.ledger, f"{name}/{n}") for n in range(len(self.roles))]
        tasks = [
            stage.simulation.spawn(
                store.process, caller.name, lambda caller=caller, role=role: caller.play(role, self.count)
            )
            for caller, role in zip(callers, self.roles, strict=True)
        ]
        await_all(stage.simulation, tasks)


@dataclass(frozen=True, slots=True)
class Looking:
    """Looks at the queue without taking it: it finds it as it was after one of its turns."""

    ledger: Ledger
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * 4)
            self.ledger.read(records_of(stage))
            began = self.ledger.turns
            try:
                stats = read_queue_stats(store, QUEUE, runtime=process)
                head = read_queue_head(store, QUEUE, 100, runtime=process)
            except InvalidRequestError:
                assert not began, "there is a queue, and a reader finds none"
            except LogError as error:
                stage.excuse(error)
            else:
                self.ledger.read(records_of(stage))
                assert counts_of(stats) in self.ledger.counts[began:], f"it never held {stats}"
                places = [(each.priority, each.deadline_us, each.id) for each in head]
                assert places == sorted(places)
                assert all(each.id in self.ledger.enqueued for each in head), f"not in the log: {head}"
                self.ledger.seen["looked"] += 1


@dataclass(frozen=True, slots=True)
class Easing:
    """Lets key compaction drop tombstones soon, and changes that now and then."""

    ledger: Ledger
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice, changed = process.random, 0
        for _ in range(TRIES_MAX):
            stage.simulation.pause(dice.random() * (5.0 if changed else 0.5))
            policy = Policy(
                cleanup=Cleanup.COMPACT,
                delete_retention_s=dice.choice((0, 0, 1)),
                min_dirty_percent=0,
                compacted_fragment_bytes=dice.choice((None, COMPACTED_FRAGMENT_BYTES_MIN)),
            )
            changed += change_policy(stage, process, replace(policy, arrange_by_key=dice.random() < 0.3), QUEUE)
            if changed == self.rounds:
                return


@dataclass(frozen=True, slots=True)
class Intruding:
    """Appends records that are none of a queue's, once there is one."""

    ledger: Ledger
    rounds: int
    keys: tuple[bytes, ...] = STRAY_KEYS

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * 10)
            self.ledger.read(records_of(stage))
            if not self.ledger.turns:
                continue
            try:
                with LogWriter.open(store, QUEUE, runtime=process) as writer:
                    writer.append(STRAY, key=process.random.choice(self.keys))
            except LogError as error:
                stage.excuse(error)


class MisreadStore(SimStore):
    """Reads every fragment damaged, and counts what it writes."""

    num_writes = 0

    def read(self, path: str, *, start: int = 0, length: int | None = None) -> bytes | None:
        data = super().read(path, start=start, length=length)
        return data if data is None or "/log/" not in path else bytes(len(data))

    def create(self, path: str, data: Buffer) -> PutOutcome:
        self.num_writes += 1
        return super().create(path, data)

    def replace(self, path: str, data: Buffer, etag: Etag) -> PutOutcome:
        self.num_writes += 1
        return super().replace(path, data, etag)


@dataclass(frozen=True, slots=True)
class Misreading:
    """Opens the queue, and cannot read it: the broker that has it never learns of that."""

    ledger: Ledger
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = MisreadStore(stage.world, process)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * 10)
            try:
                DelayQueue.open(store, QUEUE, runtime=process)
            except CorruptError:
                self.ledger.seen["failed to open"] += 1
            except LogError as error:
                stage.excuse(error)
            else:
                assert not self.ledger.turns, "a queue was opened that cannot be read"
            assert not store.num_writes, "an opening that failed has written"


@dataclass(frozen=True, slots=True)
class Uncursoring:
    """Deletes the queue's cursor now and then, which is not to be done: key compaction may then go anywhere."""

    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * 10)
            try:
                CursorStore(SimStore(stage.world, process), QUEUE, runtime=process).delete(QUEUE_CURSOR)
            except LogError as error:
                stage.excuse(error)


def counts_of(stats: QueueStats) -> Counts:
    """Return what a ledger counts, too."""
    return Counts(stats.pending, stats.leased, stats.dead, stats.bytes, stats.last_id)


def drawn_queue_options(dice: Random) -> QueueOptions:
    """Many checkpoints, little memory, and little time for an append."""
    return QueueOptions(
        cache_bytes_max=dice.choice((0, 0, 300, 2**20)),
        prefetch_items=dice.choice((0, 2, 100)),
        checkpoint_records=dice.choice((1, 5, 20)),
        checkpoint_bytes=dice.choice((300, 2**20)),
        bytes_waiting_max=dice.choice((1, 2000, 2**20)),
        writer=drawn_options(dice),
        reader=ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, retry=RETRY),
    )


def drawn_serving(dice: Random, ledger: Ledger, definition: QueueDefinition) -> Serving:
    """A few callers, each of which does one thing mostly."""
    roles = (KEEPER, *(dice.choice((PRODUCER, WORKER, KEEPER)) for _ in range(dice.choice((1, 2, 3)))))
    return Serving(
        ledger,
        drawn_queue_options(dice),
        definition,
        roles,
        dice.choice((6, 15)),
        dice.choice((1, 2, 4)),
        dice.random() < 0.6,
    )


def drawn_queue_cast(dice: Random, ledger: Ledger) -> dict[str, Actor]:
    """One broker or several, and what may happen to them and to the log."""
    definition, pace_s = drawn_definition(dice), dice.choice((0.5, 3.0))
    packing = SnapshotCompactorOptions(snapshots=drawn_options(dice).snapshots, retry=RETRY)
    serving = drawn_serving(dice, ledger, definition)
    compacting = replace(drawn_key_compacting(dice, pace_s), log=QUEUE)
    intruding = Intruding(ledger, dice.choice((2, 10)))
    cast: dict[str, Actor] = {"server0": serving}
    chances: dict[str, tuple[float, Actor]] = {
        "server1": (0.5, drawn_serving(dice, ledger, definition)),
        "server2": (0.2, drawn_serving(dice, ledger, definition)),
        "easing": (0.9, Easing(ledger, dice.choice((1, 3)))),
        "compactor0": (0.8, compacting),
        "compactor1": (0.2, compacting),
        "collector": (0.6, Collecting(8, pace_s, QUEUE)),
        "packer": (0.3, Packing(3, pace_s, packing, QUEUE)),
        "looking": (0.5, Looking(ledger, 5)),
        "uncursoring": (0.2, Uncursoring(3)),
        "intruder": (0.4, intruding),
        "misreader": (0.3, Misreading(ledger, 3)),
        "reaper": (0.5, Reaper("server0", dice.random() * pace_s * 8, dice.choice((None, serving)))),
        "freezer": (
            0.4,
            Freezer("server0", dice.random() * pace_s * 4, dice.choice((2.0, 60.0)), clock_stops=dice.random() < 0.5),
        ),
    }
    cast |= {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
    if "intruder" in cast and "uncursoring" not in cast:
        cast["intruder"] = replace(intruding, keys=STRAY_KEYS + NEEDED_KEYS)
    steady = "freezer" not in cast and all(each.steady for each in cast.values() if isinstance(each, Serving))
    ledger.jumps_ms = GAINED_MS if steady else math.inf
    return cast


@dataclass(frozen=True, slots=True)
class QueueEnd:
    """With every fault healed, all that is left is handed out, and the log is sound."""

    ledger: Ledger

    def play(self, stage: Stage, operator: SimProcess) -> None:
        store, ledger = SimStore(stage.world, operator), self.ledger
        operator.steady = True
        caller = self._opened(stage, store, "first")
        self._check_rest(stage, caller)
        num_left = len(ledger.items)
        stage.simulation.now_s += LATER_S
        self._drain(stage, caller)
        # What was handed out so often that it is among the dead letters by now.
        while letters := [item.id for item in caller.queue.dead(EVERYTHING)]:
            ledger.ask([("kick", "")] * len(letters))
            caller.queue.kick_ids(letters)
            self._drain(stage, caller)
        ledger.read(records_of(stage))
        assert not ledger.items, f"never handed out: {ledger.items}"
        self._check_rest(stage, caller)
        caller.queue.close()
        again = self._opened(stage, store, "last")
        assert again.queue.peek() == []
        self._check_rest(stage, again)
        again.queue.close()
        report = scrub(store, QUEUE, runtime=operator)
        assert report.sound, report.problems
        oracle = stage.world.names[QUEUE].life
        reader = LogReader.open(store, QUEUE, runtime=operator)
        found = [Message(record.body, record.key) for record in reader.records()]
        assert found == oracle.messages(reader.manifest()), "the log holds other records"
        stage.world.fired.update({f"queue: {name}": count for name, count in ledger.seen.items()})
        stage.world.fired["queue: left"] += num_left
        stage.world.fired["queue: brokers"] += ledger.num_brokers

    def _opened(self, stage: Stage, store: SimStore, name: str) -> Caller:
        queue = DelayQueue.open_or_create(store, QUEUE, runtime=store.process)
        return Caller(stage, store, queue, self.ledger, f"operator/{name}")

    def _check_rest(self, stage: Stage, caller: Caller) -> None:
        """What the broker counts is what the log has, and so is what another process reads."""
        queue, store, items = caller.queue, caller.store, self.ledger.items
        stats = self._at_rest(stage, queue.stats)
        assert caller.is_broker, "the queue was taken from the operator"
        assert counts_of(stats) == self.ledger.counts[-1], f"expected {self.ledger.counts[-1]}, found {stats}"
        read = self._at_rest(stage, lambda: read_queue_stats(store, QUEUE, runtime=store.process))
        assert counts_of(read) == self.ledger.counts[-1], f"expected {self.ledger.counts[-1]}, found {read}"
        head = self._at_rest(stage, lambda: queue.peek(EVERYTHING))
        pending = sorted(self.ledger.of(PENDING), key=lambda item: item.place)
        assert [(each.id, each.value) for each in head] == [(item.id, item.value) for item in pending]
        letters = self._at_rest(stage, lambda: queue.dead(EVERYTHING))
        assert {each.id: each.value for each in letters} == {item.id: item.value for item in self.ledger.of(DEAD)}
        for item_id in [*items]:
            shown = self._at_rest(stage, lambda item_id=item_id: queue.item(item_id))
            item = items[item_id]
            assert shown.state.value[:1].encode() == item.kind, f"expected {item}, found {shown}"
            assert (shown.deadline_us, shown.deliveries) == (item.deadline_ms * 1000, item.deliveries)

    def _at_rest(self, stage: Stage, ask: Callable[[], T]) -> T:
        """Return an answer between which and the question no lease has ended."""
        while True:
            self.ledger.read(records_of(stage))
            began, answer = self.ledger.turns, ask()
            self.ledger.read(records_of(stage))
            if self.ledger.turns == began:
                return answer

    def _drain(self, stage: Stage, caller: Caller) -> None:
        # Some queues' own leases are shorter than the reading of values may take.
        while found := caller.queue.dequeue(5, lease_s=60):
            self.ledger.read(records_of(stage))
            for each in found:
                caller._check_leased(each)
            changes = [("release", each.token) for each in found]
            self.ledger.ask(changes)
            caller.queue.release_many([(each.id, each.token) for each in found])
            self.ledger.read(records_of(stage))
            caller._is_done(changes)


class LeftOut(logging.Handler):
    """Collects the checkpoints that could not be read. A queue does without one, but only reads may be damaged here."""

    def __init__(self) -> None:
        """Collect nothing yet."""
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Collect a warning about a checkpoint."""
        if "the queue is read from all of its log instead" in record.msg:
            self.found.append(record.getMessage())


@dataclass
class QueueStory(Story):
    """A story about a queue, with turns and parts of checkpoints that are full after a few records, or never."""

    turn_records: int = 20_000
    part_bytes: int = 2**22

    def tell(self) -> None:
        left_out = LeftOut()
        with (
            patch.object(QUEUE_LOGGER, "handlers", [*QUEUE_LOGGER.handlers, left_out]),
            patch.object(broker, "_TURN_RECORDS", self.turn_records),
            patch.object(checkpoint, "PART_BYTES", self.part_bytes),
        ):
            super().tell()
        assert not left_out.found or (self.plan is not None and self.plan.may_spoil), left_out.found[0]


def _create(store: SimStore, process: SimProcess, cast: Mapping[str, Actor]) -> None:
    serving = cast["server0"]
    assert isinstance(serving, Serving)
    DelayQueue.create(store, QUEUE, serving.definition, runtime=process)


def queue_story(seed: int) -> QueueStory:
    """Make the story of a seed about a queue."""
    dice, ledger = random.Random(seed), Ledger()
    cast = drawn_queue_cast(dice, ledger)
    drawn = Swarm.drawn(dice, brief=dice.random() < 0.5)
    # Often so little fails that callers come far.
    rates, seldom = drawn.rates, dice.choice((0.1, 0.3, 1.0))
    plan = Swarm({fault: rate * seldom for fault, rate in rates.items()})
    prelude = Part(lambda _, store, process: _create(store, process, cast)) if dice.random() < 0.7 else None
    sizes = {"turn_records": dice.choice((8, 20_000)), "part_bytes": dice.choice((300, 2000, 2**22))}
    return QueueStory(seed, plan, cast, prelude, QueueEnd(ledger).play, **sizes)
