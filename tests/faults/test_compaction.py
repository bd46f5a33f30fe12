"""Worlds of their own whose logs are compacted by key: what happens in them, and the defects that they find."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.effort import WHOLE, some
from tests.faults.campaign import broken
from tests.faults.compaction_mutants import COMPACTION_MUTANTS, FOUND_BY_SYMPTOMS
from tests.faults.story import Story
from tests.mutations import Mutation, applied
from wal3_core import LogError

SEEDS = some(20)
SEEDS_FOR_A_MUTANT = 200
FIRST = 1000
HAPPENED = {
    "compacted",
    "superseded",
    "tombstones expired",
    "compaction overtaken",
    "installed in steps",
    "policy changed",
    "objects deleted",
    "objects of passes deleted",
}


@pytest.mark.slow
def test_no_promise_is_broken_while_logs_are_compacted_by_key() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        story = Story(seed, compacts=True)
        how = broken(story)
        assert how is None, f"seed {seed}: {how}"
        happened.update(story.stage.world.fired)
        happened.update(story.stage.world.shared.seen)

    assert {name for name, count in happened.items() if count} >= HAPPENED or not WHOLE


@pytest.mark.repeat
@pytest.mark.parametrize(
    "mutant",
    [pytest.param(each, id=each.name) for each in COMPACTION_MUTANTS if each.name not in FOUND_BY_SYMPTOMS],
)
def test_a_defect_is_found(mutant: Mutation) -> None:
    with applied(mutant):
        seeds = range(FIRST, FIRST + SEEDS_FOR_A_MUTANT)
        found = next((seed for seed in seeds if broken(Story(seed, compacts=True)) is not None), None)

    assert found is not None, f"{mutant.name}: {SEEDS_FOR_A_MUTANT} seeds did not find it"


@pytest.mark.parametrize("name", FOUND_BY_SYMPTOMS)
def test_a_defect_with_a_narrow_window_is_found_by_the_test_of_its_symptom(name: str) -> None:
    mutant = next(mutant for mutant in COMPACTION_MUTANTS if mutant.name == name)

    with applied(mutant), pytest.raises((AssertionError, LogError)):
        FOUND_BY_SYMPTOMS[name]()


def test_defects_still_match_the_code() -> None:
    assert {mutant.name for mutant in COMPACTION_MUTANTS} > FOUND_BY_SYMPTOMS.keys()
    for mutant in COMPACTION_MUTANTS:
        with applied(mutant):
            pass
