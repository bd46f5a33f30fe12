"""Every store call of a scenario, with every fault and every crash: the content of the store alone must suffice.

Each run is one scenario with one call failing (or, the long way, one failing and the process dying
at a later one). Then everything is checked as in any story: a writer starts on the store's content, the
log is scrubbed, and the callers' outcomes are compared with its records.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random

from tests.faults.actors import Actor, Maintainer, Part, Stage, append_once
from tests.faults.campaign import broken
from tests.faults.collectors import (
    COPY,
    SUCCESSOR,
    Collecting,
    Copying,
    Packing,
    Pinning,
    Sealing,
    check_destroyed,
)
from tests.faults.compaction_casts import Compactable, arranging_casts, compaction_casts
from tests.faults.copy_updates import CollectingCopy, NamedOutdated, Outdated, Updating, check_batch, check_updated
from tests.faults.cursor_mover import Hand
from tests.faults.demanding import Comparer, OrderedWriter
from tests.faults.history import Read
from tests.faults.plans import CRASHES, FAULTS, Script
from tests.faults.rollups import rolling_casts
from tests.faults.second_lives import Reusing, Step
from tests.faults.simulator import SimProcess
from tests.faults.store import LOG, SimStore
from tests.faults.story import Story
from tests.lanes import hash_all_in_lanes_if_asked
from tests.stores import life_store
from wal3_core import (
    CursorStore,
    LogError,
    LogExistsError,
    LogPosition,
    LogReader,
    LogWriter,
    Message,
    ReaderOptions,
    WriterOptions,
)
from wal3_core.format.manifest import EPOCHS_MAX
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.snapshot import Snapshot
from wal3_core.log.maintain.destroyer import destroy
from wal3_core.options import RetryOptions, SnapshotCompactorOptions, SnapshotOptions

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
# One attempt, so that every failure is reported.
HASTY = replace(OPTIONS, delivery_timeout_s=0.0)
SCHEDULES = 2
# Faults that may leave a request under way: the crashes that follow are tried after these.
AMBIGUOUS = ("after", "late")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A prelude, and a cast whose calls each fail in turn."""

    name: str
    prelude: Actor | None
    cast: Mapping[str, Actor]
    end: Callable[[Stage, SimProcess], None] = lambda _stage, _operator: None
    # Whether the log's name is used again.
    lives: bool = False
    # Whether the log is compacted by key.
    compacts: bool = False

    def story(self, seed: int, faults: Mapping[int, str]) -> Story:
        plan, cast = Script(faults), dict(self.cast)
        also = {"end": self.end, "lives": self.lives, "compacts": self.compacts}
        return Story(seed, plan=plan, cast=cast, prelude=self.prelude, interval_s=0.0, **also)


def _records(name: str, count: int) -> tuple[Message, ...]:
    return tuple(Message(f"{name}/{index}".encode()) for index in range(count))


def _append(*names: str) -> Part:
    """Append one record after another, then close."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        with LogWriter.open_or_create(store, LOG, options=OPTIONS, runtime=process) as writer:
            for name in names:
                append_once(stage, store, writer, _records(name, 1))

    return Part(run)


def _append_at_once(count: int) -> Part:
    """Append from several callers at the same moment, with as many fragments in flight."""

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


def _create(stage: Stage, store: SimStore, process: SimProcess) -> None:
    try:
        LogWriter.create(store, LOG, runtime=process)
    except LogExistsError:
        assert store.ambiguous, "there was no log"
    except LogError as error:
        stage.excuse(error)


def _append_around(other: Actor) -> Part:
    """Open, let another actor change the log, then append."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        with LogWriter.open(store, LOG, options=OPTIONS, runtime=process) as writer:
            opened_s = stage.simulation.now_s
            append_once(stage, store, writer, _records("before", 1), opened_s=opened_s)
            other.play(stage, process)
            append_once(stage, store, writer, _records("after", 1), opened_s=opened_s)

    return Part(run)


