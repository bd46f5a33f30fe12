"""A queue's records: keys, and the bodies under them. Source: docs/protocol/queue.md, "Delay queue".

A value's header: a byte of widths and flags, the deadline, and how far from it the item was enqueued; then, if flagged,
the priority, and the length of the dedupe key and the key. Times are milliseconds; deadlines count from when the queue
was created.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wal3_core.errors import CorruptError
from wal3_core.views.queue.operations import DEFAULT_PRIORITY

VALUE, STATE, PART = b"v", b"s", b"c"
META_KEY, BROKER_KEY, DEFINITION_KEY = b"m", b"b", b"d"
ID_KEY_BYTES, PART_KEY_BYTES = 9, 17
_U64 = struct.Struct(">Q")

# A header's first byte: the width of the deadline, of the distance, and flags.
_WIDTH, _DISTANCE_SHIFT, _EARLIER, _EXTRAS = 0x07, 3, 0x40, 0x80
# A deadline before the queue was created is the complement of 7 bytes, which no other deadline fills.
_BEFORE = 2**56
_STATE = struct.Struct(">cqIqq8s")
_META = struct.Struct(">B8sQQQqqHH")
_FLOOR = struct.Struct(">Bq")
_FORMAT = 1

# A body of another format up to here is of a later version; beyond, it is no queue's.
_FORMATS_MAX = 8

PENDING, LEASED, DEAD = b"p", b"l", b"d"
NO_TOKEN = bytes(8)
NEVER = -1


def id_key(kind: bytes, item_id: int) -> bytes:
    """Return the key of an item's value or state."""
    return kind + _U64.pack(item_id)


def part_key(as_of: int, number: int) -> bytes:
    """Return the key of one part of the checkpoint of what the log held below an offset."""
    return PART + _U64.pack(as_of) + _U64.pack(number)


def id_of(key: bytes) -> int:
    """Return the id in the key of a value or a state."""
    return int.from_bytes(key[1:], "big")


def is_broker(key: bytes | None, body: bytes | None) -> bool:
    """Whether a record says which broker has taken the queue."""
    return key == BROKER_KEY and body is not None and len(body) == len(NO_TOKEN)


class ValueHeader(NamedTuple):
    """What stands before a value; ``length`` is that of the header."""

    deadline_ms: int
    enqueued_ms: int
    priority: int
    dedupe_key: bytes | None
    length: int


def value_body(
    value: bytes, deadline_ms: int, enqueued_ms: int, created_ms: int, priority: int, dedupe_key: bytes | None
) -> bytes:
    """Encode a value behind its header."""
    deadline = deadline_ms - created_ms
    if deadline < 0:
        deadline += _BEFORE
    distance = deadline_ms - enqueued_ms
    head = 0
    if distance < 0:
        head, distance = _EARLIER, -distance
    width, span = (deadline.bit_length() + 7) >> 3, (distance.bit_length() + 7) >> 3
    head |= width | span << _DISTANCE_SHIFT
    numbers = deadline.to_bytes(width, "big") + distance.to_bytes(span, "big")
    if priority == DEFAULT_PRIORITY and dedupe_key is None:
        return b"%c%b%b" % (head, numbers, value)
    dedupe = dedupe_key or b""
    return b"%c%b%c%c%b%b" % (head | _EXTRAS, numbers, priority, len(dedupe), dedupe, value)


