"""Every store call of a scenario, with every fault and every crash: what is in the store alone must do.

Each run is one scenario with one call failing (or, the long way, one failing and the process dying
at a later one). Then everything is checked as in any story: a writer starts on what is there, the
log is scrubbed, and what callers were told is compared with what is in it.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Maintainer, Sealer, Stage, Sweeper, append_once
from tests.faults.campaign import broken
from tests.faults.cursor_mover import Hand
from tests.faults.history import Read
from tests.faults.plans import CRASHES, FAULTS, Script
from tests.faults.simulator import SimProcess
from tests.faults.store import LOG, SimStore
from tests.faults.story import Story
from wal3_core import CursorStore, LogError, LogExistsError, LogPosition, LogReader, LogWriter, Message, WriterOptions
from wal3_core.model.manifest import EPOCHS_MAX
from wal3_core.options import RetryOptions, SnapshotOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

OPTIONS = WriterOptions(
    batch_bytes_max=1,
    batch_age_s_max=0.0,
    uploads_max=3,
    fragments_in_flight_max=3,
    retry=RetryOptions(attempts_max=2, pause_s_min=0.01, pause_s_max=0.1),
    snapshots=SnapshotOptions(
        fragments_per_snapshot=2,
        fragments_kept=0,
        snapshots_per_roll=2,
        snapshot_pointers_max=4,
        gc_interval_s=1,
    ),
)
SCHEDULES = 2
# What may leave a request under way: the crashes that follow are tried after these.
AMBIGUOUS = ("after", "late")


@dataclass(frozen=True, slots=True)
class Part:
    """An actor that is one function."""

    run: Callable[[Stage, SimStore, SimProcess], None]

    def play(self, stage: Stage, process: SimProcess) -> None:
        try:
            self.run(stage, SimStore(stage.world, process), process)
        except LogError as error:
            stage.excuse(error)


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is there before, and what then happens with every call failing in turn."""

    name: str
    prelude: Actor | None
    cast: Mapping[str, Actor]

    def story(self, seed: int, faults: Mapping[int, str]) -> Story:
        return Story(seed, plan=Script(faults), cast=dict(self.cast), prelude=self.prelude)


def _records(name: str, count: int) -> tuple[Message, ...]:
    return tuple(Message(f"{name}/{index}".encode()) for index in range(count))


def _append(*names: str) -> Part:
    """Append one record after another, then close."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        with LogWriter.open_or_initialize(store, LOG, options=OPTIONS, runtime=process) as writer:
            for name in names:
                append_once(stage, store, writer, _records(name, 1))

    return Part(run)


def _append_at_once(count: int) -> Part:
    """Append from several callers at the same moment: as many fragments are in flight."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        writer = LogWriter.open(store, LOG, options=OPTIONS, runtime=process)
        tasks = [
            stage.simulation.spawn(
                process, f"caller{n}", lambda n=n: append_once(stage, store, writer, _records(f"caller{n}", 2))
            )
            for n in range(count)
        ]
        stage.simulation.block(lambda: all(task.over for task in tasks), None)
        writer.close()

    return Part(run)


def _close_with_appends_under_way(stage: Stage, store: SimStore, process: SimProcess) -> None:
    writer = LogWriter.open(store, LOG, options=OPTIONS, runtime=process)
    tasks = [
        stage.simulation.spawn(
            process, f"caller{n}", lambda n=n: append_once(stage, store, writer, _records(f"closing{n}", 1))
        )
        for n in range(2)
    ]
    stage.simulation.pause(0.001)
    writer.close()
    stage.simulation.block(lambda: all(task.over for task in tasks), None)


def _initialize(stage: Stage, store: SimStore, process: SimProcess) -> None:
    try:
        LogWriter.initialize(store, LOG, runtime=process)
    except LogExistsError:
        assert store.ambiguous, "there was no log"
    except LogError as error:
        stage.excuse(error)


def _append_around(other: Actor) -> Part:
    """Open, let somebody else change the log, then append."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        with LogWriter.open(store, LOG, options=OPTIONS, runtime=process) as writer:
            append_once(stage, store, writer, _records("before", 1))
            other.play(stage, process)
            append_once(stage, store, writer, _records("after", 1))

    return Part(run)


def _append_beside_many(stage: Stage, store: SimStore, process: SimProcess) -> None:
    """Come back to a log on which so many others have written that one's own epoch has left the table."""
    plan = stage.world.plan
    stage.world.heal()
    writer = LogWriter.open(store, LOG, options=OPTIONS, runtime=process)
    append_once(stage, store, writer, _records("before", 1))
    for number in range(EPOCHS_MAX + 1):
        _append(f"other{number}").play(stage, SimProcess(stage.simulation, f"other{number}"))
    stage.world.begin(plan)
    append_once(stage, store, writer, _records("after", 1))
    writer.close()


