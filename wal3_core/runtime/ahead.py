"""Work on the shared workers, ahead of the caller."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from wal3_core.runtime.outcome import Outcome
from wal3_core.workers import COMMON, Share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from wal3_core.runtime.port import Runtime


A = TypeVar("A")
T = TypeVar("T")


def map_ahead(
    runtime: Runtime,
    work: Callable[[A], T],
    items: Iterable[A],
    *,
    count: int,
    share: Share = COMMON,
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[T]:
    """Do the work on each item on the shared workers, ``count`` items ahead of the caller; yield results in order.

    While the next item is not ``ready`` (asking for it would block), results are yielded first. ``share`` says
    whose work it is.
    """
    waiting: deque[Future[T]] = deque()
    for item in items:
        waiting.append(later(runtime, partial(work, item), share))
        while waiting and (len(waiting) > count or not ready()):
            yield runtime.wait(waiting.popleft())
    while waiting:
        yield runtime.wait(waiting.popleft())


def later(runtime: Runtime, work: Callable[[], T], share: Share = COMMON) -> Future[T]:
    """Do the work on the shared workers; return its future."""
    future: Outcome[T] = Outcome()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)

    runtime.spawn(run, share=share)
    return future
