"""A tombstone marks a name as free, and no other document is taken for one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.stores import LOG_ID
from wal3_core.errors import CorruptError
from wal3_core.format import strict_json
from wal3_core.format.cursor import BYTES_MAX, Cursor
from wal3_core.format.position import LogPosition
from wal3_core.format.tombstone import Tombstone, or_tombstone

GOLDEN = Path(__file__).parent.parent / "golden"
TOMBSTONE = Tombstone(generation=3, log_id=LOG_ID, writer="w")
CURSOR = Cursor(position=LogPosition(3, 5), epoch_us=7, writer="w", generation=1, log_id=LOG_ID)


def read(data: bytes) -> Cursor | Tombstone:
    return or_tombstone(data, Cursor.from_fields, what="cursor/c", bytes_max=BYTES_MAX)


def test_format_is_what_earlier_versions_wrote() -> None:
    path = GOLDEN / "tombstone.json"

    assert path.read_bytes() == TOMBSTONE.to_bytes(), f"the format changed: {path} holds what earlier versions wrote"
    assert read(path.read_bytes()) == TOMBSTONE


def test_tombstone_and_cursor_are_distinguished() -> None:
    assert read(TOMBSTONE.to_bytes()) == TOMBSTONE
    assert read(CURSOR.to_bytes()) == CURSOR
    with pytest.raises(CorruptError, match="cursor/c"):
        Cursor.from_bytes(TOMBSTONE.to_bytes(), what="cursor/c")


def test_every_shorter_tombstone_and_every_flipped_bit_is_an_error() -> None:
    stored = TOMBSTONE.to_bytes()

    for length in range(len(stored)):
        with pytest.raises(CorruptError, match="cursor/c"):
            read(stored[:length])
    for bit in range(len(stored) * 8):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptError, match="cursor/c"):
            read(bytes(flipped))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format_version": 3}, "format_version 2, found 3: a newer wal3"),
        ({"deleted": False}, "expected true, found false"),
        ({"deleted": 1}, "true or false"),
        ({"log_id": "x"}, "log_id"),
        ({"generation": -1}, "u64"),
        ({"more": 1}, "no further fields, found more"),
        ({"position": {"offset": 1, "timestamp_us": 0}}, "no further fields, found position"),
    ],
)
def test_forged_tombstone_is_an_error(changes: dict[str, object], complaint: str) -> None:
    document = json.loads(TOMBSTONE.to_bytes())
    del document["checksum"]

    with pytest.raises(CorruptError, match=complaint):
        read(strict_json.dump_checksummed({**document, **changes}))
