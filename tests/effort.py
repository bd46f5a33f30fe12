"""How much tests do of what they could: of seeds, examples and moments a third, or with WAL3_TEST_WHOLE=1 all."""

from __future__ import annotations

import os

WHOLE = os.environ.get("WAL3_TEST_WHOLE") == "1"


def some(count: int) -> int:
    """Return how many of so many seeds or examples to try."""
    return count if WHOLE else -(-count // 3)


def every(step: int) -> int:
    """Return the step between the moments to try."""
    return 1 if WHOLE else step