def _append_beside_many(stage: Stage, store: SimStore, process: SimProcess) -> None:
    """Append after so many other writers that this one's epoch has left the table."""
    plan = stage.world.plan
    stage.world.heal()
    writer = LogWriter.open(store, LOG, options=OPTIONS, runtime=process)
    append_once(stage, store, writer, _records("before", 1))
    for number in range(EPOCHS_MAX + 1):
        _append(f"other{number}").play(stage, SimProcess(stage.simulation, f"other{number}"))
    stage.world.begin(plan)
    append_once(stage, store, writer, _records("after", 1))
    writer.close()


def _move_cursor(stage: Stage, store: SimStore, _: SimProcess) -> None:
    hand = Hand.reaching(stage, store, "c")
    for offset in (1, 3, 2) if hand else ():
        if hand.witness is None:
            hand.load()
        hand.move(LogPosition(offset, 0))


def _use_cursor_again(stage: Stage, store: SimStore, _: SimProcess) -> None:
    """Create a cursor, delete it, and create it again at once."""
    hand = Hand.reaching(stage, store, "c")
    for offset in (3, 2) if hand else ():
        hand.move(LogPosition(offset, 0))
        hand.delete()


def _read(stage: Stage, store: SimStore, process: SimProcess) -> None:
    reader = LogReader.open(store, LOG, runtime=process)
    read = Read(stage.simulation.now_s, 1, reader.manifest().log_id)
    stage.history.reads.append(read)
    for record in reader.records():
        read.see(record, stage.simulation.now_s)
    read.finished = True


def _read_slowly(stage: Stage, store: SimStore, process: SimProcess) -> None:
    """Read so slowly, and with so little loaded ahead, that snapshots are replaced and deleted during the read."""
    options = ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, snapshots_loaded_max=0)
    reader = LogReader.open(store, LOG, options=options, runtime=process)
    read = Read(stage.simulation.now_s, 1, reader.manifest().log_id)
    stage.history.reads.append(read)
    for record in reader.records():
        read.see(record, stage.simulation.now_s)
        stage.simulation.pause(1.0)
    read.finished = True


def _consume(stage: Stage, store: SimStore, process: SimProcess) -> None:
    """Leave a log of which a part is not needed; the cut goes through its snapshots."""
    _append(*(f"first{n}" for n in range(9))).run(stage, store, process)
    CursorStore(store, LOG, runtime=process).create("consumer", LogPosition(6, 0))


def _leave_orphans(stage: Stage, store: SimStore, process: SimProcess) -> None:
    """Leave a log with orphans: uploads of writers that died, and an unused snapshot."""
    MANY.run(stage, store, process)
    manifest = stage.world.oracle.manifest
    assert manifest is not None
    for number in range(2):
        life_store(store, LOG).create(f"{fragment_path(FragmentSeqNo(number + 1), process.token())}", b"never linked")
    unused = Snapshot(manifest.pointers[:1], manifest.fence, manifest.log_id)
    life_store(store, LOG).create(unused.pointer_to(unused.to_bytes()).path, unused.to_bytes())


def _copied(stage: Stage, store: SimStore, process: SimProcess) -> None:
    MANY.run(stage, store, process)
    Copying(0.0).play(stage, process)


def _destroy(_: Stage, store: SimStore, process: SimProcess) -> None:
    destroy(store, COPY, runtime=process)


def _check_copy_destroyed(stage: Stage, operator: SimProcess) -> None:
    check_destroyed(stage, operator, COPY)


def _take(*steps: Step) -> Reusing:
    return Reusing(tuple((0.0, step) for step in steps), with_cursors=True)


def _both(one: Step, other: Step) -> dict[str, Actor]:
    return {"victim": _take(one), "other": _take(other)}


def _let(stage: Stage, other: Actor, name: str) -> None:
    """Run another actor in a process of its own, until it ends or dies."""
    process = SimProcess(stage.simulation, name)
    task = stage.simulation.spawn(process, name, lambda: other.play(stage, process))
    stage.simulation.block(lambda: task.over, None)


def _move_cursor_around(other: Actor) -> Part:
    """Create a cursor, let another actor end its log, then move it with the old witness."""

    def run(stage: Stage, store: SimStore, _: SimProcess) -> None:
        hand = Hand.reaching(stage, store, "c")
        for offset in (3, 2, 4) if hand else ():
            if hand.witness is None:
                hand.load()
            hand.move(LogPosition(offset, 0))
            _let(stage, other, f"around-{offset}")

    return Part(run)


