"""Thrift's compact protocol, as far as Parquet uses it, read more strictly than decoders read it.

Bytes that a decoder could read differently (a field given twice, also by a number that overflows, a
number of another width, a list of other items than the format has there) are refused or ignored
here, so that both read the same values. Source: Thrift's compact protocol.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard, Union

import numpy as np

# A number (i32 and i64), a struct, a list of values, or None for a value that is not needed.
Value = Union[int, list["Value"], dict[int, "Value"], "Alike", None]
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
# Keys are 16 times the field number, plus the type: a field of an unexpected type is not found.
Struct = dict[int, Value]

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
# A field's number: of a larger one a decoder takes the lower half.
_FIELD_MAX = 2**15 - 1
# Values in a footer, more than any fragment's has; each takes a hundred bytes here.
_VALUES_MAX = 100_000
# Items in a list, more than most have (columns, encodings). A decoder allocates a whole list at once.
ITEMS_MAX = 64
_DEPTH_MAX = 12
_VARINT_BYTES_MAX = 10
_MORE = 0x80
# A list of so many structs is worth a pattern, and a struct of so many numbers in so many bytes.
_ALIKE_MIN = 8
_ALIKE_NUMBERS_MAX = 256
_ALIKE_BYTES_MAX = 4096
# A number of a pattern. One that takes more bytes is read without: this one needs no check.
_OPEN = {I32: b"([\x80-\xff]{0,3}[\x00-\x7f])", I64: b"([\x80-\xff]{0,8}[\x00-\x7f])"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The item types of a struct's lists, and the layouts of its structs and lists of structs.

    ``longest`` says of how many items some lists may be, where that is more than ``ITEMS_MAX``. Such a list of structs
    may be given as ``Alike``.
    A decoder reads a known list's items as the format's type, whatever type the file declares.
    """

    lists: Mapping[int, int] = field(default_factory=dict)
    below: Mapping[int, Layout] = field(default_factory=dict)
    longest: Mapping[int, int] = field(default_factory=dict)


PLAIN = Layout()


@dataclass(frozen=True, slots=True)
class Alike:
    """A list of structs that differ in their numbers alone, read by a pattern: many times as fast.

    ``form`` is the first struct, in which each number stands for the place of that number in the rows. What the pattern
    fits differs from the first struct's bytes only in its numbers, so that it is read as that one was.
    """

    form: Struct
    rows: Sequence[Sequence[bytes]]

    def numbers(self, places: Sequence[int]) -> list[list[int]]:
        """Return the numbers of each struct at some places of the form; ValueError when one is below 0."""
        found = _decoded(b"".join([row[place] for row in self.rows for place in places]))
        if found.min(initial=0) < 0:
            raise ValueError(f"no size or count, but {found.min()}")
        return found.reshape(len(self.rows), len(places)).tolist()


def read_struct(data: memoryview, at: int, layout: Layout = PLAIN) -> tuple[Struct, int]:
    """Read the struct at a byte; return it and the byte after it. ValueError when there is none."""
    reader = _Reader(data, at)
    try:
        found = reader.struct(0, layout)
    except IndexError:
        reader.at = len(data) + 1
        found = {}
    if reader.at > len(data):
        raise ValueError("its end within a value")
    return found, reader.at


def number(fields: Struct, field: int, kind: int) -> int:
    """Return a field's number, 0 or more; ValueError when it has none."""
    value = fields.get(field << 4 | kind)
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"no size or count in field {field}")
    return value


def struct(fields: Struct, field: int) -> Struct:
    """Return the struct in a field; ValueError when there is none."""
    value = fields.get(field << 4 | STRUCT)
    if not isinstance(value, dict):
        raise ValueError(f"no struct in field {field}")  # noqa: TRY004 - a document's mistake, not the caller's
    return value


def structs(fields: Struct, field: int) -> Sequence[Struct]:
    """Return the list of structs in a field; ValueError when there is none."""
    value = fields.get(field << 4 | LIST)
    if not _are_structs(value):
        raise ValueError(f"no list of structs in field {field}")
    return value


def alike(fields: Struct, field: int) -> Alike | None:
    """Return the list of structs in a field if it was read by a pattern; else ``structs`` returns it."""
    value = fields.get(field << 4 | LIST)
    return value if isinstance(value, Alike) else None


