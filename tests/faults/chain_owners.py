"""Consumers of a log and its successors, and whoever deletes their cursors."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.store import SimStore
from tests.faults.view_consumers import READING
from wal3_core import (
    Consumer,
    ConsumerOptions,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    LogNotFoundError,
)
from wal3_core.errors import CursorConflictError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.chain_ledger import ChainLedger, Course
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess
    from wal3_core import Message
    from wal3_core.log.read.consumed import ConsumedRecord


def everything(_record: Message) -> bool:
    """Want every record."""
    return True


@dataclass
class Sitting:
    """One opened consumer: where it is, in which log of its course."""

    ledger: ChainLedger
    course: Course
    life: Oracle
    place: int = 0

    def __post_init__(self) -> None:
        self.place = max(self.course.start, self.life.begins)

    def see(self, record: ConsumedRecord) -> None:
        """Check the next record."""
        stage = self.ledger.stage
        if record.log != self.life.log:
            self._go_on(record)
        if record.offset < self.place:
            stage.fail(f"{self.course.name} in {record.log}: given {record.offset} after {self.place}")
        held = self.life.records[record.offset - 1]
        if (record.body, record.key) != (held.body, held.key):
            stage.fail(f"{self.course.name} in {record.log}: altered: {record}")
        self.ledger.passed(self.course, self.life, self.place, record.offset)
        self.place = record.offset + 1
        self.course.given[record.offset] += 1

    def _go_on(self, record: ConsumedRecord) -> None:
        """Go on in the successor."""
        following = [each for each in self.ledger.successors(self.life) if each.log == record.log]
        if not following:
            self.ledger.stage.fail(f"{self.course.name}: given {record}, and that log is no successor of its own")
        self.ledger.passed(self.course, self.life, self.place, len(self.life.records) + 1)
        self.life = following[-1]
        self.place = self.life.begins
        self.ledger.stage.world.fired["chain: went on in the successor"] += 1


@dataclass(frozen=True, slots=True)
class Consuming:
    """Opens a consumer several times, and processes some records; it is closed, or left as it is."""

    ledger: ChainLedger
    name: str
    log: str
    start: str
    options: ConsumerOptions
    rounds: int
    # Between two records, and before it is opened.
    pause_s: float
    after_s: float = 0.0

    def play(self, stage: Stage, process: SimProcess) -> None:
        dice = stage.simulation.dice(f"{process.name}/consuming")
        stage.simulation.pause(self.after_s)
        for _ in range(self.rounds):
            stage.simulation.pause(dice.random() * self.pause_s * 4)
            with attempted(stage):
                self.consume(stage, process, dice.randrange(1, 30), dice)

    def consume(self, stage: Stage, process: SimProcess, records_max: int, dice: Random) -> bool:
        """Process so many records, or all until it is idle; return whether it was that."""
        names, ledger = stage.world.names, self.ledger
        life = names[self.log].life
        consumer = Consumer(
            SimStore(stage.world, process),
            self.log,
            self.name,
            start=self.start,
            options=self.options,
            runtime=process,
        )
        course: Course | None = None
        try:
            with consumer:
                if names[self.log].life is not life:
                    return False
                course = ledger.opened(self.name, life, everything)
                if course is None:
                    return False
                return self._process(stage, consumer, Sitting(ledger, course, life), records_max, dice)
        except GarbageCollectedError as error:
            tell_gone(stage, ledger, course, error)
            return False

    def _process(
        self, stage: Stage, consumer: Consumer, sitting: Sitting, records_max: int, dice: Random
    ) -> bool:
        course, count = sitting.course, 0
        for record in consumer:
            # Asked for the next one, or left, it has processed this one.
            sitting.see(record)
            stage.simulation.pause(dice.random() * self.pause_s)
            course.done.add(record.offset)
            count += 1
            if count == records_max:
                return False
        return True


def tell_gone(stage: Stage, ledger: ChainLedger, course: Course | None, error: GarbageCollectedError) -> None:
    """End the course of an owner that was told that records are gone; it must be so."""
    if course is None:
        stage.excuse(error)
        return
    if course.living and not ledger.is_gone(course):
        stage.fail(f"{course.name}: told that records are gone, and none is that it needs: {error}")
    course.living = False
    stage.world.fired["chain: told that records are gone"] += 1


@contextlib.contextmanager
def attempted(stage: Stage) -> Iterator[None]:
    """Ignore what other processes and the world explain: the log is not there, or the cursor was moved."""
    try:
        yield
    except (LogNotFoundError, CursorConflictError):
        stage.simulation.pause(0.5)
    except LogError as error:
        stage.excuse(error)


@dataclass(frozen=True, slots=True)
class Retiring:
    """Deletes a cursor for good, in each log that has it, and tries until that is certain."""

    ledger: ChainLedger
    name: str
    logs: tuple[str, ...]
    after_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        stage.simulation.pause(self.after_s)
        self.ledger.retire(self.name)
        gone = [self._delete(stage, process, log) for log in self.logs]
        stage.world.fired["chain: retired"] += all(gone)

    def _delete(self, stage: Stage, process: SimProcess, log: str) -> bool:
        for _ in range(3):
            try:
                CursorStore(SimStore(stage.world, process), log, runtime=process).delete(self.name)
            except InvalidRequestError:
                return True
            except LogError as error:
                stage.excuse(error)
            else:
                return True
        return False
