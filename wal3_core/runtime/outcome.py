"""A future that stays usable when a thread that waits for it is interrupted."""

from __future__ import annotations

import _thread
import contextlib
from collections import deque
from concurrent.futures import Future
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


T = TypeVar("T")

# States of a Future.
_ENDED = frozenset({"FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED"})


class _Gate(_thread.RLock):  # type: ignore[misc]  # final to the type checker alone
    """Stands in for a Future's Condition; no thread waits while holding it, and it is entered and left in one step."""

    def __init__(self) -> None:
        self.waiters: deque[_thread.LockType] = deque()

    def notify_all(self) -> None:
        """Wake everyone who waits."""
        while self.waiters:
            self.waiters.popleft().release()


# Where this thread puts the callbacks of the outcomes it sets, instead of calling them at once.
_HELD: ContextVar[list[Callable[[], None]] | None] = ContextVar("wal3-held-callbacks", default=None)


@contextlib.contextmanager
def callbacks_held(held: list[Callable[[], None]]) -> Iterator[None]:
    """Append the callbacks of outcomes that are set in the block to ``held`` instead of calling them."""
    before = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(before)


class Outcome(Future[T]):
    """A future that stays usable when a thread that waits for it is interrupted: setting it never hangs.

    A waiting thread holds no lock, so a signal handler that runs meanwhile may wait for the same future, or others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition: _Gate = _Gate()  # type: ignore[assignment]
        self._state: str

    def done(self) -> bool:
        """Whether it has its outcome, which is set in one step."""
        return self._state in _ENDED

    def result(self, timeout: float | None = None) -> T:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds."""
        self._await(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Block until it has its outcome; TimeoutError after ``timeout`` seconds."""
        self._await(timeout)
        return super().exception(0)

    def _invoke_callbacks(self) -> None:
        held, call = _HELD.get(), super()._invoke_callbacks  # type: ignore[misc]  # the standard library's own
        if held is None:
            call()
        elif self._done_callbacks:  # type: ignore[attr-defined]
            held.append(call)

    def _await(self, timeout: float | None) -> None:
        if self.done():
            return
        waiter = _thread.allocate_lock()
        waiter.acquire()
        waiters = self._condition.waiters
        waiters.append(waiter)
        try:
            # Checked after the append: it was set before, or setting it finds the waiter.
            if not self.done():
                waiter.acquire(True, -1 if timeout is None else max(timeout, 0))  # noqa: FBT003 - takes no keywords
        finally:
            with contextlib.suppress(ValueError):
                waiters.remove(waiter)
        if not self.done():
            raise TimeoutError
