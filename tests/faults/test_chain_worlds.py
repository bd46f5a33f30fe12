"""Simulated worlds of a log that is migrated, copied and restored, with all who have a cursor in it."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.campaign import broken
from tests.faults.chain_mutants import CHAIN_MUTANTS
from tests.faults.chain_worlds import chain_story
from tests.mutations import Mutation, applied

# Of the first ones, those in which all of these happened.
SEEDS = range(9)
SEEDS_FOR_A_MUTANT = 300
HAPPENED = {
    "chain: migrated",
    "chain: went on in the successor",
    "chain: a view went on",
    "chain: copy updated",
    "chain: copy is as its source",
    "chain: retired",
    "named: made",
    "named: repeated",
    "pruned",
    "killed",
}


@pytest.mark.slow
def test_what_belongs_to_a_log_goes_where_the_log_goes() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS:
        story = chain_story(seed)
        how = broken(story)
        assert how is None, f"seed {seed}: {how}"
        happened += story.stage.world.fired + story.stage.world.shared.seen

    assert {*+happened} >= HAPPENED


@pytest.mark.repeat
@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.name) for each in CHAIN_MUTANTS])
def test_a_defect_is_found(mutant: Mutation) -> None:
    with applied(mutant):
        found = next((seed for seed in range(SEEDS_FOR_A_MUTANT) if broken(chain_story(seed)) is not None), None)

    assert found is not None, f"{mutant.name}: {SEEDS_FOR_A_MUTANT} seeds did not find it"
