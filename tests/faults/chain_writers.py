"""Writers that go on in the successor of a log that was sealed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import judged
from tests.faults.chain_owners import attempted
from tests.faults.history import Append
from tests.faults.store import SimStore
from tests.faults.view_consumers import TOPICS
from wal3_core import LogReader, LogWriter, Message
from wal3_core.views.feed.encoding import packed

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.chain_ledger import ChainLedger
    from tests.faults.simulator import SimProcess
    from wal3_core import WriterOptions


def drawn_records(stage: Stage, dice: Random, name: str) -> tuple[Message, ...]:
    """Make records of feeds, now and then the only tombstone of its key."""
    if dice.random() < 0.1:
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
class ChainWriting:
    """Appends to a log, and to its successors once it is sealed; makes the first one if there is none."""

    ledger: ChainLedger
    log: str
    options: WriterOptions
    appends: int
    pause_s: float

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
        opening = LogWriter.open_or_initialize if log == self.log else LogWriter.open
        with attempted(stage):
            writer = opening(store, log, options=self.options, runtime=store.process)
            for number in range(left, 0, -1):
                stage.simulation.pause(dice.random() * self.pause_s)
                records = drawn_records(stage, dice, f"{store.process.name}/{log}/{number}")
                append = Append(records, stage.simulation.now_s)
                self.ledger.appends.append(append)
                with judged(stage, store, append, log=log):
                    append.offset = store.process.wait(writer.submit_many(records)).offset
                if append.outcome in {"sealed", "replaced", "halted", "closed"}:
                    return number
            writer.close()
            return 0
        return left
