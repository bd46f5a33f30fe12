"""Everything that is not a function of its inputs: clocks, randomness, waiting, and the shared workers.

A simulator passes its own Runtime and so runs the library unmodified, from a seed, in virtual
time. Nothing else in the library touches ``time``, ``random``, ``uuid``, ``os.urandom`` or ``threading``.

An interrupt (Ctrl-C, a signal's handler that raises) comes to the main thread alone, behind any call.
What the main thread shares with others here it changes by single calls that Python does not run
through: locks entered and left by ``with``, a ``deque``, a ``SimpleQueue``. ``threading.Condition`` is
none of them: an interrupt inside its ``__enter__`` leaves it locked for ever.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import heapq
import itertools
import os
import random
import secrets
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Protocol, Self, TypeVar
from weakref import WeakValueDictionary

from wal3_core.arguments import with_methods
from wal3_core.errors import ClosedError, InvalidRequestError
from wal3_core.workers import COMMON, OwnedLock, Share, Workers, attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType

A = TypeVar("A")
T = TypeVar("T")

# Enough for a few dozen requests in flight; a log owns none of them.
WORKERS_MAX = 32
US_PER_S = 1_000_000
# Topics of followers that are reading just then; whoever comes back to one that went asks its store once more.
_TOPICS_KEPT_MAX = 1000
# States of a Future.
_ENDED = frozenset({"FINISHED", "CANCELLED", "CANCELLED_AND_NOTIFIED"})


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


class _Alarm:
    """A task in the timer's heap."""

    __slots__ = ("_task", "share")

    def __init__(self, task: Callable[[], None], share: Share) -> None:
        self._task: Callable[[], None] | None = task
        self.share = share

    def cancel(self) -> None:
        self._task = None

    def take(self) -> Callable[[], None] | None:
        task, self._task = self._task, None
        return task


class _TimerThread:
    """One thread for all timers of the process; it ends when there is none left."""

    def __init__(self, spawn: Callable[[Callable[[], None], Share], None]) -> None:
        self._spawn = spawn
        self._condition = threading.Condition()
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._sequence = itertools.count()
        self._running = False

    def add(self, delay_s: float, task: Callable[[], None], share: Share) -> _Alarm:
        alarm = _Alarm(task, share)
        with self._condition:
            heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._sequence), alarm))
            self._condition.notify_all()
            begin, self._running = not self._running, True
        if begin:
            try:
                threading.Thread(target=self._run, name="wal3-timer", daemon=True).start()
            except RuntimeError:
                # No thread to be had: a worker waits instead.
                self._spawn(self._run, COMMON)
            except BaseException:
                with self._condition:
                    self._running = False
                raise
        return alarm

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            task = alarm.take()
            if task is not None:
                self._spawn(task, alarm.share)

    def _next(self) -> _Alarm | None:
        with self._condition:
            while self._heap:
                pause_s = self._heap[0][0] - time.monotonic()
                if pause_s <= 0:
                    return heapq.heappop(self._heap)[2]
                self._condition.wait(pause_s)
            self._running = False
            return None


class _Gate(_thread.RLock):  # type: ignore[misc]  # final to the type checker alone
    """What a Future has a Condition for, but that nobody waits under it: it is entered and left in one step."""

    def __init__(self) -> None:
        self.waiters: deque[_thread.LockType] = deque()

    def notify_all(self) -> None:
        """Wake everyone who waits."""
        while self.waiters:
            self.waiters.popleft().release()


# The callbacks of what this thread gives its outcome, while they are not to be called there and then.
_HELD: ContextVar[list[Callable[[], None]] | None] = ContextVar("wal3-held-callbacks", default=None)


@contextlib.contextmanager
def callbacks_held(held: list[Callable[[], None]]) -> Iterator[None]:
    """Put the callbacks of the outcomes that are set within here instead of calling them."""
    before = _HELD.set(held)
    try:
        yield
    finally:
        _HELD.reset(before)


