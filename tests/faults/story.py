"""One seed's story: its actors, what happens to them, and what must hold in the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tests.faults.actors import (
    Actor,
    Freezer,
    HistoryReader,
    Maintainer,
    Reaper,
    Scrubber,
    Stage,
    TailReader,
    Writer,
    append_once,
    drawn_options,
)
from tests.faults.collectors import (
    COPY,
    DOOMED,
    SUCCESSOR,
    Collecting,
    Copying,
    Destroying,
    Packing,
    Pinning,
    Sealing,
    check_copy,
    check_destroyed,
    check_successor,
    collector_options,
)
from tests.faults.compactors import COMPACTED, compacted_cast, finish_compaction
from tests.faults.cursor_mover import Consumer, CursorMover
from tests.faults.demanding import Comparer, OrderedWriter, check_conditions
from tests.faults.fleets import check_fleet_logs
from tests.faults.marked_casts import FLEET_LOGS, MARKED, SLOW_S, marked_cast
from tests.faults.plans import Kind, Plan, Swarm
from tests.faults.rollups import check_marked
from tests.faults.second_lives import Reusing, check_all_destroyed, destroy_unfinished, drawn_steps
from tests.faults.short_writers import ShortWriter, check_small
from tests.faults.simulator import YEAR_US, SimProcess, Simulation
from tests.faults.store import LATE_S_MAX, LOG, OUTAGE_S_MAX, SimStore, World
from wal3_core import (
    CursorStore,
    LogPosition,
    LogReader,
    LogWriter,
    Message,
    ReaderOptions,
    WriterOptions,
    scrub,
)
from wal3_core.format.paths import CLOCK, rolled_up_path
from wal3_core.log.collect.collector import collect
from wal3_core.log.maintain.copy.copier import LogAt, copy
from wal3_core.options import RetryOptions, SnapshotCompactorOptions
from wal3_core.store.documents.pin_store import PinStore

if TYPE_CHECKING:
    from random import Random


PROGRESS_S_MAX = 120.0
# Under many faults at once, a writer may try for more than an hour.
STORY_S_MAX = 4 * 3600.0
# The share of stories that are all maintenance, crowded into a few seconds.
BRIEF = 0.4
# The share of stories in which the log's name is used again.
REUSED = 0.4
# So that little is loaded by the time that maintenance replaces it.
FRUGAL = ReaderOptions(prefetch_fragments=1, prefetch_snapshots=1, snapshots_loaded_max=1)
# The share of the brief stories in which a consumer saves its cursor without a pause.
BUSY = 0.3


def drawn_packing(dice: Random) -> SnapshotCompactorOptions:
    """Another shape than the writers keep, so that there is something to repack."""
    return SnapshotCompactorOptions(
        snapshots=drawn_options(dice).snapshots,
        pointers_per_step_max=dice.choice((2, 100)),
        retry=RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5),
    )


def drawn_hasty(dice: Random) -> WriterOptions:
    """Little time for each append, so that many outcomes are unknown."""
    return replace(drawn_options(dice), delivery_timeout_s=dice.choice((0.0, 0.0, 2.0)))


def drawn_actors(dice: Random) -> dict[str, Actor]:
    """A mix of all actors at a leisurely pace."""
    cast: dict[str, Actor] = {}
    for number in range(dice.choice((1, 2, 2, 3, 4))):
        cast[f"writer{number}"] = Writer(drawn_options(dice), dice.choice((1, 3)), dice.choice((3, 7)))
    reading = replace(
        FRUGAL,
        prefetch_fragments=dice.choice((1, 3)),
        snapshots_loaded_max=dice.choice((1, 8)),
        retry=RetryOptions(timeout_s=dice.choice((0.0, 5.0))),
    )
    chances: dict[str, tuple[float, Actor]] = {
        "tail": (0.6, TailReader(reading)),
        "history": (0.6, HistoryReader(reading, 4)),
        "mover0": (0.4, CursorMover("c", 5, 3.0)),
        "mover1": (0.3, CursorMover("c", 5, 3.0)),
        "mover2": (0.2, CursorMover("d", 3, 3.0)),
        "scrubber": (0.3, Scrubber(2)),
        "maintainer": (0.3, Maintainer(dice.choice((3, 20)))),
        "collector0": (0.4, Collecting(dice.choice((3, 8)), dice.choice((0.5, 10.0)))),
        "collector1": (0.2, Collecting(3, dice.choice((0.5, 10.0)))),
        "pinner": (0.3, Pinning(dice.random() * dice.choice((1.0, 10.0)), dice.choice((0.1, 30.0)))),
        "packer": (0.3, Packing(2, 5.0, drawn_packing(dice))),
        "copier": (0.1, Copying(dice.random() * 20)),
        "sealer": (0.1, Sealing(dice.random() * 20, dice.choice((None, SUCCESSOR)))),
        "ordered0": (0.4, OrderedWriter(drawn_hasty(dice), dice.choice((2, 5)))),
        "comparer0": (0.3, Comparer(drawn_options(dice), dice.choice((3, 8)))),
        "comparer1": (0.3, Comparer(drawn_options(dice), 3)),
        "destroyer": (0.1, Destroying(dice.random() * dice.choice((0.1, 5.0)), drawn_options(dice))),
        "short0": (0.3, ShortWriter(drawn_options(dice), dice.choice((5, 15)), dice.choice((0.1, 3.0)))),
        "short1": (0.2, ShortWriter(drawn_options(dice), 8, dice.choice((0.1, 3.0)))),
    }
    return cast | {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}


def drawn_maintainers(dice: Random) -> dict[str, Actor]:
    """Actors that hold records and actors that collect them, all within a second or two."""
    cast: dict[str, Actor] = {"writer0": Writer(drawn_options(dice), 3, 7)}
    if dice.random() < 0.3:
        cast["ordered0"] = OrderedWriter(drawn_hasty(dice), 4)
    for number in range(dice.choice((1, 2))):
        cast[f"mover{number}"] = CursorMover(dice.choice("cd"), 10, 0.2)
        cast[f"collector{number}"] = Collecting(10, dice.choice((0.1, 0.3)))
    chances: dict[str, tuple[float, Actor]] = {
        "history": (0.3, HistoryReader(FRUGAL, 4)),
        "pinner": (0.6, Pinning(dice.random() * 0.5, dice.choice((0.05, 1.0)), rounds=6)),
        "packer0": (0.5, Packing(6, 0.4, drawn_packing(dice))),
        "short": (0.4, ShortWriter(drawn_options(dice), 12, dice.choice((0.05, 0.3)))),
        "copier": (0.4, Copying(dice.random() * 2)),
        "sealer": (0.1, Sealing(dice.random() * 2, dice.choice((None, SUCCESSOR)))),
    }
    # To be overtaken.
    chances["packer1"] = chances["packer0"]
    return cast | {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}


def drawn_reusers(dice: Random, *, brief: bool) -> dict[str, Actor]:
    """Actors that end the log and begin another under its name, some twice at once, and those who had it open."""
    pace_s = 0.5 if brief else 12.0
    first = Writer(drawn_options(dice), dice.choice((1, 3)), dice.choice((3, 7)), rounds=4)
    second = Writer(drawn_options(dice), 1, 7, rounds=4, creates=False)
    cast: dict[str, Actor] = {"writer0": first, "writer1": second}
    for number in range(dice.choice((1, 1, 2, 3))):
        reuser = Reusing(drawn_steps(dice, pace_s), with_cursors=dice.random() < 0.6)
        cast[f"reuser{number}"] = reuser
        if dice.random() < 0.6:
            cast[f"again{number}"] = reuser
    chances: dict[str, tuple[float, Actor]] = {
        "tail": (0.5, TailReader(ReaderOptions(prefetch_fragments=dice.choice((1, 3))), rounds=8)),
        "history": (0.5, HistoryReader(ReaderOptions(), 6)),
        "mover0": (0.6, CursorMover("c", 10, pace_s / 4)),
        "mover1": (0.3, CursorMover("c", 10, pace_s / 4)),
        "scrubber": (0.2, Scrubber(2)),
        "maintainer": (0.2, Maintainer(20)),
        "collector0": (0.5, Collecting(8, pace_s / 4)),
        "collector1": (0.3, Collecting(8, pace_s / 4)),
        "pinner": (0.3, Pinning(dice.random() * pace_s, dice.random() * pace_s, rounds=3)),
        "packer": (0.3, Packing(4, pace_s / 2, drawn_packing(dice))),
    }
    return cast | {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}


def drawn_cast(dice: Random, *, brief: bool, lives: bool = False, compacts: bool = False) -> dict[str, Actor]:
    """Choose the actors of a seed's story, and which of them are killed or suspended."""
    alone = drawn_maintainers if brief else drawn_actors
    if compacts:
        cast = compacted_cast(dice, brief=brief, lives=lives)
    else:
        cast = drawn_reusers(dice, brief=brief) if lives else alone(dice)
    victims = [*cast, "writer0", "writer0", "writer0"]
    if dice.random() < 0.5:
        after_s = dice.random() * dice.choice((0.2, 1.0, 5.0))
        cast["reaper"] = Reaper(dice.choice(victims), after_s, dice.choice((None, cast["writer0"])))
    if dice.random() < 0.4:
        after_s, for_s = dice.random() * dice.choice((0.2, 3.0)), dice.choice((10.0, 200.0))
        cast["freezer"] = Freezer(dice.choice(victims), after_s, for_s, clock_stops=dice.random() < 0.5)
    return cast


