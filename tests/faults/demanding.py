"""Writers with conditions: no hole in the submitted records, or a record at one offset and no other."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import Server, Stage, await_all, judged
from tests.faults.history import Append, Stretch
from tests.faults.store import LATE_S_MAX, LOG, SimStore
from wal3_core import (
    CorruptError,
    LogError,
    LogPosition,
    LogWriter,
    Message,
    UnavailableError,
    UnknownDurabilityError,
    WriterOptions,
)

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess


@dataclass(frozen=True, slots=True)
class OrderedWriter:
    """Submits without waiting; at the first failure resumes, which reports what is in the log, and continues."""

    options: WriterOptions
    rounds: int
    server: Server | None = None

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/ordered")
        options = self.options
        try:
            marks = None if self.server is None else self.server.open(store)
            writer = LogWriter.open_or_create(store, LOG, options=options, runtime=process, ordered=True, marks=marks)
        except LogError as error:
            stage.excuse(error)
            return
        stretch = Stretch()
        stage.history.stretches.append(stretch)
        for number in range(self.rounds):
            stage.simulation.pause(dice.choice((0.0, 0.1, 5.0)))
            submitted = self._submit(stage, store, writer, dice, f"{process.name}/{number}")
            stretch.appends += [append for append, _ in submitted]
            acked = [_acked(stage, store, append, future) for append, future in submitted]
            if not all(acked):
                # A late request may arrive before the resume, or after it.
                stage.simulation.pause(dice.choice((0.0, LATE_S_MAX)))
                self._resume(stage, writer, stretch)
                stage.simulation.pause(dice.choice((0.0, LATE_S_MAX)))
                stretch = Stretch()
                stage.history.stretches.append(stretch)
        writer.close()

    def _submit(
        self, stage: Stage, store: SimStore, writer: LogWriter, dice: Random, name: str
    ) -> list[tuple[Append, Future[LogPosition] | None]]:
        submitted = []
        for index in range(dice.choice((1, 2, 6))):
            records = tuple(Message(f"{name}/{index}/{n}".encode()) for n in range(dice.choice((1, 1, 3))))
            append = Append(records, stage.simulation.now_s, marked=self.server is not None)
            stage.history.appends.append(append)
            future: Future[LogPosition] | None = None
            with judged(stage, store, append):
                future = writer.submit_many(records)
            submitted.append((append, future))
        return submitted

    def _resume(self, stage: Stage, writer: LogWriter, stretch: Stretch) -> None:
        for _ in range(20):
            try:
                stretch.resumed = writer.resume()
            except UnknownDurabilityError:
                return
            except (UnavailableError, CorruptError) as error:
                # Unanswered, or damaged in transit repeatedly: it stays halted.
                stage.excuse(error)
                stage.simulation.pause(5.0)
            else:
                stage.world.fired["resumed"] += 1
                stage.world.fired["determined"] += stretch.resumed.determined
                self._promised(stage, stretch.appends[: stretch.resumed.appends])
                return

    def _promised(self, stage: Stage, durable: Sequence[Append]) -> None:
        """What was unknown, and is reported as durable, is marked."""
        for append in durable:
            if append.marked and append.outcome == "unknown":
                stage.promised(LOG, append)
                stage.world.fired["marked when resumed"] += 1


def _acked(stage: Stage, store: SimStore, append: Append, future: Future[LogPosition] | None) -> bool:
    if future is not None:
        with judged(stage, store, append):
            append.offset = store.process.wait(future).offset
    return append.outcome == "acked"


@dataclass(frozen=True, slots=True)
class Comparer:
    """Appends only where it knows the log to end, several at a time, beside a caller without conditions."""

    options: WriterOptions
    rounds: int

    def play(self, stage: Stage, process: SimProcess) -> None:
        store, dice = SimStore(stage.world, process), stage.simulation.dice(f"{process.name}/comparing")
        try:
            writer = LogWriter.open_or_create(store, LOG, options=self.options, runtime=process)
        except LogError as error:
            stage.excuse(error)
            return
        beside = stage.simulation.spawn(
            process, f"{process.name}:beside", lambda: self._append_beside(stage, store, writer)
        )
        known = 1
        for number in range(self.rounds):
            stage.simulation.pause(dice.choice((0.0, 0.0, 0.05, 2.0)))
            known = self._compare(stage, store, writer, known, f"{process.name}/{number}")
        await_all(stage.simulation, [beside])
        writer.close()

    def _compare(self, stage: Stage, store: SimStore, writer: LogWriter, known: int, name: str) -> int:
        """Append a few records in a row; return where the log ended, as far as the answers show."""
        under_way: list[tuple[Append, Future[LogPosition] | None]] = []
        expected = known
        for index in range(3):
            append = Append((Message(f"{name}/{index}".encode()),), stage.simulation.now_s, expected=expected)
            stage.history.appends.append(append)
            future: Future[LogPosition] | None = None
            with judged(stage, store, append):
                future = writer.submit_many(append.records, expect_next=expected)
            under_way.append((append, future))
            expected += 1
        for append, future in under_way:
            if _acked(stage, store, append, future):
                known = expected = (append.offset or 0) + 1
            elif append.found is not None:
                known = append.found
        return known

    def _append_beside(self, stage: Stage, store: SimStore, writer: LogWriter) -> None:
        dice = stage.simulation.dice(f"{store.process.name}/beside")
        for number in range(dice.choice((0, 1, 3))):
            stage.simulation.pause(dice.random())
            append = Append((Message(f"{store.process.name}/beside/{number}".encode()),), stage.simulation.now_s)
            stage.history.appends.append(append)
            with judged(stage, store, append):
                append.offset = writer.append_many(append.records).offset


def check_conditions(stage: Stage) -> None:
    """A record with a condition is at its offset; a failed condition reported an end that the log really had."""
    offsets = {message: offset for offset, message in enumerate(stage.world.oracle.records, start=1)}
    for append in stage.history.appends:
        if append.expected is None:
            continue
        offset = offsets.get(append.records[0])
        assert offset in {None, append.expected}, f"not where it had to be, at {offset}: {append}"
        if append.outcome == "unmet":
            assert append.found != append.expected, f"refused, though the log ended there: {append}"
            assert append.found in _ends(stage, append), f"the log never ended there meanwhile: {append}"
            stage.world.fired["condition not met"] += 1
        stage.world.fired["condition met"] += append.outcome == "acked"


def _ends(stage: Stage, append: Append) -> Sequence[int]:
    """The offsets where the log ended while an append was under way."""
    ends = stage.world.oracle.ends
    before = [end for at_s, end in ends if at_s < append.began_s][-1:]
    return before + [end for at_s, end in ends if append.began_s <= at_s <= append.ended_s]
