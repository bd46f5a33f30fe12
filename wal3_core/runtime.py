"""Everything that is not a function of its inputs: clocks, randomness, waiting, and the shared workers.

A simulator passes its own Runtime and so runs the library unmodified, from a seed, in virtual
time. Nothing else in the library touches ``time``, ``random``, ``uuid``, ``os.urandom`` or ``threading``.
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from wal3_core.errors import ClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

A = TypeVar("A")
T = TypeVar("T")

# Enough for a few dozen requests in flight; a log owns none of them.
WORKERS_MAX = 32
US_PER_S = 1_000_000


class Condition(Protocol):
    """A lock that can be waited on, as ``threading.Condition`` is."""

    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
    def wait(self, timeout: float | None = None) -> bool:
        """Release the lock until notified or ``timeout`` seconds have passed."""
        ...

    def notify_all(self) -> None:
        """Wake everyone who waits."""
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
        """Raise ClosedError in a process forked from the one this runtime was made in: its workers stayed there."""
        ...

    def condition(self) -> Condition:
        """Make a lock."""
        ...

    def spawn(self, task: Callable[[], None]) -> None:
        """Run a task on the shared workers; it must not wait for another such task."""
        ...

    def call_later(self, delay_s: float, task: Callable[[], None]) -> Timer:
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


class _Alarm:
    """A task in the timer's heap."""

    __slots__ = ("_task",)

    def __init__(self, task: Callable[[], None]) -> None:
        self._task: Callable[[], None] | None = task

    def cancel(self) -> None:
        self._task = None

    def take(self) -> Callable[[], None] | None:
        task, self._task = self._task, None
        return task


class _TimerThread:
    """One thread for all timers of the process; it ends when there is none left."""

    def __init__(self, spawn: Callable[[Callable[[], None]], None]) -> None:
        self._spawn = spawn
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._sequence = itertools.count()
        self._running = False

    def add(self, delay_s: float, task: Callable[[], None]) -> _Alarm:
        alarm = _Alarm(task)
        with self._condition:
            heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._sequence), alarm))
            self._condition.notify_all()
            begin, self._running = not self._running, True
        if begin:
            try:
                threading.Thread(target=self._run, name="wal3-timer", daemon=True).start()
            except RuntimeError:
                # No thread to be had: a worker waits instead.
                self._spawn(self._run)
        return alarm

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            task = alarm.take()
            if task is not None:
                self._spawn(task)

    def _next(self) -> _Alarm | None:
        with self._condition:
            while self._heap:
                pause_s = self._heap[0][0] - time.monotonic()
                if pause_s <= 0:
                    return heapq.heappop(self._heap)[2]
                self._condition.wait(pause_s)
            self._running = False
            return None


class _Once:
    """A task that runs at most once, whoever gets to it first."""

    __slots__ = ("_lock", "_task")

    def __init__(self, task: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._task = task

    def run(self) -> None:
        if self._lock.acquire(blocking=False):
            self._task()


class ThreadRuntime:
    """The real thing: system clocks, operating system randomness, one pool of threads."""

    def __init__(self, *, workers_max: int = WORKERS_MAX) -> None:
        self._process = os.getpid()
        self._inline = threading.local()
        self._pool = ThreadPoolExecutor(workers_max, thread_name_prefix="wal3")
        self._timers = _TimerThread(self.spawn)
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - spreads retries, guards nothing
        self._topics = threading.Condition()
        self._versions: dict[str, int] = {}

    def now_us(self) -> int:
        """Wall clock, microseconds since the epoch."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Monotonic clock, seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    def token(self) -> str:
        """Sixteen random hex digits."""
        return secrets.token_hex(8)

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        return self._random.random()

    def process_name(self) -> str:
        """Host and process id."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def check_process(self) -> None:
        """Raise ClosedError in a forked child."""
        if os.getpid() != self._process:
            message = f"process {os.getpid()}: expected process {self._process}: open logs again after a fork"
            raise ClosedError(message)

    def condition(self) -> Condition:
        """Make a lock."""
        return threading.Condition(threading.Lock())

    def spawn(self, task: Callable[[], None]) -> None:
        """Run a task on the pool; here and now when the pool takes no more, as at the interpreter's exit."""
        self.check_process()
        once = _Once(task)
        try:
            self._pool.submit(once.run)
        except RuntimeError:
            self._run_inline(once)

    def _run_inline(self, once: _Once) -> None:
        """Run a task in this thread, behind the one that asked for it: steps lead to steps, and the stack is finite."""
        waiting: deque[_Once] | None = getattr(self._inline, "waiting", None)
        if waiting is not None:
            waiting.append(once)
            return
        self._inline.waiting = waiting = deque([once])
        try:
            while waiting:
                waiting.popleft().run()
        finally:
            del self._inline.waiting

    def call_later(self, delay_s: float, task: Callable[[], None]) -> Timer:
        """Spawn a task after a delay."""
        return self._timers.add(delay_s, task)

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """Block until the future has its result."""
        return future.result(timeout_s)

    def publish(self, topic: str) -> None:
        """Wake whoever awaits the topic."""
        with self._topics:
            if topic in self._versions:
                self._versions[topic] += 1
                self._topics.notify_all()

    def await_topic(self, topic: str, seen: int, timeout_s: float) -> int:
        """Block until the topic moves beyond ``seen``, or for ``timeout_s``."""
        with self._topics:
            # A topic exists from the first time somebody asks for it: nobody listens to the others.
            self._versions.setdefault(topic, 0)
            self._topics.wait_for(lambda: self._versions[topic] > seen, timeout_s)
            return self._versions[topic]

    def close(self) -> None:
        """Wait for the tasks under way and end the pool's threads."""
        self._pool.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def ahead(runtime: Runtime, work: Callable[[A], T], items: Iterable[A], *, count: int) -> Iterator[T]:
    """Do the work on each item on the shared workers, ``count`` of them ahead of the caller; give results in order."""
    waiting: deque[Future[T]] = deque()
    for item in items:
        waiting.append(_later(runtime, work, item))
        if len(waiting) > count:
            yield runtime.wait(waiting.popleft())
    while waiting:
        yield runtime.wait(waiting.popleft())


def _later(runtime: Runtime, work: Callable[[A], T], item: A) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work(item))
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)

    runtime.spawn(run)
    return future


_shared_lock = threading.Lock()
_shared: list[ThreadRuntime] = []


def shared_runtime() -> ThreadRuntime:
    """Return the process's one runtime, made when first asked for."""
    with _shared_lock:
        if not _shared:
            _shared.append(ThreadRuntime())
        return _shared[0]


# A forked child has none of its parent's threads: it must not inherit a pool that believes it has.
os.register_at_fork(after_in_child=_shared.clear)