@dataclass
class Story:
    """One seed, from setup to the checks; a given plan and cast replace the drawn ones.

    The prelude is played first, and ``end`` last; nothing fails in them.
    """

    seed: int
    plan: Plan | None = None
    cast: dict[str, Actor] | None = None
    prelude: Actor | None = None
    end: Callable[[Stage, SimProcess], None] = lambda _stage, _operator: None
    interval_s: float | None = None
    lives: bool = False
    compacts: bool = False
    kinds: list[Kind] = field(default_factory=list)
    stage: Stage = field(init=False)

    def __post_init__(self) -> None:
        simulation = Simulation(self.seed)
        self.stage = Stage(simulation, World(simulation), lives=self.lives, compacts=self.compacts)
        drawn_s = simulation.dice("interval").choice((0.0, 0.0, 2.0, 20.0))
        self.stage.world.shared.interval_s = drawn_s if self.interval_s is None else self.interval_s

    def tell(self) -> None:
        """Run it and check it; raises AssertionError where a promise was broken."""
        simulation = self.stage.simulation
        brief = simulation.dice("brief").random() < BRIEF
        self.stage.lives = self.stage.lives or (self.cast is None and simulation.dice("lives").random() < REUSED)
        cast = self.cast
        self.stage.compacts |= cast is None and simulation.dice("compacted").random() < COMPACTED
        if cast is None and self.stage.compacts:
            cast = drawn_cast(simulation.dice("cast"), brief=brief, lives=self.stage.lives, compacts=True)
        elif cast is None:
            cast = drawn_cast(simulation.dice("cast"), brief=brief, lives=self.stage.lives)
            if brief and simulation.dice("consumer").random() < BUSY:
                cast["consumer"] = Consumer("e", 100, 0.02)
            if simulation.dice("marked").random() < MARKED:
                cast = marked_cast(simulation.dice("marking"), cast, brief=brief)
                self.stage.world.slow_s = dict.fromkeys((LOG, *FLEET_LOGS), simulation.dice("slow").choice(SLOW_S))
        plan = self.plan if self.plan is not None else Swarm.drawn(simulation.dice("plan"), brief=brief)
        operator = SimProcess(simulation, "operator")
        simulation.run(simulation.spawn(operator, "main", lambda: self._direct(cast, plan, operator)))

    def _direct(self, cast: dict[str, Actor], plan: Plan, operator: SimProcess) -> None:
        simulation, stage = self.stage.simulation, self.stage
        if self.prelude is not None:
            self.prelude.play(stage, SimProcess(simulation, "prelude"))
        stage.world.begin(plan)
        stage.processes = {name: _process(simulation, name) for name in cast}
        tasks = [
            simulation.spawn(process, name, lambda name=name, process=process: cast[name].play(stage, process))
            for name, process in stage.processes.items()
        ]
        frozen_s = max((actor.for_s for actor in cast.values() if isinstance(actor, Freezer)), default=0.0)
        simulation.block(lambda: all(task.over for task in tasks), STORY_S_MAX + frozen_s)
        stuck = [task.name for task in tasks if not task.over]
        assert not stuck, f"hung: {stuck}"
        self.kinds = list(stage.world.kinds)
        stage.world.heal()
        stage.simulation.pause(LATE_S_MAX + OUTAGE_S_MAX)  # every late request has arrived by then
        self.end(stage, operator)
        self.close(operator)

    def close(self, operator: SimProcess) -> None:
        """Check what must hold in the end, with every fault healed."""
        _end(self.stage, operator)


