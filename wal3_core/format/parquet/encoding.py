"""Records as a fragment's bytes, and any table as a Parquet file in memory; ``decoding`` reads them.

Both columns and files are made in memory of the right size: memory that grows is copied several times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, repeat
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal3_core.format.parquet.columns import (
    ARRANGED,
    KEY_INDEX,
    TOMBSTONES,
    Offsets,
    group_setsums,
    key_index,
    lanes_setsums,
    table_setsum,
    tombstones_as_text,
    tombstones_of,
)
from wal3_core.format.parquet.key_groups import KEY_GROUPS, arranged, cuts, described, groups_as_text, sum_of
from wal3_core.format.position import FragmentSeqNo, LogPosition
from wal3_core.format.record import keyed_setsum, plain_setsum
from wal3_core.format.setsum import Setsum

FORMAT_VERSION = "1"
# The version of files that are arranged by key.
ARRANGED_FORMAT_VERSION = "2"
# The metadata about keys in a fragment's file, and that of earlier versions. No reader needed an index.
KEY_METADATA: Sequence[str] = (TOMBSTONES,)
EARLIER_KEY_METADATA: Sequence[Sequence[str]] = ((KEY_INDEX, TOMBSTONES), (KEY_INDEX,))
# A row group's part of a file beside values and text (the headers of a few pages, a part of the footer) is less.
_FRAME_BYTES = 2**14
# Values are joined if they are this long on average, judged by some of them: the lengths of shorter ones cost more.
_JOINED_BYTES_MIN, _JUDGED = 512, 16
_BOUND_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedFragment:
    """A fragment's bytes and checksum."""

    data: memoryview
    setsum: Setsum


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentSource:
    """Records about to become a fragment: where they start, and who writes them.

    ``keys`` is None when no record has one; then every record has a body. ``timestamps_us`` is None
    when every record has the start's. ``offsets``, which rise, is None when they are dense from the start on.
    ``key_metadata`` is other than its default only to make the file that an earlier version wrote.
    """

    start: LogPosition
    seq_no: FragmentSeqNo
    token: str
    keys: Sequence[bytes | None] | pa.BinaryArray | None
    bodies: Sequence[bytes | None] | pa.BinaryArray
    timestamps_us: Sequence[int] | None = None
    key_metadata: Sequence[str] = KEY_METADATA
    offsets: Sequence[int] | None = None


def encode(source: FragmentSource) -> EncodedFragment:
    """Encode records at their offsets; the same source always gives the same bytes."""
    columns = {"offset": pa.array(_offset_column(source)), "timestamp_us": pa.array(_timestamp_column(source))}
    if source.keys is not None:
        columns["key"] = binary_array(source.keys)
    columns["body"] = binary_array(source.bodies)
    table = pa.table(columns)
    setsum = _source_setsum(source, table)
    return _encoded(table, setsum, source.seq_no, source.token, source.key_metadata)


def _source_setsum(source: FragmentSource, table: pa.Table) -> Setsum:
    if isinstance(source.bodies, pa.Array):
        return table_setsum(table)
    summed = lanes_setsums(table, [0])
    if summed is not None:
        return summed[0]
    # Without lanes, the values are at hand: they need not be taken out of the columns.
    offsets, timestamps_us = _offsets(source), source.timestamps_us or repeat(source.start.timestamp_us, len(table))
    if source.keys is None:
        return plain_setsum(offsets, timestamps_us, cast("Sequence[bytes]", source.bodies))
    return keyed_setsum(offsets, timestamps_us, source.keys, source.bodies)


def encode_table(
    table: pa.Table, *, seq_no: FragmentSeqNo, token: str, key_metadata: Sequence[str] = KEY_METADATA
) -> EncodedFragment:
    """Encode records, with the columns offset, timestamp_us, key and body; to the same bytes as ``encode``."""
    table = table.combine_chunks()
    if table["key"].null_count == len(table):
        table = table.drop_columns("key")
    return _encoded(table, table_setsum(table), seq_no, token, key_metadata)


def encode_arranged(table: pa.Table, *, seq_no: FragmentSeqNo, token: str) -> EncodedFragment:
    """Encode records that were decoded before, so that the records of each key lie together.

    Only the order of the rows in the file differs: ``decode`` gives the same records as of any other fragment. Records
    of which none has a key are encoded as ``encode_table`` does.
    """
    table = table.combine_chunks()
    if table["key"].null_count == len(table):
        return encode_table(table, seq_no=seq_no, token=token)
    # Rows are counted in the order of the offsets, in which records are read.
    tombstones = tombstones_as_text(tombstones_of(table["body"]))
    table = arranged(table).combine_chunks().select(ARRANGED)
    begins = cuts(table)
    parts = [table.slice(begin, limit - begin) for begin, limit in pairwise([*begins, len(table)])]
    groups = described(table["key"], begins, group_setsums(table, begins))
    setsum = sum_of(groups)
    metadata = {
        **_identity(ARRANGED_FORMAT_VERSION, token, seq_no, setsum),
        **tombstones,
        KEY_GROUPS: groups_as_text(groups),
    }
    # Where each row group begins is all that statistics could say.
    return EncodedFragment(data=file_of(parts, metadata, statistics=[]), setsum=setsum)


