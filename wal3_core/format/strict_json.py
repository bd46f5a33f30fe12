"""JSON from outside, read strictly: no NaN, no floats, no duplicate or unknown keys, integers within u64.

Stored documents end in a checksum of themselves, so that a flipped bit in a number is an error
and not another number: ``{...,"checksum":"<32 hex digits>"}``, the first half of the SHA-256 of the
document without it. An object named after the hash of its bytes needs none.

A value says what is stored of it by a table of ``member``s: a new field is a line there.

Reading a document takes at most 20 times its size plus 1 MiB of memory: 12 times for values, 8 for text.
One that would expand further is refused before it is parsed; real documents take about 4 times their size.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar, Final, Protocol, Self, TypeVar, cast

from wal3_core.errors import CorruptError, InvalidRequestError

JsonValue = None | bool | int | str | list["JsonValue"] | dict[str, "JsonValue"]
JsonObject = dict[str, JsonValue]

T = TypeVar("T")

U64_MAX = 2**64 - 1


# Made once: making one takes as long as encoding a cursor.
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True)
_CHECKSUM_HEX = 32
# Bytes that Python takes at most, as measured, for a dictionary, its entry, a list, an item.
_COSTS = {b"{": 64, b":": 143, b"[": 88, b",": 80}
_EXPANSION_MAX = 12
_EXPANSION_FLOOR = 2**20
_TAIL_BYTES = len(',"checksum":""}') + _CHECKSUM_HEX


def dump(document: JsonObject) -> bytes:
    """Encode without spaces, keys in the order given; InvalidRequestError for text that could not be read back."""
    try:
        text = _ENCODER.encode(document)
    except (TypeError, ValueError) as error:
        message = _misfit(document, "") or str(error)
        raise InvalidRequestError(message) from error
    # The exact check is only made when the text may have half of a surrogate pair, which is rare.
    if "\\ud" in text and not _is_text(json.dumps(document, ensure_ascii=False)):
        raise InvalidRequestError(f"expected text that can be encoded, found half of a surrogate pair in {text[:200]}")
    return text.encode()


def dump_checksummed(document: JsonObject) -> bytes:
    """Encode with the checksum at its end."""
    return with_checksum(dump(document)[:-1])


def with_checksum(opened: bytes) -> bytes:
    """Return an object, encoded up to its last member, with the checksum behind that."""
    return opened + _tail(opened)


def _tail(opened: bytes | memoryview) -> bytes:
    checksum = hashlib.sha256(opened).hexdigest()[:_CHECKSUM_HEX]
    return f',"checksum":"{checksum}"}}'.encode()


def load_checksummed(data: bytes, *, what: str, bytes_max: int) -> Fields:
    """Decode a document that carries its checksum; CorruptError names ``what`` when anything is off."""
    check_whole(data, what=what, bytes_max=bytes_max)
    return load(data[:-_TAIL_BYTES] + b"}", what=what, bytes_max=bytes_max)


def check_whole(data: bytes, *, what: str, bytes_max: int) -> None:
    """Check a document's size and checksum, but nothing that it says; CorruptError names ``what``."""
    _check_size(data, what=what, bytes_max=bytes_max)
    if len(data) <= _TAIL_BYTES or _tail(memoryview(data)[:-_TAIL_BYTES]) != data[-_TAIL_BYTES:]:
        raise CorruptError(f"{what}: expected a JSON document ending in its own checksum, found {_shown(data)}")


def load(data: bytes, *, what: str, bytes_max: int) -> Fields:
    """Decode one JSON object; CorruptError names ``what`` when it is anything else."""
    _check_size(data, what=what, bytes_max=bytes_max)
    _check_expansion(data, what=what)
    try:
        value = json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_object_of_pairs,
            parse_constant=_refuse_number,
            parse_float=_refuse_number,
            # A function is called for each of a manifest's hundred numbers; ``Fields.integer`` checks them too.
            parse_int=int if _long_numbers_refused() else _integer,
        )
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"{what}: expected JSON, found {_shown(data)} ({error})") from error
    return Fields(value, what)