def _move_cursor(stage: Stage, store: SimStore, process: SimProcess) -> None:
    cursors = CursorStore(store, LOG, runtime=process, retry=OPTIONS.retry)
    hand = Hand(stage, store, cursors, "c")
    for offset in (1, 3, 2):
        if hand.witness is None:
            hand.load()
        hand.move(LogPosition(offset, 0))


def _read(stage: Stage, store: SimStore, process: SimProcess) -> None:
    reader = LogReader.open(store, LOG, runtime=process)
    read = Read(stage.simulation.now_s, 1)
    stage.history.reads.append(read)
    for record in reader.records():
        read.records.append(Message(record.body, record.key))
    read.finished = True


ONE = _append("first")
MANY = _append(*(f"first{n}" for n in range(5)))

SCENARIOS = (
    Scenario("initialize", None, {"victim": Part(_initialize)}),
    Scenario("open", ONE, {"victim": _append()}),
    Scenario("append, 1 fragment in flight", ONE, {"victim": _append_at_once(1)}),
    Scenario("append, 3 fragments in flight", ONE, {"victim": _append_at_once(3)}),
    Scenario("append in a row", None, {"victim": _append("a", "b", "c")}),
    Scenario("roll-over into snapshots", ONE, {"victim": _append(*(f"roll{n}" for n in range(9)))}),
    Scenario("append after maintenance", ONE, {"victim": _append_around(Maintainer(1))}),
    Scenario("append after another writer", ONE, {"victim": _append_around(_append("other"))}),
    Scenario("append after 17 other writers", ONE, {"victim": Part(_append_beside_many)}),
    Scenario("append after a sweep", ONE, {"victim": _append_around(Sweeper(1, 0.0, 0.0))}),
    Scenario("append after a seal", ONE, {"victim": _append_around(Sealer(0.0))}),
    Scenario("two writers at once", ONE, {"victim": _append("a", "b"), "other": _append("x", "y")}),
    Scenario("cursor created, moved on and back", MANY, {"victim": Part(_move_cursor)}),
    Scenario("two hands on a cursor", MANY, {"victim": Part(_move_cursor), "other": Part(_move_cursor)}),
    Scenario("close with appends under way", ONE, {"victim": Part(_close_with_appends_under_way)}),
    Scenario("read through snapshots", MANY, {"victim": Part(_read)}),
    Scenario("seal", ONE, {"victim": Sealer(0.0)}),
    Scenario("sweep", MANY, {"victim": Sweeper(2, 0.1, 0.0)}),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a scenario, its calls, and how many runs with one or two of them failing."""

    scenario: str
    calls: int
    faults: int
    runs: int


def examine(scenario: Scenario, *, schedules: int = SCHEDULES, pairs: bool = False) -> Row:
    """Run a scenario with each call failing in each way; AssertionError names the run that broke a promise."""
    calls, kinds, runs = 0, set[str](), 0
    for seed in range(schedules):
        whole = scenario.story(seed, {})
        how = broken(whole)
        assert how is None, f"{scenario.name}, seed {seed}, no fault: {how}"
        calls = max(calls, len(whole.kinds))
        for faults in _each(whole, scenario, seed, pairs=pairs):
            how = broken(scenario.story(seed, faults))
            assert how is None, f"{scenario.name}, seed {seed}, faults {faults}: {how}"
            kinds.update(faults.values())
            runs += 1
    return Row(scenario.name, calls, len(kinds), runs)


def _each(whole: Story, scenario: Scenario, seed: int, *, pairs: bool) -> Iterator[dict[int, str]]:
    for index, kind in enumerate(whole.kinds):
        for fault in (*FAULTS[kind], *CRASHES[kind]):
            yield {index: fault}
            if pairs and fault in AMBIGUOUS:
                once = scenario.story(seed, {index: fault})
                broken(once)
                for later in range(index + 1, len(once.kinds)):
                    for second in (*FAULTS[once.kinds[later]], *CRASHES[once.kinds[later]]):
                        yield {index: fault, later: second}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="orders in which tasks run")
    parser.add_argument("--pairs", action="store_true", help="also a second fault or crash after an ambiguous one")
    given = parser.parse_args()
    began_s = time.monotonic()
    print("| scenario | store calls | kinds of fault | runs | broken promises |\n|---|---|---|---|---|")
    total = 0
    for scenario in SCENARIOS:
        try:
            row = examine(scenario, schedules=given.schedules, pairs=given.pairs)
        except AssertionError as error:
            sys.exit(str(error))
        total += row.runs
        print(f"| {row.scenario} | {row.calls} | {row.faults} | {row.runs} | 0 |", flush=True)
    print(f"\n{total:,} runs, {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
