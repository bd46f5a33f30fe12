"""Asks a worker to take a writer's steps, once for any number of callers."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Waker:
    """Calls ``spawn`` unless a worker was asked and has not begun yet. A caller may be interrupted anywhere."""

    def __init__(self, spawn: Callable[[], None]) -> None:
        self._spawn = spawn
        self.asked = False
        # An entry for each call of ``wake`` under way: it may not have asked a worker yet.
        self._asking: deque[None] = deque()

    def wake(self) -> None:
        """Have a worker look at the inbox."""
        if self.asked and not self._asking:
            return
        try:
            # A signal handler that interrupts this call must not rely on it: it finds ``_asking`` and asks itself.
            self._asking.append(None)
            self.asked = True
            self._spawn()
        except BaseException:
            # If the interrupt came between the two, no later call would ask a worker.
            self._spawn()
            raise
        finally:
            with contextlib.suppress(IndexError):
                self._asking.pop()

    def answered(self) -> None:
        """Record that a worker has begun: what is in the inbox later needs another one."""
        self.asked = False
