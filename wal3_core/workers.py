"""The threads of a process that run the library's tasks, shared fairly by store and by log.

A store that hangs blocks the workers that wait for it. So that it never blocks all of them, no store
and no log gets more than its cap, and a log that has no worker gets one beyond the caps. Logs with
tasks take turns, and so do stores.

Beside the threads that run tasks, one stands by. It takes the next task, and starts another thread
to stand by before it runs the task: so only workers count threads. A caller of ``spawn`` may be
interrupted anywhere (see runtime/): it queues a task by a single call, and leaves at worst a task
for which the next ``spawn`` wakes a worker, or one thread too many.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING

Task = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Share:
    """Whose work a task is: that of a store (its URL), and in it of one log, or of none in particular."""

    store: str = ""
    log: str = ""


COMMON = Share()
# As measured: with more, a process that writes a thousand logs spends most of its time on changing threads.
_LOCAL_THREADS_MAX = 8
# The pause between two looks, at the end of the process, at whether tasks end.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Caps:
    """How many tasks run at once: in all, of one store, of one log.

    A log of which no task runs gets a worker beyond that, up to ``threads_max`` in all and
    ``store_threads_max`` for one store. A store on a local disk gets ``local_threads_max`` at most: its tasks compute
    more than they wait, and further threads would only take the interpreter's lock from each other.
    """

    whole: int
    store: int
    log: int
    threads_max: int
    store_threads_max: int
    local_threads_max: int

    @classmethod
    def of(cls, workers_max: int) -> Caps:
        """Share out ``workers_max`` workers; at most four times as many threads."""
        return cls(
            whole=workers_max,
            store=max(1, workers_max * 3 // 4),
            log=max(1, workers_max // 2),
            threads_max=4 * workers_max,
            store_threads_max=2 * workers_max,
            local_threads_max=min(_LOCAL_THREADS_MAX, 2 * workers_max),
        )

    def store_caps(self, url: str) -> tuple[int, int]:
        """Return how many tasks of a store run at once, without and with those of logs of which none runs."""
        threads_max = self.local_threads_max if url.startswith("file:") else self.store_threads_max
        return min(self.store, threads_max), threads_max


class _Log:
    """A log's tasks, and how many of them run; it exists as long as there are any."""

    __slots__ = ("running", "share", "tasks")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.tasks: deque[Task] = deque()
        self.running = 0


class _Store:
    """A store's logs with tasks that may run: those with none running (idle), and others. Each takes its turn."""

    __slots__ = ("busy", "cap", "idle", "logs", "running", "threads_max")

    def __init__(self, cap: int, threads_max: int) -> None:
        self.cap = cap
        self.threads_max = threads_max
        self.logs: dict[str, _Log] = {}
        self.idle: dict[str, _Log] = {}
        self.busy: dict[str, _Log] = {}
        self.running = 0


