"""The list of the records that a pass left out of one fragment, by the hash of their keys.

It holds no key: 16 bytes of a key's SHA-256, the offset, the reason and the fragment that held the record.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError
from wal3_core.model.parquet.reading import open_file

if TYPE_CHECKING:
    from wal3_core.compaction.losses import DropReason
    from wal3_core.model.position import FragmentSeqNo

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
