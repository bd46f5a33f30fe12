"""One seed's story: who takes part, what happens to them, and what must hold in the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.faults.actors import (
    Actor,
    Freezer,
    HistoryReader,
    Maintainer,
    Reaper,
    Scrubber,
    Sealer,
    Stage,
    Sweeper,
    TailReader,
    Writer,
    append_once,
    drawn_options,
    sweep,
)
from tests.faults.cursor_mover import CursorMover
from tests.faults.plans import Plan, Swarm
from tests.faults.simulator import SimProcess, Simulation
from tests.faults.store import LATE_S_MAX, LOG, OUTAGE_S_MAX, SimStore, World
from wal3_core import LogReader, LogWriter, Message, ReaderOptions, scrub
from wal3_core.storage.object_store import log_store

if TYPE_CHECKING:
    from random import Random

    from tests.faults.plans import Kind

PROGRESS_S_MAX = 120.0
STORY_S_MAX = 3600.0


def drawn_cast(dice: Random) -> dict[str, Actor]:
    """Choose who takes part in a seed's story."""
    cast: dict[str, Actor] = {}
    for number in range(dice.choice((1, 2, 2, 3, 4))):
        cast[f"writer{number}"] = Writer(drawn_options(dice), dice.choice((1, 3)), dice.choice((3, 7)))
    reading = ReaderOptions(prefetch_fragments=dice.choice((1, 3)), snapshots_loaded_max=dice.choice((1, 8)))
    chances: dict[str, tuple[float, Actor]] = {
        "tail": (0.6, TailReader(reading)),
        "history": (0.6, HistoryReader(reading, 4)),
        "mover0": (0.4, CursorMover("c", 5)),
        "mover1": (0.3, CursorMover("c", 5)),
        "mover2": (0.2, CursorMover("d", 3)),
        "scrubber": (0.3, Scrubber(2)),
        "maintainer": (0.3, Maintainer(dice.choice((3, 20)))),
        "sweeper": (0.4, Sweeper(dice.choice((3, 12)), dice.choice((0.5, 10.0)), dice.choice((0.0, 1.0)))),
        "sealer": (0.1, Sealer(dice.random() * 20)),
    }
    cast |= {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
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
    """One seed, from setting up to the checks; a plan and a cast of one's own take the place of those drawn.

    The prelude is played first, and nothing fails in it.
    """

    seed: int
    plan: Plan | None = None
    cast: dict[str, Actor] | None = None
    prelude: Actor | None = None
    kinds: list[Kind] = field(default_factory=list)
    stage: Stage = field(init=False)

    def __post_init__(self) -> None:
        simulation = Simulation(self.seed)
        self.stage = Stage(simulation, World(simulation))

    def tell(self) -> None:
        """Run it and check it; raises AssertionError where a promise was broken."""
        simulation, stage = self.stage.simulation, self.stage
        cast = self.cast if self.cast is not None else drawn_cast(simulation.dice("cast"))
        operator = SimProcess(simulation, "operator")
        simulation.run(simulation.spawn(operator, "main", lambda: self._direct(stage, cast, operator)))

    def _direct(self, stage: Stage, cast: dict[str, Actor], operator: SimProcess) -> None:
        simulation = stage.simulation
        if self.prelude is not None:
            self.prelude.play(stage, SimProcess(simulation, "prelude"))
        stage.world.begin(self.plan if self.plan is not None else Swarm.drawn(simulation.dice("plan")))
        stage.processes = {name: _process(simulation, name) for name in cast}
        tasks = [
            simulation.spawn(process, name, lambda name=name, process=process: cast[name].play(stage, process))
            for name, process in stage.processes.items()
        ]
        simulation.block(lambda: all(task.over for task in tasks), STORY_S_MAX)
        stuck = [task.name for task in tasks if not task.over]
        assert not stuck, f"hung: {stuck}"
        self.kinds = list(stage.world.kinds)
        _end(stage, operator)


def _process(simulation: Simulation, name: str) -> SimProcess:
    dice = simulation.dice(f"clock of {name}")
    return SimProcess(simulation, name, offset_us=dice.randrange(-(10**9), 10**9), drift=dice.uniform(-0.01, 0.01))


def _end(stage: Stage, operator: SimProcess) -> None:
    """Heal every fault; then there is progress, nothing is damaged, and everything adds up."""
    stage.world.heal()
    stage.simulation.pause(LATE_S_MAX + OUTAGE_S_MAX)  # whatever is under way has arrived by then
    _check_progress(stage, operator)
    store = SimStore(stage.world, operator)
    report = scrub(store, LOG, runtime=operator)
    assert report.sound, report.problems
    stage.history.check(list(LogReader.open(store, LOG, runtime=operator).records()))
    _check_nothing_orphaned(stage, operator)


def _check_progress(stage: Stage, operator: SimProcess) -> None:
    began_s = stage.simulation.now_s
    store = SimStore(stage.world, operator)
    with LogWriter.open_or_initialize(store, LOG, runtime=operator) as writer:
        last = append_once(stage, store, writer, (Message(b"last"),))
    manifest = stage.world.oracle.manifest
    assert manifest is not None
    assert last.outcome == ("acked" if manifest.seal is None else "sealed"), f"after healing: {last}"
    assert stage.simulation.now_s - began_s < PROGRESS_S_MAX, "no progress after healing"


def _check_nothing_orphaned(stage: Stage, operator: SimProcess) -> None:
    """Two sweeps leave what the log refers to, and nothing else."""
    store, fired = SimStore(stage.world, operator), stage.world.fired["swept"]
    for _ in range(2):
        sweep(store, operator)
    stage.world.fired["swept"] = fired
    inside = log_store(stage.world.objects, LOG)
    left = {meta.path for folder in ("log/", "snapshot/") for meta in inside.list_objects(folder)}
    assert left == stage.world.oracle.referenced(), "swept twice, and there are orphans"
