"""A deterministic world for the library: one seed fixes scheduling, time, randomness and faults.

Tasks are greenlets; one runs at a time and yields at every store call, lock, wait and sleep.
Time is virtual: it moves to the next deadline when nothing can run. A process is a Runtime with its
own clock and randomness; killing it drops its tasks where they stand, and freezing it stops them for
a while. What is left at the end is ended there: freed by the garbage collector, tasks would run their
handlers in the middle of other code.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import ParamSpec, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

from wal3_core.runtime import SILENT, Observer
from wal3_core.workers import COMMON, Share

P = ParamSpec("P")
T = TypeVar("T")
STEPS_MAX = 400_000
START_US = 1_700_000_000_000_000
YEAR_US = 365 * 86_400 * 1_000_000
NEVER_S = float("inf")
# A shorter wait is lost in rounding, and time would stand still for the waiting task.
TICK_S = 1e-6


class DeadlockError(Exception):
    """Nothing can run and nothing is due."""


@dataclass(eq=False)
class Task:
    process: SimProcess
    name: str
    body: greenlet
    ready: Callable[[], bool] | None = None
    deadline_s: float = 0.0

    @property
    def over(self) -> bool:
        """Whether it has ended, or was dropped with its process."""
        return self.body.dead or self.process.dead


class Simulation:
    """Runs tasks until the main one ends."""

    def __init__(self, seed: int, *, steps_max: int = STEPS_MAX) -> None:
        self.seed = seed
        self._steps_max = steps_max
        self.random = random.Random(seed)
        self.now_s = 0.0
        # How far a wall clock was ahead of that at most, when it was read.
        self._ahead_us = 0
        self.steps = 0
        self._tasks: list[Task] = []
        self._dropped: list[Task] = []
        self._hub = getcurrent()
        self._current: Task | None = None
        # Whether the tasks that are left are being ended.
        self.ending = False
        self.failure: Exception | None = None
        self._trace = hashlib.sha256()

    @property
    def trace(self) -> str:
        """Hash of everything that ran, in order."""
        return self._trace.hexdigest()

    def read_clock(self, wall_us: int) -> int:
        """Take note of what a process reads from its wall clock."""
        self._ahead_us = max(self._ahead_us, wall_us - self._true_us)
        return wall_us

    @property
    def _true_us(self) -> int:
        return START_US + int(self.now_s * 1e6)

    def latest_us(self) -> int:
        """Return a time that no process can have come to yet: by any clock that was read, and what passed since."""
        return self._true_us + self._ahead_us + 1

    @property
    def current(self) -> Task | None:
        """The running task."""
        return self._current

    @property
    def in_task(self) -> bool:
        """Whether a task is running that can yield."""
        return self._current is not None

    def dice(self, name: object) -> random.Random:
        """Make randomness for one name, so that its draws do not change those of any other name."""
        return random.Random(f"{self.seed}/{name}")

    def note(self, what: str) -> None:
        self._trace.update(f"{self.now_s:.6f} {what}\n".encode())

    def spawn(self, process: SimProcess, name: str, run: Callable[[], object]) -> Task:
        task = Task(process, name, greenlet(run, parent=self._hub))
        self._tasks.append(task)
        return task

    def block(self, ready: Callable[[], bool] | None, seconds: float | None) -> None:
        """Yield until ``ready`` holds or ``seconds`` have passed."""
        if self.ending:
            # A handler of a task that is being ended must not wait.
            raise GreenletExit
        task = self._current
        assert task is not None, "blocked outside of a task"
        task.ready = ready
        task.deadline_s = NEVER_S if seconds is None else self.now_s + (max(seconds, TICK_S) if seconds > 0 else 0.0)
        self._hub.switch()

    def pause(self, seconds: float = 0.0) -> None:
        self.block(None, seconds)

    def kill(self, process: SimProcess) -> None:
        """Drop a process's tasks where they stand."""
        process.dead = True
        self.note(f"{process.name} killed")
        self._dropped += [task for task in self._tasks if task.process is process]
        self._tasks = [task for task in self._tasks if task.process is not process]
        if self._current is not None and self._current.process is process:
            raise GreenletExit

    def freeze(self, process: SimProcess, seconds: float, *, clock_stops: bool) -> None:
        """Stop a process for a while, as a suspended machine is; its monotonic clock may stop too."""
        process.frozen_until_s = self.now_s + seconds
        process.stopped_s += seconds if clock_stops else 0.0
        self.note(f"{process.name} frozen")

    def run(self, *mains: Task) -> None:
        """Run until all ``mains`` have ended, then end the others; the exception of a main one is raised here."""
        try:
            while not all(main.body.dead for main in mains):
                self._step()
        finally:
            self._end()

    def _step(self) -> None:
        self.steps += 1
        if self.steps > self._steps_max:
            raise DeadlockError(f"no end after {self._steps_max} steps, at {self.now_s:.3f} s")
        task = self._next()
        self._current = task
        self._trace.update(task.name.encode())
        task.body.switch()
        self._current = None
        if self.failure is not None:
            # Raised here, because the library would take it for a failing store.
            raise self.failure
        if task.body.dead and task in self._tasks:
            self._tasks.remove(task)

    def _end(self) -> None:
        self._current, self.ending = None, True
        while left := self._dropped + self._tasks:
            self._dropped, self._tasks = [], []
            for task in left:
                # What a handler raises then says nothing: its process is dead, or the run is over.
                with suppress(Exception):
                    task.body.throw()
        self.ending = False

    def _next(self) -> Task:
        while True:
            now_s = self.now_s
            able = [
                task
                for task in self._tasks
                if (task.deadline_s <= now_s or (task.ready and task.ready())) and task.process.frozen_until_s <= now_s
            ]
            if able:
                return self.random.choice(able)
            due_s = min((self._due_s(task) for task in self._tasks), default=NEVER_S)
            if due_s == NEVER_S:
                raise DeadlockError(f"all wait for each other: {[task.name for task in self._tasks]}")
            self.now_s = due_s

    def _due_s(self, task: Task) -> float:
        if task.process.frozen_until_s > self.now_s:
            return task.process.frozen_until_s
        return task.deadline_s


