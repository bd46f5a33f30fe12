"""The runtime of a real process: system clocks, operating system randomness, one pool of threads.

One thread serves all timers of the process, another one reports calls that take long, while there are any. A third
notices a signal that the main thread does not take: Python runs handlers only between two of its instructions.
"""

from __future__ import annotations

import _thread
import atexit
import concurrent.futures.thread
import contextlib
import heapq
import itertools
import os
import random
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import TypeVar
from weakref import WeakValueDictionary

from wal3_core.errors import ClosedError
from wal3_core.runtime.loggers import STORE
from wal3_core.runtime.observer import SILENT, Observer
from wal3_core.runtime.outcome import Outcome
from wal3_core.runtime.port import Closing, Lock, OwnThread, Timer, reentered
from wal3_core.workers import COMMON, OwnedLock, Share, Workers, attempt


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


class TimerThread:
    """One thread for all timers of the process; it ends when there is none left."""

    def __init__(self, spawn: Callable[[Callable[[], None], Share], None]) -> None:
        self._spawn = spawn
        # Entered as it is: an interrupt in the condition's own __enter__, which is Python code, leaves the lock held.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._heap: list[tuple[float, int, _Alarm]] = []
        self._sequence = itertools.count()
        self._running = False

    def add(self, delay_s: float, task: Callable[[], None], share: Share) -> _Alarm:
        """Spawn a task after a delay."""
        alarm, begin = _Alarm(task, share), False
        try:
            with self._lock:
                heapq.heappush(self._heap, (time.monotonic() + delay_s, next(self._sequence), alarm))
                self._condition.notify_all()
                begin, self._running = not self._running, True
            if begin:
                self._start()
        except BaseException:
            if begin:
                with self._lock:
                    self._running = False
            raise
        return alarm

    def _start(self) -> None:
        try:
            threading.Thread(target=self._run, name="wal3-timer", daemon=True).start()
        except RuntimeError:
            # No thread can be started: a worker waits instead.
            self._spawn(self._run, COMMON)

    def _run(self) -> None:
        while (alarm := self._next()) is not None:
            task = alarm.take()
            if task is not None:
                self._spawn(task, alarm.share)

    def _next(self) -> _Alarm | None:
        with self._lock:
            while self._heap:
                pause_s = self._heap[0][0] - time.monotonic()
                if pause_s <= 0:
                    return heapq.heappop(self._heap)[2]
                self._condition.wait(pause_s)
            self._running = False
            return None


T = TypeVar("T")

# The time without an end of any call after which a store's call counts as one that never returns: longer than one with
# all its retries.
HUNG_S_MAX = 180.0
# Enough for a few dozen requests in flight; a log owns none of them.
WORKERS_MAX = 32
# The forks between this process and the one that imported this first.
_forks = 0
# Topics of followers that are reading at the moment; a follower whose topic was dropped polls its store once more.
_TOPICS_KEPT_MAX = 1000


class _Topic:
    """A version, and the outcome that is set with the next one. It is dropped when nothing refers to it."""

    __slots__ = ("__weakref__", "news", "version")

    def __init__(self, version: int) -> None:
        self.version = version
        self.news: Outcome[None] = Outcome()


class _OwnThread(threading.Thread):
    """A thread that runs one loop."""

    def is_current(self) -> bool:
        return threading.current_thread() is self


