"""A run of tests comes to its end also when one of its workers dies, and five of them run every slow test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.effort import PARTS, in_part

ROOT = Path(__file__).parent.parent
PROGRAM = """
import os
import pytest

@pytest.mark.parametrize("number", range(60))
def test_alone(number):
    if number == 23:
        DIE

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(10))
def test_together(number):
    pass
"""


# Python lists the threads from the newest to the oldest.
SLEEP = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"


def test_five_commits_in_a_row_run_each_slow_test_once() -> None:
    functions = [f"tests/test_a.py::test_{number}" for number in range(60)]
    runs = [[part for part in range(PARTS) if in_part(each, case, part)] for each in functions for case in range(6)]
    assert {len(each) for each in runs} == {1}
    # Where there are enough cases, each part has one.
    assert all({part for run in runs[at : at + 6] for part in run} == set(range(PARTS)) for at in range(0, 360, 6))


@pytest.mark.repeat
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workers", "die", "shown"),
    [(1, "os._exit(3)", "none: no signal ended it"), (3, f"{SLEEP}; os.abort()", "in test_alone")],
)
def test_dead_worker_fails_one_test_and_the_others_are_run_once(
    workers: int, die: str, shown: str, tmp_path: Path
) -> None:
    (tmp_path / "test_dying.py").write_text(PROGRAM.replace("DIE", die))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", "tests.worker_groups", "-p", "tests.worker_stacks"]
    command += [f"--numprocesses={workers}", "--dist=loadgroup", str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "1 failed, 69 passed" in ended.stdout
    assert "crashed while running 'test_dying.py::test_alone[23]'" in ended.stdout
    # The stacks, at the end.
    _, stacks = ended.stdout.split(" when it died ")
    assert shown in stacks.partition("\n\nThread ")[0]
