"""The records of an append, checked, as two columns: of Python objects, or of Arrow arrays that a table brought."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, TypeAlias, cast

import pyarrow as pa

from wal3_core.arguments import several, wrong
from wal3_core.errors import InvalidRequestError
from wal3_core.model.parquet import binary_array
from wal3_core.model.record import Message, check_message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wal3_core.options import WriterOptions

    # Of Python objects, or an array of the type binary that nothing else refers to.
    Values: TypeAlias = Sequence[bytes | None] | pa.BinaryArray


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
        columns = _plain_columns(cast("list[bytes]", listed), options)
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
        message = (
            f"append: expected at most {options.fragment_bytes_max} bytes and {options.batch_records_max} records"
            f" to append together, found {more}{num_bytes} bytes and {num_records} records"
        )
        raise InvalidRequestError(message)


def _plain_columns(bodies: list[bytes], options: WriterOptions) -> Columns:
    """Build the columns of records that are just bodies, without looking at each in Python."""
    largest = max(map(len, bodies))
    if largest > options.record_bytes_max:
        message = f"record: expected at most {options.record_bytes_max} bytes of key and body, found {largest}"
        raise InvalidRequestError(message)
    return Columns(None, bodies, sum(map(len, bodies)))


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