class ThreadRuntime(Closing):
    """The Runtime of a real process."""

    def __init__(self, *, workers_max: int = WORKERS_MAX, hung_s_max: float = HUNG_S_MAX) -> None:
        self.observer: Observer = SILENT
        self._hung_s_max = hung_s_max
        self._process, self._forks = os.getpid(), _forks
        self._inline = threading.local()
        self._workers = Workers(workers_max, self._run_here)
        atexit.register(self.close)
        self._timers = TimerThread(lambda task, share: self.spawn(task, share=share))
        self._random = random.Random(secrets.randbits(64))  # noqa: S311 - spreads retries, guards nothing
        self._topics_lock = OwnedLock()
        # The topics that are awaited now, or were recently and will be again.
        self._topics: WeakValueDictionary[str, _Topic] = WeakValueDictionary()
        self._recent_topics: deque[_Topic] = deque(maxlen=_TOPICS_KEPT_MAX)
        self._versions = itertools.count(1)

    def now_us(self) -> int:
        """Return the wall clock, microseconds since the Unix epoch."""
        return time.time_ns() // 1000

    def monotonic_s(self) -> float:
        """Return the monotonic clock, in seconds."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)

    def token(self) -> str:
        """Return sixteen random hex digits."""
        return secrets.token_hex(8)

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        return self._random.random()

    def process_name(self) -> str:
        """Return host and process id."""
        return f"{socket.gethostname()}:{os.getpid()}"

    def check_process(self) -> None:
        """Raise ClosedError in a forked child, InvalidRequestError in the middle of the runtime's own work."""
        # Asked at every append, when a system call would be a tenth of its time.
        if _forks != self._forks:
            raise ClosedError(f"process {os.getpid()}: expected process {self._process}: open logs again after a fork")
        if self._workers.lock.owned() or self._topics_lock.owned():
            raise reentered("this process's workers")

    def lock(self) -> Lock:
        """Make a lock."""
        return OwnedLock()

    def spawn(self, task: Callable[[], None], *, share: Share = COMMON) -> None:
        """Run a task on the workers; in this thread when there are none, as at the interpreter's exit."""
        self.check_process()
        if not self._workers.spawn(task, share):
            self._run_here(task)

    def _run_here(self, task: Callable[[], None]) -> None:
        """Run a task in this thread, after the task that spawned it, which may hold a lock that this one needs."""
        waiting: deque[Callable[[], None]] | None = getattr(self._inline, "waiting", None)
        if waiting is not None:
            waiting.append(task)
            return
        self._inline.waiting = waiting = deque([task])
        first: BaseException | None = None
        while waiting:
            try:
                waiting.popleft()()
            except BaseException as error:  # noqa: BLE001 - other callers wait for the remaining tasks
                first = first or error
        del self._inline.waiting
        if first is not None:
            raise first

    def start_thread(self, name: str, run: Callable[[], None]) -> OwnThread:
        """Run a loop in a daemon thread of that name."""
        thread = _OwnThread(target=run, name=name, daemon=True)
        thread.start()
        return thread

    def executor(self, name: str, threads_max: int) -> Executor:
        """Make a pool of threads with names that begin so."""
        return concurrent.futures.ThreadPoolExecutor(threads_max, thread_name_prefix=name)

    def call_later(self, delay_s: float, task: Callable[[], None], *, share: Share = COMMON) -> Timer:
        """Spawn a task after a delay."""
        return self._timers.add(delay_s, task, share)

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        """Block until the future has its result."""
        waiting: deque[Callable[[], None]] = getattr(self._inline, "waiting", None) or deque()
        # When tasks run in this thread, no other thread would run the one it waits for.
        while waiting and not future.done():
            attempt(waiting.popleft())
        return future.result(timeout_s)

    def publish(self, topic: str) -> None:
        """Wake the threads that await the topic."""
        try:
            self._wake(topic)
        except BaseException:
            # Interrupted: those who await it would sleep on.
            self._wake(topic)
            raise

    def _wake(self, topic: str) -> None:
        with self._topics_lock:
            found = self._topics.get(topic)
            # No thread awaits it.
            if found is None:
                return
            found.version = next(self._versions)
            # Replaced last: what was begun and interrupted is found again.
            found.news.set_or_rouse()
            found.news = Outcome()

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
                # Newer than every version seen before: nothing published while it was dropped is missed.
                found = self._topics[topic] = _Topic(next(self._versions))
            self._recent_topics.append(found)
            return found

    def close(self) -> None:
        """Wait for the running tasks and end the workers; called at the latest when the interpreter ends.

        A store's call that does not return is not waited for once no task has ended for ``hung_s_max`` seconds.
        """
        atexit.unregister(self.close)
        # A fork inherits the call, but not the threads.
        if os.getpid() != self._process:
            return
        for share in self._workers.close(self._hung_s_max):
            place = f"store {share.store}" + (f", log {share.log.rstrip('/')}" if share.log else "")
            longest = WATCH.longest()
            text = "%s: a task has not ended for %.0f s, and is left under way: what it sent may still be applied%s"
            STORE.error(text, place, self._hung_s_max, f" ({longest})" if longest else "")