def _check_size(data: bytes, *, what: str, bytes_max: int) -> None:
    if len(data) > bytes_max:
        raise CorruptError(f"{what}: expected at most {bytes_max} bytes, found {len(data)}")


def _check_expansion(data: bytes, *, what: str) -> None:
    """Bound the values' memory by counting JSON's marks, in text as well: a real document has few there."""
    num_bytes = sum(cost * data.count(mark) for mark, cost in _COSTS.items())
    allowed = _EXPANSION_MAX * len(data) + _EXPANSION_FLOOR
    if num_bytes > allowed:
        raise CorruptError(f"{what}: expected values that take at most {allowed} bytes of memory, found {num_bytes}")


def _shown(data: bytes) -> str:
    head = data[:40]
    return f"{len(data)} bytes starting {head!r}"


def _object_of_pairs(pairs: Sequence[tuple[str, JsonValue]]) -> JsonObject:
    document = dict(pairs)
    if len(document) != len(pairs):
        raise ValueError("duplicate key")
    return document


def _refuse_number(text: str) -> JsonValue:
    raise ValueError(f"number {text[:40]} is not an integer")


def _long_numbers_refused() -> bool:
    """Whether Python refuses to convert a long run of digits, which takes quadratic time; its user may allow it."""
    return 0 < sys.get_int_max_str_digits() <= sys.int_info.default_max_str_digits


def _integer(text: str) -> int:
    if len(text) > len(str(U64_MAX)) or not 0 <= int(text) <= U64_MAX:
        raise ValueError(f"number {text[:40]} is not within u64")
    return int(text)


def unreadable_field(data: bytes | memoryview) -> str | None:
    """Name the first value of encoded JSON that this module would not read back, and what it is; None if there is none.

    For JSON that this process encoded, not for bytes from outside. A view has no JSON.
    """
    return _misfit(json.loads(data), "") if isinstance(data, bytes) else None


def _misfit(value: object, field: str) -> str | None:
    parts: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    elif type(value) is int and not 0 <= value <= U64_MAX:
        return f"field {field[1:]}: expected an integer within u64, found {value}"
    elif not isinstance(value, str | int | None):
        return f"field {field[1:]}: expected text, an integer, true or false, found {type(value).__name__} {value!r}"
    return next(filter(None, (_misfit(part, f"{field}.{name}") for name, part in parts)), None)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Fields:
    """Typed access to one JSON object; each access removes its key, ``finish`` refuses keys that are left."""

    __slots__ = ("_left", "what")

    def __init__(self, value: JsonValue, what: str) -> None:
        self.what = what
        if not isinstance(value, dict):
            raise CorruptError(f"{what}: expected a JSON object, found {type(value).__name__}")
        self._left = dict(value)

    def _take(self, key: str) -> JsonValue:
        if key not in self._left:
            raise CorruptError(f"{self.what}: expected a field {key}, found none")
        return self._left.pop(key)

    def _wrong(self, key: str, expected: str, value: JsonValue) -> CorruptError:
        return CorruptError(f"{self.what}: field {key}: expected {expected}, found {ascii(value)[:80]}")

    def has(self, key: str) -> bool:
        """Return whether an optional key is present."""
        return key in self._left

    def integer(self, key: str) -> int:
        """Take an integer within u64."""
        value = self._take(key)
        if type(value) is not int or not 0 <= value <= U64_MAX:
            raise self._wrong(key, "an integer within u64", value)
        return value

    def flag(self, key: str) -> bool:
        """Take a boolean."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def is_set(self, key: str) -> bool:
        """Take a boolean that is left out while it is false."""
        if key not in self._left:
            return False
        value = self._take(key)
        if value is not True:
            raise self._wrong(key, "true, or no such field", value)
        return True

    def string(self, key: str) -> str:
        """Take a string; half of a surrogate pair is refused."""
        value = self._take(key)
        if not isinstance(value, str) or not _is_text(value):
            raise self._wrong(key, "a string of text", value)
        return value

    def object(self, key: str) -> Fields:
        """Take a nested object."""
        return Fields(self._take(key), f"{self.what}.{key}")

    def json(self, key: str) -> JsonObject:
        """Take a nested object as it is; half of a surrogate pair in it is refused."""
        value = self._take(key)
        if not isinstance(value, dict) or not _is_text(json.dumps(value, ensure_ascii=False)):
            raise self._wrong(key, "a JSON object of text", value)
        return value

    def items(self, key: str, *, count_max: int) -> list[JsonValue]:
        """Take a list of anything, at most ``count_max``."""
        value = self._take(key)
        if not isinstance(value, list) or len(value) > count_max:
            raise self._wrong(key, f"a list of at most {count_max}", value)
        return value

    def objects(self, key: str, *, count_max: int) -> list[Fields]:
        """Take a list of objects, at most ``count_max``."""
        items = self.items(key, count_max=count_max)
        return [Fields(item, f"{self.what}.{key}[{index}]") for index, item in enumerate(items)]

    def integers(self, *, count_max: int) -> dict[str, int]:
        """Take all keys, at most ``count_max``, each with an integer within u64, in the order of the document."""
        if len(self._left) > count_max:
            raise CorruptError(f"{self.what}: expected at most {count_max} fields, found {len(self._left)}")
        return {key: self.integer(key) for key in tuple(self._left)}

    def finish(self) -> None:
        """Refuse unknown keys: a newer writer's field must not be dropped silently."""
        if self._left:
            raise CorruptError(f"{self.what}: expected no further fields, found {', '.join(sorted(self._left))[:200]}")


