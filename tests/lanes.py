"""Compiled hashing in tests: wait until it is there, or known not to be."""

from __future__ import annotations

import time

from wal3_core.hashing.lanes import LANES, Lanes

DEADLINE_S = 240.0


def lanes_decided(lanes: Lanes = LANES) -> bool:
    """Return whether the process has lanes; another one compiles them first if need be."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not lanes.look():
        if lanes.hashing().because != "the faster code is being compiled":
            return False
        assert time.monotonic() < deadline_s, lanes.hashing()
        time.sleep(0.05)
    return True