_shared_lock = threading.Lock()
_shared: list[ThreadRuntime] = []


def shared_runtime() -> ThreadRuntime:
    """Return the process's one runtime, made at the first call."""
    with _shared_lock:
        if not _shared:
            _shared.append(ThreadRuntime())
        return _shared[0]


def _reset_after_fork() -> None:
    """In a forked child: the parent's threads do not exist, and one of them may have held the lock."""
    global _shared_lock, _forks  # noqa: PLW0603 - nothing else runs in a child that was just forked
    _forks += 1
    _shared_lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_reset_after_fork)


# The time after which a call is reported, and again while it lasts.
LATE_S = 2.0


class _Call:
    """A call under way."""

    __slots__ = ("began_s", "due_s", "late", "name")

    def __init__(self, late: Callable[[], None], name: Callable[[], str]) -> None:
        self.began_s = time.monotonic()
        self.due_s = self.began_s + LATE_S
        self.late = late
        self.name = name


class Watch:
    """Calls under way. Its state changes by single steps, without a lock: any thread may be interrupted anywhere."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Begin without calls, as in a forked child: the thread and the calls are its parent's."""
        self._calls: dict[_Call, None] = {}
        # Taken while the thread runs.
        self._running = _thread.allocate_lock()

    @contextlib.contextmanager
    def over(self, late: Callable[[], None], name: Callable[[], str]) -> Iterator[None]:
        """Call ``late`` every two seconds, in another thread, while the block lasts; ``name`` says what it calls."""
        call = _Call(late, name)
        try:
            self._calls[call] = None
            if not self._running.locked():
                self._begin()
            yield
        finally:
            self._calls.pop(call, None)

    def longest(self) -> str:
        """Say which call has lasted longest, and for how long; "" when none is late."""
        calls = list(self._calls)
        first = min(calls, key=lambda call: call.began_s, default=None)
        lasts_s = 0.0 if first is None else time.monotonic() - first.began_s
        return "" if first is None or lasts_s < LATE_S else f"{first.name()} has not returned for {lasts_s:.0f} s"

    def _begin(self) -> None:
        if self._running.acquire(blocking=False):
            try:
                # It is not waited for at exit: it only reports.
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                # No thread can be started: there are no reports.
                self._running.release()

    def _run(self) -> None:
        while self._calls:
            pause_s = LATE_S
            for call in list(self._calls):
                left_s = call.due_s - time.monotonic()
                if left_s <= 0:
                    call.due_s += LATE_S
                    attempt(call.late)
                else:
                    pause_s = min(pause_s, left_s)
            time.sleep(pause_s)
        self._running.release()
        if self._calls:
            # Begun since the last look.
            self._begin()


# The calls of the process that go through the library's stores.
WATCH = Watch()


def watch_signal(number: int, patience_s: float, is_late: Callable[[], bool], act: Callable[[], object]) -> None:
    """Call ``act``, in a thread of its own, when ``is_late`` returns true ``patience_s`` seconds after the signal.

    To be called in the main thread, once in a process.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def watch() -> None:
        while received := os.read(reading, 1):
            if received[0] != number:
                continue
            time.sleep(patience_s)
            if is_late():
                act()

    threading.Thread(target=watch, name="wal3-signals", daemon=True).start()
