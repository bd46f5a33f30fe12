"""Blocking calls from asyncio: made in threads of their own, and taken back when their caller is cancelled."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, Self, TypeVar

from wal3_core.errors import LogError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from concurrent.futures import Future
    from types import TracebackType

    from wal3_core.log.read.following import Following
    from wal3_core.model.record import Record

T = TypeVar("T")
P = ParamSpec("P")
O = TypeVar("O", bound="_HasCalls")  # noqa: E741 - an object

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

        threads, under_way = self._begin(call)
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

    def _begin(self, call: Callable[[], T]) -> tuple[ThreadPoolExecutor, Future[T]]:
        while True:
            threads = self._threads
            if threads is None:
                # Not the loop's own executor: most calls wait, and would keep its few threads.
                self._threads = threads = ThreadPoolExecutor(self._threads_max, thread_name_prefix=self._name)
            try:
                return threads, threads.submit(call)
            except RuntimeError:
                # Closed by another thread just now; or else the interpreter ends.
                if self._threads is threads:
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


class Closing:
    """An object that the end of a ``with`` or an ``async with`` closes."""

    _async: Calls

    def close(self) -> None:
        """End what the object does."""
        raise NotImplementedError

    async def close_async(self) -> None:
        """Await ``close``."""
        await self._async.made(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close_async()


class _HasCalls(Protocol):
    _async: Calls


def awaited(method: Callable[Concatenate[O, P], T]) -> Callable[Concatenate[O, P], Coroutine[Any, Any, T]]:
    """Make a method for asyncio of one that blocks: it is called in one of the threads that its object has for that."""

    @wraps(method)
    async def call(made_for: O, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await made_for._async.made(partial(method, made_for, *args, **kwargs))  # noqa: SLF001 - what it is for

    call.__name__ += "_async"
    call.__qualname__ += "_async"
    call.__doc__ = f"Await ``{method.__name__}``."
    return call