def _read_around(other: Actor) -> Part:
    """Open, let another actor end the log, then read: records of the opened log, or nothing."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        reader = LogReader.open(store, LOG, runtime=process)
        read = Read(stage.simulation.now_s, 1, reader.manifest().log_id)
        stage.history.reads.append(read)
        for record in reader.records():
            read.see(record, stage.simulation.now_s)
            if record.offset == 1:
                other.play(stage, process)

    return Part(run)


def _backed_up(*steps: Step) -> Part:
    """Leave a log with a cursor and a copy, after these steps."""

    def run(stage: Stage, store: SimStore, process: SimProcess) -> None:
        MANY.run(stage, store, process)
        hand = Hand.reaching(stage, store, "c")
        assert hand is not None
        hand.move(LogPosition(2, 0))
        _take(*steps).play(stage, process)

    return Part(run)


ONE, MANY = _append("first"), _append(*(f"first{n}" for n in range(5)))
CONSUMED = Part(_consume)
LONG = _append(*(f"first{n}" for n in range(14)))
COPIED = Part(_copied)
OUTDATED = Outdated(COPIED, OPTIONS)
ORPHANS = Part(_leave_orphans)
# Twice the shape that the writers keep.
PACKING = SnapshotCompactorOptions(snapshots=replace(OPTIONS.snapshots, fragments_per_snapshot=4), retry=OPTIONS.retry)
# So much larger that every leaf of the writers is repacked.
REPACKING = replace(PACKING, snapshots=replace(OPTIONS.snapshots, fragments_per_snapshot=16))

ONE_LIFE = (
    Scenario("create", None, {"victim": Part(_create)}),
    Scenario("open", ONE, {"victim": _append()}),
    Scenario("append, 1 fragment in flight", ONE, {"victim": _append_at_once(1)}),
    Scenario("append, 3 fragments in flight", ONE, {"victim": _append_at_once(3)}),
    Scenario("append in a row", None, {"victim": _append("a", "b", "c")}),
    Scenario("append until snapshots are written", ONE, {"victim": _append(*(f"roll{n}" for n in range(9)))}),
    Scenario("append after maintenance", ONE, {"victim": _append_around(Maintainer(1))}),
    Scenario("append after another writer", ONE, {"victim": _append_around(_append("other"))}),
    Scenario("append after 17 other writers", ONE, {"victim": Part(_append_beside_many)}),
    Scenario("append after a collection", CONSUMED, {"victim": _append_around(Collecting(1, 0.0))}),
    Scenario("append in order", ONE, {"victim": OrderedWriter(HASTY, 3)}),
    Scenario("append where the log is expected to end", ONE, {"victim": Comparer(HASTY, 2), "other": _append("x")}),
    Scenario("append after a seal", ONE, {"victim": _append_around(Sealing(0.0))}),
    Scenario("two writers at once", ONE, {"victim": _append("a", "b"), "other": _append("x", "y")}),
    Scenario("cursor created, moved on and back", MANY, {"victim": Part(_move_cursor)}),
    Scenario("two processes move one cursor", MANY, {"victim": Part(_move_cursor), "other": Part(_move_cursor)}),
    Scenario("cursor deleted and re-created", MANY, {"victim": Part(_use_cursor_again), "other": Part(_move_cursor)}),
    Scenario("close with appends under way", ONE, {"victim": Part(_close_with_appends_under_way)}),
    Scenario("read through snapshots", MANY, {"victim": Part(_read)}),
    Scenario("seal", ONE, {"victim": Sealing(0.0)}),
    Scenario("migrate", MANY, {"victim": Sealing(0.0, SUCCESSOR)}),
    Scenario("migrate while appending", ONE, {"victim": Sealing(0.0, SUCCESSOR), "writer": _append("a", "b")}),
    Scenario("collect", CONSUMED, {"victim": Collecting(2, 0.1)}),
    Scenario("collect while creating a cursor", CONSUMED, {"victim": Collecting(1, 0.1), "mover": Part(_move_cursor)}),
    Scenario(
        "collect while re-creating a cursor", CONSUMED, {"victim": Part(_use_cursor_again), "o": Collecting(1, 0.1)}
    ),
    Scenario("two collectors at once", CONSUMED, {"victim": Collecting(1, 0.1), "other": Collecting(1, 0.1)}),
    Scenario("collect while appending", CONSUMED, {"victim": Collecting(1, 0.1), "writer": _append("a", "b", "c")}),
    Scenario("collect orphans", ORPHANS, {"victim": Collecting(2, 0.1)}),
    Scenario("collect orphans while appending", ORPHANS, {"victim": Collecting(1, 0.1), "writer": _append("a", "b")}),
    Scenario("pin, read, delete the pin, pin again", MANY, {"victim": Pinning(0.0, 0.1, rounds=2)}),
    Scenario("collect while creating a pin", CONSUMED, {"victim": Collecting(2, 0.1), "pinner": Pinning(0.0, 0.2)}),
    Scenario("compact snapshots", MANY, {"victim": Packing(1, 0.1, PACKING)}),
    Scenario("compact while appending", MANY, {"victim": Packing(1, 0.1, PACKING), "writer": _append("a", "b", "c")}),
    Scenario("compact and collect", ORPHANS, {"victim": Packing(1, 0.1, PACKING), "collector": Collecting(4, 0.3)}),
    Scenario(
        "read while compacting and collecting",
        LONG,
        {"victim": Part(_read_slowly), "packer": Packing(1, 0.5, REPACKING), "collector": Collecting(8, 0.5)},
    ),
    Scenario("copy", MANY, {"victim": Copying(0.0)}),
    Scenario("copy while collecting", CONSUMED, {"victim": Copying(0.0), "collector": Collecting(2, 0.1)}),
    Scenario("update a copy", OUTDATED, {"victim": Updating()}, end=check_updated),
    Scenario("two updates of a copy at once", OUTDATED, {"victim": Updating(), "o": Updating()}, end=check_updated),
    Scenario("use a copy", NamedOutdated(OUTDATED), {"victim": Updating(1, with_cursors=True)}, end=check_batch),
    Scenario("update and collect a copy", OUTDATED, {"victim": Updating(2), "o": CollectingCopy()}, end=check_updated),
    Scenario("destroy", COPIED, {"victim": Part(_destroy)}, end=_check_copy_destroyed),
)

BACKED_UP, DESTROYED = _backed_up("back up"), _backed_up("back up", "destroy")
# Steps that two processes start at once, what the name says besides, and the prelude of each.
TWICE: tuple[tuple[Step, str, Actor | None], ...] = (
    ("create", "", None),
    ("create", ", at a destroyed name", DESTROYED),
    ("back up", "", _backed_up()),
    ("restore", "", DESTROYED),
    ("create successor", "", DESTROYED),
    ("seal", "", MANY),
    ("destroy", "", BACKED_UP),
    ("destroy backup", "", BACKED_UP),
    ("pin", "", MANY),
)
# Two different steps at once on the same name, and the prelude.
BESIDE: tuple[tuple[Step, Step, Actor | None], ...] = (
    ("destroy", "create", BACKED_UP),
    ("destroy", "restore", BACKED_UP),
    ("destroy", "back up", _backed_up()),
    ("destroy with pins", "back up", _backed_up()),
    ("destroy backup", "back up", _backed_up()),
    ("destroy backup", "restore", DESTROYED),
    ("create", "restore", DESTROYED),
    ("create", "create successor", DESTROYED),
    ("restore", "create successor", DESTROYED),
    ("seal", "destroy", MANY),
    ("undo destroy", "destroy", MANY),
)
AGAIN, RESTORED = _take("destroy", "create"), _take("destroy", "restore")
SECOND_LIVES = (
    *(Scenario(f"{step} twice at once{at}", before, _both(step, step), lives=True) for step, at, before in TWICE),
    *(Scenario(f"{one} and {other} at once", before, _both(one, other), lives=True) for one, other, before in BESIDE),
    Scenario("append, destroy, create, append", BACKED_UP, {"victim": _append_around(AGAIN)}, lives=True),
    Scenario("append, destroy, restore, append", BACKED_UP, {"victim": _append_around(RESTORED)}, lives=True),
    Scenario("append during destroy and create", BACKED_UP, {"victim": _append("a", "b"), "o": AGAIN}, lives=True),
    Scenario("append during destroy and restore", BACKED_UP, {"victim": _append("a", "b"), "o": RESTORED}, lives=True),
    Scenario("cursor moved between restores", BACKED_UP, {"victim": _move_cursor_around(RESTORED)}, lives=True),
    Scenario("read during a restore", BACKED_UP, {"victim": _read_around(RESTORED)}, lives=True),
    Scenario("collect during a restore", BACKED_UP, {"victim": Collecting(2, 0.05), "o": RESTORED}, lives=True),
    Scenario("compact during a restore", BACKED_UP, {"victim": Packing(2, 0.05, PACKING), "o": RESTORED}, lives=True),
    Scenario("destroy while creating a pin", MANY, {"victim": _take("destroy"), "o": Pinning(0.0, 3.0)}, lives=True),
)
ROLL_UPS = (Scenario(name, ONE, cast) for name, cast in rolling_casts(OPTIONS).items())
ARRANGED = Compactable(OPTIONS, keeps_all=True)
KEY_COMPACTIONS = (
    *(
        Scenario(name, Compactable(OPTIONS), cast, lives="reuser" in cast, compacts=True)
        for name, cast in compaction_casts(OPTIONS).items()
    ),
    *(Scenario(name, ARRANGED, cast, compacts=True) for name, cast in arranging_casts(OPTIONS).items()),
)
SCENARIOS = (*ONE_LIFE, *ROLL_UPS, *SECOND_LIVES, *KEY_COMPACTIONS)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a scenario, its calls, and the number of runs with one or two of them failing."""

    scenario: str
    calls: int
    faults: int
    runs: int


