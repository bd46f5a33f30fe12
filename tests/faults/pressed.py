"""A world whose fleets have a limit of unprocessed records, beside a consumer that catches up now and then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Freezer, Reaper, Stage, drawn_options
from tests.faults.collectors import Collecting
from tests.faults.fleets import FleetWriter, OpenedFleet
from tests.faults.marked_casts import SERVERS
from tests.faults.store import LOG, SimStore
from wal3_core import CursorStore, GarbageCollectedError, LogError, LogReader, Message
from wal3_core.fleet.fleet import Fleet
from wal3_core.options import FleetOptions

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess

LIMIT = 1000
LOGS = (LOG, "b")
CURSOR = "consumer"
LIFTS_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class CatchingUp:
    """Moves its cursor to the end of each log, in a few seconds or after a while."""

    rounds: int
    pause_s: float

    def play(self, stage: Stage, process: SimProcess) -> None:
        store = SimStore(stage.world, process)
        for _ in range(self.rounds):
            stage.simulation.pause(process.random.random() * self.pause_s)
            for log in LOGS:
                try:
                    catch_up(store, log, process)
                except GarbageCollectedError:
                    continue
                except LogError as error:
                    stage.excuse(error)


def catch_up(store: SimStore, log: str, process: SimProcess) -> None:
    """Move the cursor to the log's end, or create it there."""
    limit = LogReader.open(store, log, runtime=process).manifest().next.position
    cursors = CursorStore(store, log, runtime=process)
    witness = cursors.load(CURSOR)
    if witness is None:
        cursors.create(CURSOR, limit)
    else:
        cursors.save(CURSOR, limit, witness)


def pressed_cast(dice: Random) -> dict[str, Actor]:
    """Fleets that exceed the limit again and again, of which one may be killed or suspended."""
    cast: dict[str, Actor] = {"fleet0": drawn_pressed(dice), "catcher": CatchingUp(8, dice.choice((3.0, 30.0)))}
    if dice.random() < 0.5:
        cast["fleet1"] = drawn_pressed(dice)
    if dice.random() < 0.5:
        cast["collector"] = Collecting(4, 5.0)
    if dice.random() < 0.3:
        cast["reaper"] = Reaper("fleet0", dice.random() * 5, drawn_pressed(dice))
    if dice.random() < 0.3:
        cast["freezer"] = Freezer("fleet0", dice.random() * 5, dice.choice((10.0, 200.0)), clock_stops=False)
    return cast


def drawn_pressed(dice: Random) -> FleetWriter:
    """A few appends reach the limit."""
    options = FleetOptions(
        logs_open_max=dice.choice((1, 2)), creates=True, unprocessed_max=LIMIT, writer=drawn_options(dice)
    )
    return FleetWriter(LOGS, dice.choice(SERVERS), options, 2, 8, sizes=(150, 400, 400))


def check_lifted(stage: Stage, operator: SimProcess) -> None:
    """Without faults, a log beyond its limit is refused, and accepted once its consumer has caught up."""
    store = SimStore(stage.world, operator)
    options = FleetOptions(creates=True, unprocessed_max=LIMIT)
    fleet = Fleet.open(store, server="last", options=options, runtime=operator)
    opened = OpenedFleet(stage, store, fleet, options.logs_open_max)
    for log in LOGS:
        opened.append(log, (Message(f"{log} exists".encode()),), None)
        catch_up(store, log, operator)
        opened.append(log, tuple(Message(f"{log}/{n}".encode()) for n in range(LIMIT + 1)), None)
        assert "overloaded" in _outcomes(opened, log, "over"), f"{log} is beyond its limit, and accepts appends"
        catch_up(store, log, operator)
        assert _outcomes(opened, log, "lifted")[-1] == "acked", f"{log} is caught up, and refuses appends"
    fleet.close()


def _outcomes(opened: OpenedFleet, log: str, name: str) -> list[str]:
    """Append once a second until an outcome changes; return the outcomes."""
    history, simulation = opened.stage.history_of(log), opened.stage.simulation
    began_s, found = simulation.now_s, list[str]()
    while len(set(found)) < 2 and simulation.now_s < began_s + LIFTS_S_MAX:
        simulation.pause(1.0)
        opened.append(log, (Message(f"{log}/{name}/{len(found)}".encode()),), None)
        found.append(history.appends[-1].outcome)
    return found
