"""The port through which the library uses its process. A simulator passes its own and runs from a seed."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from types import TracebackType
from typing import Protocol, Self, TypeVar

from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.runtime.observer import Observer
from wal3_core.workers import COMMON, Share

T = TypeVar("T")

US_PER_S = 1_000_000


class Lock(Protocol):
    """A lock, taken by ``with`` only: an interrupt never leaves it held."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def owned(self) -> bool:
        """Whether this thread holds it, so that it would wait for itself."""
        ...


class Timer(Protocol):
    """A task to be spawned later."""

    def cancel(self) -> None:
        """Drop the task if it has not begun."""
        ...


class OwnThread(Protocol):
    """A thread beside the shared workers."""

    def is_current(self) -> bool:
        """Whether this is the calling thread."""
        ...

    def join(self) -> None:
        """Block until it has ended."""
        ...


class Runtime(Protocol):
    """Clocks, randomness, locks, workers, threads and timers."""

    @property
    def observer(self) -> Observer:
        """What gets the figures of the logs that use this runtime; it may change at any time."""
        ...

    def now_us(self) -> int:
        """Return the wall clock, microseconds since the Unix epoch; it may jump."""
        ...

    def monotonic_s(self) -> float:
        """Return a clock that never runs backwards, in seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the caller."""
        ...

    def token(self) -> str:
        """Return sixteen random hex digits, different at every call and in every process."""
        ...

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        ...

    def process_name(self) -> str:
        """Return a name of this process, for people who read a manifest."""
        ...

    def check_process(self) -> None:
        """Raise ClosedError in a process forked from the one this runtime was made in: the fork has no workers.

        InvalidRequestError when the call interrupts the runtime's own work in the same thread.
        """
        ...

    def lock(self) -> Lock:
        """Make a lock."""
        ...

    def spawn(self, task: Callable[[], None], *, share: Share = COMMON) -> None:
        """Run a task on the shared workers, as one of its share; it must not wait for another such task."""
        ...

    def start_thread(self, name: str, run: Callable[[], None]) -> OwnThread:
        """Run a loop in a thread of its own, which may wait for the shared workers; the process ends without it."""
        ...

    def executor(self, name: str, threads_max: int) -> Executor:
        """Make threads for tasks that may wait for the shared workers, begun as they are needed."""
        ...

    def call_later(self, delay_s: float, task: Callable[[], None], *, share: Share = COMMON) -> Timer:
        """Spawn a task after a delay."""
        ...

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """Block until a future has its result; TimeoutError after ``timeout_s`` seconds."""
        ...

    def publish(self, topic: str) -> None:
        """Wake the threads of this process that await the topic."""
        ...

    def await_topic(self, topic: str, seen: int, timeout_s: float) -> int:
        """Block until the topic is published after version ``seen``, or for ``timeout_s``; return its version."""
        ...


class Closing:
    """An object that the end of a ``with`` block closes.

    If the block raised an error, a LogError of ``close`` is added to that as a note.
    """

    def close(self) -> None:
        """End what the object does."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except LogError as failure:
            if error is None:
                raise
            error.add_note(f"{type(failure).__name__}: {failure}")


# The end of the year 9999, which is also the last time that can be shown as a date.
_WALL_US_MAX = 253_402_300_799_999_999


def wall_us(runtime: Runtime) -> int:
    """Return the wall clock as it may be stored: a clock before 1970 counts as 1970, one beyond 9999 as its end."""
    return min(max(runtime.now_us(), 0), _WALL_US_MAX)


def reentered(what: str) -> InvalidRequestError:
    """Make the error for a call that interrupts another call of the same thread, which cannot finish first."""
    return InvalidRequestError(
        f"{what}: expected no call from a signal handler or a __del__ during another call of the same thread:"
        f" nothing was done; let the handler note the work, and do it later"
    )
