"""Ctrl-C at any moment of a call: the caller is interrupted, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Every place of the calls that append; of the longer one that reads, too, one of a few unless told.
EVERY = int(os.environ.get("WAL3_TEST_INTERRUPTS_EVERY", "9"))


@pytest.mark.parametrize(
    ("call", "every", "places"), [("append", 1, 40), ("held", 1, 150), ("flush", 1, 10), ("follow", EVERY, 400)]
)
def test_interrupt_at_any_place_of_of_a_call_harms_no_other_caller(call: str, every: int, places: int) -> None:
    """It left a lock held, or an append that nobody drove, and everyone after waited for ever."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spec.interrupted", call, str(every)],
        timeout=300,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= places


@pytest.mark.parametrize("handled", ["stats", "submit", "append", "flush", "close"])
def test_call_by_a_signal_s_handler_at_any_place_of_an_append_is_done_or_refused_and_never_hangs(handled: str) -> None:
    """It waited for a lock that its own thread held, and all others waited with it."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spec.interrupted", f"handler:{handled}", "1"],
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 40
