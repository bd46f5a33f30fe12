"""Takes a Parquet file apart and puts it together again, so that a test can forge any part of it.

``Struct`` is Thrift's compact protocol as a tree: a list of fields, each ``[number, type, value]``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TypeAlias

MAGIC = b"PAR1"
TRUE, FALSE, I16, I32, I64, DOUBLE, BINARY, LIST, STRUCT = 1, 2, 4, 5, 6, 7, 8, 9, 12

Value: TypeAlias = "int | bytes | bool | Items | Struct"


@dataclass
class Items:
    """A list that announces ``claimed`` items, whatever its length."""

    kind: int
    values: list[Value]
    claimed: int | None = None


@dataclass
class Struct:
    """A struct's fields, in order, each a list of number, type and value."""

    fields: list[list[object]] = field(default_factory=list)

    def __getitem__(self, number: int) -> Value:
        return next(value for each, _, value in self.fields if each == number)

    def has(self, number: int) -> bool:
        return any(each == number for each, _, _ in self.fields)

    def set(self, number: int, value: Value, kind: int = I32) -> None:
        """Replace a field's value, or add the field."""
        for each in self.fields:
            if each[0] == number:
                each[2] = value
                return
        self.fields.append([number, kind, value])
        self.fields.sort(key=lambda each: each[0])

    def items(self, number: int) -> list[Value]:
        found = self[number]
        assert isinstance(found, Items)
        return found.values

    def inner(self, number: int) -> Struct:
        found = self[number]
        assert isinstance(found, Struct)
        return found


class Parser:
    """Reads structs of Thrift's compact protocol from trusted bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def struct(self) -> Struct:
        found, number = Struct(), 0
        while mark := self._bytes(1)[0]:
            number = number + (mark >> 4) if mark >> 4 else self._zigzag()
            found.fields.append([number, mark & 15, self._value(mark & 15)])
        return found

    def _value(self, kind: int) -> Value:
        match kind:
            case 1 | 2:
                return kind == TRUE
            case 3:
                return self._bytes(1)[0]
            case 4 | 5 | 6:
                return self._zigzag()
            case 7 | 8:
                return self._bytes(8 if kind == DOUBLE else self._varint())
            case 9:
                return self._items()
        return self.struct()

    def _items(self) -> Items:
        mark = self._bytes(1)[0]
        count = mark >> 4 if mark >> 4 < 15 else self._varint()
        return Items(mark & 15, [self._value(mark & 15) for _ in range(count)])

    def _bytes(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        assert len(found) == count
        self.at += count
        return found

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._bytes(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def zigzag(value: int) -> bytes:
    return varint((value << 1 ^ value >> 63) & (2**64 - 1))


def dump(value: Value, kind: int = STRUCT) -> bytes:
    """Encode a value of a type."""
    match value:
        case Struct():
            return _dump_struct(value)
        case Items():
            count = len(value.values) if value.claimed is None else value.claimed
            head = bytes([count << 4 | value.kind]) if count < 15 else bytes([0xF0 | value.kind]) + varint(count)
            return head + b"".join(dump(each, value.kind) for each in value.values)
        case bytes():
            return value if kind == DOUBLE else varint(len(value)) + value
    if kind in (TRUE, FALSE, 3):
        return bytes([int(value) & 255])
    return zigzag(value)


def _dump_struct(value: Struct) -> bytes:
    out, last = bytearray(), 0
    for number, kind, each in value.fields:
        assert isinstance(number, int)
        assert isinstance(kind, int)
        marked = (TRUE if each else FALSE) if kind in (TRUE, FALSE) else kind
        delta = number - last
        out += bytes([delta << 4 | marked]) if 0 < delta < 16 else bytes([marked]) + zigzag(number)
        out += b"" if kind in (TRUE, FALSE) else dump(each, kind)
        last = number
    return bytes(out) + b"\0"


@dataclass
class Page:
    """A page's header (1 type, 2 expanded size, 3 stored size, 4 CRC, 5 data, 7 dictionary, 8 data v2) and bytes."""

    header: Struct
    payload: bytes


@dataclass
class Chunk:
    """A column chunk: its footer entry's metadata (3: values 5, sizes 6 and 7, offsets 9 and 11), and its pages."""

    entry: Struct
    pages: list[Page]

    @property
    def metadata(self) -> Struct:
        return self.entry.inner(3)


@dataclass
class Forgery:
    """A whole file: its footer (2 schema, 3 rows, 4 row groups, 5 metadata), and the chunks of each row group."""

    footer: Struct
    groups: list[list[Chunk]]

    @classmethod
    def of(cls, data: bytes) -> Forgery:
        """Take a sound file apart."""
        footer = Parser(footer_bytes(data)).struct()
        groups = [[_chunk(data, entry) for entry in group.items(1)] for group in footer.items(4)]
        return cls(footer, groups)

    def chunks(self, column: int) -> list[Chunk]:
        return [group[column] for group in self.groups]

    def group(self, index: int = 0) -> Struct:
        found = self.footer.items(4)[index]
        assert isinstance(found, Struct)
        return found

    def build(self, *, correct: bool = True) -> bytes:
        """Put the file together; ``correct`` corrects offsets and stored sizes."""
        out = bytearray(MAGIC)
        for group in self.groups:
            for chunk in group:
                _lay(out, chunk, correct=correct)
        return bytes(out) + ending(dump(self.footer))


def ending(footer: bytes) -> bytes:
    return footer + struct.pack("<I", len(footer)) + MAGIC


def footer_bytes(data: bytes) -> bytes:
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[-8 - length : -8]


def _chunk(data: bytes, entry: Struct) -> Chunk:
    metadata = entry.inner(3)
    at = metadata[11] if metadata.has(11) else metadata[9]
    total = metadata[7]
    assert isinstance(at, int)
    assert isinstance(total, int)
    limit, pages = at + total, []
    while at < limit:
        parser = Parser(data, at)
        header = parser.struct()
        size = header[3]
        assert isinstance(size, int)
        pages.append(Page(header, data[parser.at : parser.at + size]))
        at = parser.at + size
    return Chunk(entry, pages)


def _lay(out: bytearray, chunk: Chunk, *, correct: bool) -> None:
    start, data_start = len(out), None
    for page in chunk.pages:
        if page.header[1] != 2 and data_start is None:
            data_start = len(out)
        out += dump(page.header) + page.payload
    if not correct:
        return
    metadata = chunk.metadata
    metadata.set(9, start if data_start is None else data_start)
    if metadata.has(11):
        metadata.set(11, start)
    metadata.set(7, len(out) - start)