def value_header(body: bytes | memoryview, created_ms: int, what: str) -> ValueHeader:
    """Decode a value's header from its body, or the first 320 bytes of it; CorruptError names ``what``."""
    if not len(body):
        raise CorruptError(f"{what}: expected a value's header, found an empty body")
    head = body[0]
    middle = 1 + (head & _WIDTH)
    end = middle + (head >> _DISTANCE_SHIFT & _WIDTH)
    deadline = int.from_bytes(body[1:middle], "big")
    deadline_ms = created_ms + (deadline - _BEFORE if deadline >= _BEFORE // 2 else deadline)
    distance = int.from_bytes(body[middle:end], "big")
    enqueued_ms = deadline_ms + distance if head & _EARLIER else deadline_ms - distance
    priority, dedupe_key = DEFAULT_PRIORITY, None
    if head & _EXTRAS and end + 2 <= len(body):
        priority = body[end]
        length = body[end + 1]
        dedupe_key = bytes(body[end + 2 : end + 2 + length]) or None
        end += 2 + length
    elif head & _EXTRAS:
        end = len(body) + 1
    if end > len(body):
        raise CorruptError(f"{what}: expected a value's header of {end} bytes, found {len(body)}")
    return ValueHeader(deadline_ms, enqueued_ms, priority, dedupe_key, end)


class StateRecord(NamedTuple):
    """The state of an item that was handed out before. ``until_ms`` is when its lease ends."""

    kind: bytes
    deadline_ms: int
    deliveries: int
    requeued_ms: int
    until_ms: int
    token: bytes


def state_body(state: StateRecord) -> bytes:
    """Encode a state."""
    return _STATE.pack(*state)


def state_record(body: bytes, what: str) -> StateRecord:
    """Decode a state; CorruptError names ``what``."""
    if len(body) != _STATE.size or body[:1] not in (PENDING, LEASED, DEAD):
        raise CorruptError(f"{what}: expected an item's state of {_STATE.size} bytes, found {len(body)}: {body[:1]!r}")
    return StateRecord(*_STATE.unpack(body))


@dataclass(frozen=True, slots=True, kw_only=True)
class Meta:
    """What a queue as a whole has come to.

    ``broker`` is the token of the one that wrote it, ``definition`` the offset of that record. ``floors_ms`` has for
    each priority the latest deadline that was handed out. The newest checkpoint holds the queue as the log was below
    the offset ``as_of``; ``parts`` are the offsets of its records. It has none until the first one.
    """

    broker: bytes
    definition: int
    last_id: int
    created_ms: int
    now_ms: int
    floors_ms: Mapping[int, int]
    as_of: int = 0
    parts: tuple[int, ...] = ()

    def to_bytes(self) -> bytes:
        """Encode as a body."""
        head = _META.pack(
            _FORMAT,
            self.broker,
            self.definition,
            self.last_id,
            self.as_of,
            self.created_ms,
            self.now_ms,
            len(self.floors_ms),
            len(self.parts),
        )
        floors = b"".join(_FLOOR.pack(priority, floor) for priority, floor in sorted(self.floors_ms.items()))
        return head + floors + b"".join(map(_U64.pack, self.parts))

    @classmethod
    def if_one(cls, body: bytes | None, *, what: str) -> Meta | None:
        """Decode; None when no queue wrote it. CorruptError when a later version may have."""
        if body is not None and len(body) >= _META.size and _FORMAT < body[0] <= _FORMATS_MAX:
            message = f"{what}: expected the state of a queue in format {_FORMAT}, found {body[0]}: of a newer wal3"
            raise CorruptError(message)
        try:
            return None if body is None else cls.from_bytes(body, what=what)
        except CorruptError:
            return None

    @classmethod
    def from_bytes(cls, body: bytes, *, what: str) -> Meta:
        """Decode; CorruptError names ``what``."""
        if len(body) < _META.size or body[0] != _FORMAT:
            raise CorruptError(f"{what}: expected the state of a queue in format {_FORMAT}, found {len(body)} bytes")
        _, broker, definition, last_id, as_of, created_ms, now_ms, num_floors, num_parts = _META.unpack_from(body)
        end = _META.size + num_floors * _FLOOR.size
        if len(body) != end + num_parts * _U64.size:
            raise CorruptError(f"{what}: expected {end + num_parts * _U64.size} bytes, found {len(body)}")
        return cls(
            broker=broker,
            definition=definition,
            last_id=last_id,
            created_ms=created_ms,
            now_ms=now_ms,
            floors_ms=dict(_FLOOR.iter_unpack(body[_META.size : end])),
            as_of=as_of,
            parts=tuple(offset for (offset,) in _U64.iter_unpack(body[end:])),
        )
