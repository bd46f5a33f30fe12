"""The list of the records that a pass left out of one fragment, by the hash of their keys.

It holds no key: 16 bytes of a key's SHA-256, the offset, the reason and the fragment that held the record.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError
from wal3_core.format.parquet.reading import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from wal3_core.format.position import FragmentSeqNo

    Offsets = np.ndarray[tuple[int], np.dtype[np.uint64]]

# One row for each keyed record that was looked at; ``seq_no`` is its fragment's.
ROWS = pa.schema(
    [("seq_no", pa.uint64()), ("offset", pa.uint64()), ("key", pa.large_binary()), ("tombstone", pa.bool_())]
)
LOSSES = pa.schema([("seq_no", pa.uint64()), ("offset", pa.uint64()), ("reason", pa.uint8())])


class DropReason(IntEnum):
    """Why a record is dropped; the number is part of stored records of passes."""

    SUPERSEDED = 1
    EXPIRED = 2


def find_losses(rows: pa.Table, *, expired_below: int) -> pa.Table:
    """Find the records to drop among ``rows`` (columns of ``ROWS``, offsets rising); columns of ``LOSSES``.

    A tombstone below the offset ``expired_below`` is dropped if it is its key's only record. The rows hold every record
    of each key that has a record in them, or at least its newest one and those to drop.
    """
    if not len(rows):
        return LOSSES.empty_table()
    rows = rows.combine_chunks()
    offsets, newest, oldest = ends_of_keys(rows)
    superseded, alone = offsets < newest, oldest == newest
    tombstones = rows["tombstone"].to_numpy(zero_copy_only=False)
    expired = tombstones & alone & (offsets < expired_below)
    lost = np.flatnonzero(superseded | expired)
    reasons = np.where(superseded[lost], DropReason.SUPERSEDED, DropReason.EXPIRED).astype(np.uint8)
    return pa.table([rows["seq_no"].take(lost), pa.array(offsets[lost]), pa.array(reasons)], schema=LOSSES)


def ends_of_keys(rows: pa.Table) -> tuple[Offsets, Offsets, Offsets]:
    """Return each row's offset, and the newest and the oldest one of its key among ``rows``, whose offsets rise."""
    encoded = rows["key"].combine_chunks().dictionary_encode()
    codes, offsets = encoded.indices.to_numpy(zero_copy_only=False), rows["offset"].to_numpy()
    newest, oldest = np.zeros((2, len(encoded.dictionary)), dtype=np.uint64)
    # Of several values for one place numpy keeps the last: with rising offsets that of the newest record.
    newest[codes] = offsets
    oldest[codes[::-1]] = offsets[::-1]
    return offsets, newest[codes], oldest[codes]


@dataclass(frozen=True, slots=True)
class LossCount:
    """How many records of one fragment are dropped."""

    superseded: int
    expired: int

    @property
    def total(self) -> int:
        """All that are dropped."""
        return self.superseded + self.expired


NO_LOSS = LossCount(0, 0)


def count_losses(losses: pa.Table) -> Mapping[FragmentSeqNo, LossCount]:
    """Count them by fragment."""
    grouped = losses.group_by(["seq_no", "reason"]).aggregate([("offset", "count")])
    return sum_counts(grouped.rename_columns(["seq_no", "reason", "count"]))


def sum_counts(grouped: pa.Table) -> Mapping[FragmentSeqNo, LossCount]:
    """Put together the counts of each reason, given as columns seq_no, reason and count."""
    counted: dict[FragmentSeqNo, LossCount] = {}
    for row in grouped.to_pylist():
        before = counted.get(row["seq_no"], NO_LOSS)
        count = row["count"]
        counted[row["seq_no"]] = (
            LossCount(before.superseded + count, before.expired)
            if row["reason"] == DropReason.SUPERSEDED
            else LossCount(before.superseded, before.expired + count)
        )
    return counted


KEY_HASH_BYTES = 16
# ``seq_no`` is that of the fragment that held the record before the pass.
DROPPED = pa.schema(
    [
        ("key_hash", pa.binary(KEY_HASH_BYTES)),
        ("offset", pa.uint64()),
        ("reason", pa.uint8()),
        ("seq_no", pa.uint64()),
    ]
)
BYTES_MAX = 2**30


def key_digest(key: bytes) -> bytes:
    """Return what a list of dropped records holds of a key."""
    return hashlib.sha256(key).digest()[:KEY_HASH_BYTES]


def dropped_rows(records: pa.Table, seq_no: FragmentSeqNo, reason: DropReason) -> pa.Table:
    """Make rows of ``DROPPED`` from records of a fragment, with the columns key and offset."""
    digests = pa.array(map(key_digest, records["key"].to_pylist()), type=pa.binary(KEY_HASH_BYTES))
    reasons = pa.array(np.full(len(records), reason, dtype=np.uint8))
    seq_nos = pa.array(np.full(len(records), seq_no, dtype=np.uint64))
    return pa.table([digests, records["offset"], reasons, seq_nos], schema=DROPPED)


def dropped_to_bytes(rows: pa.Table) -> memoryview:
    """Encode rows as Parquet, by key."""
    sink = pa.BufferOutputStream()
    pq.write_table(
        rows.sort_by([("key_hash", "ascending"), ("offset", "ascending")]),
        sink,
        compression="zstd",
        use_dictionary=False,
        column_encoding={
            "key_hash": "PLAIN",
            "offset": "DELTA_BINARY_PACKED",
            "reason": "PLAIN",
            "seq_no": "DELTA_BINARY_PACKED",
        },
        write_page_checksum=True,
    )
    return memoryview(sink.getvalue()).cast("B")


def dropped_from_bytes(data: bytes, what: str) -> pa.Table:
    """Decode rows; CorruptError when they are not what was written."""
    try:
        # Not in Arrow's threads: one that still holds the bytes when the interpreter ends aborts the process.
        table = open_file(memoryview(data)).read(use_threads=False).replace_schema_metadata(None)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = f"{what}: expected a list of dropped records, found {len(data)} bytes that fail to decode: {error}"
        raise CorruptError(message) from error
    if table.schema != DROPPED:
        message = f"{what}: expected columns {DROPPED.names}, found {table.schema.names}"
        raise CorruptError(message)
    return table
