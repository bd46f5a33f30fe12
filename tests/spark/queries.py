"""Queries of streams on a machine that is busy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import StreamingQueryException

T = TypeVar("T")
_TRIES = 10


def until_connected(query: Callable[[], T]) -> T:
    """Run a query, again while Spark's limit was too short: a stream's Python has 10 s to start, fixed in its code."""
    for _ in range(_TRIES):
        try:
            return query()
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return query()
