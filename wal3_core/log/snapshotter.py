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
    from wal3_core.workers import Share


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
    """Keeps one log's manifest small: while one commit is under way, the snapshots for the next are uploaded."""

    def __init__(self, snapshots: SnapshotStore, runtime: Runtime, options: WriterOptions, share: Share) -> None:
        self._snapshots = snapshots
        self._runtime = runtime
        self._options = options
        self._share = share
        self._lock = runtime.lock()
        self._busy = False
        # Each builds on the manifest that those before it were applied to.
        self._ready: list[_Ready] = []

    def amend(self, manifest: Manifest) -> Manifest:
        """Use the snapshots that are ready, as far as the manifest still has what they replace."""
        with self._lock:
            every = list(self._ready)
        for ready in every:
            changed = ready.applied_to(manifest)
            if changed is None:
                break
            manifest = changed
        return manifest

    def committed(self, manifest: Manifest) -> None:
        """Look whether the manifest that was installed wants rolling, and begin with it."""
        with self._lock:
            # What became ready too late for this manifest is for the next.
            if self._busy or (self._ready and self._ready[0].applied_to(manifest) is not None):
                return
            self._ready = []
            if plan_roll(manifest, self._options.snapshots) is None:
                return
            self._busy = True
        self._runtime.spawn(lambda: self._write(manifest), share=self._share)

    def _write(self, manifest: Manifest) -> None:
        ready: list[_Ready] = []
        try:
            for _ in range(self._options.snapshots.rolls_ahead_max):
                roll = plan_roll(manifest, self._options.snapshots)
                if roll is None:
                    break
                snapshot = build_snapshot(roll, manifest, self._snapshots.load)
                pointer = self._snapshots.write(snapshot, self._options.retry)
                ready.append(_Ready(roll, pointer, manifest.fence))
                manifest = manifest.apply_snapshot(pointer, roll.replaced)
        except LogError:
            # Rolling only keeps the manifest small: the next commit tries again, and scrub tells of damage.
            pass
        finally:
            with self._lock:
                self._ready, self._busy = ready, False
