"""A crash, or any fault, at every store call of every scenario loses nothing."""

from __future__ import annotations

import pytest

from tests.faults.crashes import SCENARIOS, Scenario, examine
from tests.faults.plans import CRASHES, FAULTS


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_whatever_fails_at_any_call(scenario: Scenario) -> None:
    row = examine(scenario, schedules=1)

    assert row.calls > 0
    assert row.runs >= row.calls * min(len(FAULTS[kind]) + len(CRASHES[kind]) for kind in FAULTS)
