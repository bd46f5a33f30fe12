"""The port: what a process gives the library. A simulator passes its own and runs the library from a seed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from wal3_core.arguments import with_methods
from wal3_core.errors import InvalidRequestError
from wal3_core.workers import COMMON, Share

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from types import TracebackType


T = TypeVar("T")

US_PER_S = 1_000_000


class Lock(Protocol):
    """A lock, to be taken by ``with`` alone: an interrupt never leaves it held."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def owned(self) -> bool:
        """Whether this thread holds it, and would wait for itself."""
        ...


class Timer(Protocol):
    """A task set for later."""

    def cancel(self) -> None:
        """Drop the task if it has not begun."""
        ...


class Runtime(Protocol):
    """What a process gives the library."""

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch; may jump."""
        ...

    def monotonic_s(self) -> float:
        """Give a clock that never runs backwards, in seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the caller."""
        ...

    def token(self) -> str:
        """Sixteen random hex digits that no other writer has."""
        ...

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        ...

    def process_name(self) -> str:
        """Name this process, for people who read a manifest."""
        ...

    def check_process(self) -> None:
        """Raise ClosedError in a process forked from the one this runtime was made in: its workers stayed there.

        InvalidRequestError where the call comes in the middle of what this thread does for the runtime.
        """
        ...

    def lock(self) -> Lock:
        """Make a lock."""
        ...

    def spawn(self, task: Callable[[], None], *, share: Share = COMMON) -> None:
        """Run a task on the shared workers, as one of its share; it must not wait for another such task."""
        ...

    def call_later(self, delay_s: float, task: Callable[[], None], *, share: Share = COMMON) -> Timer:
        """Spawn a task after a delay."""
        ...

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """Block until a future has its result; TimeoutError after ``timeout_s`` seconds."""
        ...

    def publish(self, topic: str) -> None:
        """Wake whoever awaits the topic in this process."""
        ...

    def await_topic(self, topic: str, seen: int, timeout_s: float) -> int:
        """Block until the topic was published after version ``seen``, or for ``timeout_s``; return its version."""
        ...


# What tells a runtime from anything else that a caller may hand in for one.
a_runtime = with_methods("a Runtime", "now_us", "monotonic_s", "token", "spawn", "wait", "lock")


def reentered(what: str) -> InvalidRequestError:
    """Say that a call came in the middle of another one, which its own thread can not finish first."""
    return InvalidRequestError(
        f"{what}: expected no call from a signal's handler or a __del__ in the middle of another call of the same"
        f" thread: nothing was done; let it note what is to be done, and do that later"
    )