class SimLock:
    """A lock of one process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self._simulation = process.simulation
        self._held = False
        self._holder: Task | None = None

    def owned(self) -> bool:
        return self._held and self._holder is not None and self._holder is self._simulation.current

    def __enter__(self) -> bool:
        if self._simulation.ending:
            raise GreenletExit
        if self._simulation.in_task:
            if self._simulation.random.random() < 0.2:
                self._simulation.pause()
            while self._held:
                self._simulation.block(lambda: not self._held, None)
        self._held, self._holder = True, self._simulation.current
        return True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._held = False


@dataclass
class SimTimer:
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


@dataclass(frozen=True)
class SimThread:
    """A task of one process that others wait for."""

    task: Task

    def is_current(self) -> bool:
        return self.task.process.simulation.current is self.task

    def join(self) -> None:
        self.task.process.simulation.block(lambda: self.task.over, None)


class SimExecutor(Executor):
    """Runs the calls of one process in their order, some of them at once."""

    def __init__(self, process: SimProcess, name: str, threads_max: int) -> None:
        self._process, self._name = process, name
        self._threads_max = self._free = threads_max
        self._calls: deque[Callable[[], None]] = deque()
        self._over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        if self._over:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: Future[T] = Future()
        self._calls.append(partial(_fulfil, future, partial(fn, *args, **kwargs)))
        if self._free:
            self._free -= 1
            self._process.simulation.spawn(self._process, f"{self._process.name}:{self._name}", self._work)
        return future

    def _work(self) -> None:
        while self._calls:
            self._process.simulation.pause()
            if self._calls:
                self._calls.popleft()()
        self._free += 1

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - an Executor's
        assert not cancel_futures
        self._over = True
        if wait:
            self._process.simulation.block(lambda: self._free == self._threads_max, None)


def _fulfil(future: Future[T], work: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except Exception as error:  # noqa: BLE001 - it is raised where the result is awaited
        future.set_exception(error)


@dataclass(eq=False)
class SimProcess:
    """A Runtime whose wall clock is off, drifts, and sometimes steps back or years ahead, unless it is ``steady``."""

    simulation: Simulation
    name: str
    offset_us: int = 0
    drift: float = 0.0
    steady: bool = False
    dead: bool = False
    frozen_until_s: float = 0.0
    stopped_s: float = 0.0
    topics: dict[str, int] = field(default_factory=dict)
    observer: Observer = SILENT
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = self.simulation.dice(self.name)

    def now_us(self) -> int:
        step = 0.5 if self.steady else self.random.random()
        if step < 0.01:
            self.offset_us -= self.random.randrange(5_000_000)
        elif step > 0.998:
            self.offset_us += YEAR_US
        wall_us = START_US + self.offset_us + int(self.simulation.now_s * (1 + self.drift) * 1e6)
        return self.simulation.read_clock(wall_us)

    def monotonic_s(self) -> float:
        return self.simulation.now_s - self.stopped_s

    def sleep(self, seconds: float) -> None:
        self.simulation.pause(seconds)

    def token(self) -> str:
        return f"{self.random.getrandbits(64):016x}"

    def jitter(self) -> float:
        return self.random.random()

    def process_name(self) -> str:
        return self.name

    def check_process(self) -> None:
        """Simulated processes do not fork."""

    def lock(self) -> SimLock:
        return SimLock(self)

    def spawn(self, task: Callable[[], None], *, share: Share = COMMON) -> None:  # noqa: ARG002 - each task is a thread
        if not self.dead:
            self.simulation.spawn(self, f"{self.name}:worker", task)

    def start_thread(self, name: str, run: Callable[[], None]) -> SimThread:
        return SimThread(self.simulation.spawn(self, f"{self.name}:{name}", run))

    def executor(self, name: str, threads_max: int) -> SimExecutor:
        return SimExecutor(self, name, threads_max)

    def call_later(self, delay_s: float, task: Callable[[], None], *, share: Share = COMMON) -> SimTimer:  # noqa: ARG002 - as spawn
        timer = SimTimer()

        def later() -> None:
            self.simulation.pause(delay_s)
            if not timer.cancelled:
                task()

        self.simulation.spawn(self, f"{self.name}:timer", later)
        return timer

    def wait(self, future: Future[T], timeout_s: float | None = None) -> T:
        self.simulation.block(future.done, timeout_s)
        return future.result(0)

    def publish(self, topic: str) -> None:
        if topic in self.topics:
            self.topics[topic] += 1

    def await_topic(self, topic: str, seen: int, timeout_s: float) -> int:
        self.topics.setdefault(topic, 0)
        self.simulation.block(lambda: self.topics[topic] > seen, timeout_s)
        return self.topics[topic]
