"""Simulated worlds with appends that have names, beside passes, collections, faults, and copies that are used."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.effort import WHOLE, some
from tests.faults.campaign import broken
from tests.faults.named_mutants import NAMED_MUTANTS
from tests.faults.named_worlds import named_story
from tests.mutations import Mutation, applied

# Of the first ones, those in which all of these happened.
SEEDS = (0, *range(7, 15))
SEEDS_FOR_A_MUTANT = 200
HAPPENED = {"made", "repeated", "NotDurableError", "UnknownDurabilityError", "copy updated", "copy promoted"}


@pytest.mark.slow
def test_append_with_a_name_is_in_each_log_once_whatever_happens_to_its_writers() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS[: some(len(SEEDS))]:
        story = named_story(seed)
        how = broken(story)
        assert how is None, f"seed {seed}: {how}"
        happened += story.stage.world.fired + story.stage.world.shared.seen

    assert {f"named: {name}" for name in HAPPENED} | {"passes installed", "pruned", "killed"} <= {
        *+happened
    } or not WHOLE


@pytest.mark.repeat
@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.name) for each in NAMED_MUTANTS])
def test_a_defect_is_found(mutant: Mutation) -> None:
    with applied(mutant):
        found = next((seed for seed in range(SEEDS_FOR_A_MUTANT) if broken(named_story(seed)) is not None), None)

    assert found is not None, f"{mutant.name}: {SEEDS_FOR_A_MUTANT} seeds did not find it"


def test_defects_still_match_the_code() -> None:
    for mutant in NAMED_MUTANTS:
        with applied(mutant):
            pass