class Outcome(Future[T]):
    """A future that stays whole when a thread that waits for it is interrupted: whoever sets it never hangs.

    Who waits holds no lock meanwhile, so a signal's handler that comes then may wait for the same, or for others.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition: _Gate = _Gate()  # type: ignore[assignment]
        self._state: str

    def done(self) -> bool:
        """Whether it has its outcome, which it is given in one step."""
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
            # Looked at behind the append: it was set before, or whoever sets it finds the waiter.
            if not self.done():
                waiter.acquire(True, -1 if timeout is None else max(timeout, 0))  # noqa: FBT003 - takes no keywords
        finally:
            with contextlib.suppress(ValueError):
                waiters.remove(waiter)
        if not self.done():
            raise TimeoutError


class _Topic:
    """What is awaited: a version, and what is set with the next one. It goes when nobody holds it any more."""

    __slots__ = ("__weakref__", "news", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.news: Outcome[None] = Outcome()


class ThreadRuntime:
    """The real thing: system clocks, operating system randomness, one pool of threads."""

    def __init__(self, *, workers_max: int = WORKERS_MAX) -> None:
        self._process = os.getpid()
        self._inline = threading.local()
        self._workers = Workers(workers_max, self._run_here)
        atexit.register(self.close)
        self._timers = _TimerThread(lambda task, share: self.spawn(task, share=share))
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - spreads retries, guards nothing
        self._topics_lock = threading.Lock()
        # Those that somebody awaits now, or did just now and will again.
        self._topics: WeakValueDictionary[str, _Topic] = WeakValueDictionary()
        self._recent_topics: deque[_Topic] = deque(maxlen=_TOPICS_KEPT_MAX)
        self._versions = itertools.count(1)

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
        """Raise ClosedError in a forked child, InvalidRequestError in the middle of the runtime's own work."""
        if os.getpid() != self._process:
            message = f"process {os.getpid()}: expected process {self._process}: open logs again after a fork"
            raise ClosedError(message)
        if self._workers.lock.owned():
            raise reentered("this process's workers")

    def lock(self) -> Lock:
        """Make a lock."""
        return OwnedLock()

    def spawn(self, task: Callable[[], None], *, share: Share = COMMON) -> None:
        """Run a task on the workers; here and now when there are none, as at the interpreter's exit."""
        self.check_process()
        if not self._workers.spawn(task, share):
            self._run_here(task)

    def _run_here(self, task: Callable[[], None]) -> None:
        """Run a task in this thread, behind the one that asked for it: that one may hold a lock this one wants."""
        waiting: deque[Callable[[], None]] | None = getattr(self._inline, "waiting", None)
        if waiting is not None:
            waiting.append(task)
            return
        self._inline.waiting = waiting = deque([task])
        first: BaseException | None = None
        while waiting:
            try:
                waiting.popleft()()
            except BaseException as error:  # noqa: BLE001 - the others are other callers', who wait for them
                first = first or error
        del self._inline.waiting
        if first is not None:
            raise first

    def call_later(self, delay_s: float, task: Callable[[], None], *, share: Share = COMMON) -> Timer:
        """Spawn a task after a delay."""
        return self._timers.add(delay_s, task, share)

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """Block until the future has its result."""
        waiting: deque[Callable[[], None]] = getattr(self._inline, "waiting", None) or deque()
        # Where this thread does all there is to do, nobody else would do what it waits for.
        while waiting and not future.done():
            attempt(waiting.popleft())
        return future.result(timeout_s)

    def publish(self, topic: str) -> None:
        """Wake whoever awaits the topic."""
        with self._topics_lock:
            found = self._topics.get(topic)
            # Nobody listens to the others.
            if found is None:
                return
            news, found.news = found.news, Outcome()
            found.version = next(self._versions)
        news.set_result(None)

    def await_topic(self, topic: str, seen: int, timeout_s: float) -> int:
        """Block until the topic moves beyond ``seen``, or for ``timeout_s``."""
        self.check_process()
        found = self._topic(topic)
        with self._topics_lock:
            version, news = found.version, found.news
        if version > seen:
            return version
        with contextlib.suppress(TimeoutError):
            news.result(timeout_s)
        return found.version

    def _topic(self, topic: str) -> _Topic:
        with self._topics_lock:
            found = self._topics.get(topic)
            if found is None:
                # Newer than what anybody has seen: what was published while it was gone is not missed.
                found = self._topics[topic] = _Topic(next(self._versions))
            self._recent_topics.append(found)
            return found

    def close(self) -> None:
        """Wait for the tasks under way and end the workers; at the latest when the interpreter ends."""
        atexit.unregister(self.close)
        # A fork has inherited the call, but not the threads.
        if os.getpid() == self._process:
            self._workers.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reentered(what: str) -> InvalidRequestError:
    """Say that a call came in the middle of another one, which its own thread can not finish first."""
    return InvalidRequestError(
        f"{what}: expected no call from a signal's handler or a __del__ in the middle of another call of the same"
        f" thread: nothing was done; let it note what is to be done, and do that later"
    )


def map_ahead(
    runtime: Runtime,
    work: Callable[[A], T],
    items: Iterable[A],
    *,
    count: int,
    share: Share = COMMON,
    ready: Callable[[], bool] = lambda: True,
) -> Iterator[T]:
    """Do the work on each item on the shared workers, ``count`` of them ahead of the caller; give results in order.

    While the next item is not ``ready``, which is to say that asking for it would block, results come first.
    ``share`` says whose work it is.
    """
    waiting: deque[Future[T]] = deque()
    for item in items:
        waiting.append(later(runtime, partial(work, item), share))
        while waiting and (len(waiting) > count or not ready()):
            yield runtime.wait(waiting.popleft())
    while waiting:
        yield runtime.wait(waiting.popleft())


def later(runtime: Runtime, work: Callable[[], T], share: Share = COMMON) -> Future[T]:
    """Do work on the shared workers."""
    future: Outcome[T] = Outcome()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised where the result is awaited
            future.set_exception(error)

    runtime.spawn(run, share=share)
    return future


_shared_lock = threading.Lock()
_shared: list[ThreadRuntime] = []


def shared_runtime() -> ThreadRuntime:
    """Return the process's one runtime, made when first asked for."""
    with _shared_lock:
        if not _shared:
            _shared.append(ThreadRuntime())
        return _shared[0]


def _begin_anew() -> None:
    """In a forked child: none of the parent's threads is there, nor who may have held the lock."""
    global _shared_lock  # noqa: PLW0603 - nothing else runs in a child that was just forked
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_begin_anew)
