"""Records, and the item each one contributes to the log's setsum.

A record without a key hashes ``be64(offset) | be64(timestamp_us) | body``, as Chroma's wal3 does; one
with a key hashes ``ff*8 | be64(offset) | be64(timestamp_us) | be32(len key) | key | t | body``, where
t is 00 for a tombstone and 01 otherwise. Source: docs/protocol.md, "Setsum".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wal3_core.arguments import optional, record_bytes
from wal3_core.errors import InvalidRequestError
from wal3_core.format.position import LogPosition
from wal3_core.format.setsum import Setsum
from wal3_core.hashing import Buffer, item_of, plain_digest

_bytes_or_none = optional(record_bytes)


@dataclass(frozen=True, slots=True)
class Message:
    """What a caller appends: a body, a key, or both. A key without a body is a tombstone for that key."""

    body: bytes | None
    key: bytes | None = None

    def __post_init__(self) -> None:
        """Refuse values that are not bytes; copy mutable ones."""
        if type(self.body) is not bytes:
            object.__setattr__(self, "body", _bytes_or_none(self.body, "body"))
        if self.key is not None:
            object.__setattr__(self, "key", record_bytes(self.key, "key"))


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a log. ``body`` is None only for a tombstone, which has a key."""

    offset: int
    timestamp_us: int
    key: bytes | None
    body: bytes | None

    @property
    def position(self) -> LogPosition:
        """Its place, at which a read begins with it."""
        return LogPosition(self.offset, self.timestamp_us)


def position_after(record: Record) -> LogPosition:
    """Return the position at which a reader continues that has processed the record."""
    return LogPosition(record.offset + 1, record.timestamp_us)


def check_message(message: Message, *, record_bytes_max: int) -> int:
    """Return the message's size in bytes, key and body; InvalidRequestError when it cannot be a record."""
    key, body = message.key, message.body
    return check_sizes(
        None if key is None else len(key), None if body is None else len(body), record_bytes_max=record_bytes_max
    )


def check_sizes(key: int | None, body: int | None, *, record_bytes_max: int) -> int:
    """Check a record by the sizes of its key and its body in bytes, None for what it lacks; as ``check_message``."""
    if key is None and body is None:
        raise InvalidRequestError("record: expected a body, a key, or both, found neither")
    size = (key or 0) + (body or 0)
    if size > record_bytes_max:
        raise InvalidRequestError(f"record: expected at most {record_bytes_max} bytes of key and body, found {size}")
    return size


def plain_setsum(offsets: Iterable[int], timestamps_us: Iterable[int], bodies: Iterable[Buffer]) -> Setsum:
    """Checksum records without keys, given as three columns of one length."""
    return Setsum.of_digests(b"".join(map(plain_digest, offsets, timestamps_us, bodies)))


def keyed_setsum(
    offsets: Iterable[int],
    timestamps_us: Iterable[int],
    keys: Sequence[Buffer | None],
    bodies: Sequence[Buffer | None],
) -> Setsum:
    """Checksum records that may have keys, given as four columns of one length."""
    return Setsum.of(
        item_of(offset, timestamp_us, key, body)
        for offset, timestamp_us, key, body in zip(offsets, timestamps_us, keys, bodies, strict=True)
    )


def record_setsum(record: Record) -> Setsum:
    """Checksum one record."""
    return Setsum.of((item_of(record.offset, record.timestamp_us, record.key, record.body),))
