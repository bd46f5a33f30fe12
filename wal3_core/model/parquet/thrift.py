"""Thrift's compact protocol, as far as Parquet uses it, read more strictly than decoders read it.

Bytes that a decoder could read differently (a field given twice, also by a number that overflows, a
number of another width, a list of other items than the format has there) are refused or ignored
here, so that both read the same values. Source: Thrift's compact protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# A number (i32 and i64), a struct, a list of values, or None for a value that is not needed.
Value = int | list["Value"] | dict[int, "Value"] | None
# Keys are 16 times the field number, plus the type: a field of an unexpected type is not found.
Struct = dict[int, Value]

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
# Of a larger field number a decoder takes the lower half.
_FIELD_MAX = 2**15 - 1
# More than any fragment's footer has; each takes a hundred bytes here.
_VALUES_MAX = 100_000
# More than any list in a fragment has: row groups, columns, encodings. A decoder allocates a whole list at once.
ITEMS_MAX = 64
_DEPTH_MAX = 12
_VARINT_BYTES_MAX = 10
_MORE = 0x80


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The item types of a struct's lists, and the layouts of its structs and lists of structs.

    A decoder reads a known list's items as the format's type, whatever type the file declares.
    """

    lists: Mapping[int, int] = field(default_factory=dict)
    below: Mapping[int, Layout] = field(default_factory=dict)


PLAIN = Layout()


def read_struct(data: memoryview, at: int, layout: Layout = PLAIN) -> tuple[Struct, int]:
    """Read the struct at a byte; return it and the byte after it. ValueError when there is none."""
    reader = _Reader(data, at)
    try:
        found = reader.struct(0, layout)
    except IndexError:
        reader.at = len(data) + 1
        found = {}
    if reader.at > len(data):
        message = "its end within a value"
        raise ValueError(message)
    return found, reader.at


def number(fields: Struct, field: int, kind: int) -> int:
    """Return a field's number, 0 or more; ValueError when it has none."""
    value = fields.get(field << 4 | kind)
    if not isinstance(value, int) or value < 0:
        message = f"no size or count in field {field}"
        raise ValueError(message)
    return value


def struct(fields: Struct, field: int) -> Struct:
    """Return the struct in a field; ValueError when there is none."""
    value = fields.get(field << 4 | STRUCT)
    if not isinstance(value, dict):
        message = f"no struct in field {field}"
        raise ValueError(message)  # noqa: TRY004 - a document's mistake, not the caller's
    return value


def structs(fields: Struct, field: int) -> Sequence[Struct]:
    """Return the list of structs in a field; ValueError when there is none."""
    value = fields.get(field << 4 | LIST)
    if not _are_structs(value):
        message = f"no list of structs in field {field}"
        raise ValueError(message)
    return value


def _are_structs(value: Value) -> TypeGuard[list[Struct]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


class _Reader:
    """Reads values from bytes and advances ``at``; IndexError at their end."""

    __slots__ = ("_data", "_values", "at")

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._values = 0
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
                message = f"field {following} behind field {last} at depth {depth}"
                raise ValueError(message)
            last = following
            below = layout.below.get(last, PLAIN)
            if kind == LIST:
                fields[last << 4 | kind] = self._list(depth, layout.lists.get(last), below)
            else:
                fields[last << 4 | kind] = self._value(kind, depth, below)
        self.at += 1
        return fields

    def _value(self, kind: int, depth: int, below: Layout) -> Value:
        self._values += 1
        if self._values > _VALUES_MAX:
            message = f"more than {_VALUES_MAX} values"
            raise ValueError(message)
        match kind:
            case 1 | 2:  # a boolean field's type is its value
                return None
            case 5 | 6:
                return self._checked(kind, self._zigzag())
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
                message = f"a value of type {kind}"
                raise ValueError(message)

    def _list(self, depth: int, kind: int | None, below: Layout) -> Value:
        mark = self._data[self.at]
        self.at += 1
        count = mark >> 4
        if count == 15:  # noqa: PLR2004 - all four bits: the count follows
            count = self._varint()
        if count > ITEMS_MAX or mark & 15 != kind:
            message = f"a list of {count} of type {mark & 15}, where {ITEMS_MAX} of type {kind} may be"
            raise ValueError(message)
        return [self._value(kind, depth, below) for _ in range(count)]

    @staticmethod
    def _checked(kind: int, value: int) -> int:
        # A decoder would take the lower half.
        if kind == I32 and not -(2**31) <= value < 2**31:
            message = f"{value} as a number of 32 bits"
            raise ValueError(message)
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
        message = "a number without an end"
        raise ValueError(message)

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
