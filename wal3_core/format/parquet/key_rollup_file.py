"""A key roll-up's bytes: Parquet, read as strictly as a fragment.

Columns: hash UINT64, as the difference from the hash before it, modulo 2^64; tombstone BOOLEAN. A row for each hash of
the first fragment, then of the next. The file's metadata names the snapshot, its fragments and a SHA-256 of it all.
Differences of hashes in order have leading zeros: split into streams of bytes, they take a byte less than the hashes.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa

from wal3_core.errors import CorruptError
from wal3_core.format import strict_json
from wal3_core.format.key_hashes import Hashes
from wal3_core.format.key_rollup import Flags, FragmentKeys, KeyRollup
from wal3_core.format.parquet.damage import unreadable
from wal3_core.format.parquet.decoding import open_file, refusing
from wal3_core.format.parquet.encoding import file_of
from wal3_core.format.parquet.pages import (
    BYTE_STREAM_SPLIT,
    FOOTER_BYTES_MAX,
    PLAIN_OR_DICTIONARY,
    RECORD_BYTES,
    measure,
    read_footer,
)
from wal3_core.format.paths import LogId, check_log_id, check_token, key_rollup_path
from wal3_core.format.position import FragmentSeqNo
from wal3_core.format.snapshot import SnapshotPointer
from wal3_core.format.strict_json import Fields, JsonObject, check_format_version
from wal3_core.options import POINTERS_MAX

FORMAT_VERSION = 1
# Sixteen fragments of the most records that a writer's options allow.
HASHES_MAX = 2**26
_METADATA = "wal3.key_rollup"
_SCHEMA = pa.schema([pa.field("hash", pa.uint64(), nullable=False), pa.field("tombstone", pa.bool_(), nullable=False)])
# The file's bytes for each hash, each fragment and all else. A hash that does not compress takes 8 bytes and a bit.
_HASH_BYTES, _POINTER_BYTES, _FIXED_BYTES = 10, 128, 2**16
_ENCODINGS = PLAIN_OR_DICTIONARY | {BYTE_STREAM_SPLIT}


def bytes_max(pointer: SnapshotPointer) -> int:
    """Return the most bytes that the key roll-up of a snapshot can have."""
    num_hashes = min(HASHES_MAX, pointer.num_records)
    return _FIXED_BYTES + num_hashes * _HASH_BYTES + pointer.num_pointers * _POINTER_BYTES


def encode_key_rollup(rollup: KeyRollup, pointer: SnapshotPointer, log_id: LogId) -> memoryview:
    """Encode the key roll-up of a snapshot."""
    hashes = np.concatenate([np.zeros(1, dtype=np.uint64), *(each.hashes for each in rollup.fragments)])
    flags = np.concatenate([np.zeros(0, dtype=np.bool_), *(each.tombstones for each in rollup.fragments)])
    table = pa.table([pa.array(hashes[1:] - hashes[:-1]), pa.array(flags)], schema=_SCHEMA)
    metadata = {_METADATA: strict_json.dump(_described(rollup, pointer, log_id)).decode()}
    encodings = {"hash": "BYTE_STREAM_SPLIT", "tombstone": "PLAIN"}
    return file_of([table], metadata, statistics=[], encodings=encodings)


def _described(rollup: KeyRollup, pointer: SnapshotPointer, log_id: LogId) -> JsonObject:
    return {
        "format_version": FORMAT_VERSION,
        "log_id": log_id,
        "snapshot": pointer.path,
        "fragments": [
            {"fragment_seq_no": each.seq_no, "writer": each.token, "num_hashes": len(each.hashes)}
            for each in rollup.fragments
        ],
        "sha256": rollup.digest(),
    }


def decode_key_rollup(
    data: bytes | memoryview, pointer: SnapshotPointer, log_id: LogId, *, what: str = ""
) -> KeyRollup:
    """Decode the key roll-up of a snapshot; CorruptError names it unless every bit of it is as it was written.

    Whatever the bytes, memory stays within a small multiple of ``bytes_max``.
    """
    what = what or key_rollup_path(pointer.path)
    if len(data) > bytes_max(pointer):
        raise CorruptError(f"{what}: expected at most {bytes_max(pointer)} bytes, found {len(data)}")
    with refusing(data, what, by_checksum=unreadable):
        described, hashes, flags = _read(memoryview(data), pointer, what)
    return _checked(described, (hashes, flags), pointer, log_id)


def _read(data: memoryview, pointer: SnapshotPointer, what: str) -> tuple[Fields, Hashes, Flags]:
    footer = read_footer(data)
    if footer.num_records > min(HASHES_MAX, pointer.num_records):
        raise unreadable(what, f"expected at most a hash for each of {pointer.num_records} records, found more")
    file = open_file(data)
    # A field that may be null is no other column: nulls are refused below.
    if [(field.name, field.type) for field in file.schema_arrow] != [(field.name, field.type) for field in _SCHEMA]:
        raise unreadable(what, f"expected columns hash and tombstone, found {file.schema_arrow.to_string()[:200]!r}")
    # Positions, levels and room to grow are counted for each row, as for a fragment.
    allowed = footer.num_records * (RECORD_BYTES + 2 * _HASH_BYTES) + _FIXED_BYTES
    measure(data, footer, _SCHEMA.names, what=what, expanded_bytes_max=allowed, encodings=_ENCODINGS)
    metadata = (file.metadata.metadata or {}).get(_METADATA.encode(), b"")
    table = file.read(use_threads=False).combine_chunks()
    if len(table) != footer.num_records or any(column.null_count for column in table.columns):
        raise unreadable(what, f"expected {footer.num_records} rows without nulls, found others")
    differences = np.asarray(table["hash"].to_numpy(), dtype=np.uint64)
    flags = np.asarray(table["tombstone"].to_numpy(), dtype=np.bool_)
    fields = strict_json.load(metadata, what=what, bytes_max=FOOTER_BYTES_MAX)
    return fields, np.cumsum(differences, dtype=np.uint64), flags


def _checked(fields: Fields, rows: tuple[Hashes, Flags], pointer: SnapshotPointer, log_id: LogId) -> KeyRollup:
    what = fields.what
    check_format_version(fields, FORMAT_VERSION)
    found = (check_log_id(fields.string("log_id"), what), fields.string("snapshot"))
    if found != (log_id, pointer.path):
        raise CorruptError(
            f"{what}: expected the keys of {pointer.path} of log {log_id}, found those of {found[1]} of {found[0]}"
        )
    fragments = _fragments(fields.objects("fragments", count_max=POINTERS_MAX), rows, what)
    rollup = KeyRollup(fragments)
    digest = fields.string("sha256")
    fields.finish()
    if digest != rollup.digest():
        raise CorruptError(f"{what}: expected content with the SHA-256 {digest[:64]!r}, found {rollup.digest()}")
    seq_nos = [each.seq_no for each in fragments]
    fitting = len(seq_nos) == pointer.num_pointers and seq_nos[-1:] == [pointer.last_seq_no]
    rising = all(low < high for low, high in pairwise(seq_nos))
    if not (fitting and rising and all(bool(np.all(each.hashes[:-1] < each.hashes[1:])) for each in fragments)):
        raise CorruptError(
            f"{what}: expected rising hashes of the {pointer.num_pointers} fragments of its snapshot, found others"
        )
    return rollup


def _fragments(described: list[Fields], rows: tuple[Hashes, Flags], what: str) -> tuple[FragmentKeys, ...]:
    hashes, flags = rows
    start, fragments = 0, []
    for each in described:
        limit = start + each.integer("num_hashes")
        fragments.append(
            FragmentKeys(
                seq_no=FragmentSeqNo(each.integer("fragment_seq_no")),
                token=check_token(each.string("writer"), what),
                hashes=hashes[start:limit],
                tombstones=flags[start:limit],
            )
        )
        each.finish()
        start = limit
    if start != len(hashes):
        raise CorruptError(f"{what}: expected {start} hashes of its fragments, found {len(hashes)}")
    return tuple(fragments)