class TaskQueue:
    """Tasks by store and log; decides which runs next. To be used under a lock."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._stores: dict[str, _Store] = {}
        self.running = 0

    def __len__(self) -> int:
        """Count the logs with tasks."""
        return sum(len(store.logs) for store in self._stores.values())

    def add(self, share: Share, task: Task) -> None:
        """Queue a task."""
        store = self._stores.get(share.store)
        if store is None:
            store = self._stores[share.store] = _Store(*self._caps.store_caps(share.store))
        log = store.logs.setdefault(share.log, _Log(share))
        log.tasks.append(task)
        if len(log.tasks) == 1:
            self._place(store, log)

    def has_next(self) -> bool:
        """Whether there is a task that may run."""
        return self._next() is not None

    def take(self) -> tuple[Share, Task] | None:
        """Take the task to run now; None if none may. ``finish`` must follow it."""
        log = self._next()
        if log is None:
            return None
        # The store goes behind the others.
        store = self._stores[log.share.store] = self._stores.pop(log.share.store)
        task = log.tasks.popleft()
        self._count(store, log, 1)
        return log.share, task

    def finish(self, share: Share) -> None:
        """Note that a task has ended."""
        store = self._stores[share.store]
        self._count(store, store.logs[share.log], -1)
        if not store.logs:
            del self._stores[share.store]

    def _next(self) -> _Log | None:
        if self.running >= self._caps.threads_max:
            return None
        for store in self._stores.values():
            if store.idle and store.running < store.threads_max:
                return next(iter(store.idle.values()))
            if store.busy and store.running < store.cap and self.running < self._caps.whole:
                return next(iter(store.busy.values()))
        return None

    def _count(self, store: _Store, log: _Log, change: int) -> None:
        self.running += change
        store.running += change
        log.running += change
        self._place(store, log)

    def _place(self, store: _Store, log: _Log) -> None:
        name = log.share.log
        store.idle.pop(name, None)
        store.busy.pop(name, None)
        if not log.tasks:
            if not log.running:
                del store.logs[name]
        elif not log.running:
            store.idle[name] = log
        # Tasks of no log count for their store alone.
        elif not name or log.running < self._caps.log:
            store.busy[name] = log


class OwnedLock:
    """A lock that knows its owner: a signal handler, or a ``__del__``, may run while its own thread holds it.

    ``with`` finds the two methods of a ``threading.RLock`` in it, so it is entered and left in one step each, and no
    interrupt comes between.
    """

    __slots__ = ("__enter__", "__exit__", "owned")

    def __init__(self) -> None:
        lock = threading.RLock()
        self.__enter__, self.__exit__ = lock.__enter__, lock.__exit__  # type: ignore[method-assign]  # slots at run time
        # What a threading.Condition asks of its lock. Every append asks: it takes no Python code.
        self.owned = lock._is_owned  # type: ignore[attr-defined,method-assign]  # noqa: SLF001 - as Condition does

    if TYPE_CHECKING:

        def __enter__(self) -> bool: ...
        def __exit__(
            self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
        ) -> None: ...
        def owned(self) -> bool:
            """Whether this thread holds it."""


def attempt(task: Task) -> None:
    """Run a task, which reports its errors to its own callers; any other error is printed."""
    try:
        task()
    except BaseException:  # noqa: BLE001 - the worker must go on to the tasks of others
        with contextlib.suppress(BaseException):
            sys.excepthook(*sys.exc_info())


class Workers:
    """Threads that run tasks, started as they are needed."""

    def __init__(self, count_max: int, run: Callable[[Task], None]) -> None:
        self._caps = Caps.of(count_max)
        self._run = run
        self.lock = OwnedLock()
        self._inbox: deque[tuple[Share, Task]] = deque()
        self._queue = TaskQueue(self._caps)
        self._wakes: SimpleQueue[None] = SimpleQueue()
        self._ended: SimpleQueue[None] = SimpleQueue()
        self._begun = 0
        self._closing = False
        # The shares of the tasks that run, by thread; and the number of those that have ended.
        self._under_way: dict[int, Share] = {}
        self._finished = 0

    def spawn(self, task: Task, share: Share) -> bool:
        """Queue a task; False when no worker would run it: after ``close``, or when no thread can be started."""
        with self.lock:
            if self._closing:
                return False
            if not self._begun:
                self._begin()
            if not self._begun:
                return False
            self._inbox.append((share, task))
        # One wake for each worker is enough: each looks for tasks until there is none.
        if self._wakes.qsize() < self._caps.threads_max:
            self._wakes.put(None)
        return True

    def close(self, hung_s_max: float) -> list[Share]:
        """Run the queued tasks, and end the threads; return whose tasks hang: for ``hung_s_max`` no task has ended."""
        with self.lock:
            if self._closing:
                return []
            self._closing = True
        self._wakes.put(None)
        left, looks, finished = self._begun, 0, self._finished
        while left:
            try:
                self._ended.get(timeout=min(_LOOK_S, hung_s_max))
                left -= 1
            except Empty:
                # Looks are counted, and not seconds: in a process that was stopped, nothing could end.
                looks, finished = looks + 1 if finished == self._finished else 0, self._finished
                if looks * _LOOK_S >= hung_s_max:
                    return list(self._under_way.values())
        return []

    def _begin(self) -> None:
        # When no thread can be started, the existing ones do the work.
        with contextlib.suppress(RuntimeError):
            # threading.Thread.start waits under a Condition, where an interrupt would leave the thread stuck.
            _thread.start_new_thread(self._work, ())
            self._begun += 1

    def _work(self) -> None:
        last = False
        while not last:
            self._wakes.get()
            # Read before looking for tasks: none is queued any more once this is set.
            last = self._closing
            while (taken := self._take()) is not None:
                share, task = taken
                attempt(partial(self._run, task))
                # Their closures may hold much memory.
                del task, taken
                with self.lock:
                    self._queue.finish(share)
                    del self._under_way[_thread.get_ident()]
                    self._finished += 1
        # Each worker that ends wakes the next.
        self._wakes.put(None)
        self._ended.put(None)

    def _take(self) -> tuple[Share, Task] | None:
        with self.lock:
            while self._inbox:
                self._queue.add(*self._inbox.popleft())
            taken = self._queue.take()
            if taken is None:
                return None
            self._under_way[_thread.get_ident()] = taken[0]
            if self._queue.running >= self._begun and not self._closing:
                self._begin()
            more = self._queue.has_next()
        if more and not self._wakes.qsize():
            self._wakes.put(None)
        return taken
