"""Stories of appends with a name, beside passes and collections, copies that come to be used, and later lives."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Freezer, HistoryReader, Maintainer, Reaper, Writer, drawn_options
from tests.faults.collectors import Collecting, Packing
from tests.faults.compactors import RETRY, Governing, Terms, drawn_key_compacting
from tests.faults.cursor_mover import Consumer, CursorMover
from tests.faults.named_ledger import NamedHistory, NamedLedger
from tests.faults.named_writers import BACKUP, BackingUp, Driving, Nightly, check_made
from tests.faults.second_lives import Reusing, drawn_steps
from tests.faults.store import LOG
from tests.faults.story import Story
from wal3_core import ReaderOptions
from wal3_core.format.policy import Policy
from wal3_core.options import SnapshotCompactorOptions

if TYPE_CHECKING:
    from random import Random

# The shares of stories in which a copy is updated and then used, and in which the log's name is used again.
COPIED, REUSED = 0.5, 0.2


@dataclass(frozen=True, slots=True)
class ArrangeTerms(Terms):
    """Policies of passes that keep every record, and join and arrange them."""

    def draw(self, dice: Random) -> Policy:
        return Policy(arrange_by_key=dice.random() < 0.9, min_dirty_percent=0)


def named_story(seed: int) -> Story:
    """Make the story of a seed."""
    dice, ledger = random.Random(seed), NamedLedger()
    kind, pace_s = dice.random(), dice.choice((0.3, 2.0))
    cast = _writers(dice, ledger, pace_s)
    lives = kind < REUSED
    cast |= _copies(dice, ledger, pace_s) if REUSED <= kind < REUSED + COPIED else _maintenance(dice, pace_s)
    if lives:
        steps = drawn_steps(dice, pace_s * 6)
        cast |= {f"reuser{number}": Reusing(steps, with_cursors=True) for number in range(dice.choice((1, 2)))}
    options = replace(drawn_options(dice), contentions_max=8, delivery_timeout_s=30.0)
    end = partial(check_made, ledger=ledger, options=options)
    # Passes demand that every record has a key.
    story = Story(seed, cast=cast, end=end, lives=lives, compacts="governor" in cast)
    story.stage.history = NamedHistory(ledger=ledger)
    return story


def _writers(dice: Random, ledger: NamedLedger, pace_s: float) -> dict[str, Actor]:
    """Drivers of one query, of which one is thought dead, of another under its name, and jobs."""
    driving = Driving(ledger, "writer-q", "q", drawn_options(dice), dice.choice((3, 8)), pace_s)
    nightly = Nightly(ledger, "writer-n", drawn_options(dice), dice.choice((6, 14)), pace_s)
    cast: dict[str, Actor] = {"driver0": driving}
    sleeps_s = dice.choice((1.0, 20.0, 100.0))
    chances: dict[str, tuple[float, Actor]] = {
        "driver1": (0.9, driving),
        "driver2": (0.3, driving),
        "other0": (0.3, Driving(ledger, "writer-q", "r", drawn_options(dice), 4, pace_s)),
        "nightly0": (0.8, nightly),
        "nightly1": (0.5, nightly),
        "writer0": (0.6, Writer(drawn_options(dice), 1, dice.choice((3, 7)), rounds=2, keyed=True)),
        "reaper": (0.5, Reaper("driver0", dice.random() * pace_s * 6, dice.choice((None, driving)))),
        "freezer0": (0.5, Freezer("driver0", dice.random() * pace_s * 6, sleeps_s, clock_stops=dice.random() < 0.5)),
        "freezer1": (0.5, Freezer("nightly0", dice.random() * pace_s * 6, sleeps_s, clock_stops=False)),
    }
    cast |= {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
    return {name: actor for name, actor in cast.items() if not isinstance(actor, Freezer) or actor.victim in cast}


def _maintenance(dice: Random, pace_s: float) -> dict[str, Actor]:
    """Whatever takes, joins or moves what the appends left, and those who read it."""
    packing = SnapshotCompactorOptions(snapshots=drawn_options(dice).snapshots, retry=RETRY)
    chances: dict[str, tuple[float, Actor]] = {
        "ahead": (0.6, Consumer("ahead", 40, pace_s / 2)),
        "mover": (0.3, CursorMover("c", 8, pace_s)),
        "collector0": (0.7, Collecting(20, pace_s * 2)),
        "collector1": (0.3, Collecting(8, pace_s)),
        "packer": (0.3, Packing(3, pace_s * 3, packing)),
        "maintainer": (0.3, Maintainer(10)),
        "history": (0.4, HistoryReader(ReaderOptions(), 4)),
    }
    cast = {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
    return cast | _passes(dice, pace_s)


def _passes(dice: Random, pace_s: float) -> dict[str, Actor]:
    """In half of the stories, passes that arrange the log by key."""
    if dice.random() < 0.5:
        return {}
    return {"governor": Governing(ArrangeTerms(pace_s), 2), "compactor": drawn_key_compacting(dice, pace_s)}


def _copies(dice: Random, ledger: NamedLedger, pace_s: float) -> dict[str, Actor]:
    """A copy that is updated until the process that does it dies; then it is used."""
    chances: dict[str, tuple[float, Actor]] = {
        "updater1": (0.2, BackingUp(ledger, 4, pace_s)),
        "updating freezer": (0.2, Freezer("updater0", dice.random() * pace_s * 6, 10.0, clock_stops=False)),
        "collector": (0.3, Collecting(6, pace_s * 2)),
        "copy's collector": (0.3, Collecting(6, pace_s * 2, f"{BACKUP}{LOG}")),
    }
    cast: dict[str, Actor] = {"updater0": BackingUp(ledger, 6, pace_s * 4)}
    cast |= {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
    return cast | _passes(dice, pace_s)
