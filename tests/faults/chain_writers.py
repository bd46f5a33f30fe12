"""Writers that go on in the successor of a log that was sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import Stage, judged
from tests.faults.chain_owners import attempted
from tests.faults.history import Append
from tests.faults.named_writers import FatefulStore, NamedHand
from tests.faults.store import SimStore
from tests.faults.view_consumers import TOPICS
from wal3_core import LogReader, LogWriter, Message, WriterOptions
from wal3_core.log.write.once import Once
from wal3_core.views.feed.messages import packed

if TYPE_CHECKING:
    from random import Random

    from tests.faults.chain_ledger import ChainLedger
    from tests.faults.simulator import SimProcess

# Fewer than a cursor remembers.
NIGHTS = 8


def drawn_records(stage: Stage, dice: Random, name: str, *, tombstones: bool) -> tuple[Message, ...]:
    """Make messages of a feed, or now and then the only tombstone of its key, which is none."""
    if tombstones and dice.random() < 0.1:
        stage.tombstones += 1
        return (Message(None, b"t%d" % stage.tombstones),)
    return tuple(
        Message(packed(f"{name}/{number}"), dice.choice(TOPICS).encode()) for number in range(dice.choice((1, 1, 3)))
    )


def successor_of(stage: Stage, store: SimStore, log: str) -> str:
    """Return where a log goes on, and the log itself if that is not known."""
    with attempted(stage):
        seal = LogReader.open(store, log, runtime=store.process).manifest().seal
        return log if seal is None or seal.successor is None else seal.successor
    return log


@dataclass(frozen=True, slots=True)
class ChainDriving:
    """The driver of a query whose batches have names, or a job that repeats earlier ones; another one may do the same.

    Where the log is sealed, what is not known to be made is made in its successor, under the same name.
    """

    ledger: ChainLedger
    log: str
    cursor: str
    # Empty for a job, whose appends are in no order.
    series: str
    options: WriterOptions
    batches: int
    pace_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice, named = stage.simulation.dice(f"{process.name}/batches"), self.ledger.named
        store = FatefulStore(stage.world, process)
        hand = NamedHand(stage, store, named, self.options, self.log)
        for _ in range(self.batches):
            stage.simulation.pause(dice.random() * self.pace_s)
            number = named.next_numbers.get(self.series, 0) if self.series else dice.randrange(NIGHTS)
            made = hand.make(self._once(number), dice, dice.choice((1, 2)))
            if made and self.series and dice.random() < 0.9:
                named.next_numbers[self.series] = max(number + 1, named.next_numbers.get(self.series, 0))
            if hand.kept and dice.random() < 0.2:
                # It comes late.
                hand.install(*dice.choice(hand.kept))
            if not made:
                self._go_on(stage, hand)

    def _once(self, number: int) -> Once:
        if self.series:
            return Once(self.cursor, f"{self.series}/{number}", self.series, number)
        return Once(self.cursor, f"night {number}")

    def _go_on(self, stage: Stage, hand: NamedHand) -> None:
        successor = successor_of(stage, hand.store, hand.log)
        if successor != hand.log:
            hand.log, hand.kept = successor, []
            stage.world.fired["chain: named appends went on"] += 1


@dataclass(frozen=True, slots=True)
class ChainWriting:
    """Appends to a log, and to its successors once it is sealed; makes the first one if there is none."""

    ledger: ChainLedger
    log: str
    options: WriterOptions
    appends: int
    pause_s: float
    tombstones: bool

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/appends")
        log, left = self.log, self.appends
        # Until a successor exists, and while the store does not answer.
        for _ in range(12):
            left = self._append(stage, store, log, left, dice)
            if not left:
                return
            stage.simulation.pause(dice.random() * 2)
            log = successor_of(stage, store, log)

    def _append(self, stage: Stage, store: SimStore, log: str, left: int, dice: Random) -> int:
        """Append until the log takes no more; return how many appends are left."""
        opening = LogWriter.open_or_create if log == self.log else LogWriter.open
        with attempted(stage):
            writer = opening(store, log, options=self.options, runtime=store.process)
            for number in range(left, 0, -1):
                stage.simulation.pause(dice.random() * self.pause_s)
                # One that was refused is not made again: what it says is its own.
                name = f"{store.process.name}/{len(self.ledger.appends)}"
                records = drawn_records(stage, dice, name, tombstones=self.tombstones)
                append = Append(records, stage.simulation.now_s)
                self.ledger.appends.append(append)
                with judged(stage, store, append, log=log):
                    append.offset = store.process.wait(writer.submit_many(records)).offset
                if append.outcome in {"sealed", "replaced", "halted", "closed"}:
                    return number
            writer.close()
            return 0
        return left
