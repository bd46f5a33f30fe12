"""A log's columns in Spark, fragments as Arrow batches of them, and rows of other work and results as such batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, LongType, StringType, StructField, StructType

from wal3_core.errors import CorruptError, InvalidRequestError

LONG_MAX = 2**63 - 1
# Python and the JVM hold a batch at the same time; a fragment may expand to a gigabyte.
BATCH_BYTES_MAX = 16 * 2**20

_TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "log": (StringType(), pa.string()),
    "offset": (LongType(), pa.int64()),
    "timestamp_us": (LongType(), pa.int64()),
    "key": (BinaryType(), pa.binary()),
    "body": (BinaryType(), pa.binary()),
    "fragment": (StringType(), pa.string()),
}
COLUMNS = tuple(_TYPES)
# What a record itself holds. The names of its log and fragment are texts for each row: Spark takes no dictionaries from
# Python, and reads all columns of its source whatever the query uses.
OF_RECORDS = ("offset", "timestamp_us", "key", "body")
NEVER_NULL = frozenset({"log", "offset", "timestamp_us", "fragment"})


def spark_schema(names: Sequence[str] = COLUMNS) -> StructType:
    """Return the schema of some columns, in the order given; InvalidRequestError for an unknown one."""
    unknown = [name for name in names if name not in _TYPES]
    if unknown or not names or len(set(names)) != len(names):
        message = f"columns: expected some of {', '.join(COLUMNS)}, each once, found {', '.join(names) or 'none'}"
        raise InvalidRequestError(message)
    return StructType([StructField(name, _TYPES[name][0], name not in NEVER_NULL) for name in names])


def check_schema(schema: StructType) -> None:
    """Refuse a schema that names other columns or other types than a log has."""
    expected = spark_schema(schema.fieldNames())
    for field, known in zip(schema.fields, expected.fields, strict=True):
        if field.dataType != known.dataType or (known.nullable and not field.nullable):
            raise InvalidRequestError(
                f"schema: column {field.name}: expected {known.dataType.simpleString()},"
                f" found {field.dataType.simpleString()}{'' if field.nullable else ' not null'}"
            )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects for a schema that was checked."""
    return pa.schema([pa.field(field.name, _TYPES[field.name][1], field.nullable) for field in schema.fields])


def batch_of(rows: Iterable[Sequence[object]], schema: pa.Schema) -> pa.RecordBatch:
    """Make a batch of at least one row."""
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, each.type) for column, each in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def to_batches(table: pa.Table, schema: pa.Schema, *, log: str, fragment: str) -> Iterator[pa.RecordBatch]:
    """Convert a fragment's records to Spark's columns, in batches of bounded size."""
    if len(table) == 0:
        return
    names = {"log": log, "fragment": fragment}
    columns = [
        pa.repeat(names[field.name], len(table)) if field.name in names else _cast(table, field, fragment)
        for field in schema
    ]
    whole = pa.table(columns, schema=schema)
    rows = max(1, len(whole) * BATCH_BYTES_MAX // max(1, whole.nbytes))
    yield from whole.to_batches(max_chunksize=rows)


def _cast(table: pa.Table, field: pa.Field, fragment: str) -> pa.ChunkedArray:
    try:
        return table[field.name].cast(field.type)
    except pa.ArrowInvalid as error:
        message = f"fragment {fragment}: column {field.name}: expected values that fit in {field.type}, found {error}"
        raise CorruptError(message) from error
