"""What a task knows of the attempts before it: the one thing about retries that is also known with Spark Connect."""

from __future__ import annotations

from pyspark import TaskContext

# In place of a log's name: the row says how many attempts of its task were before. Only a repeated task has one.
AGAIN = ""


def earlier_attempts() -> int:
    """Return how many attempts of this task began before this one; 0 outside of a task."""
    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
