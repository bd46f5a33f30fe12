"""Writes key roll-ups in a story, beside collections that delete their snapshots."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tests.faults.store import SimStore
from wal3_core.errors import LogError, MissingError
from wal3_core.format.snapshot import Pointer, SnapshotPointer
from wal3_core.log.log_stores import LogStores
from wal3_core.log.read.key_columns import KeyColumns, build_key_rollup
from wal3_core.options import ReaderOptions, RetryOptions

if TYPE_CHECKING:
    from tests.faults.actors import Stage
    from tests.faults.simulator import SimProcess

_RETRY = RetryOptions(attempts_max=3, pause_s_min=0.01, pause_s_max=0.5)


def roll_keys_up(stage: Stage, process: SimProcess, log: str) -> None:
    """Write the key roll-up of one snapshot that has none; it may be collected meanwhile."""
    store = SimStore(stage.world, process)
    stores = LogStores(store, log, runtime=process, retry=_RETRY, snapshots_loaded_max=16)
    try:
        pointer = next(_without(stores, stores.manifests.load().manifest.pointers), None)
        if pointer is None:
            return
        snapshot = stores.snapshots.load(pointer)
        rollup = build_key_rollup(snapshot, KeyColumns(stores.objects, ReaderOptions(retry=_RETRY)), runtime=process)
        stores.key_rollups.write(pointer, rollup)
    except MissingError:
        stage.world.fired["a snapshot was collected before its keys were rolled up"] += 1
    except LogError as error:
        stage.excuse(error)
    else:
        stage.world.fired["keys rolled up"] += 1


def _without(stores: LogStores, pointers: Sequence[Pointer]) -> Iterator[SnapshotPointer]:
    for pointer in pointers:
        if isinstance(pointer, SnapshotPointer) and pointer.depth > 1:
            yield from _without(stores, stores.snapshots.load(pointer).pointers)
        elif isinstance(pointer, SnapshotPointer) and stores.key_rollups.load(pointer) is None:
            yield pointer
