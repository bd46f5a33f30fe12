"""When a writer acts: when it cuts a batch, pauses, lets other writers append, and wakes a worker.

One batch is cut for each commit, so that its upload ends when the commit under way does: one that is uploaded earlier
waits, and what is appended meanwhile would wait for the next one. Pauses leave others a gap between their load and
their CAS. A writer that has seen another one's appends waits after a turn, and begins again once it has seen the log at
rest. Only speed and fairness depend on this. Source: docs/protocol.md, "Append" and "Turns".
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from wal3_core.format.manifest import Manifest
from wal3_core.options import WriterOptions
from wal3_core.runtime import Runtime

if TYPE_CHECKING:
    from wal3_core.log.write.stats import Meter


class BatchDeadline:
    """What the next cut waits for, while fragments are in flight. Guarded by its owner's lock."""

    def __init__(self, options: WriterOptions, meter: Meter, runtime: Runtime) -> None:
        self._options = options
        self._meter = meter
        self._runtime = runtime
        self._cut_s = 0.0
        self._commit_began_s = 0.0
        # Fragments in flight that are not in the commit under way; all of them when there is none.
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


# A pause is due after this time without one; the first in a writer's life sooner, as several often begin at once, which
# then learn of each other.
_BUSY_S, _FIRST_S = 10.0, 1.0
_PAUSE_S_MIN = 0.1
_PAUSE_S_MAX = 0.5
# A pause lasts 8 commits, so that a writer whose latency is up to 8 times this one's can commit in it.
_COMMITS = 8
# An append with less time left than this is committed without a pause.
_LEFT_S_MIN = 10.0


class YieldPause:
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


# A cycle is an upload and a commit, at least this long: a look at the manifest takes milliseconds of the processor.
_CYCLE_S_MIN = 0.01
# Cycles of a turn, and cycles at rest that a writer sees before it: ``_REST`` if it had no turn lately, ``_REST_FIRST``
# if it is the first of the others, ``_REST_EACH`` more for each writer before it, for an upload and a commit.
_TURN, _REST, _REST_FIRST, _REST_EACH = 6, 1, 2.5, 5
# One that waits looks that many times in the rest that it needs, but not more often than once in ``_REST``.
_LOOKS = 3
# After 12 cycles of waiting it assumes that the other writer does not yield, and commits all the same.
_PATIENCE, _PATIENCE_S_MAX = 12, 15.0
_DOUBLINGS_MAX = 16
# A writer stops yielding after this many rests that have shown nothing of others.
_QUIET = 4


class WriterFairness:
    """When one writer may cut batches; ``tag`` is that of its epochs. Guarded by its owner's lock."""

    def __init__(self, tag: str, options: WriterOptions, meter: Meter, runtime: Runtime) -> None:
        self._tag = tag
        self._pause_s_max = options.commit_pause_s_max
        self._meter = meter
        self._runtime = runtime
        # The time before which no batch is cut.
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
        # The time that others took for a fragment.
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

    def observe(self, manifest: Manifest, *, overdue: bool) -> None:
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
            # With no other writer in the list, it waits as if one were before it: it may just have started.
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


class WorkerWakeup:
    """Calls ``spawn`` unless a worker was asked and has not begun yet. A caller may be interrupted anywhere."""

    def __init__(self, spawn: Callable[[], None]) -> None:
        self._spawn = spawn
        self.asked = False
        # Calls of ``wake`` in progress: each may still be about to start a worker.
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
