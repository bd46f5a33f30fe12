"""Rolls the manifest's older pointers into snapshots, off the hot path: they are uploaded beside fragments and commits.

What a writer's own commits made due, the first manifest uses that is written once it is durable. For what was due when
the writer began, its first commit waits, within a bound. Source: docs/protocol/compaction.md, "Snapshot tree".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.format.manifest import Manifest
from wal3_core.format.snapshot import Snapshot
from wal3_core.log.tree.shape import Rewrite, build_snapshot, plan_roll, roll_all
from wal3_core.options import WriterOptions
from wal3_core.runtime import Runtime, Timer
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.retrying import within

if TYPE_CHECKING:
    from wal3_core.log.write.stats import Meter
    from wal3_core.workers import Share

# The time for the write of a snapshot with its retries: the next commit or writer tries again.
_WRITE_S = 10.0


class Snapshotter:
    """Keeps one log's manifest small; ``wake`` is called when a commit need not wait any longer.

    A failure here fails no append: ``meter`` counts it, and the next commit, or the next writer, tries again.
    """

    def __init__(
        self,
        snapshots: SnapshotStore,
        runtime: Runtime,
        options: WriterOptions,
        share: Share,
        meter: Meter,
        wake: Callable[[], None],
    ) -> None:
        self._snapshots = snapshots
        self._runtime = runtime
        self._options = options
        self._share = share
        self._wake = wake
        self._meter = meter
        self._lock = runtime.lock()
        self._busy = False
        self._awaited = False
        self._timer: Timer | None = None
        self._ready: Rewrite | None = None

    @property
    def awaited(self) -> bool:
        """Whether the next commit waits for the roll under way."""
        return self._awaited

    def begin(self, base: Manifest) -> None:
        """Start a roll if the manifest that this writer begins on needs one, and have its commit wait for it."""
        with self._lock:
            # At least one fragment is about to come: its writer has the last chance to roll.
            if self._busy or plan_roll(base, self._options.snapshots, coming=1) is None:
                return
            self._busy = self._awaited = True
            self._timer = self._runtime.call_later(
                self._options.snapshots.wait_s_max, self._wait_no_longer, share=self._share
            )
        self._runtime.spawn(lambda: self._roll(base, coming=1), share=self._share)

    def amend(self, manifest: Manifest) -> Manifest:
        """Use the snapshots that are ready, if the manifest still has what they replace."""
        with self._lock:
            ready = self._ready
        return (None if ready is None else applied(ready, manifest)) or manifest

    def committed(self, manifest: Manifest) -> None:
        """Start a roll if the manifest that was installed needs one."""
        with self._lock:
            # Snapshots that became ready too late for this manifest are for the next.
            if self._busy or (self._ready is not None and applied(self._ready, manifest) is not None):
                return
            self._ready = None
            if plan_roll(manifest, self._options.snapshots) is None:
                return
            self._busy = True
        self._runtime.spawn(lambda: self._roll(manifest), share=self._share)

    def _roll(self, manifest: Manifest, *, coming: int = 0) -> None:
        rolled: Rewrite | None = None
        try:
            rolled = roll_all(
                manifest, self._options.snapshots, self._snapshots.load, coming=coming, failed=self._meter.roll_failed
            )
        finally:
            if rolled is None:
                self._end(None)
        if rolled is not None:
            uploads = _Uploads(rolled, self._runtime, self._share, self._write, self._uploaded)
            uploads.run(self._options.snapshots.uploads_max)

    def _write(self, snapshot: Snapshot) -> None:
        self._snapshots.write(snapshot, within(self._options.retry, _WRITE_S))

    def _uploaded(self, ready: Rewrite | LogError | None) -> None:
        if isinstance(ready, LogError):
            self._meter.roll_failed(ready)
            ready = None
        self._end(ready)

    def _end(self, ready: Rewrite | None) -> None:
        with self._lock:
            self._ready, self._busy = ready, False
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._wait_no_longer()

    def _wait_no_longer(self) -> None:
        with self._lock:
            awaited, self._awaited = self._awaited, False
        if awaited:
            self._wake()


def applied(ready: Rewrite, manifest: Manifest) -> Manifest | None:
    """Put snapshots in the place of what they replace; None when the manifest no longer allows it."""
    # A moved fence means that unreferenced uploads may be deleted: these were some of them.
    if ready.fence != manifest.fence:
        return None
    try:
        return manifest.apply_repack(ready.pointers, ready.replaced)
    except InvalidRequestError:
        return None


def rolled_now(
    manifest: Manifest, snapshots: SnapshotStore, options: WriterOptions, failed: Callable[[LogError], None]
) -> Manifest:
    """Roll pointers into snapshots, which are durable when this returns.

    ``failed`` gets the error of a roll that cannot be made: unless it raises that, the roll is left to the next writer.
    """
    retry = within(options.retry, options.snapshots.wait_s_max)
    while (run := plan_roll(manifest, options.snapshots)) is not None:
        try:
            pointer = snapshots.write(build_snapshot(run, manifest, snapshots.load), retry)
        except LogError as error:
            failed(error)
            break
        manifest = manifest.apply_snapshot(pointer, run)
    return manifest


class _Uploads:
    """Uploads snapshots several at a time, then calls ``end`` once: with what is durable now, or what went wrong.

    No task waits for another one, as all share the workers.
    """

    def __init__(
        self,
        rolled: Rewrite,
        runtime: Runtime,
        share: Share,
        write: Callable[[Snapshot], None],
        end: Callable[[Rewrite | LogError | None], None],
    ) -> None:
        self._rolled = rolled
        self._write = write
        self._end = end
        self._lock = runtime.lock()
        self._runtime = runtime
        self._share = share
        self._waiting = deque(rolled.written)
        self._lanes = 0
        self._failed = False
        self._error: LogError | None = None

    def run(self, lanes_max: int) -> None:
        self._lanes = min(lanes_max, len(self._waiting))
        for _ in range(self._lanes - 1):
            self._runtime.spawn(self._lane, share=self._share)
        # The last lane runs in this thread, which has nothing else to do.
        self._lane()

    def _lane(self) -> None:
        failed, error = True, None
        try:
            while (snapshot := self._next()) is not None:
                self._write(snapshot)
            failed = False
        except LogError as caught:
            # Rolling only keeps the manifest small: the next commit tries again.
            error = caught
        finally:
            with self._lock:
                self._failed, self._error = self._failed or failed, self._error or error
                self._lanes -= 1
                last, ready = self._lanes == 0, self._error if self._failed else self._rolled
            if last:
                self._end(ready)

    def _next(self) -> Snapshot | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting and not self._failed else None