def _encoded(
    table: pa.Table, setsum: Setsum, seq_no: FragmentSeqNo, token: str, key_metadata: Sequence[str]
) -> EncodedFragment:
    keyed = "key" in table.column_names
    metadata = {
        **_identity(FORMAT_VERSION, token, seq_no, setsum),
        **(_described(table, key_metadata) if keyed else {}),
    }
    return EncodedFragment(data=file_of([table], metadata, statistics=["offset", "timestamp_us"]), setsum=setsum)


def _identity(version: str, token: str, seq_no: FragmentSeqNo, setsum: Setsum) -> dict[str, str]:
    return {
        "wal3.format_version": version,
        "wal3.writer": token,
        "wal3.fragment_seq_no": str(seq_no),
        "wal3.setsum": setsum.hexdigest(),
    }


def _described(table: pa.Table, key_metadata: Sequence[str]) -> dict[str, str]:
    """Describe the records with keys, so that these can be read without the bodies."""
    found: dict[str, str] = {}
    if KEY_INDEX in key_metadata:
        found |= key_index(table["key"].combine_chunks(), table["offset"].to_numpy(), if_shorter=True)
    if TOMBSTONES in key_metadata:
        found |= tombstones_as_text(tombstones_of(table["body"]))
    return found


def _offsets(source: FragmentSource) -> Sequence[int]:
    first = source.start.offset
    return range(first, first + len(source.bodies)) if source.offsets is None else source.offsets


def _offset_column(source: FragmentSource) -> Offsets:
    offsets = _offsets(source)
    if isinstance(offsets, range):
        return np.arange(offsets.start, offsets.stop, dtype=np.uint64)
    return np.fromiter(offsets, dtype=np.uint64, count=len(source.bodies))


def _timestamp_column(source: FragmentSource) -> Offsets:
    count = len(source.bodies)
    if source.timestamps_us is None:
        return np.full(count, source.start.timestamp_us, dtype=np.uint64)
    return np.fromiter(source.timestamps_us, dtype=np.uint64, count=count)


def file_of(
    groups: Sequence[pa.Table],
    metadata: dict[str, str],
    *,
    statistics: Sequence[str],
    encodings: Mapping[str, str] | None = None,
) -> memoryview:
    """Return the bytes of a file of some row groups, with statistics of some columns; the same for the same tables."""
    try:
        room = pa.allocate_buffer(_room_bytes(groups, metadata))
        sink = pa.FixedSizeBufferWriter(room)
        _write(sink, groups, metadata, statistics, encodings)
        return memoryview(room).cast("B")[: sink.tell()].toreadonly()
    except OSError:
        # There was not enough of it after all.
        growing = pa.BufferOutputStream()
        _write(growing, groups, metadata, statistics, encodings)
        return memoryview(growing.getvalue()).cast("B")


def _room_bytes(groups: Sequence[pa.Table], metadata: dict[str, str]) -> int:
    """Return more bytes than a file will have."""
    text_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    values_bytes: int = sum(table.nbytes for table in groups)
    # Values that cannot be compressed take a little more.
    return values_bytes + values_bytes // 32 + 2 * text_bytes + _FRAME_BYTES * len(groups)


def _write(
    sink: pa.NativeFile,
    groups: Sequence[pa.Table],
    metadata: dict[str, str],
    statistics: Sequence[str],
    encodings: Mapping[str, str] | None,
) -> None:
    with pq.ParquetWriter(
        sink,
        groups[0].schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        column_encoding=encodings,
        write_statistics=list(statistics) or False,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for table in groups:
            writer.write_table(table, row_group_size=max(1, table.num_rows))
        writer.add_key_value_metadata(metadata)


@cache
def import_what_arrow_uses() -> None:
    """Have Arrow import pandas, if it is installed, which it does at its first array of Python's values.

    A worker may be the first only while the interpreter ends, and then much cannot be imported.
    """
    pa.array(())


def binary_array(values: Sequence[bytes | None] | pa.BinaryArray) -> pa.BinaryArray:
    """Make an array of values, None for a null; an array stays as it is."""
    if isinstance(values, pa.Array):
        return values
    some = values[:: len(values) // _JUDGED + 1]
    if None not in some and sum(map(len, cast("Sequence[bytes]", some))) >= _JOINED_BYTES_MIN * max(1, len(some)):
        # A null may be among the others; more bytes than one array has room for are several.
        with suppress(TypeError, OverflowError):
            return _joined(cast("Sequence[bytes]", values))
    return pa.array(values, pa.binary())


def _joined(values: Sequence[bytes]) -> pa.BinaryArray:
    joined = b"".join(values)
    if len(joined) > _BOUND_MAX:
        raise OverflowError
    bounds = np.zeros(len(values) + 1, dtype=np.int32)
    np.cumsum(np.fromiter(map(len, values), dtype=np.int32, count=len(values)), out=bounds[1:])
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(bounds), pa.py_buffer(joined)])
