"""Fragments with keys, and a snapshot of them, for the tests of key roll-ups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tests.format.conftest import HOUR_US, fragments_after
from tests.stores import LOG_ID
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.key_rollup import KeyRollup
from wal3_core.format.manifest import Manifest
from wal3_core.format.position import LogPosition
from wal3_core.format.snapshot import Snapshot, SnapshotPointer

# Key, and whether the record is a tombstone record.
Row = tuple[bytes | None, bool]


def pointers(counts: Sequence[int]) -> list[FragmentPointer]:
    """Pointers to fragments of so many records."""
    manifest = Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=HOUR_US)
    found, offset = [], 1
    for pointer, count in zip(fragments_after(manifest, len(counts)), counts, strict=True):
        start, limit = (LogPosition(each, HOUR_US) for each in (offset, offset + count))
        found.append(replace(pointer, start=start, limit=limit, num_records=count))
        offset += count
    return found


def rolled_up(fragments: Sequence[Sequence[Row]]) -> tuple[KeyRollup, list[FragmentPointer]]:
    """The key roll-up of some fragments, and their pointers."""
    named = pointers([len(rows) for rows in fragments])
    rollup = KeyRollup.of(
        (pointer, pa.array([key for key, _ in rows], pa.binary()), np.array([gone for _, gone in rows], dtype=bool))
        for pointer, rows in zip(named, fragments, strict=True)
    )
    return rollup, named


def snapshot_of(named: Sequence[FragmentPointer]) -> SnapshotPointer:
    """The pointer to a snapshot of some fragments."""
    snapshot = Snapshot(tuple(named), 0, LOG_ID)
    return snapshot.pointer_to(snapshot.to_bytes())