def _are_structs(value: Value) -> TypeGuard[list[Struct]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


class _Reader:
    """Reads values from bytes, counts them, and advances ``at``; IndexError at their end."""

    __slots__ = ("_data", "at", "values")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.values = 0
        self.at = at

    def struct(self, depth: int, layout: Layout) -> Struct:
        """Read fields up to the stop mark."""
        fields: Struct = {}
        last = 0
        while mark := self._data[self.at]:
            self.at += 1
            delta, kind = mark >> 4, mark & 15
            following = last + delta if delta else self._zigzag()
            if not last < following <= _FIELD_MAX or depth > _DEPTH_MAX:
                raise ValueError(f"field {following} behind field {last} at depth {depth}")
            last = following
            below = layout.below.get(last, PLAIN)
            if kind == LIST:
                longest = layout.longest.get(last, ITEMS_MAX)
                fields[last << 4 | kind] = self._list(depth, layout.lists.get(last), below, longest)
            else:
                fields[last << 4 | kind] = self._value(kind, depth, below)
        self.at += 1
        return fields

    def _count(self, count: int) -> None:
        self.values += count
        if self.values > _VALUES_MAX:
            raise ValueError(f"more than {_VALUES_MAX} values")

    def _value(self, kind: int, depth: int, below: Layout) -> Value:
        self._count(1)
        match kind:
            case 1 | 2:  # a boolean field's type is its value
                return None
            case 5 | 6:
                return self._number(kind)
            case 8:
                length = self._varint()
                self.at += length
                return None
            case 12:
                return self.struct(depth + 1, below)
        self._skip(kind)
        return None

    def _skip(self, kind: int) -> None:
        match kind:
            case 3:
                self.at += 1
            case 4:
                self._zigzag()
            case 7:
                self.at += 8
            case _:
                raise ValueError(f"a value of type {kind}")

    def _list(self, depth: int, kind: int | None, below: Layout, count_max: int) -> Value:
        mark = self._data[self.at]
        self.at += 1
        count = mark >> 4
        if count == 15:  # noqa: PLR2004 - all four bits: the count follows
            count = self._varint()
        if count > count_max or mark & 15 != kind:
            raise ValueError(f"a list of {count} of type {mark & 15}, where {count_max} of type {kind} may be")
        found = self._alike(count, depth + 1, below) if count_max > ITEMS_MAX and kind == STRUCT else None
        return found or [self._value(kind, depth, below) for _ in range(count)]

    def _alike(self, count: int, depth: int, layout: Layout) -> Alike | None:
        """Read structs that differ in their numbers alone; None when they do not, and nothing was read."""
        if count < _ALIKE_MIN:
            return None
        first = _Form(self._data, self.at)
        form = first.struct(depth, layout)
        pattern = first.pattern(self.at)
        if pattern is None:
            return None
        data, at = bytes(self._data[self.at :]), 0
        rows: list[Sequence[bytes]] = []
        while len(rows) < count and (match := pattern.match(data, at)) is not None:
            rows.append(match.groups())
            at = match.end()
        if len(rows) < count:
            return None
        self._count(count * (1 + first.values))
        self.at += at
        return Alike(form, rows)

    def _number(self, kind: int) -> int:
        value = self._zigzag()
        # A decoder would take the lower half.
        if kind == I32 and not -(2**31) <= value < 2**31:
            raise ValueError(f"{value} as a number of 32 bits")
        return value

    def _varint(self) -> int:
        byte = self._data[self.at]
        self.at += 1
        if byte < _MORE:
            return byte
        value, shift = byte - _MORE, 7
        while shift < 7 * _VARINT_BYTES_MAX:
            byte = self._data[self.at]
            self.at += 1
            value |= (byte & (_MORE - 1)) << shift
            if byte < _MORE:
                return value & (2**64 - 1)
            shift += 7
        raise ValueError("a number without an end")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


class _Form(_Reader):
    """Reads a struct, and notes where its numbers are; in what it returns, each is replaced by its place among them."""

    __slots__ = ("_numbers",)

    def __init__(self, data: memoryview, at: int) -> None:
        super().__init__(data, at)
        self._numbers: list[tuple[int, int, int]] = []

    def _number(self, kind: int) -> int:
        start = self.at
        super()._number(kind)
        self._numbers.append((start, self.at, kind))
        return len(self._numbers) - 1

    def pattern(self, start: int) -> re.Pattern[bytes] | None:
        """Return what the bytes of such structs match, with a group for each number; none for a struct too large."""
        if len(self._numbers) > _ALIKE_NUMBERS_MAX or self.at - start > _ALIKE_BYTES_MAX:
            return None
        parts, at = [], start
        for low, high, kind in self._numbers:
            parts += [re.escape(bytes(self._data[at:low])), _OPEN[kind]]
            at = high
        parts.append(re.escape(bytes(self._data[at : self.at])))
        return re.compile(b"".join(parts))


def _decoded(coded: bytes) -> Numbers:
    """Decode numbers that lie one behind the other, each of at most nine bytes."""
    data = np.frombuffer(coded, dtype=np.uint8)
    limits = np.flatnonzero(data < _MORE) + 1
    starts = np.concatenate([[0], limits[:-1]])[: len(limits)]
    shifts = 7 * (np.arange(len(data)) - np.repeat(starts, limits - starts))
    values = np.add.reduceat((data & (_MORE - 1)).astype(np.int64) << shifts, starts) if len(data) else starts
    return (values >> 1) ^ -(values & 1)
