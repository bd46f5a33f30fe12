"""Stories of a log that is migrated, copied and restored, and of all who have a cursor in it, in one cast."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Freezer, Reaper, drawn_options
from tests.faults.chain_end import finish
from tests.faults.chain_ledger import ChainLedger
from tests.faults.chain_moves import (
    BACKUP,
    CHAIN,
    OTHER_COPY,
    BackingUp,
    ChainCopying,
    Intruding,
    Migrating,
    Restoring,
    Ruling,
)
from tests.faults.chain_owners import Consuming, Retiring
from tests.faults.chain_views import KeyConsuming, Owner, Receiving
from tests.faults.chain_writers import ChainDriving, ChainWriting
from tests.faults.collectors import Collecting, Packing, Pinning
from tests.faults.compactors import RETRY, drawn_key_compacting
from tests.faults.named_ledger import NamedLedger
from tests.faults.story import Story
from tests.faults.view_consumers import READING
from wal3_core import ConsumerOptions, KeyedOptions, SubscriptionOptions
from wal3_core.options import SnapshotCompactorOptions

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess

# The share of stories in which the log is destroyed and restored, and in which passes of key compaction go over logs.
RESTORED, COMPACTED = 0.15, 0.35


@dataclass
class ChainStory(Story):
    """A story whose logs, and the owners of their cursors, are checked by a ledger."""

    def close(self, operator: SimProcess) -> None:
        """Leave it at ``end``: the usual checks know one log alone."""


def chain_story(seed: int) -> ChainStory:
    """Make the story of a seed."""
    dice = random.Random(seed)
    story = ChainStory(seed)
    ledger = ChainLedger(story.stage, NamedLedger())
    story.stage.world.watching.append(ledger.landed)
    pace_s = dice.choice((0.1, 0.5))
    story.cast = _cast(dice, ledger, pace_s)
    # The name of a log is used again.
    story.stage.lives = "restorer" in story.cast
    owners = {actor.name: actor for actor in story.cast.values() if isinstance(actor, Consuming | Owner)}
    options = replace(drawn_options(dice), contentions_max=8, delivery_timeout_s=30.0)
    story.end = partial(finish, ledger=ledger, owners=owners, options=options)
    return story


def _cast(dice: Random, ledger: ChainLedger, pace_s: float) -> dict[str, Actor]:
    """Whatever belongs to a log; some of them twice, and some of them die or sleep."""
    cast = _owners(dice, ledger, pace_s) | _moves(dice, pace_s) | _maintenance(dice, pace_s)
    writing = ChainWriting(ledger, "a", drawn_options(dice), 10, pace_s, tombstones="subscriber" not in cast)
    cast |= {"writer0": writing} | _drawn(dice, {"writer1": (0.4, replace(writing, appends=6))})
    if dice.random() < 0.3:
        names = sorted({actor.name for actor in cast.values() if isinstance(actor, Consuming | Owner)})
        cast["intruder"] = Intruding(ledger, tuple(names), 4, pace_s * 5)
    victims = sorted(cast)
    if dice.random() < 0.5:
        victim = dice.choice(victims)
        cast["reaper"] = Reaper(victim, dice.random() * pace_s * 20, dice.choice((None, cast[victim])))
    if dice.random() < 0.3:
        sleeps_s = dice.choice((2.0, 30.0))
        after_s = dice.random() * pace_s * 20
        cast["freezer"] = Freezer(dice.choice(victims), after_s, sleeps_s, clock_stops=dice.random() < 0.5)
    return cast


def _drawn(dice: Random, chances: dict[str, tuple[float, Actor]]) -> dict[str, Actor]:
    return {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}


def _owners(dice: Random, ledger: ChainLedger, pace_s: float) -> dict[str, Actor]:
    """Owners of cursors, from before a migration or after it, some of whom retire."""
    keyed = KeyedOptions(reader=READING, keys_cached_bytes_max=dice.choice((0, 2**20)), bodies_cached_bytes_max=0)
    subscribing = SubscriptionOptions(
        ack_wait_s=dice.choice((0.5, 60.0)),
        prefetch_max=dice.choice((1, 3, 50)),
        save_acks_max=dice.choice((1, 3, 1000)),
        save_s_max=dice.choice((0.0, 5.0)),
        pins=dice.random() < 0.7,
        reader=READING,
    )
    rounds = dice.choice((2, 5))
    driving = ChainDriving(ledger, "a", "writer-q", "q", drawn_options(dice), dice.choice((3, 6)), pace_s * 2)
    nightly = ChainDriving(ledger, "a", "writer-n", "", drawn_options(dice), 5, pace_s * 2)
    consumer0 = _consuming(dice, ledger, "c0", pace_s)
    retired = dice.choice(("c0", "c1", "s", "k"))
    cast: dict[str, Actor] = {"consumer0": consumer0}
    return cast | _drawn(
        dice,
        {
            "consumer0 again": (0.2, consumer0),
            "consumer1": (0.6, _consuming(dice, ledger, "c1", pace_s)),
            "consumer2": (0.3, _consuming(dice, ledger, "c2", pace_s)),
            "subscriber": (0.4, Receiving(ledger, "s", dice.choice("aaab"), rounds, pace_s, subscribing)),
            "key consumer": (0.4, KeyConsuming(ledger, "k", dice.choice("aaab"), rounds, pace_s, keyed)),
            "driver0": (0.4, driving),
            "driver1": (0.3, driving),
            "nightly": (0.3, nightly),
            "retirer": (0.3, Retiring(ledger, retired, (*CHAIN,), dice.random() * pace_s * 30)),
        },
    )


def _consuming(dice: Random, ledger: ChainLedger, name: str, pace_s: float) -> Consuming:
    """A slow consumer or a fast one, of one log or of several of a chain."""
    options = ConsumerOptions(
        commit_records_max=dice.choice((1, 5, 1000)),
        commit_s_max=dice.choice((0.0, 5.0)),
        batch_records_max=dice.choice((1, 5)),
        idle_s=dice.choice((0.2, 2.0)),
        reader=READING,
    )
    logs = dice.choice((("a",), ("a",), ("a",), ("a", "b"), ("b",)))
    start: str | int = dice.choice(("beginning", "beginning", "end", 3)) if len(logs) == 1 else "beginning"
    pause_s, after_s = dice.choice((0.0, pace_s)), dice.choice((0.0, dice.random() * pace_s * 20))
    return Consuming(ledger, name, logs, start, options, dice.choice((2, 5)), pause_s, after_s)


def _moves(dice: Random, pace_s: float) -> dict[str, Actor]:
    """Migrations, copies and restores."""
    span_s = pace_s * 20
    first = Migrating("a", "b", dice.random() * span_s)
    with_cursors = dice.random() < 0.8
    backing = BackingUp("a", BACKUP, with_cursors, dice.choice((2, 5)), pace_s * 8)
    restores = dice.random() < RESTORED
    offset = dice.choice((None, 2, 5))
    copying = ChainCopying(dice.choice("ab"), OTHER_COPY, offset, dice.random() < 0.6, dice.random() * span_s)
    chances: dict[str, tuple[float, Actor]] = {
        "migrator0": (0.8, first),
        "migrator1": (0.2, replace(first, after_s=dice.random() * span_s)),
        "next migrator": (0.4, Migrating("b", "c", dice.random() * span_s * 2)),
        "sealer": (0.1, Migrating(dice.choice("ab"), None, dice.random() * span_s * 2)),
        "backup0": (1.0 if restores else 0.4, backing),
        "backup1": (0.2, backing),
        "copier": (0.3, copying),
        "restorer": (float(restores), Restoring(dice.random() * span_s, pace_s * 2)),
    }
    return _drawn(dice, chances)


def _maintenance(dice: Random, pace_s: float) -> dict[str, Actor]:
    """Collections of each log, policies, passes and pins."""
    compacts = dice.random() < COMPACTED
    packing = SnapshotCompactorOptions(snapshots=drawn_options(dice).snapshots, retry=RETRY)
    compacting = drawn_key_compacting(dice, pace_s * 4)
    chances: dict[str, tuple[float, Actor]] = {
        "collector a": (0.8, Collecting(8, pace_s * 4, "a")),
        "collector b": (0.7, Collecting(8, pace_s * 4, "b")),
        "collector c": (0.3, Collecting(6, pace_s * 4, "c")),
        "collector of the backup": (0.4, Collecting(6, pace_s * 4, BACKUP)),
        "collector of the copy": (0.2, Collecting(4, pace_s * 4, OTHER_COPY)),
        "ruler": (0.9 if compacts else 0.4, Ruling(("a", "a", "b", BACKUP), 4, pace_s * 6, compacts)),
        "packer": (0.2, Packing(3, pace_s * 6, packing, dice.choice("ab"))),
        "pinner": (0.2, Pinning(dice.random() * pace_s * 10, dice.random() * pace_s * 10)),
    }
    cast = _drawn(dice, chances)
    if compacts:
        cast |= _drawn(dice, {f"compactor {log}": (0.6, replace(compacting, log=log)) for log in ("a", "b", BACKUP)})
    return cast