def _process(simulation: Simulation, name: str) -> SimProcess:
    dice = simulation.dice(f"clock of {name}")
    offset_us, drift = dice.randrange(-(10**9), 10**9), dice.uniform(-0.01, 0.01)
    if dice.random() < 0.2:
        # An operator has mistyped the year.
        offset_us += dice.choice((-10, 1, 10)) * YEAR_US
    return SimProcess(simulation, name, offset_us=offset_us, drift=drift)


def _end(stage: Stage, operator: SimProcess) -> None:
    """With every fault healed there is progress, nothing is damaged, and all sums balance."""
    if stage.lives:
        destroy_unfinished(stage, operator)
    check_marked(stage, operator)
    check_fleet_logs(stage, operator)
    _check_progress(stage, operator)
    check_small(stage, operator)
    if stage.compacts:
        finish_compaction(stage, operator)
    lives = {log_id: life for log_id, life in stage.world.names.lives.items() if life.log == LOG}
    for life in lives.values():
        for cursor in life.cursors.values():
            if cursor.moves:
                cursor.check()
    _drop_unfinished_cursors(stage, operator)
    store = SimStore(stage.world, operator)
    report = scrub(store, LOG, runtime=operator)
    assert report.sound, report.problems
    stage.history.check(lives)
    check_conditions(stage)
    _check_contents(stage, operator)
    check_successor(stage, operator)
    check_destroyed(stage, operator, DOOMED)
    _finish_copy(stage, operator)
    _check_nothing_left(stage, operator)
    if stage.lives:
        check_all_destroyed(stage, operator)


