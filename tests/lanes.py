"""Compiled hashing in tests: wait until it is there, or known not to be; use it for the smallest batch."""

from __future__ import annotations

import os
import time

from wal3_core.hashing import lanes as hashing_lanes
from wal3_core.hashing.lanes import LANES, VARIABLE, Lanes

DEADLINE_S = 240.0


def hash_all_in_lanes_if_asked() -> None:
    """With ``WAL3_FAST=1``, hash batches of any size by compiled code: those of tests are too small to be worth it."""
    if os.environ.get(VARIABLE) == "1":
        assert lanes_decided(), LANES.hashing()
        hashing_lanes._RECORDS_MIN, hashing_lanes._BLOCKS_MIN = 1, 0


def lanes_decided(lanes: Lanes = LANES) -> bool:
    """Return whether the process has lanes; another one compiles them first if need be."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not lanes.load():
        if lanes.hashing().because != "the faster code is being compiled":
            return False
        assert time.monotonic() < deadline_s, lanes.hashing()
        time.sleep(0.05)
    return True
