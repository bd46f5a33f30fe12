"""How much tests do of what they could.

Of seeds, examples and moments a third, or with WAL3_TEST_WHOLE=1 all. Of the slow tests all, or the fifth that
WAL3_TEST_PART numbers from 0: ``make test`` takes another one with each commit.
"""

from __future__ import annotations

import os
from zlib import crc32

WHOLE = os.environ.get("WAL3_TEST_WHOLE") == "1"
PARTS = 5
PART = {str(number): number for number in range(PARTS)}.get(os.environ.get("WAL3_TEST_PART", ""))


def some(count: int) -> int:
    """Return how many of so many seeds or examples to try."""
    return count if WHOLE else -(-count // 3)


def every(step: int) -> int:
    """Return the step between the moments to try."""
    return 1 if WHOLE else step


def in_part(function: str, case: int, part: int) -> bool:
    """Whether a case of a slow test is in that part: of the cases of a function that has many, each part has some."""
    return (crc32(function.encode()) + case) % PARTS == part