# ------------------------------------------------------------------ what is stored of a value


class _Json(Protocol):
    def to_json(self) -> JsonObject: ...

    @classmethod
    def from_json(cls, fields: Fields) -> Self: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """How a member is read from an object, by its name, and written."""

    read: Callable[[Fields, str], Any]
    # None: as it is.
    write: Callable[[Any], JsonValue] | None = None


INTEGER, TEXT, FLAG, JSON = Kind(Fields.integer), Kind(Fields.string), Kind(Fields.flag), Kind(Fields.json)
# True, or left out: the default is False.
SET = Kind(Fields.is_set)


def text_as(check: Callable[[str, str], Any]) -> Kind:
    """Text that a function checks, with what it is of; or the value that it makes of it."""
    return Kind(lambda fields, name: check(fields.string(name), fields.what), str)


def one_of(values: type[StrEnum]) -> Kind:
    """One of the values of an enumeration."""

    def read(fields: Fields, name: str) -> StrEnum:
        found = fields.string(name)
        if found not in list(values):
            expected = ", ".join(values)
            raise CorruptError(f"{fields.what}: field {name}: expected one of {expected}, found {ascii(found)[:80]}")
        return values(found)

    return Kind(read, str)


def nested(kind: type[_Json]) -> Kind:
    """Another value, as an object."""
    return Kind(lambda fields, name: kind.from_json(fields.object(name)), kind.to_json)


def several(read: Callable[[Fields], T], count_max: int, write: Callable[[T], JsonValue]) -> Kind:
    """Objects in a list, at most so many."""
    return Kind(
        lambda fields, name: tuple(map(read, fields.objects(name, count_max=count_max))),
        lambda values: [write(value) for value in values],
    )


_REQUIRED: Final = object()


# The name, the attribute, how it is read and written, whether a document may be without it, and then: default, like,
# beside. A plain tuple, as nothing else is taken apart so fast: a large manifest has thousands of pointers.
Member = tuple[str, str, Callable[[Fields, str], Any], Callable[[Any], JsonValue] | None, bool, object, str, str]


def member(
    name: str, kind: Kind, attribute: str = "", *, default: object = _REQUIRED, like: str = "", beside: str = ""
) -> Member:
    """Describe what is stored under a name: the attribute of that name, or of another.

    One with a ``default`` is left out while it has that, one that is ``like`` another attribute while it equals that,
    and one ``beside`` an attribute that is read before while that is false.
    """
    may_lack = default is not _REQUIRED or bool(like)
    return name, attribute or name, kind.read, kind.write, may_lack, default, like, beside


