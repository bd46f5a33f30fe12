"""Turns of writers that append to one log: each appends for a while, and then lets another one begin.

A fragment carries its place in the log, so the uploads of a writer that another one overtakes are lost; and a writer
that is closer to the store, or has more to append, would overtake the others for ever. Therefore a writer that has seen
another one's appends rests after a turn, for as long as another one needs to begin. One that waits uploads
nothing before it has seen the log at rest. Writers that do not know of each other yet meet in the pauses of
``breath.py``. Only speed and fairness depend on this. Source: docs/protocol.md, "Turns".
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wal3_core.log.write.stats import Meter
    from wal3_core.model.manifest import Manifest
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime

# A cycle is an upload and a commit, at least this long: a look at the manifest takes milliseconds of the processor.
_CYCLE_S_MIN = 0.01
# In cycles: how long a writer appends, and how long it rests.
_TURN, _REST = 8, 6
# The part of a turn for which there is nothing to see after another writer began one.
_UNSEEN = 0.75
# A writer that has waited for so long appends, whatever others do; other writers pause more often (breath.py).
_PATIENCE_S = 15.0
_DOUBLINGS_MAX = 16
# A writer is alone again after so many looks that found nothing of others.
_QUIET = 4


class Turns:
    """When one writer may cut batches. Guarded by its owner's lock."""

    def __init__(self, options: WriterOptions, meter: Meter, runtime: Runtime) -> None:
        self._pause_s_max = options.commit_pause_s_max
        self._meter = meter
        self._runtime = runtime
        # Until then no batch is cut.
        self.not_before_s = 0.0
        self._waiting = False
        # Looks that found nothing of others since something of them was seen.
        self._quiet = _QUIET
        # When the turn began or the wait for it, and when the end of the log was last known.
        self._began_s = self._waited_since_s = self._known_s = -math.inf
        self._epoch, self._end, self._own_epoch = 0, 0, 0
        # How long others took for a fragment.
        self._fragment_s = math.inf
        # Places lost since this writer's last commit.
        self._num_lost = 0

    @property
    def _shared(self) -> bool:
        return self._quiet < _QUIET

    def waits(self, *, idle: bool) -> bool:
        """Whether the manifest must be looked at before the next cut; ``idle``: nothing is in flight."""
        return self._waiting or (idle and self._shared and self._runtime.monotonic_s() - self._known_s > self._s(_REST))

    def may_look(self) -> bool:
        """Whether it is time to look."""
        return self._runtime.monotonic_s() >= self.not_before_s

    def lost(self, manifest: Manifest) -> None:
        """Record that another writer took the place of fragments in flight, by a manifest just loaded."""
        now_s = self._runtime.monotonic_s()
        self._num_lost += 1
        if self._shared:
            self._wait(now_s, self._look_s())
        else:
            # They may have met by chance.
            self.pause()
        self._know(manifest, now_s)
        self._own_epoch = self._own_epoch or self._epoch
        self._quiet = 0

    def pause(self) -> None:
        """Cut nothing for a random time, up to that of a commit."""
        pause_s = max(self._meter.commit_s, _CYCLE_S_MIN / 2) * self._runtime.jitter()
        self.not_before_s = self._runtime.monotonic_s() + min(pause_s, self._pause_s_max)

    def committed(self, manifest: Manifest, began_s: float) -> None:
        """Record a commit of this writer's, which began at ``began_s``; its turn may be over."""
        now_s = self._runtime.monotonic_s()
        if began_s - self._known_s >= self._s(_REST):
            self._began_s = began_s
        self._know(manifest, now_s)
        self._own_epoch, self._num_lost = self._epoch, 0
        if self._shared and now_s - self._began_s >= self._s(_TURN):
            self._wait(now_s, self._s(_REST))

    def looked(self, manifest: Manifest, *, overdue: bool) -> None:
        """Decide by a manifest that was just loaded who appends; ``overdue``: an append can wait no longer."""
        now_s = self._runtime.monotonic_s()
        if now_s < self.not_before_s:
            return
        appended = manifest.next.seq_no - self._end
        is_others = (manifest.last_epoch, manifest.next.seq_no) != (self._epoch, self._end)
        if is_others:
            self._fragment_s = (now_s - self._known_s) / max(appended, 1)
        began = manifest.last_epoch != self._epoch
        self._quiet = 0 if is_others else self._quiet + 1
        self._know(manifest, now_s)
        if is_others and not overdue and now_s - self._waited_since_s < self._patience_s():
            self._wait(now_s, self._s(_UNSEEN * _TURN) if began else self._look_s())
        else:
            self._waiting, self._began_s = False, now_s

    def _look_s(self) -> float:
        """Return how long to wait for the next look: shorter, the more turns others had since this writer's.

        One that has just begun takes longer for a cycle than those that are at it, and must not miss their pauses.
        """
        turns = self._epoch - self._own_epoch
        cycle_s = min(self._s(1), max(2 * self._fragment_s, _CYCLE_S_MIN))
        return cycle_s * (1 + (1.5 / (1 + turns) if turns else 0) + self._runtime.jitter() / 4)

    def _patience_s(self) -> float:
        """Return how long to wait. One that does not know of this writer takes no turns: luck may show it to it."""
        if self._epoch != self._own_epoch:
            return _PATIENCE_S
        return min(self._s(_TURN) * 2.0 ** min(self._num_lost, _DOUBLINGS_MAX), _PATIENCE_S)

    def _wait(self, now_s: float, wait_s: float) -> None:
        if not self._waiting:
            self._waiting, self._waited_since_s = True, now_s
        self.not_before_s = now_s + wait_s

    def _know(self, manifest: Manifest, now_s: float) -> None:
        self._known_s, self._epoch, self._end = now_s, manifest.last_epoch, manifest.next.seq_no

    def _s(self, cycles: float) -> float:
        """Return how long some cycles take."""
        cycle_s = max(self._meter.upload_s + self._meter.commit_s, _CYCLE_S_MIN)
        return min(cycles * cycle_s, self._pause_s_max)
