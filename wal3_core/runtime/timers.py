"""The timers of a process: one thread for all of them."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from typing import TYPE_CHECKING

from wal3_core.workers import COMMON, Share

if TYPE_CHECKING:
    from collections.abc import Callable


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
