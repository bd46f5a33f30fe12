"""The production code, unmodified, in simulated worlds: many seeds, no broken promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import WHOLE, some
from tests.faults.campaign import broken, run, shrink
from tests.faults.mutants import MUTANTS, RARE
from tests.faults.plans import SWARM, Script
from tests.faults.story import Story
from tests.mutations import Mutation, applied

ROOT = Path(__file__).parent.parent.parent
# The campaign of docs/reliability.md is a hundred times as long.
SEEDS = some(64)
SEEDS_FOR_ALL = 160
SEEDS_FOR_A_MUTANT = 200
HAPPENED = {
    "killed",
    "frozen",
    "announced",
    "withdrawn",
    "overtaken",
    "pruned",
    "collection waited",
    "orphans marked",
    "objects deleted",
    "pinned",
    "a pin held what was collected",
    "packed",
    "packing overtaken",
    "keys rolled up",
    "log sealed",
    "migrated",
    "copied while appended to",
    "copied while collected",
    "destroyed",
    "a writer of one append",
    "cursor done",
    "cursor conflict",
    "cursor collected",
    "cursor deletion done",
    "cursor deletion unknown",
    "resumed",
    "condition met",
    "condition not met",
    "second lives",
    "copied",
    "create",
    "back up",
    "restore",
    "create successor",
    "destroy",
    "dead lives left something",
    "rolled up: advanced",
    "rolled up: overtaken",
    "pulled by several compactors",
    "markers reinserted",
    "markers collected",
    "handed out",
    "fenced by a roll-up",
    "appended by a fleet",
    "closed for another log",
}
# Too few seeds have them for the shorter test to count on them.
SELDOM = {
    "a pin held what was collected",
    "copied while appended to",
    "copied while collected",
    "destroyed",
    "migrated",
    "overtaken",
    "packed",
    "packing overtaken",
    "withdrawn",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "happened"),
    [(SEEDS, HAPPENED - SELDOM if WHOLE else set()), pytest.param(SEEDS_FOR_ALL, HAPPENED, marks=pytest.mark.repeat)],
    ids=["most", "all"],
)
def test_no_promise_is_broken_under_faults_crashes_and_contention(seeds: int, happened: set[str]) -> None:
    tally = run(range(seeds), processes=os.cpu_count() or 1, progress=lambda _: None)

    if tally.failed is not None:
        seed, how = tally.failed
        pytest.fail(f"{how}\nreplay: python -m tests.faults.campaign --first {seed} --seeds 1")
    assert tally.seeds == seeds
    if not happened:
        return
    # A campaign in which an event never happens proves nothing about it.
    assert {*SWARM, *happened} <= {name for name, count in tally.fired.items() if count}
    assert {"acked", "unmarked", "refused", "contended", "sealed", "unknown", "pending", "replaced"} <= set(
        tally.appends
    )


@pytest.mark.slow
def test_one_seed_is_one_story_whatever_the_hash_seed() -> None:
    program = (
        "from tests.faults.story import Story\n"
        "for seed in range(7, 9):\n"
        "    story = Story(seed); story.tell(); print(story.stage.simulation.trace)"
    )
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
            timeout=600,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }

    assert len(traces) == 1
    assert len(set(traces.pop().split())) == 2


@pytest.mark.repeat
@pytest.mark.parametrize("mutant", [pytest.param(each, id=each.name) for each in MUTANTS if each.name not in RARE])
def test_a_defect_is_found(mutant: Mutation) -> None:
    with applied(mutant):
        tally = run(range(SEEDS_FOR_A_MUTANT), processes=1, progress=lambda _: None)

    assert tally.failed is not None, f"{mutant.name}: {SEEDS_FOR_A_MUTANT} seeds did not find it"


@pytest.mark.slow
def test_defects_still_match_the_code() -> None:
    assert {mutant.name for mutant in MUTANTS} > RARE
    for mutant in MUTANTS:
        with applied(mutant):
            pass


@pytest.mark.repeat
@pytest.mark.slow
def test_a_failing_seed_shrinks_to_the_faults_that_matter() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "an unanswered upload is taken for done")
    with applied(mutant):
        failed = run(range(100), processes=1, progress=lambda _: None).failed
        assert failed is not None
        story = Story(failed[0])
        broken(story)

        kept = shrink(failed[0], story.stage.world.fired_at, lambda candidate: broken(candidate) is not None)

        assert set(kept.items()) <= set(story.stage.world.fired_at.items())
        assert broken(Story(failed[0], plan=Script(kept))) is not None
        assert all(
            broken(Story(failed[0], plan=Script({i: f for i, f in kept.items() if i != left}))) is None for left in kept
        )
    assert broken(Story(failed[0], plan=Script(kept))) is None


@pytest.mark.slow
def test_the_command_fails_with_a_defect_and_prints_how_to_replay_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.faults.campaign", "--seeds", "20", "--mutant", "acknowledged before the CAS"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert ended.returncode == 1
    assert "-m tests.faults.campaign --first" in ended.stdout
    assert "these suffice" in ended.stdout
