"""What a task knows of the attempts before it, and sparing Spark's Python workers a collection after each task.

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

# In place of a log's name: the row says how many attempts of its task were before. Only a repeated task has one.
AGAIN = ""


def earlier_attempts() -> int:
    """Return how many attempts of this task began before this one; 0 outside of a task."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()


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