def _check_progress(stage: Stage, operator: SimProcess) -> None:
    began_s = stage.simulation.now_s
    store = SimStore(stage.world, operator)
    with LogWriter.open_or_create(store, LOG, runtime=operator) as writer:
        last = append_once(stage, store, writer, (Message(b"last", b"key" if stage.compacts else None),))
    manifest = stage.world.oracle.manifest
    assert manifest is not None
    assert last.outcome == ("acked" if manifest.seal is None else "sealed"), f"after healing: {last}"
    assert stage.simulation.now_s - began_s < PROGRESS_S_MAX, "no progress after healing"


def _drop_unfinished_cursors(stage: Stage, operator: SimProcess) -> None:
    """A cursor below the first record is one whose mover never read the manifest, so no caller relies on it."""
    cursors, oracle = CursorStore(SimStore(stage.world, operator), LOG, runtime=operator), stage.world.oracle
    assert oracle.manifest is not None
    first = oracle.manifest.first.position.offset
    for name, witness in cursors.list().items():
        if witness.cursor.position.offset < first:
            assert witness.cursor.writer not in oracle.relied_on, f"collected past cursor {name}: {witness.cursor}"
            stage.world.fired["a cursor was left unfinished"] += 1
            cursors.delete(name)


def _check_contents(stage: Stage, operator: SimProcess) -> None:
    """The log holds exactly the records from its first one on."""
    reader, oracle = LogReader.open(SimStore(stage.world, operator), LOG, runtime=operator), stage.world.oracle
    found = [Message(record.body, record.key) for record in reader.records()]
    assert found == oracle.messages(reader.manifest()), "the log holds other records"


def _check_nothing_left(stage: Stage, operator: SimProcess) -> None:
    """Once no cursor or pin is in the way, collecting leaves exactly the objects that the log refers to."""
    store, oracle = SimStore(stage.world, operator), stage.world.oracle
    inside = oracle.objects
    cursors, pins = CursorStore(store, LOG, runtime=operator), PinStore(store, LOG, runtime=operator)
    for name in pins.list():
        oracle.pins.pop(name, None)
        pins.delete(name)
    for name in cursors.list():
        cursors.delete(name)
    manifest = LogReader.open(store, LOG, runtime=operator).manifest()
    # An announced collection stands until the next collector carries it out.
    middle = (manifest.first_kept.position.offset + manifest.next.position.offset) // 2
    cursors.create("middle", LogPosition(middle, 0))
    stage.world.shared.interval_s = 0.0
    for _ in range(40):
        # A few orphans at a time.
        collect(store, LOG, options=collector_options(0.0), runtime=operator)
        left = {meta.path for folder in ("log/", "snapshot/") for meta in inside.list_objects(folder)}
        documents = {meta.path for meta in inside.list_objects("gc/")} - {CLOCK}
        rolled_up = {rolled_up_path(meta.path) for meta in inside.list_objects("keys/")}
        if left == oracle.referenced() and not documents and rolled_up <= left:
            break
    assert left == oracle.referenced(), f"collected again and again, and left: {sorted(left - oracle.referenced())}"
    assert not documents, "collections that never end"
    assert rolled_up <= left, "key roll-ups without a snapshot"
    assert oracle.manifest is not None
    assert oracle.manifest.announced is None, "an announcement that is never withdrawn"
    assert all(pointer.limit.offset > middle for pointer in oracle.held), "records below the cursor are still held"
    report = scrub(store, LOG, runtime=operator)
    assert report.sound, report.problems


def _finish_copy(stage: Stage, operator: SimProcess) -> None:
    """A copy that was cut short is no log; the next call finishes it, or starts again if its records were collected."""
    store = SimStore(stage.world, operator)
    name = stage.world.names[COPY]
    if not name.lives and name.copying is None:
        return
    if name.life.over_s <= stage.simulation.now_s:
        check_destroyed(stage, operator, COPY)
        return
    if name.copying is not None:
        copy(LogAt(store, LOG), LogAt(store, COPY), runtime=operator)
    check_copy(stage)
    report = scrub(store, COPY, runtime=operator)
    assert report.sound, report.problems
