"""Notices calls that take long, while they last: one thread for all of a process, and none while there is no call."""

from __future__ import annotations

import _thread
import contextlib
import os
import time
from typing import TYPE_CHECKING

from wal3_core.workers import attempt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# How long a call takes before it is reported, and again while it lasts.
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


class Watched:
    """The process's one watch; a fork gets another one, as the thread and the calls are its parent's."""

    def __init__(self) -> None:
        self.watch = Watch()
        os.register_at_fork(after_in_child=self._reset)

    def _reset(self) -> None:
        self.watch = Watch()


WATCHED = Watched()
