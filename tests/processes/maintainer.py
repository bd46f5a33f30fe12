"""The changes that maintenance makes to a manifest, made by a process of its own while others append."""

from __future__ import annotations

import random
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from wal3_core import open_store
from wal3_core.format.manifest import Manifest
from wal3_core.log.tree.shape import build_snapshot, plan_roll
from wal3_core.options import RetryOptions, SnapshotOptions
from wal3_core.runtime import shared_runtime
from wal3_core.store.documents.manifest_store import Installed, ManifestStore
from wal3_core.store.documents.snapshot_store import SnapshotStore
from wal3_core.store.object_store import ObjectStore, log_store

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


Change = Literal["roll", "fence", "generation"]
CHANGES: tuple[Change, ...] = ("roll", "fence", "generation")
# A roll takes longest, so a commit of the writer's comes first more often.
_WEIGHTS = (3, 1, 1)
# Rolls earlier than the writers do, so that something is left for it.
_EAGER = SnapshotOptions(fragments_per_snapshot=2, fragments_kept=1, snapshots_per_roll=2, snapshot_pointers_max=64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """How to maintain a log: one change every ``pause_s``, a fence at most every ``fence_pause_s``."""

    url: str
    log: str
    pause_s: float
    fence_pause_s: float


class Maintainer:
    """Changes one log's manifest repeatedly; counts the changes that were installed."""

    def __init__(self, store: ObjectStore, upkeep: Upkeep) -> None:
        runtime = shared_runtime()
        self._upkeep = upkeep
        self._manifests = ManifestStore(log_store(store, upkeep.log), runtime)
        self._snapshots = SnapshotStore(self._manifests, runtime, loaded_max=64)
        self._chance = random.Random(0)
        self._fenced_s = 0.0
        self.installed: Counter[str] = Counter()

    def change(self) -> None:
        """Try one change of some kind; another writer's commit may come first, and that is fine."""
        found = self._manifests.load()
        kind = self._choose()
        changed = self._changed(found.manifest, kind)
        if changed is not None and isinstance(self._manifests.install(changed, found), Installed):
            self.installed[kind] += 1

    def _choose(self) -> Change:
        (kind,) = self._chance.choices(CHANGES, _WEIGHTS)
        if kind != "fence":
            return kind
        # Each fence makes writers upload again what is in flight: in production they are minutes apart.
        now_s = time.monotonic()
        if now_s < self._fenced_s + self._upkeep.fence_pause_s:
            return "generation"
        self._fenced_s = now_s
        return "fence"

    def _changed(self, manifest: Manifest, kind: Change) -> Manifest | None:
        match kind:
            case "roll":
                roll = plan_roll(manifest, _EAGER)
                if roll is None:
                    return None
                snapshot = build_snapshot(roll, manifest, self._snapshots.load)
                return manifest.apply_snapshot(self._snapshots.write(snapshot, RetryOptions()), roll)
            case "fence":
                return replace(manifest, fence=manifest.fence + 1)
            case "generation":
                return manifest


def maintain(connection: Connection, upkeep: Upkeep) -> None:
    """Change the manifest until a message arrives; then send how many changes of each kind were installed."""
    maintainer = Maintainer(open_store(upkeep.url), upkeep)
    connection.send(("begun", None))
    while not connection.poll(upkeep.pause_s):
        maintainer.change()
    connection.send(("installed", dict(maintainer.installed)))
