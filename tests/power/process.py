"""Processes that take turns in one thread: runs are deterministic, and can end after any step."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from wal3_core.runtime import SILENT, Observer, OwnThread
from wal3_core.workers import COMMON, Share

T = TypeVar("T")
START_US = 1_700_000_000_000_000
STEPS_MAX = 100_000


@dataclass(eq=False)
class Alarm:
    task: Callable[[], None] | None

    def cancel(self) -> None:
        self.task = None


@dataclass(eq=False)
class Process:
    """A Runtime without threads: spawned tasks run in ``wait``. ``alive`` raises once the process is dead."""

    name: str
    alive: Callable[[], None] = field(default=lambda: None)
    now_s: float = 0.0
    observer: Observer = SILENT
    _tokens: itertools.count[int] = field(default_factory=itertools.count)
    _tasks: deque[Callable[[], None]] = field(default_factory=deque)
    _alarms: list[tuple[float, int, Alarm]] = field(default_factory=list)
    _steps: itertools.count[int] = field(default_factory=itertools.count)

    def now_us(self) -> int:
        return START_US + int(self.now_s * 1e6)

    def monotonic_s(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def token(self) -> str:
        return f"{int.from_bytes(self.name.encode()[-4:], 'big'):08x}{next(self._tokens):08x}"

    def jitter(self) -> float:
        return 0.5

    def process_name(self) -> str:
        return self.name

    def check_process(self) -> None:
        """These processes do not fork."""

    def lock(self) -> TurnLock:
        return TurnLock(self)

    def spawn(self, task: Callable[[], None], *, share: Share = COMMON) -> None:  # noqa: ARG002 - one thread for all
        self._tasks.append(task)

    def start_thread(self, name: str, run: Callable[[], None]) -> OwnThread:  # noqa: ARG002 - there are none
        raise AssertionError(f"{name}: expected no thread beside this one")

    def executor(self, name: str, threads_max: int) -> Executor:  # noqa: ARG002 - as start_thread
        raise AssertionError(f"{name}: expected no threads beside this one")

    def call_later(self, delay_s: float, task: Callable[[], None], *, share: Share = COMMON) -> Alarm:  # noqa: ARG002 - as spawn
        alarm = Alarm(task)
        heapq.heappush(self._alarms, (self.now_s + delay_s, next(self._steps), alarm))
        return alarm

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:  # noqa: ARG002 - one thread: nothing hangs
        while not future.done():
            self.work()
        return future.result(0)

    def work(self) -> None:
        """Run the next task that is due."""
        self.alive()
        assert next(self._steps) < STEPS_MAX, f"{self.name}: no end after {STEPS_MAX} steps"
        if self._tasks:
            self._tasks.popleft()()
            return
        assert self._alarms, f"{self.name}: waits for a task that does not exist"
        due_s, _, alarm = heapq.heappop(self._alarms)
        self.now_s = max(self.now_s, due_s)
        if alarm.task is not None:
            alarm.task()

    def finish(self) -> None:
        """Run the remaining tasks."""
        while self._tasks:
            self.work()

    def publish(self, topic: str) -> None:
        """There are no followers here."""

    def await_topic(self, topic: str, seen: int, timeout_s: float) -> int:
        raise AssertionError(f"{topic}: expected no follower here (after {seen}, for {timeout_s} s)")


@dataclass(eq=False)
class TurnLock:
    """A lock that is always free: tasks run one after the other, each to its end."""

    process: Process

    def owned(self) -> bool:
        return False

    def __enter__(self) -> bool:
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
