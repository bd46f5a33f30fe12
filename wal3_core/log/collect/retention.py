"""Which of a log's records are young enough to be kept, by the process's clock and by the store's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wal3_core.log.read.scan import select
from wal3_core.model.position import AtTime
from wal3_core.options import UNLIMITED
from wal3_core.runtime import US_PER_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.log.log_stores import LogStores
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.snapshot import Snapshot, SnapshotPointer

    Load = Callable[[SnapshotPointer], Snapshot]


def first_younger(manifest: Manifest, retention_s: int, stores: LogStores) -> int:
    """Return the offset from which on records are younger than ``retention_s``.

    The store is asked for its time only when something is old by the process's clock.
    """
    load = stores.snapshots.load
    own_us, age_us = stores.runtime.now_us(), retention_s * US_PER_S
    offset = _first_after(manifest, own_us - age_us, load)
    if offset <= manifest.first.position.offset:
        return offset
    # A clock that is ahead would let records be deleted too early.
    store_us = stores.store_now_us()
    return offset if own_us <= store_us else _first_after(manifest, store_us - age_us, load)


def _first_after(manifest: Manifest, timestamp_us: int, load: Load) -> int:
    young = next(select(manifest.pointers, AtTime(max(0, timestamp_us)), UNLIMITED, load), None)
    return manifest.next.position.offset if young is None else young.start.offset
