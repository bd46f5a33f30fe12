"""When a batch is cut: so that its upload ends when the commit under way does, and not before.

A fragment that is uploaded earlier waits for that commit; what is appended meanwhile would wait for the next one. One
batch is cut for each commit, so a slow store gets fewer, larger fragments. Source: docs/protocol.md, "Append".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.log.write.stats import Meter
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime


class Cutting:
    """What the next cut waits for, while fragments are in flight. Guarded by its owner's lock."""

    def __init__(self, options: WriterOptions, meter: Meter, runtime: Runtime) -> None:
        self._options = options
        self._meter = meter
        self._runtime = runtime
        self._cut_s = 0.0
        self._commit_began_s = 0.0
        # In flight, but not in the commit under way; all of them when there is none.
        self._num_ahead = 0

    def cut(self) -> None:
        """Record that a batch was cut."""
        self._cut_s = self._runtime.monotonic_s()
        self._num_ahead += 1

    def commit_began(self, num_ahead: int) -> None:
        """Record that a commit has begun, and how many fragments in flight are not in it."""
        self._commit_began_s = self._runtime.monotonic_s()
        self._num_ahead = num_ahead

    def commit_ended(self, num_in_flight: int) -> None:
        """Record that there is no commit under way, and how many fragments are in flight now."""
        self._num_ahead = num_in_flight

    def due_s(self, oldest_s: float) -> float:
        """Return when the batch is due whose oldest append was accepted at ``oldest_s``."""
        commit_s = min(self._meter.commit_s, self._options.commit_pause_s_max)
        if self._num_ahead:
            # The next commit takes what was cut; this batch is for the one behind it.
            aligned_s = self._cut_s + commit_s
        else:
            aligned_s = self._commit_began_s + commit_s - self._meter.upload_s
        # An append waits no longer than a commit takes, however late the one under way is.
        return max(oldest_s + self._options.batch_age_s_max, min(aligned_s, oldest_s + commit_s))
