"""Simulated worlds with delay queues, whose brokers take them from each other, beside key compaction and faults."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.effort import WHOLE, some
from tests.faults.campaign import broken
from tests.faults.queue_mutants import QUEUE_WORLD_MUTANTS
from tests.faults.queue_worlds import queue_story
from tests.mutations import Mutation, applied

SEEDS = some(8)
SEEDS_FOR_A_MUTANT = 200
HAPPENED = {"enqueue", "lease again", "lease ended", "release", "requeue", "checkpoint", "FencedError", "brokers"}


@pytest.mark.slow
def test_answers_of_a_queue_are_in_its_log_and_true_whatever_befalls_its_brokers() -> None:
    happened: Counter[str] = Counter()
    for seed in range(SEEDS):
        story = queue_story(seed)
        how = broken(story)
        assert how is None, f"seed {seed}: {how}"
        happened += story.stage.world.fired + story.stage.world.shared.seen

    assert {f"queue: {name}" for name in HAPPENED} | {"passes installed"} <= {*+happened} or not WHOLE


@pytest.mark.repeat
@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.name) for each in QUEUE_WORLD_MUTANTS])
def test_a_defect_is_found(mutant: Mutation) -> None:
    with applied(mutant):
        found = next((seed for seed in range(SEEDS_FOR_A_MUTANT) if broken(queue_story(seed)) is not None), None)

    assert found is not None, f"{mutant.name}: {SEEDS_FOR_A_MUTANT} seeds did not find it"


def test_defects_still_match_the_code() -> None:
    for mutant in QUEUE_WORLD_MUTANTS:
        with applied(mutant):
            pass
