"""Casts of stories about subscriptions, consumers by key and readers, beside collections and passes of compaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Freezer, Reaper, drawn_options
from tests.faults.collectors import Collecting, Packing
from tests.faults.compactors import RETRY, Governing, Terms, drawn_key_compacting
from tests.faults.cursor_mover import Consumer
from tests.faults.story import Story
from tests.faults.view_consumers import (
    READING,
    KeyConsuming,
    Publisher,
    Subscribing,
    drawn_key_consuming,
    drawn_subscribing,
)
from tests.faults.view_readers import Looking
from wal3_core import KeyedOptions
from wal3_core.format.policy import Cleanup, Policy
from wal3_core.options import SnapshotCompactorOptions

if TYPE_CHECKING:
    from random import Random

# The share of stories whose log is compacted by key, or arranged.
COMPACTED = 0.5


@dataclass(frozen=True, slots=True)
class ViewTerms(Terms):
    """Chooses policies of logs that are collected, too: passes drop superseded records, or only arrange."""

    def draw(self, dice: Random) -> Policy:
        cleanup = dice.choice((Cleanup.COLLECT, Cleanup.BOTH, Cleanup.COMPACT))
        lag_s = None if cleanup is Cleanup.COLLECT else dice.choice((None, 1))
        arranges = cleanup is Cleanup.COLLECT or dice.random() < 0.5
        return Policy(cleanup=cleanup, min_compaction_lag_s=lag_s, min_dirty_percent=0, arrange_by_key=arranges)


def drawn_view_story(
    seed: int, dice: Random, drawn: Callable[[Random], Subscribing | KeyConsuming] | None = None
) -> Story:
    """Draw a story of one kind of consumer, or of either."""
    drawn = drawn or dice.choice((drawn_subscribing, drawn_key_consuming))
    consuming = drawn(dice)
    pace_s = dice.choice((0.1, 1.0))
    compacts = dice.random() < COMPACTED
    cast = _consuming_cast(dice, consuming, pace_s, keyless=not compacts)
    if compacts:
        cast |= {"governor": Governing(ViewTerms(pace_s), 3), "compactor": drawn_key_compacting(dice, pace_s * 2)}
    return Story(seed, cast=cast, end=consuming.drain, compacts=compacts)


def _consuming_cast(
    dice: Random, consuming: Subscribing | KeyConsuming, pace_s: float, *, keyless: bool
) -> dict[str, Actor]:
    """Publishers, two processes of one name, a reader, and collections that follow them."""
    cast: dict[str, Actor] = {
        "publisher0": Publisher(drawn_options(dice), 12, pace_s, keyless),
        "consuming0": consuming,
        # It would not be collected without a cursor; this one runs ahead.
        "ahead": Consumer("ahead", 40, pace_s / 2),
        "collector": Collecting(8, pace_s * 2),
    }
    keeping = KeyedOptions(reader=READING, keys_cached_bytes_max=dice.choice((0, 2**20)), bodies_cached_bytes_max=0)
    packing = SnapshotCompactorOptions(snapshots=drawn_options(dice).snapshots, retry=RETRY)
    chances: dict[str, tuple[float, Actor]] = {
        "publisher1": (0.5, Publisher(drawn_options(dice), 8, pace_s, keyless)),
        "consuming1": (0.5, consuming),
        "reaper": (0.5, Reaper("consuming0", dice.random() * pace_s * 8, consuming)),
        "freezer": (
            0.3,
            Freezer("consuming0", dice.random() * 3, 20.0, clock_stops=False),
        ),
        "looking": (0.7, Looking(20, keeping)),
        "packer": (0.3, Packing(3, pace_s * 3, packing)),
    }
    return cast | {name: actor for name, (chance, actor) in chances.items() if dice.random() < chance}