def examine(
    scenario: Scenario, *, schedules: int = SCHEDULES, pairs: bool = False, only: str = "", runs_max: int | None = None
) -> Row:
    """Run a scenario with each call failing in each way; AssertionError names the run that broke a promise.

    ``only`` selects the faults whose names end with it; ``runs_max`` limits the runs, spread over all calls and kinds.
    """
    calls, kinds, runs = 0, set[str](), 0
    for seed in range(schedules):
        whole = scenario.story(seed, {})
        how = broken(whole)
        assert how is None, f"{scenario.name}, seed {seed}, no fault: {how}"
        calls = max(calls, len(whole.kinds))
        every = [
            each for each in _each(whole, scenario, seed, pairs=pairs) if all(f.endswith(only) for f in each.values())
        ]
        for faults in every if runs_max is None else Random(0).sample(every, min(runs_max, len(every))):
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


def _examined(number: int, *, schedules: int, pairs: bool, runs_max: int | None) -> Row | str:
    """Examine one scenario in a process of its own; return its row, or how a promise was broken."""
    try:
        return examine(SCENARIOS[number], schedules=schedules, pairs=pairs, runs_max=runs_max)
    except AssertionError as error:
        return str(error)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=SCHEDULES, help="orders in which tasks run")
    parser.add_argument("--pairs", action="store_true", help="also a second fault or crash after an ambiguous one")
    parser.add_argument("--only", default="", help="scenarios whose names contain this")
    parser.add_argument("--runs-max", type=int, help="at most so many runs of a scenario's schedule, drawn from all")
    given = parser.parse_args()
    began_s, total = time.monotonic(), 0
    print("| scenario | store calls | kinds of fault | runs | broken promises |\n|---|---|---|---|---|")
    numbers = [number for number, scenario in enumerate(SCENARIOS) if given.only in scenario.name]
    examined = partial(_examined, schedules=given.schedules, pairs=given.pairs, runs_max=given.runs_max)
    # Spawned: a fork would inherit Arrow's threads.
    with multiprocessing.get_context("spawn").Pool(None, hash_all_in_lanes_if_asked) as pool:
        for row in pool.imap(examined, numbers):
            if isinstance(row, str):
                sys.exit(row)
            total += row.runs
            print(f"| {row.scenario} | {row.calls} | {row.faults} | {row.runs} | 0 |", flush=True)
    print(f"\n{total:,} runs, {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