def dump_members(value: object, members: Iterable[Member]) -> JsonObject:
    """Return what members say of a value, in their order."""
    stored: JsonObject = {}
    for name, attribute, _, write, may_lack, default, like, beside in members:
        found = getattr(value, attribute)
        if may_lack:
            lacks = not getattr(value, beside) if beside else found == (getattr(value, like) if like else default)
            if lacks:
                continue
        stored[name] = found if write is None else write(found)
    return stored


def read_members(fields: Fields, members: Iterable[Member]) -> dict[str, Any]:
    """Read attributes from an object; CorruptError for a default that is not left out: no version wrote that."""
    values: dict[str, Any] = {}
    likes: tuple[str, str] | None = None
    for name, attribute, read, _, may_lack, default, like, beside in members:
        if not may_lack:
            values[attribute] = read(fields, name)
        elif values[beside] if beside else fields.has(name):
            values[attribute] = found = read(fields, name)
            if found == default and not beside:
                message = f"{fields.what}: field {name}: expected no such field, or another value, found its default"
                raise CorruptError(message)
        elif like:
            likes = attribute, like
        else:
            values[attribute] = default
    if likes is not None:
        values[likes[0]] = values[likes[1]]
    return values


class Stored:
    """A value that is stored as a JSON object of the members that its class lists."""

    __slots__ = ()
    MEMBERS: ClassVar[tuple[Member, ...]]

    def to_json(self) -> JsonObject:
        """Return as a JSON object."""
        return dump_members(self, self.MEMBERS)

    @classmethod
    def from_json(cls, fields: Fields) -> Self:
        """Read from a JSON object; CorruptError when anything is off."""
        make: Callable[..., Self] = cls
        values = read_members(fields, cls.MEMBERS)
        fields.finish()
        try:
            stored = make(**values)
        except InvalidRequestError as error:
            raise CorruptError(f"{fields.what}: {error}") from error
        stored.check_stored(fields.what)
        return stored

    def check_stored(self, what: str) -> None:
        """Refuse values that contradict each other, with a CorruptError that names ``what``."""


class Shown:
    """A value that a program shows as a JSON object of its fields, or of what ``SHOWN`` names, in that order.

    In ``SHOWN``, names are separated by spaces; ``name=attribute`` shows an attribute under another name.
    """

    __slots__ = ()
    SHOWN: ClassVar[str] = ""

    def to_json(self) -> JsonObject:
        """Show as a JSON object."""
        names: Iterable[str] = self.SHOWN.split() or getattr(self, "__dataclass_fields__")  # noqa: B009 - a dataclass's own
        pairs = (name.partition("=") for name in names)
        return {name: _json_of(getattr(self, attribute or name)) for name, _, attribute in pairs}


def _json_of(value: Any) -> JsonValue:  # noqa: ANN401 - of any field
    if isinstance(value, tuple):
        return [_json_of(each) for each in value]
    if hasattr(value, "to_json"):
        return cast("JsonObject", value.to_json())
    return value if value is None or isinstance(value, int) else str(value)


class StoredDocument(Stored):
    """A value that is stored as a JSON document of its own, which begins with the version of its format."""

    __slots__ = ()
    FORMAT_VERSION: ClassVar[int] = 2
    BYTES_MAX: ClassVar[int]

    def to_bytes(self) -> bytes:
        """Encode as checksummed JSON."""
        return dump_checksummed({"format_version": self.FORMAT_VERSION, **self.to_json()})

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Self:
        """Decode; CorruptError names ``what`` when anything is off."""
        return cls.from_fields(load_checksummed(data, what=what, bytes_max=cls.BYTES_MAX))

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read from the object that a document is."""
        check_format_version(fields, cls.FORMAT_VERSION)
        return cls.from_json(fields)


def check_format_version(fields: Fields, known: int) -> None:
    """Refuse a document of a format that this program does not read."""
    version = fields.integer("format_version")
    if version != known:
        reader = "a newer wal3 may read it" if version > known else "an older wal3 wrote it, and may read it"
        raise CorruptError(f"{fields.what}: expected format_version {known}, found {version}: {reader}")
