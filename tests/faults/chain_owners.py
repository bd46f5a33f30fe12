"""Consumers of a log and its successors, and processes that delete their cursors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.faults.store import SimStore
from wal3_core import (
    Consumer,
    ConsumerOptions,
    CursorStore,
    GarbageCollectedError,
    InvalidRequestError,
    LogError,
    LogExistsError,
    LogNotFoundError,
    Message,
)
from wal3_core.errors import CursorConflictError

if TYPE_CHECKING:
    from random import Random

    from tests.faults.actors import Stage
    from tests.faults.chain_ledger import ChainLedger, Course
    from tests.faults.oracle import Oracle
    from tests.faults.simulator import SimProcess
    from wal3_core.log.read.consumer import ConsumedRecord


EVERYTHING = 10_000


def everything(_record: Message) -> bool:
    """Want every record."""
    return True


@dataclass
class Sitting:
    """One opened consumer: which logs of its course it reads, and how far it is in each."""

    ledger: ChainLedger
    course: Course
    places: dict[Oracle, int] = field(default_factory=dict)

    def see(self, record: ConsumedRecord) -> None:
        """Check the next record of a log."""
        stage, life = self.ledger.stage, self._life(record)
        if record.offset < self.places[life]:
            stage.fail(f"{self.course.name} in {record.log}: given {record.offset} after {self.places[life]}")
        held = life.records[record.offset - 1]
        if (record.body, record.key) != (held.body, held.key):
            stage.fail(f"{self.course.name} in {record.log}: altered: {record}")
        self.ledger.passed(self.course, life, self.places[life], record.offset)
        self.places[life] = record.offset + 1
        self.course.given[record.offset] += 1

    def _life(self, record: ConsumedRecord) -> Oracle:
        """Return the log of a record; a successor is come to when the log before it has been given to its end."""
        for life in self.places:
            if life.log == record.log:
                return life
        for before in sorted(self.places, key=lambda each: -each.begins):
            chain = [*self.ledger.successors(before)]
            found = next((at for at, life in enumerate(chain) if life.log == record.log), 0)
            if found:
                for life in chain[:found]:
                    begin = self.places.setdefault(life, self.course.start(life))
                    self.ledger.passed(self.course, life, begin, len(life.records) + 1)
                self.ledger.stage.world.fired["chain: went on in the successor"] += 1
                self.places[chain[found]] = self.course.start(chain[found])
                return chain[found]
        self.ledger.stage.fail(f"{self.course.name}: given {record}, which is of no successor of its logs")
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Consuming:
    """Opens a consumer several times, and processes some records; it is closed, or left as it is."""

    ledger: ChainLedger
    name: str
    logs: tuple[str, ...]
    start: str | int
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

    def consume(self, stage: Stage, process: SimProcess, records_max: int, dice: Random) -> None:
        """Process so many records, or all until it is idle."""
        names, ledger = stage.world.names, self.ledger
        lives = [names[log].life for log in self.logs]
        had = [ledger.has(self.name, life) and (self.name, life) not in ledger.unseen for life in lives]
        consumer = Consumer(
            SimStore(stage.world, process),
            self.logs,
            self.name,
            start=self.start,
            options=self.options,
            runtime=process,
        )
        course: Course | None = None
        try:
            with consumer:
                if moved := {names[log].life for log in self.logs}.difference(lives):
                    # Where it begins in these, the next opening sees.
                    ledger.unseen |= {(self.name, life) for life in moved}
                    return
                courses = [
                    ledger.opened(self.name, life, everything, had=each) for life, each in zip(lives, had, strict=True)
                ]
                course = courses[0]
                # After a restore, the second log is not the successor of the first.
                if course is None or any(each is not course for each in courses):
                    return
                self._process(
                    stage,
                    consumer,
                    Sitting(ledger, course, {each: course.start(each) for each in lives}),
                    records_max,
                    dice,
                )
        except GarbageCollectedError as error:
            tell_gone(stage, ledger, course, process, error)
        except InvalidRequestError:
            # The log does not reach its start yet.
            if course is not None or not isinstance(self.start, int):
                raise

    def drain(self, stage: Stage, operator: SimProcess, lives: Sequence[Oracle]) -> None:
        """Process all that is left, from the first log of a chain on."""
        dice = stage.simulation.dice(f"operator drains {self.name}")
        replace(self, logs=(lives[0].log,)).consume(stage, operator, EVERYTHING, dice)

    def _process(self, stage: Stage, consumer: Consumer, sitting: Sitting, records_max: int, dice: Random) -> None:
        for count, record in enumerate(consumer, 1):
            # Asked for the next one, or left, it has processed this one.
            sitting.see(record)
            stage.simulation.pause(dice.random() * self.pause_s)
            sitting.course.done.add(record.offset)
            if count == records_max:
                return


def tell_gone(
    stage: Stage, ledger: ChainLedger, course: Course | None, process: SimProcess, error: GarbageCollectedError
) -> None:
    """End the course of an owner that has heard that records are gone; it must be so.

    Or another process of the same name has processed them meanwhile, and moved the cursor.
    """
    if course is None or ledger.moved_by_twin(course, process.name):
        stage.excuse(error)
        return
    if course.living and not ledger.is_gone(course):
        stage.fail(f"{course.name}: heard that records are gone, and none is that it needs: {error}")
    course.living = False
    stage.world.fired["chain: heard that records are gone"] += 1


@contextlib.contextmanager
def attempted(stage: Stage) -> Iterator[None]:
    """Ignore what other processes and the world explain: the log is not there, or the cursor was moved."""
    try:
        yield
    except (LogNotFoundError, LogExistsError, CursorConflictError):
        stage.simulation.pause(0.5)
    except InvalidRequestError as error:
        stage.fail(f"refused, and nothing explains it: {error}")
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
