"""A fragment's bytes: records as Parquet, and the checks that turn bytes back into trusted records.

Columns: offset UINT64, timestamp_us UINT64, key BINARY (left out when no record has one), body BINARY.
The file's metadata names the writer's token, the seq_no, the setsum and, for keyed fragments, a
key index.
"""

from wal3_core.model.parquet.columns import records_of, table_setsum
from wal3_core.model.parquet.damage import changed
from wal3_core.model.parquet.decoding import Fragment, decode
from wal3_core.model.parquet.encoding import EncodedFragment, FragmentSource, encode

__all__ = [
    "EncodedFragment",
    "Fragment",
    "FragmentSource",
    "changed",
    "decode",
    "encode",
    "records_of",
    "table_setsum",
]
