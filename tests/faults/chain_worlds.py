"""Stories of a log that is migrated and copied, and of all who have a cursor in it."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from tests.faults.actors import Actor, Freezer, Reaper, drawn_options
from tests.faults.chain_end import finish
from tests.faults.chain_ledger import RULES, ChainLedger
from tests.faults.chain_moves import Migrating
from tests.faults.chain_owners import Consuming, Retiring
from tests.faults.chain_writers import ChainWriting
from tests.faults.collectors import Collecting
from tests.faults.named_ledger import NamedLedger
from tests.faults.story import Story
from tests.faults.view_consumers import READING
from wal3_core import ConsumerOptions

if TYPE_CHECKING:
    from random import Random

    from tests.faults.simulator import SimProcess


@dataclass
class ChainStory(Story):
    """A story whose logs, and the owners of their cursors, are checked by a ledger."""

    def close(self, operator: SimProcess) -> None:
        """Leave it at ``end``: the usual checks know one log alone."""


def chain_story(seed: int, rules: frozenset[str] = RULES) -> ChainStory:
    """Make the story of a seed, in which these rules must hold, too."""
    dice = random.Random(seed)
    story = ChainStory(seed)
    ledger = ChainLedger(story.stage, NamedLedger(), rules)
    story.stage.world.watching.append(ledger.landed)
    story.cast = drawn_cast(dice, ledger)
    owners = [actor for actor in story.cast.values() if isinstance(actor, Consuming)]
    story.end = partial(finish, ledger=ledger, owners=owners)
    return story


def drawn_cast(dice: Random, ledger: ChainLedger) -> dict[str, Actor]:
    """Writers, consumers, migrations and collections."""
    pace_s = dice.choice((0.1, 1.0))
    cast: dict[str, Actor] = {
        "writer0": ChainWriting(ledger, "a", drawn_options(dice), 12, pace_s),
        "migrator0": Migrating("a", "b", dice.random() * pace_s * 10),
        "consumer0": drawn_consuming(dice, ledger, "c0", pace_s),
        "consumer1": drawn_consuming(dice, ledger, "c1", pace_s),
        "collector0": Collecting(8, pace_s * 2, "a"),
        "collector1": Collecting(8, pace_s * 2, "b"),
    }
    return cast


def drawn_consuming(dice: Random, ledger: ChainLedger, name: str, pace_s: float) -> Consuming:
    """A slow consumer or a fast one."""
    options = ConsumerOptions(
        commit_records_max=dice.choice((1, 5, 1000)),
        commit_s_max=dice.choice((0.0, 5.0)),
        batch_records_max=dice.choice((1, 5)),
        idle_s=dice.choice((0.5, 3.0)),
        reader=READING,
    )
    return Consuming(
        ledger, name, "a", dice.choice(("beginning", "end")), options, dice.choice((2, 5)), dice.choice((0.0, pace_s))
    )
