"""Casts in which servers mark what they append: the usual one, with a fleet and roll-ups beside fewer others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Freezer, Reaper, Server, Writer, drawn_options
from tests.faults.demanding import OrderedWriter
from tests.faults.fleets import FleetWriter
from tests.faults.rollups import CollectingMarkers, Member, RollingUp, drawn_roll_up
from tests.faults.store import LOG
from wal3_core.options import FleetOptions

if TYPE_CHECKING:
    from random import Random

# The share of stories with marked writers.
MARKED = 1 / 3
# Those that make room: a marked append takes twice as many calls.
SPARED = ("tail", "history", "scrubber", "maintainer", "comparer", "short", "packer", "pinner", "destroyer", "consumer")
# Those that are killed more often than others, and may start again.
SERVING = ("writer", "server", "fleet", "rollup", "markers")
SERVERS = ("x", "x", "x", "y", "z")
# A compactor joins, one leaves, and all are replaced.
TEAMS = (("k0", "k1"), ("k0", "k1", "k2"), ("k1", "k2"), ("k2", "k3"))
DAYS_S = 200_000.0
FLEET_LOGS = ("b", "c")
# How long a PUT to a marked log may take: markers are durable long before what they mark is committed.
SLOW_S = (0.02, 0.3, 3.0, 8.0)


def marked_cast(dice: Random, cast: Mapping[str, Actor], *, brief: bool) -> dict[str, Actor]:
    """Let most writers of a cast mark what they append, and add those that roll up."""
    spared = {name for name in cast if name.startswith(SPARED) and dice.random() < 0.5}
    kept = {name: marked(dice, actor) for name, actor in cast.items() if name not in spared}
    pace_s = 0.2 if brief else dice.choice((0.5, 4.0))
    chances: dict[str, tuple[float, Actor]] = {
        "server": (0.7, Writer(drawn_options(dice), 2, 7, server=drawn_server(dice))),
        "rollup0": (1.0, drawn_rolling(dice, pace_s)),
        "rollup1": (0.5, drawn_rolling(dice, pace_s)),
        **(drawn_team(dice, pace_s) if dice.random() < 0.3 else {}),
        "markers": (0.3, CollectingMarkers(4, pace_s)),
        "fleet0": (0.5, drawn_fleet(dice)),
        "fleet1": (0.1, drawn_fleet(dice)),
    }
    kept |= {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
    return {name: _redirected(dice, actor, kept) for name, actor in kept.items()}


def marked(dice: Random, actor: Actor) -> Actor:
    """Let a writer mark what it appends, as one of a few servers."""
    if isinstance(actor, Writer | OrderedWriter) and dice.random() < 0.8:
        return replace(actor, server=drawn_server(dice))
    return actor


def drawn_server(dice: Random) -> Server:
    """One of a few servers."""
    return Server(dice.choice(SERVERS), drawn_options(dice), dice.choice((1, 2, 3)))


def drawn_rolling(dice: Random, pace_s: float) -> RollingUp:
    """A roll-up that hands out everything, some of it, or never anything."""
    return RollingUp(drawn_roll_up(dice), dice.choice((5, 15)), pace_s, dice.choice((0.0, 0.0, 0.5, 1.0)))


def drawn_team(dice: Random, pace_s: float) -> dict[str, tuple[float, Actor]]:
    """Compactors whose number changes while they pull."""
    teams = TEAMS[dice.randrange(len(TEAMS) - 1) :]
    names = dict.fromkeys(name for team in teams for name in team)
    return {f"rollup-{name}": (1.0, replace(drawn_rolling(dice, pace_s), member=Member(name, teams))) for name in names}


def drawn_fleet(dice: Random) -> FleetWriter:
    """Several callers, of a fleet that can have one or two of its logs open."""
    logs = dice.choice(((LOG, *FLEET_LOGS[:1]), (LOG, *FLEET_LOGS), FLEET_LOGS))
    held_max = dice.choice((1, 1000, 10**6))
    options = FleetOptions(
        logs_open_max=dice.choice((1, 1, 2)),
        bytes_held_max=held_max,
        creates=dice.random() < 0.9,
        writer=drawn_options(dice),
    )
    return FleetWriter(logs, dice.choice(SERVERS), options, dice.choice((2, 4)), dice.choice((4, 8)))


def _redirected(dice: Random, actor: Actor, cast: Mapping[str, Actor]) -> Actor:
    """Let one of this cast be the victim; a server that was killed starts again under its name."""
    victims = [name for name in cast if name not in {"reaper", "freezer"}]
    victims += [name for name in victims if name.startswith(SERVING)] * 2
    if isinstance(actor, Reaper):
        victim = dice.choice(victims)
        again = cast[victim if victim.startswith(SERVING) else "writer0"] if dice.random() < 0.7 else None
        return replace(actor, victim=victim, successor=again)
    if isinstance(actor, Freezer):
        return replace(actor, victim=dice.choice(victims), for_s=dice.choice((10.0, 200.0, 3000.0, DAYS_S)))
    return actor
