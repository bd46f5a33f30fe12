"""Simulated worlds with durable subscriptions and keyed consumers, beside collections, deaths and faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.effort import WHOLE, some
from tests.faults.campaign import broken
from tests.faults.view_casts import drawn_view_story
from tests.faults.view_consumers import KeyConsuming, Subscribing, drawn_key_consuming, drawn_subscribing
from tests.faults.view_mutants import KEYED_MUTANTS, READER_MUTANTS, SUBSCRIPTION_MUTANTS
from tests.mutations import Mutation, applied

if TYPE_CHECKING:
    from tests.faults.story import Story

SEEDS = some(32)
SEEDS_FOR_A_MUTANT = 100
Drawn = Callable[[random.Random], "Subscribing | KeyConsuming"]
HAPPENED = {"given", "given again", "pruned", "killed", "frozen", "read", "counted", "passes installed"}


def _story(seed: int, drawn: Drawn) -> Story:
    return drawn_view_story(seed, random.Random(seed), drawn)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("drawn", "happened"), [(drawn_subscribing, {*HAPPENED, "gaps"}), (drawn_key_consuming, HAPPENED)]
)
def test_what_was_saved_as_done_never_comes_again_and_nothing_is_skipped(drawn: Drawn, happened: set[str]) -> None:
    fired: Counter[str] = Counter()
    for seed in range(SEEDS):
        story = _story(seed, drawn)
        try:
            story.tell()
        except BaseException:
            print(f"seed {seed}")
            raise
        fired += story.stage.world.fired + story.stage.world.oracle.seen

    assert happened <= {name for name, count in fired.items() if count} or not WHOLE


@pytest.mark.repeat
@pytest.mark.parametrize(
    ("mutant", "drawn"),
    [
        *(pytest.param(each, drawn_subscribing, id=each.name) for each in SUBSCRIPTION_MUTANTS),
        *(pytest.param(each, drawn_key_consuming, id=each.name) for each in KEYED_MUTANTS),
        *(pytest.param(each, drawn_key_consuming, id=each.name) for each in READER_MUTANTS),
    ],
)
def test_a_defect_is_found(mutant: Mutation, drawn: Drawn) -> None:
    with applied(mutant):
        found = next((seed for seed in range(SEEDS_FOR_A_MUTANT) if broken(_story(seed, drawn)) is not None), None)

    assert found is not None, f"{mutant.name}: {SEEDS_FOR_A_MUTANT} seeds did not find it"


def test_defects_still_match_the_code() -> None:
    for mutant in (*SUBSCRIPTION_MUTANTS, *KEYED_MUTANTS, *READER_MUTANTS):
        with applied(mutant):
            pass
