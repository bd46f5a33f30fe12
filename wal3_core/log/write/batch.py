"""Group commit: callers' records, and the queue in which they wait to become a fragment."""

from __future__ import annotations

import operator
from collections import deque
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, cast

from wal3_core.arguments import several
from wal3_core.errors import InvalidRequestError
from wal3_core.model.record import Message, check_message
from wal3_core.model.strict_json import U64_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from concurrent.futures import Future

    from wal3_core.model.position import LogPosition
    from wal3_core.options import WriterOptions
    from wal3_core.runtime import Outcome


# What an append and a record take besides their bytes, measured on CPython 3.11.
_ENTRY_BYTES = 2048
_RECORD_BYTES = 100


@dataclass(frozen=True, slots=True)
class Columns:
    """Records as two columns of one length, checked, and their size in bytes.

    ``keys`` is None when no record has one; then every record has a body.
    """

    keys: Sequence[bytes | None] | None
    bodies: Sequence[bytes | None]
    num_bytes: int

    @property
    def bytes_held(self) -> int:
        """Roughly the memory that an append of them takes until it has its outcome."""
        return self.num_bytes + _ENTRY_BYTES + _RECORD_BYTES * len(self.bodies)


def check_records(records: Iterable[bytes | Message], options: WriterOptions) -> Columns:
    """Check the records of an append; InvalidRequestError names the record and what is wrong with it."""
    several(records, "records")
    # One more than fits shows that there are too many, however many there are.
    listed = list(islice(records, options.batch_records_max + 1))
    if not listed:
        message = "append: expected at least one record, found none"
        raise InvalidRequestError(message)
    if set(map(type, listed)) == {bytes}:
        columns = _plain_columns(cast("list[bytes]", listed), options)
    else:
        columns = _checked_columns(listed, options)
    if columns.num_bytes > options.fragment_bytes_max or len(listed) > options.batch_records_max:
        more = "at least " if len(listed) > options.batch_records_max else ""
        message = (
            f"append: expected at most {options.fragment_bytes_max} bytes and {options.batch_records_max} records"
            f" to append together, found {more}{columns.num_bytes} bytes and {len(listed)} records"
        )
        raise InvalidRequestError(message)
    return columns


def check_expected(offset: int | None) -> int | None:
    """Check the offset at which an append has to land."""
    if offset is None:
        return None
    try:
        # Any type of integer, numpy's included, except bool.
        found = -1 if isinstance(offset, bool) else operator.index(offset)
    except TypeError:
        found = -1
    if not 1 <= found <= U64_MAX:
        message = f"append: expected an offset from 1 to 2**64 - 1 for expect_next, found {offset!r}"
        raise InvalidRequestError(message)
    return found


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
    keys: list[bytes | None] | None = None
    if any(column.keys is not None for column in columns):
        keys = list(chain.from_iterable(column.keys or [None] * len(column.bodies) for column in columns))
    bodies = list(chain.from_iterable(column.bodies for column in columns))
    return Columns(keys, bodies, sum(column.num_bytes for column in columns))


@dataclass(slots=True, eq=False)
class Entry:
    """One append: its records stay together. ``reseals`` counts the places it lost to other writers.

    ``expect_next`` is the only offset at which the first record may land. ``bytes_accepted`` counts what the
    writer has accepted since it was opened, this append included. A caller that must wait for room waits
    for ``admitted``; ``withdrawn`` is set when it has given up. ``last_try`` is set when the append is
    queued again although its time is over.
    """

    columns: Columns
    future: Future[LogPosition]
    accepted_s: float
    expect_next: int | None = None
    bytes_accepted: int = 0
    admitted: Outcome[None] | None = None
    withdrawn: bool = False
    last_try: bool = False
    reseals: int = 0
    rebases: int = 0

    @property
    def bytes_held(self) -> int:
        """Roughly the memory it takes until it has its outcome."""
        return self.columns.bytes_held

    def may_land_at(self, offset: int) -> bool:
        """Whether the caller wants the records there."""
        return self.expect_next is None or self.expect_next == offset


class BatchQueue:
    """Appends in the order of their arrival. Guarded by its owner's lock."""

    def __init__(self, options: WriterOptions) -> None:
        self._options = options
        self._entries: deque[Entry] = deque()
        self._num_bytes = 0
        self._num_records = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __bool__(self) -> bool:
        return bool(self._entries)

    @property
    def oldest(self) -> Entry:
        """The first one."""
        return self._entries[0]

    @property
    def full(self) -> bool:
        """Whether a whole batch waits."""
        return self._num_bytes >= self._options.batch_bytes_max or self._num_records >= self._options.batch_records_max

    def add(self, entry: Entry) -> None:
        """Queue an append behind the others."""
        self._entries.append(entry)
        self._count(entry, 1)

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Queue appends that were taken before, in their order, ahead of the others."""
        for entry in reversed(list(entries)):
            self._entries.appendleft(entry)
            self._count(entry, 1)

    def take(self, offset: int) -> list[Entry]:
        """Take the appends of a batch that begins there: at least one, then as many as limits and conditions allow."""
        taken: list[Entry] = []
        num_bytes = num_records = 0
        while self._entries:
            columns = self._entries[0].columns
            num_bytes += columns.num_bytes
            num_records += len(columns.bodies)
            over = num_bytes > self._options.batch_bytes_max or num_records > self._options.batch_records_max
            if taken and (over or not self._entries[0].may_land_at(offset)):
                break
            taken.append(self.pop())
            offset += len(columns.bodies)
        return taken

    def pop(self) -> Entry:
        """Take the first one."""
        entry = self._entries.popleft()
        self._count(entry, -1)
        return entry

    def take_all(self) -> list[Entry]:
        """Take everything."""
        taken = list(self._entries)
        self._entries.clear()
        self._num_bytes = self._num_records = 0
        return taken

    def entries(self) -> deque[Entry]:
        """Return the appends that wait."""
        return self._entries

    def futures(self) -> list[Future[LogPosition]]:
        """Return the futures of the appends that wait."""
        return [entry.future for entry in self._entries]

    def _count(self, entry: Entry, sign: int) -> None:
        self._num_bytes += sign * entry.columns.num_bytes
        self._num_records += sign * len(entry.columns.bodies)
