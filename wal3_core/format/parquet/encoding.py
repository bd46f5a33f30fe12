"""Records as a fragment's bytes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise, repeat
from typing import TYPE_CHECKING, cast

import numpy as np
import pyarrow as pa

from wal3_core.format.parquet.columns import ARRANGED, KEY_INDEX, Offsets, group_setsums, key_index, table_setsum
from wal3_core.format.parquet.key_groups import KEY_GROUPS, arranged, cuts, described, groups_as_text, sum_of
from wal3_core.format.parquet.lane_columns import lanes_setsums
from wal3_core.format.parquet.tombstone_rows import TOMBSTONES, tombstones_as_text, tombstones_of
from wal3_core.format.parquet.writing import binary_array, file_of
from wal3_core.format.record import keyed_setsum, plain_setsum

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wal3_core.format.position import FragmentSeqNo, LogPosition
    from wal3_core.format.setsum import Setsum

FORMAT_VERSION = "1"
# The version of files that are arranged by key.
ARRANGED_FORMAT_VERSION = "2"
# The metadata about keys in a fragment's file, and that of earlier versions. No reader needed an index.
KEY_METADATA: Sequence[str] = (TOMBSTONES,)
EARLIER_KEY_METADATA: Sequence[Sequence[str]] = ((KEY_INDEX, TOMBSTONES), (KEY_INDEX,))


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
