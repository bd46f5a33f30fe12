"""Sound inputs to attack: a fragment, its pointer, and files of other writers."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from wal3_core.errors import CorruptError
from wal3_core.format import parquet, strict_json
from wal3_core.format.fragment import FragmentPointer
from wal3_core.format.paths import fragment_path
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.record import Record

if TYPE_CHECKING:
    from tests.hostile.forge import Page

TOKEN = "0123456789abcdef"
SEQ_NO = FragmentSeqNo(7)
START = LogPosition(42, 1_700_000_000_000_000)
MIB = 2**20
Message = tuple[bytes | None, bytes | None]
KEYED: list[Message] = [
    (b"key %d" % (index % 5) if index % 7 else None, b"body %d" % index * (index % 9)) for index in range(60)
]
KEYED[10] = (b"key 1", None)
# Several row groups of a file that is arranged by key.
LONG: list[Message] = [(key, body and body * 400) for key, body in KEYED]
PLAIN: list[Message] = [(None, b"%d " % index * 20) for index in range(40)]


def fragment(messages: Sequence[Message]) -> tuple[bytes, FragmentPointer]:
    """Encode messages with all metadata that any version of the library wrote."""
    keys, bodies = [key for key, _ in messages], [body for _, body in messages]
    keyed = any(key is not None for key in keys)
    source = parquet.FragmentSource(
        start=START,
        seq_no=SEQ_NO,
        token=TOKEN,
        keys=keys if keyed else None,
        bodies=bodies,
        key_metadata=parquet.EARLIER_KEY_METADATA[0],
    )
    encoded = parquet.encode(source)
    return bytes(encoded.data), pointer_to(bytes(encoded.data), len(messages), encoded.setsum.hexdigest())


def arranged(messages: Sequence[Message]) -> tuple[bytes, FragmentPointer]:
    """Encode messages as a pass does that arranges by key."""
    encoded = parquet.encode_arranged(table_of(messages), seq_no=SEQ_NO, token=TOKEN)
    return bytes(encoded.data), pointer_to(bytes(encoded.data), len(messages), encoded.setsum.hexdigest())


def pointer_to(data: bytes, num_records: int, setsum: str = "0" * 64) -> FragmentPointer:
    """The pointer to a file."""
    return pointer_of(
        {
            "path": fragment_path(SEQ_NO, TOKEN),
            "fragment_seq_no": SEQ_NO,
            "start": START.to_json(),
            "limit": LogPosition(START.offset + num_records, START.timestamp_us).to_json(),
            "setsum": setsum,
            "num_bytes": len(data),
            "num_records": num_records,
        }
    )


def pointer_of(document: strict_json.JsonObject) -> FragmentPointer:
    """Decode a pointer, as another process would."""
    return FragmentPointer.from_json(strict_json.load(json.dumps(document).encode(), what="pointer", bytes_max=10_000))


def table_of(messages: Sequence[Message]) -> pa.Table:
    """The records as a table with all four columns."""
    count = len(messages)
    return pa.table(
        {
            "offset": pa.array(range(START.offset, START.offset + count), pa.uint64()),
            "timestamp_us": pa.array([START.timestamp_us] * count, pa.uint64()),
            "key": pa.array([key for key, _ in messages], pa.binary()),
            "body": pa.array([body for _, body in messages], pa.binary()),
        }
    )


def written(table: pa.Table, **options: object) -> bytes:
    """Write a table as another writer might."""
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def decoded(data: bytes, pointer: FragmentPointer, *, expanded_bytes_max: int = 64 * MIB) -> list[Record] | None:
    """Decode to records, or None for a CorruptError that names the fragment. Other errors fail the test."""
    try:
        found = parquet.decode(data, pointer, expanded_bytes_max=expanded_bytes_max)
    except CorruptError as error:
        if not str(error).startswith(pointer.named(pointer.path)):
            raise
        return None
    return list(found.records())


def decoded_in_parts(
    data: bytes, pointer: FragmentPointer, *, expanded_bytes_max: int = 64 * MIB
) -> list[Record] | None:
    """Decode each group of an arranged fragment on its own, None if one is refused, or the file is not arranged."""
    try:
        found = parquet.read_arrangement(memoryview(data), pointer)
        if found is None:
            return None
        tables = [
            parquet.decode_groups(
                memoryview(data), pointer, found, range(at, at + 1), expanded_bytes_max=expanded_bytes_max
            )
            for at in range(len(found.groups))
        ]
    except CorruptError as error:
        if not str(error).startswith(pointer.named(pointer.path)):
            raise
        return None
    records = [record for table in tables for record in parquet.records_of(table)]
    return sorted(records, key=lambda record: record.offset)


def zeros(count: int, head: bytes = b"") -> bytes:
    """A zstd frame of ``head`` and ``count`` zeros, in four bytes for every 128 KiB of them."""
    out = bytearray(b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", len(head) + count))
    if head:
        out += (len(head) << 3).to_bytes(3, "little") + head
    for left in range(count, 0, -128 * 1024):
        size = min(left, 128 * 1024)
        out += ((left <= 128 * 1024) | 1 << 1 | size << 3).to_bytes(3, "little") + b"\0"
    return bytes(out)


def refill(page: Page, payload: bytes, expanded_bytes: int) -> None:
    """Replace a page's content and correct its header."""
    page.payload = payload
    page.header.set(2, expanded_bytes)
    page.header.set(3, len(payload))
    page.header.set(4, struct.unpack("<i", struct.pack("<I", zlib.crc32(payload)))[0])
