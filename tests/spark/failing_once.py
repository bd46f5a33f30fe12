"""Tasks whose first attempts fail, in the session of the tests: it runs them again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    import pytest

WHY = "a worker with a bad disk"


def let_first_attempts_fail(monkeypatch: pytest.MonkeyPatch, module: ModuleType, task: str) -> None:
    """Let the first attempt of every task fail, after it has read its input: ``task`` is the function in the module."""
    work = getattr(module, task)

    # A function of this function's: Spark sends its code to the workers, which do not have the tests.
    def fail_first(batches: Iterable[pa.RecordBatch], **options: object) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext  # noqa: PLC0415 - as above

        held = list(batches)
        context = TaskContext.get()
        assert context is not None
        if not context.attemptNumber():
            raise OSError(why)
        yield from work(held, **options)

    why = WHY
    monkeypatch.setattr(module, task, fail_first)
