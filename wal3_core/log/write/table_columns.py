"""The records of a caller's Arrow table: no Python object is made for a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal3_core.arguments import instance_of
from wal3_core.errors import InvalidRequestError
from wal3_core.log.write.columns import Columns, check_together, no_records
from wal3_core.model.record import check_sizes

if TYPE_CHECKING:
    from wal3_core.options import WriterOptions

    # What a caller appends as a table.
    Rows: TypeAlias = pa.Table | pa.RecordBatch | pa.RecordBatchReader
    _Lengths = np.ndarray[tuple[int], np.dtype[np.int64]]
    _Flags = np.ndarray[tuple[int], np.dtype[np.bool_]]

# The argument check that accepts rows to append.
a_table = instance_of(pa.Table, pa.RecordBatch, pa.RecordBatchReader)

_SHOWN_MAX = 200
# Of a view in an array of the type binary_view; the first four are its length.
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
        message = f"append: expected the columns body and key, or body alone, found {found}"
        raise InvalidRequestError(message)
    for field in table.schema:
        _check_type(field.name, field.type)
    whole = _whole(table, options)
    if not whole.num_rows:
        raise no_records()
    # One more than fits: how many bytes there are in the others does not matter.
    part = whole.slice(0, options.batch_records_max + 1)
    sizes = {name: _lengths_of(name, part[name]) for name in names}
    of_each: _Lengths = np.sum(list(sizes.values()), axis=0)
    # Before anything is copied: values of a dictionary, or views, may expand to any size.
    check_together(int(of_each.sum()), whole.num_rows, options)
    arrays = {name: _copy(name, part[name]) for name in names}
    _check_each(sizes, of_each > options.record_bytes_max, arrays, options)
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


def _lengths_of(name: str, column: pa.ChunkedArray) -> _Lengths:
    """Return the length of each value in bytes; 0 for a null."""
    try:
        # It may come from another program, or through a C interface.
        column.validate(full=True)
        return np.concatenate([_lengths(chunk) for chunk in column.chunks])
    except pa.ArrowException as error:
        raise _unusable(name, error) from error


def _lengths(values: pa.Array) -> _Lengths:
    if pa.types.is_dictionary(values.type):
        # Behind the values, the length of a null.
        lengths = np.append(_lengths(values.dictionary), 0)
        # As wide as it takes: a type of few bits may have no number left for the length of a null.
        places = values.indices.cast(pa.int64()).fill_null(len(values.dictionary))
        found: _Lengths = lengths[places.to_numpy(zero_copy_only=False)]
        return found
    if pa.types.is_null(values.type):
        return np.zeros(len(values), dtype=np.int64)
    if pa.types.is_binary_view(values.type):
        views = np.frombuffer(values.buffers()[1], dtype=np.int32).reshape(-1, _VIEW_BYTES // 4)
        lengths = views[values.offset : values.offset + len(values), 0].astype(np.int64)
        return np.where(values.is_valid().to_numpy(zero_copy_only=False), lengths, 0)
    counted: _Lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
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


def _check_each(
    sizes: dict[str, _Lengths], too_large: _Flags, arrays: dict[str, pa.BinaryArray], options: WriterOptions
) -> None:
    """Refuse the first row that cannot be a record."""
    missing = {name: array.is_null().to_numpy(zero_copy_only=False) for name, array in arrays.items()}
    wrong = too_large | np.logical_and.reduce(list(missing.values()))
    if not wrong.any():
        return
    row = int(wrong.argmax())
    key, body = (None if name not in sizes or missing[name][row] else int(sizes[name][row]) for name in ("key", "body"))
    try:
        check_sizes(key, body, record_bytes_max=options.record_bytes_max)
    except InvalidRequestError as error:
        text = f"append: record {row} of {len(wrong)}: {error}"
        raise InvalidRequestError(text) from error
