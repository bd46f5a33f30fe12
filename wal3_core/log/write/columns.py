"""The records of an append, checked, as two columns: of Python objects, or of Arrow arrays that a table brought."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.arguments import instance_of, several, wrong
from wal3_core.errors import InvalidRequestError
from wal3_core.format.parquet import binary_array
from wal3_core.format.record import Message, check_message, check_sizes
from wal3_core.options import WriterOptions

if TYPE_CHECKING:
    # Python objects, or an array of the type binary that nothing else refers to.
    Values: TypeAlias = Sequence[bytes | None] | pa.BinaryArray
    # What a caller appends as a table.
    Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
    Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]
    _Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]


# What an append and a record take besides their bytes at most, on CPython 3.11: that of a caller which waits, with its
# future in a set of others (one that is only queued takes 500 bytes); and a row of two Arrow arrays.
_ENTRY_BYTES = 2048
_RECORD_BYTES = 100
_ROW_BYTES = 10


class Columns:
    """Records as two columns of one length, checked, and their size in bytes. Never changed.

    ``keys`` is None when no record has one; then every record has a body. ``keyless``: a record has no key.
    ``bytes_held`` is roughly the memory that an append of them takes until it has its outcome.
    """

    __slots__ = ("bodies", "bytes_held", "keyless", "keys", "num_bytes", "num_records")

    def __init__(self, keys: Values | None, bodies: Values, num_bytes: int) -> None:
        self.keys = keys
        self.bodies = bodies
        self.num_bytes = num_bytes
        self.num_records = len(bodies)
        if isinstance(bodies, pa.Array):
            self.keyless = keys is None or binary_array(keys).null_count > 0
            self.bytes_held = num_bytes + _ENTRY_BYTES + _ROW_BYTES * self.num_records
        else:
            self.keyless = keys is None or None in keys
            self.bytes_held = num_bytes + _ENTRY_BYTES + _RECORD_BYTES * self.num_records

    @property
    def first_without_key(self) -> int | None:
        """The index of the first record without a key; None when each has one."""
        if not self.keyless:
            return None
        if self.keys is None:
            return 0
        return (self.keys.to_pylist() if isinstance(self.keys, pa.Array) else self.keys).index(None)


def one_record(body: bytes | None, key: bytes | None, options: WriterOptions) -> Columns:
    """Check the one record of an append."""
    if type(body) is bytes and (key is None or type(key) is bytes):
        num_bytes = len(body) if key is None else len(key) + len(body)
        if num_bytes <= options.record_bytes_max and num_bytes <= options.fragment_bytes_max:
            return Columns(None if key is None else (key,), (body,), num_bytes)
    # Also names what is wrong.
    return check_records((Message(body, key),), options)


def check_records(records: Iterable[bytes | Message], options: WriterOptions) -> Columns:
    """Check the records of an append; InvalidRequestError names the record and what is wrong with it."""
    several(records, "records")
    if isinstance(records, Mapping):
        # Only its keys would be appended.
        raise wrong("records", "an iterable of records", records)
    # One more than fits shows that there are too many, however many there are.
    listed = list(islice(records, options.batch_records_max + 1))
    if not listed:
        raise no_records()
    if set(map(type, listed)) == {bytes}:
        bodies = cast("list[bytes]", listed)
        # Without looking at each in Python.
        check_sizes(None, max(map(len, bodies)), record_bytes_max=options.record_bytes_max)
        columns = Columns(None, bodies, sum(map(len, bodies)))
    else:
        columns = _checked_columns(listed, options)
    check_together(columns.num_bytes, len(listed), options)
    return columns


def no_records() -> InvalidRequestError:
    """Make the error for an append of nothing."""
    return InvalidRequestError("append: expected at least one record, found none")


def check_together(num_bytes: int, num_records: int, options: WriterOptions) -> None:
    """Refuse more than one fragment takes; more records than that may not have been counted to their end."""
    if num_bytes > options.fragment_bytes_max or num_records > options.batch_records_max:
        more = "at least " if num_records > options.batch_records_max else ""
        raise InvalidRequestError(
            f"append: expected at most {options.fragment_bytes_max} bytes and {options.batch_records_max} records"
            f" to append together, found {more}{num_bytes} bytes and {num_records} records"
        )


def _checked_columns(records: list[bytes | Message], options: WriterOptions) -> Columns:
    messages: list[Message] = []
    num_bytes = 0
    for index, record in enumerate(records):
        try:
            messages.append(record if isinstance(record, Message) else Message(record))
            num_bytes += check_message(messages[-1], record_bytes_max=options.record_bytes_max)
        except InvalidRequestError as error:
            text = f"append: record {index} of {len(records)}: {error}"
            raise InvalidRequestError(text) from error
    keys = [message.key for message in messages]
    keyed = any(key is not None for key in keys)
    return Columns(keys if keyed else None, [message.body for message in messages], num_bytes)


def join(columns: Sequence[Columns]) -> Columns:
    """Concatenate the records of several appends."""
    if len(columns) == 1:
        return columns[0]
    if not any(isinstance(column.bodies, pa.Array) for column in columns):
        return _join_lists(columns)
    # The objects between two tables become one array.
    runs = [
        run
        for arrays, group in groupby(columns, lambda column: isinstance(column.bodies, pa.Array))
        for run in (group if arrays else [_join_lists(list(group))])
    ]
    keys = None
    if any(run.keys is not None for run in runs):
        keys = pa.concat_arrays(
            [pa.nulls(run.num_records, pa.binary()) if run.keys is None else binary_array(run.keys) for run in runs]
        )
    bodies = pa.concat_arrays([binary_array(run.bodies) for run in runs])
    return Columns(keys, bodies, sum(run.num_bytes for run in runs))


def _join_lists(columns: Sequence[Columns]) -> Columns:
    keys: list[bytes | None] | None = None
    if any(column.keys is not None for column in columns):
        keys = list(chain.from_iterable(column.keys or [None] * column.num_records for column in columns))
    bodies: list[bytes | None] = list(chain.from_iterable(column.bodies for column in columns))
    return Columns(keys, bodies, sum(column.num_bytes for column in columns))


# The argument check that accepts rows to append.
a_table = instance_of(pa.Table, pa.RecordBatch, pa.RecordBatchReader)

_SHOWN_MAX = 200
# The bytes of a view in an array of the type binary_view; the first four are its length.
_VIEW_BYTES = 16
_BOUND_MAX = 2**31 - 1


def check_table(table: Rows, options: WriterOptions) -> Columns:
    """Check a table of records to append, and copy it; InvalidRequestError says what is wrong with it.

    It has a column body and may have a column key, of a binary type: in chunks, sliced, as views or as a dictionary.
    The copy is the append's own: buffers may lie over memory that its owner changes, or be a small part of a large one.
    """
    a_table(table, "table")
    names = table.schema.names
    if set(names) - {"key"} != {"body"} or len(names) != len(set(names)):
        found = repr(names)[:_SHOWN_MAX]
        raise InvalidRequestError(f"append: expected the columns body and key, or body alone, found {found}")
    for field in table.schema:
        _check_type(field.name, field.type)
    whole = _whole(table, options)
    if not whole.num_rows:
        raise no_records()
    # One more than fits: how many bytes there are in the others does not matter.
    part = whole.slice(0, options.batch_records_max + 1)
    sizes = {name: lengths_of(name, part[name]) for name in names}
    of_each: Lengths = np.sum(list(sizes.values()), axis=0)
    # Before anything is copied: values of a dictionary, or views, may expand to any size.
    check_together(int(of_each.sum()), whole.num_rows, options)
    arrays = {name: _copy(name, part[name]) for name in names}
    missing = {name: array.is_null().to_numpy(zero_copy_only=False) for name, array in arrays.items()}
    check_each("append: record", sizes, missing, options.record_bytes_max)
    keys = arrays.get("key")
    if keys is not None and keys.null_count == len(keys):
        keys = None
    return Columns(keys, arrays["body"], int(of_each.sum()))


def _check_type(name: str, kind: pa.DataType) -> None:
    values = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = pa.types.is_binary(values) or pa.types.is_large_binary(values) or pa.types.is_fixed_size_binary(values)
    if not plain and not pa.types.is_binary_view(values) and not pa.types.is_null(values):
        message = f"append: column {name}: expected the type binary, found {str(kind)[:_SHOWN_MAX]}: cast it"
        raise InvalidRequestError(message)


def _whole(table: Rows, options: WriterOptions) -> pa.Table:
    """Return rows as a table; of a reader, which may have no end, hardly more than fit."""
    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    batches: list[pa.RecordBatch] = []
    num_rows = 0
    for batch in table:
        batches.append(batch)
        num_rows += batch.num_rows
        if num_rows > options.batch_records_max:
            break
    return pa.Table.from_batches(batches, schema=table.schema)


def lengths_of(name: str, column: pa.ChunkedArray) -> Lengths:
    """Return the length of each value in bytes; 0 for a null."""
    try:
        # It may come from another program, or through a C interface.
        column.validate(full=True)
        return np.concatenate([_lengths(chunk) for chunk in column.chunks])
    except pa.ArrowException as error:
        raise _unusable(name, error) from error


def _lengths(values: pa.Array) -> Lengths:
    if pa.types.is_dictionary(values.type):
        # Behind the values, the length of a null.
        lengths = np.append(_lengths(values.dictionary), 0)
        # As wide as it takes: a type of few bits may have no number left for the length of a null.
        places = values.indices.cast(pa.int64()).fill_null(len(values.dictionary))
        found: Lengths = lengths[places.to_numpy(zero_copy_only=False)]
        return found
    if pa.types.is_null(values.type):
        return np.zeros(len(values), dtype=np.int64)
    if pa.types.is_binary_view(values.type):
        views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, _VIEW_BYTES // 4)
        lengths = views[values.offset : values.offset + len(values), 0].astype(np.int64)
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    counted: Lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return counted


def _copy(name: str, column: pa.ChunkedArray) -> pa.BinaryArray:
    try:
        # Concatenated, they are in buffers of their own, even if there is one.
        return pa.concat_arrays([_castable(chunk).cast(pa.binary()) for chunk in column.chunks])
    except pa.ArrowException as error:
        raise _unusable(name, error) from error


def _castable(values: pa.Array) -> pa.Array:
    """Return an array that Arrow can cast: it takes no values out of a dictionary of views."""
    if pa.types.is_dictionary(values.type):
        views = pa.types.is_binary_view(values.type.value_type)
        # What it takes out of another dictionary, it casts then.
        return pa.DictionaryArray.from_arrays(values.indices, values.dictionary.cast(pa.binary())) if views else values
    # Arrow counts the bytes before a slice, in 32 bits: it would refuse the slice, or take other rows for it.
    return pa.concat_arrays([values]) if values.get_total_buffer_size() > _BOUND_MAX else values


def _unusable(name: str, error: BaseException) -> InvalidRequestError:
    return InvalidRequestError(f"append: column {name}: expected an array that can be read, found: {error}")


def check_each(what: str, sizes: dict[str, Lengths], missing: dict[str, _Flags], record_bytes_max: int) -> None:
    """Refuse the first row that cannot be a record, by the bytes in each column and where that has a null."""
    too_large = np.sum(list(sizes.values()), axis=0) > record_bytes_max
    wrong = too_large | np.logical_and.reduce(list(missing.values()))
    if not wrong.any():
        return
    row = int(wrong.argmax())
    key, body = (None if name not in sizes or missing[name][row] else int(sizes[name][row]) for name in ("key", "body"))
    try:
        check_sizes(key, body, record_bytes_max=record_bytes_max)
    except InvalidRequestError as error:
        text = f"{what} {row} of {len(wrong)}: {error}"
        raise InvalidRequestError(text) from error
