"""Turns of writers that append to one log: each appends for a while, and then lets the others.

A fragment carries its place in the log, so the uploads of a writer that another one overtakes are lost; and a writer
that is closer to the store, or has more to append, would overtake the others for ever. Therefore a writer that has seen
another one's appends waits after a turn. One that waits uploads nothing before it has seen the log at rest, for longer
the more of the others come before it: the epochs in the manifest show whose last turn was longer ago. Writers that do
not know of each other yet meet in the pauses of ``breath.py``. Only speed and fairness depend on this.
Source: docs/protocol.md, "Turns".
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
# In cycles: how long a writer appends, and how long it sees the log at rest before. ``_REST``: one that had no turn
# lately. ``_REST_FIRST``: the first of the others. Each behind that one leaves time for an upload and a commit.
_TURN, _REST, _REST_FIRST, _REST_EACH = 6, 1, 2.5, 5
# One that waits looks that many times in the rest that it needs, but not more often than once in ``_REST``.
_LOOKS = 3
# In cycles: a turn that lasts for so long is of a writer that does not know of this one. Then it tries its luck.
_PATIENCE, _PATIENCE_S_MAX = 12, 15.0
_DOUBLINGS_MAX = 16
# A writer is alone again when so many rests have shown nothing of others.
_QUIET = 4


class Turns:
    """When one writer may cut batches; ``tag`` is that of its epochs. Guarded by its owner's lock."""

    def __init__(self, tag: str, options: WriterOptions, meter: Meter, runtime: Runtime) -> None:
        self._tag = tag
        self._pause_s_max = options.commit_pause_s_max
        self._meter = meter
        self._runtime = runtime
        # Until then no batch is cut.
        self.not_before_s = 0.0
        # Whether it waits for a turn; whether it had one since it last had nothing to append.
        self._waiting = self._served = False
        # Rests that have shown nothing of others since something of them was seen.
        self._quiet = _QUIET
        # The end of the log, when it was last seen, and when it was first seen there.
        self._epoch, self._end = 0, 0
        self._known_s = self._changed_s = -math.inf
        # When this writer's turn began, and when the newest epoch was first seen or tried to be ended.
        self._began_s = self._epoch_s = -math.inf
        # How long others took for a fragment.
        self._fragment_s = math.inf
        # Places lost in this epoch.
        self._num_lost = 0

    @property
    def _shared(self) -> bool:
        return self._quiet < _QUIET

    def waits(self, *, idle: bool) -> bool:
        """Whether the manifest must be looked at before the next cut; ``idle``: nothing is in flight."""
        # However short a cycle may be by the options: else what was seen just now would be too old at once, for ever.
        known_for_s = max(self._s(_REST), _CYCLE_S_MIN)
        return self._waiting or (idle and self._shared and self._runtime.monotonic_s() - self._known_s > known_for_s)

    def may_look(self) -> bool:
        """Whether it is time to look."""
        return self._runtime.monotonic_s() >= self.not_before_s

    def lost(self, manifest: Manifest) -> None:
        """Record that another writer took the place of fragments in flight, by a manifest just loaded."""
        met_before = self._shared
        self._know(manifest)
        self._quiet = 0
        self._num_lost += 1
        self._epoch_s = self._known_s
        if met_before:
            self._wait(manifest)
        else:
            # They may have met by chance.
            self.pause()

    def pause(self) -> None:
        """Cut nothing for a random time, up to that of a commit."""
        pause_s = max(self._meter.commit_s, _CYCLE_S_MIN / 2) * self._runtime.jitter()
        self.not_before_s = self._runtime.monotonic_s() + min(pause_s, self._pause_s_max)

    def committed(self, manifest: Manifest, began_s: float) -> None:
        """Record a commit of this writer's, which began at ``began_s``; its turn may be over."""
        if began_s - self._known_s >= self._s(_REST_FIRST):
            # Others could have begun.
            self._began_s = began_s
        self._know(manifest)
        self._served = True
        if self._shared and self._known_s - self._began_s >= self._s(_TURN):
            self._wait(manifest)

    def looked(self, manifest: Manifest, *, overdue: bool) -> None:
        """Decide by a manifest that was just loaded who appends; ``overdue``: an append can wait no longer."""
        now_s = self._runtime.monotonic_s()
        if now_s < self.not_before_s:
            return
        is_first = self._known_s == -math.inf
        appended = self._know(manifest) and not is_first and not self._is_own(manifest)
        # One that had nothing to append until now is not one of those that wait in order.
        self._served = self._served and self._waiting
        rested = now_s - self._changed_s >= self._rest_s(manifest) if self._waiting else not appended
        if rested or overdue or self._is_impatient(manifest):
            self._quiet = 0 if appended else self._quiet + self._is_own(manifest)
            self._waiting, self._began_s = False, now_s
        else:
            self._quiet = 0 if appended else self._quiet
            self._wait(manifest)

    def _wait(self, manifest: Manifest) -> None:
        """Wait for the next look."""
        self._waiting = True
        now_s, rest_s = self._runtime.monotonic_s(), self._rest_s(manifest)
        look_s = max(self._cycle_s() * _REST, rest_s / _LOOKS)
        jitter_s = self._cycle_s() * self._runtime.jitter() / 4
        self.not_before_s = min(self._changed_s + rest_s, now_s + look_s) + jitter_s

    def _rest_s(self, manifest: Manifest) -> float:
        """Return how long the log has to be at rest before this writer begins."""
        tags = _tags(manifest)
        cycles: float = _REST
        if self._served and self._tag in tags:
            before = len(tags) - 1 - tags.index(self._tag)
            # One behind whose turns none of others was seen lately still lets them begin.
            cycles = _REST_FIRST + _REST_EACH * (before if len(tags) > 1 else 1)
        return min(cycles * self._cycle_s(), self._pause_s_max)

    def _is_impatient(self, manifest: Manifest) -> bool:
        """Whether another writer's turn lasts for too long; each try that lost its place doubles how long that is."""
        patience_s = min(self._s(_PATIENCE) * 2.0 ** min(self._num_lost, _DOUBLINGS_MAX), _PATIENCE_S_MAX)
        return not self._is_own(manifest) and self._runtime.monotonic_s() - self._epoch_s >= patience_s

    def _is_own(self, manifest: Manifest) -> bool:
        return any(epoch.tag == self._tag for epoch in manifest.epochs[-1:])

    def _know(self, manifest: Manifest) -> bool:
        """Keep where the log ends; return whether that has changed."""
        now_s, epoch, end = self._runtime.monotonic_s(), manifest.last_epoch, manifest.next.seq_no
        changed = (epoch, end) != (self._epoch, self._end)
        if changed:
            if not self._is_own(manifest):
                self._fragment_s = (now_s - self._known_s) / max(end - self._end, 1)
            self._changed_s = now_s
        if epoch != self._epoch:
            self._epoch_s, self._num_lost = now_s, 0
        self._known_s, self._epoch, self._end = now_s, epoch, end
        return changed

    def _cycle_s(self) -> float:
        """Return what a cycle takes: this writer, or others if they are faster."""
        return min(self._s(1), max(2 * self._fragment_s, _CYCLE_S_MIN))

    def _s(self, cycles: float) -> float:
        """Return how long some cycles of this writer take."""
        cycle_s = max(self._meter.upload_s + self._meter.commit_s, _CYCLE_S_MIN)
        return min(cycles * cycle_s, self._pause_s_max)


def _tags(manifest: Manifest) -> list[str]:
    """Return the tags of the writers that take turns, that of the newest turn first.

    While they keep their order, none has a second turn before all others had one: behind the first tag that is found
    again, there are only writers that have left.
    """
    tags: list[str] = []
    for epoch in reversed(manifest.epochs):
        if epoch.tag in tags:
            break
        tags.append(epoch.tag)
    return tags
