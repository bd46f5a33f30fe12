"""A writer that commits without a pause makes one now and then, in which others get at the manifest.

Who changes the manifest loads it and swaps it, one round trip apart. A writer that sends its next CAS as soon as
it has the last one's answer leaves no such gap to anybody who is farther from the store than itself: whoever
seals, collects, packs, pins or destroys its log would never get a turn. What is uploaded during the pause goes
into the next commit. Source: docs/protocol.md, "Turns".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.runtime import Runtime

# Without a pause.
_BUSY_S = 10.0
_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 0.5
# So much farther from the store may others be.
_COMMITS = 8


class Breath:
    """Tells one writer when to pause between two commits."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._busy_since_s = self._ended_s = runtime.monotonic_s()

    def due_s(self, commit_s: float) -> float:
        """Give the seconds to pause before the next commit, of which one takes ``commit_s``; mostly 0."""
        now_s, pause_s = self._runtime.monotonic_s(), min(max(_COMMITS * commit_s, _PAUSE_S_MIN), _PAUSE_S_MAX)
        if now_s - self._ended_s >= pause_s:
            # It made one.
            self._busy_since_s = now_s
        return pause_s if now_s - self._busy_since_s >= _BUSY_S else 0.0

    def paused(self) -> None:
        """Take note that the pause was made."""
        self._busy_since_s = self._runtime.monotonic_s()

    def committed(self) -> None:
        """Take note that a commit has ended."""
        self._ended_s = self._runtime.monotonic_s()
