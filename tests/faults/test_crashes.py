"""A crash, or any fault, at every store call of every scenario loses nothing."""

from __future__ import annotations

import pytest

from tests.faults.crashes import SCENARIOS, Scenario, examine
from tests.faults.narrow_mutants import CRASH_MUTANTS
from tests.mutations import Mutation, applied

# `make crashes` runs them all, in several orders of the tasks; `make test` has the worlds of test_simulation.py.
RUNS_MAX = 13
SCHEDULES_FOR_A_MUTANT = 4


@pytest.mark.repeat
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_whatever_fails_at_any_call(scenario: Scenario) -> None:
    row = examine(scenario, schedules=1, runs_max=RUNS_MAX)

    assert row.calls > 0
    assert row.faults >= 6
    assert row.runs >= min(RUNS_MAX, 7 * row.calls)


@pytest.mark.repeat
@pytest.mark.parametrize(
    ("name", "mutant"), [pytest.param(name, mutant, id=mutant.name) for name, mutant in CRASH_MUTANTS]
)
def test_a_defect_is_found_by_a_fault_at_some_call(name: str, mutant: Mutation) -> None:
    scenario = next(scenario for scenario in SCENARIOS if scenario.name == name)

    with applied(mutant), pytest.raises(AssertionError):
        examine(scenario, schedules=SCHEDULES_FOR_A_MUTANT, only="slow")
