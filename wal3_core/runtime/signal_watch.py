"""Notices a signal that the main thread does not take: Python runs handlers only between two of its instructions."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


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
