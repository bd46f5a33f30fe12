"""Blocking calls from asyncio: made in threads of their own, and taken back when their caller is cancelled."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from wal3_core.errors import LogError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from concurrent.futures import Future

    from wal3_core.log.read.following import Following
    from wal3_core.model.record import Record

T = TypeVar("T")

# Held at a time, on top of the fragments that the reader prefetches.
_RECORDS_MAX = 256


class Calls:
    """Makes the blocking calls of one object for its callers in asyncio; with one thread, one after the other.

    Threads begin as they are needed. They end with ``close``, or when the object is gone.
    """

    def __init__(self, name: str, threads_max: int = 1) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: ThreadPoolExecutor | None = None

    async def made(
        self,
        call: Callable[[], T],
        *,
        wake: Callable[[], None] | None = None,
        give_back: Callable[[T], None] | None = None,
    ) -> T:
        """Make a call, and return its result.

        When the caller is cancelled, a call that has not begun is not made. One under way is left to itself: ``wake``
        ends its wait, and ``give_back`` takes what it returned, in one of the threads; with one thread, before the next
        call.
        """
        import asyncio  # noqa: PLC0415 - its callers have it; for others it would be an eighth of the library's import

        if self._threads is None:
            # Not the loop's own executor: most calls wait, and would keep its few threads.
            self._threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix=self._name)
        threads = self._threads
        under_way = threads.submit(call)
        try:
            return await asyncio.wrap_future(under_way)
        except asyncio.CancelledError:
            # It may have returned just now.
            if not under_way.cancel():
                if give_back is not None:
                    _submit(threads, partial(_given_back, under_way, give_back))
                if wake is not None:
                    wake()
            raise

    def close(self) -> None:
        """End the threads, each after the call that it is making. A later call begins others."""
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)


def _submit(threads: ThreadPoolExecutor, task: Callable[[], None]) -> None:
    try:
        threads.submit(task)
    except RuntimeError:
        # They were closed meanwhile.
        last = ThreadPoolExecutor(1)
        last.submit(task)
        last.shutdown(wait=False)


def _given_back(under_way: Future[T], give_back: Callable[[T], None]) -> None:
    # An error was its caller's, who is gone; what failed comes again.
    with contextlib.suppress(LogError):
        give_back(under_way.result())


async def in_thread(following: Following) -> AsyncGenerator[Record, None]:
    """Go through the records of a pass; nothing is read while the caller works on the records it was given.

    The thread ends with the generator. It finishes the request under way; a pause ends at once.
    """
    calls = Calls("wal3-follow")
    try:
        step = partial(following.step, _RECORDS_MAX)
        while (taken := await calls.made(step, wake=following.wake)) is not None:
            for record in taken:
                yield record
    finally:
        calls.close()
