"""Simulated worlds in which fleets refuse appends to logs whose consumers are too far behind."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tests.effort import some
from tests.faults.pressed import check_lifted, pressed_cast
from tests.faults.story import Story

SEEDS = some(10)


@pytest.mark.slow
def test_refused_append_is_never_in_the_log_and_a_log_caught_up_accepts_again() -> None:
    fired: Counter[str] = Counter()
    for seed in range(SEEDS):
        story = Story(seed, cast=pressed_cast(random.Random(seed)), end=check_lifted)
        try:
            story.tell()
        except BaseException:
            print(f"seed {seed}")
            raise
        fired += story.stage.world.fired

    assert fired["refused for pressure"] > 5 * SEEDS
    assert fired["appended by a fleet"] > 5 * SEEDS
