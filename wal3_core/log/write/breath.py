"""Pauses of a writer that commits without a gap, in which other processes can change the manifest.

A process that changes the manifest loads it and swaps it, one round trip apart. A writer that sends its next CAS
as soon as it has the last one's answer leaves no such gap to a process that is farther from the store: a seal, a
collection, a compaction, a pin or a destroy would never get its turn. What is uploaded during the pause goes into
the next commit. Source: docs/protocol.md, "Turns".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.runtime import Runtime

# A pause is due after this time without one; the first in a writer's life sooner, as several often begin at once, which
# then learn of each other.
_BUSY_S, _FIRST_S = 10.0, 1.0
_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 0.5
# In commits, how long a pause is: others may be that many times farther from the store.
_COMMITS = 8
# An append with less time left than this is committed without a pause.
_LEFT_S_MIN = 10.0


class Breath:
    """Pauses one writer between two commits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._busy_since_s = self._ended_s = runtime.monotonic_s()
        self._has_paused = False

    def take(self, commit_s: float, left_s: Callable[[], float]) -> None:
        """Pause before the next commit, if a pause is due and no append could become late.

        A commit takes ``commit_s``; ``left_s`` returns the time left to the oldest append of the next one.
        """
        now_s, pause_s = self._runtime.monotonic_s(), min(max(_COMMITS * commit_s, _PAUSE_S_MIN), _PAUSE_S_MAX)
        if now_s - self._ended_s >= pause_s:
            # It was idle for as long as a pause.
            self._busy_since_s = now_s
        due_s = self._busy_since_s + (_BUSY_S if self._has_paused else _FIRST_S)
        if now_s >= due_s and left_s() > _LEFT_S_MIN:
            self._runtime.sleep(pause_s)
            self._busy_since_s, self._has_paused = self._runtime.monotonic_s(), True

    def committed(self) -> None:
        """Record that a commit has ended."""
        self._ended_s = self._runtime.monotonic_s()
