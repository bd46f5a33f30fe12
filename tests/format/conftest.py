"""Manifests for the tests of the model."""

from __future__ import annotations

import hashlib

import pytest

from tests.stores import LOG_ID
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.manifest import Epoch, Manifest
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.setsum import Setsum

TOKEN = "0123456789abcdef"
HOUR_US = 3_600_000_000


def fragments_after(manifest: Manifest, count: int, *, step_us: int = 1000) -> list[FragmentPointer]:
    """Pointers to fragments of three records each that follow a manifest."""
    pointers = []
    seq_no, position = manifest.next.seq_no, manifest.next.position
    for index in range(count):
        number = FragmentSeqNo(seq_no + index)
        start = LogPosition(position.offset + 3 * index, position.timestamp_us + step_us * index)
        pointers.append(
            FragmentPointer(
                path=fragment_path(number, TOKEN),
                first_seq_no=number,
                seq_no=number,
                start=start,
                limit=LogPosition(start.offset + 3, start.timestamp_us),
                setsum=Setsum.of([hashlib.sha256(b"%d" % number).digest()]),
                num_bytes=100 + index,
                num_records=3,
            )
        )
    return pointers


@pytest.fixture
def empty() -> Manifest:
    """The manifest of a new log."""
    return Manifest.initial(log_id=LOG_ID, writer="test", timestamp_us=HOUR_US)


@pytest.fixture
def entry() -> Epoch:
    """The first writer's epoch."""
    return Epoch(1, TOKEN, FragmentSeqNo(1))


@pytest.fixture
def held(empty: Manifest, entry: Epoch) -> Manifest:
    """A manifest with four fragments."""
    return empty.apply_fragments(entry, fragments_after(empty, 4))
