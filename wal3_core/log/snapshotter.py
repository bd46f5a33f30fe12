"""Rolls the manifest's older pointers into snapshots, off the hot path.

A snapshot is uploaded beside the commits; the first manifest written after it is durable uses it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.model.tree import build_snapshot, plan_roll

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import SnapshotPointer
    from wal3_core.model.tree import Roll
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Runtime
    from wal3_core.storage.snapshot_store import SnapshotStore


@dataclass(frozen=True, slots=True)
class _Ready:
    roll: Roll
    snapshot: SnapshotPointer
    fence: int

    def applied_to(self, manifest: Manifest) -> Manifest | None:
        """Put the snapshot in the place of what it replaces; None where that is not so any more."""
        # A moved fence means that unreferenced uploads may be deleted: this one was one of them.
        if self.fence != manifest.fence:
            return None
        try:
            return manifest.apply_snapshot(self.snapshot, self.roll.replaced)
        except InvalidRequestError:
            return None


class Snapshotter:
    """Keeps one log's manifest small; at most one snapshot is under way."""

    def __init__(self, snapshots: SnapshotStore, runtime: Runtime, options: WriterOptions) -> None:
        self._snapshots = snapshots
        self._runtime = runtime
        self._options = options
        self._lock = runtime.lock()
        self._busy = False
        self._ready: _Ready | None = None

    def amend(self, manifest: Manifest) -> Manifest:
        """Use the snapshot that is ready, if there is one and the manifest still has what it replaces."""
        with self._lock:
            ready = self._ready
        return manifest if ready is None else ready.applied_to(manifest) or manifest

    def committed(self, manifest: Manifest) -> None:
        """Look whether the manifest that was installed wants rolling, and begin with it."""
        with self._lock:
            # One that became ready too late for this manifest is for the next.
            if self._busy or (self._ready is not None and self._ready.applied_to(manifest) is not None):
                return
            self._ready = None
            roll = plan_roll(manifest, self._options.snapshots)
            if roll is None:
                return
            self._busy = True
        self._runtime.spawn(lambda: self._write(roll, manifest.fence))

    def _write(self, roll: Roll, fence: int) -> None:
        ready = None
        try:
            snapshot = build_snapshot(roll, fence, self._snapshots.load)
            ready = _Ready(roll, self._snapshots.write(snapshot, self._options.retry), fence)
        except LogError:
            # Rolling only keeps the manifest small: the next commit tries again, and scrub tells of damage.
            ready = None
        finally:
            with self._lock:
                self._ready, self._busy = ready, False
