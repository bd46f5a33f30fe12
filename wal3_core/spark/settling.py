"""Sparing Spark's Python workers the time of going through all that they have loaded, after each task.

A worker collects garbage when a task ends, and begins its next one only then. With this library loaded, that takes
tens of milliseconds for some 100,000 objects, modules and functions mostly, of which none is ever garbage.
"""

from __future__ import annotations

import gc
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from pyspark import TaskContext

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


def settling(results: Iterator[T]) -> Iterator[T]:
    """Give a task's results; behind the last one, once in a worker, exempt from collection what is loaded by then."""
    yield from results
    # Elsewhere, in a driver or a test, what lives is not ours to exempt.
    if TaskContext.get() is not None:
        _settle()


@cache
def _settle() -> None:
    # Once in a process: what each task leaves in cycles must stay subject to collection.
    gc.collect()
    gc.freeze()
