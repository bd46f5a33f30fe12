"""A fragment's bytes: records as Parquet, and the checks that turn bytes back into trusted records.

Columns: offset UINT64, timestamp_us UINT64, key BINARY (left out when no record has one), body BINARY.
The file's metadata names the writer's token, the seq_no, the setsum and, for keyed fragments, the
rows of tombstone records. A file that is arranged by key has the key first, and a row group for every
64 KiB or so: the records of a key lie together there.
"""

from wal3_core.format.parquet.columns import records_of, table_of, table_setsum
from wal3_core.format.parquet.damage import changed, unreadable
from wal3_core.format.parquet.decoding import (
    Arrangement,
    Fragment,
    Opened,
    decode,
    decode_groups,
    decode_keys,
    key_ranges,
    open_fragment,
    read_arrangement,
)
from wal3_core.format.parquet.encoding import (
    EARLIER_KEY_METADATA,
    EncodedFragment,
    FragmentSource,
    binary_array,
    encode,
    encode_arranged,
    encode_table,
)
from wal3_core.format.parquet.pages import footer_start

__all__ = [
    "EARLIER_KEY_METADATA",
    "Arrangement",
    "EncodedFragment",
    "Fragment",
    "FragmentSource",
    "Opened",
    "binary_array",
    "changed",
    "decode",
    "decode_groups",
    "decode_keys",
    "encode",
    "encode_arranged",
    "encode_table",
    "footer_start",
    "key_ranges",
    "open_fragment",
    "read_arrangement",
    "records_of",
    "table_of",
    "table_setsum",
    "unreadable",
]
