"""The production code, unmodified, in simulated worlds: many seeds, no broken promise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.campaign import Story

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_no_promise_is_broken_under_faults_crashes_and_contention(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            Story(seed).tell()
        except BaseException:
            print(f"replay: python -m tests.faults.campaign --first {seed} --seeds 1")
            raise


def test_one_seed_is_one_story_whatever_the_hash_seed() -> None:
    program = "from tests.faults.campaign import Story; s = Story(7); s.tell(); print(s.simulation.trace)"
    traces = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("0", "1", "2")
    }

    assert len(traces) == 1
    assert len(traces.pop().strip()) == 64


def test_another_seed_is_another_story() -> None:
    stories = [Story(seed) for seed in range(3)]
    for story in stories:
        story.tell()

    assert len({story.simulation.trace for story in stories}) == 3
