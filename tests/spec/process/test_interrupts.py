"""Ctrl-C at any moment of a call interrupts its caller and no other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# The call that also reads is long: every ninth of its places is tried by default.
EVERY = int(os.environ.get("WAL3_TEST_INTERRUPTS_EVERY", "9"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "every", "places"),
    [
        ("append", 1, 30),
        ("held", 1, 80),
        ("flush", 1, 10),
        ("follow", EVERY, 200),
        ("fleet", 1, 60),
        ("fleet-again", 1, 40),
        ("feed-reader", EVERY, 150),
        ("feed-subscription", EVERY, 200),
        ("queue-enqueue", 2, 35),
        ("queue-dequeue", 2, 25),
        # By a signal handler.
        ("queue-closed", 4, 35),
        ("keyed-append", 3 * EVERY, 100),
    ],
)
def test_interrupt_at_any_place_of_a_call_harms_no_other_caller(call: str, every: int, places: int) -> None:
    """Regression: it left a lock held, or an append that no thread drove, and all later callers waited forever.

    That of a conditional append was raised to the thread that closed its log.
    """
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spec.interrupted", call, str(every)],
        timeout=600,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= places


@pytest.mark.slow
@pytest.mark.parametrize("handled", ["stats", "submit", "append", "flush", "close"])
def test_call_in_a_signal_handler_anywhere_in_an_append_never_hangs(
    handled: str,
) -> None:
    """Regression: it waited for a lock that its own thread held, and every other caller waited too."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.spec.interrupted", f"handler:{handled}", "1"],
        timeout=600,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) >= 40
