"""What a feed gives: messages, gaps and strays; and the text that names a place between two of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from wal3_core.arguments import wrong
from wal3_core.errors import InvalidRequestError, LogReplacedError
from wal3_core.format.manifest import Manifest
from wal3_core.format.paths import LogId
from wal3_core.format.record import Record
from wal3_core.format.strict_json import U64_MAX
from wal3_core.log.read.scan import BegunAtTime
from wal3_core.runtime import US_PER_S
from wal3_core.runtime.extras import missing

try:
    import msgpack
except ImportError as error:
    raise InvalidRequestError(f"feed: {missing('msgpack', 'feed')}") from error

# What msgpack raises for values and bytes that are not its own, by the kind of the fault.
_FAULTS = (TypeError, ValueError, OverflowError, RecursionError, msgpack.exceptions.UnpackException)


def packed(message: object, own_us: int | None = None) -> bytes:
    """Encode a message, and its own time behind it; InvalidRequestError when part of it is nothing that msgpack has.

    Tuples become lists. What could not be decoded, as a map with a list for a key, is refused here.
    """
    try:
        data: bytes = msgpack.packb(message, use_bin_type=True)
        unpacked(data)
    except _FAULTS as error:
        raise InvalidRequestError(
            f"message: expected None, a bool, a number, text, bytes, or lists and dicts of these,"
            f" found {type(message).__name__} ({error})"
        ) from error
    if own_us is None:
        return data
    seconds, us = divmod(own_us, US_PER_S)
    return data + bytes(msgpack.packb(msgpack.Timestamp(seconds, us * 1000)))


def unpacked(data: bytes) -> Any:  # noqa: ANN401 - a message is any value
    """Decode a message; one of ``_FAULTS`` when the bytes are not one msgpack value."""
    return msgpack.unpackb(data, raw=False, strict_map_key=False)


def unpacked_or_error(data: bytes | None) -> tuple[Any, int | None, str | None]:
    """Decode bytes from outside: the message and its own time, or what is wrong with them."""
    if data is None:
        return None, None, "expected a message as its body, found none: a tombstone"
    try:
        return unpacked(data), None, None
    except msgpack.ExtraData as more:
        own = _own_time(more.extra)
        if own is not None:
            return more.unpacked, own.seconds * US_PER_S + own.nanoseconds // 1000, None
        fault = f"{len(more.extra)} bytes behind it"
    except _FAULTS as error:
        fault = f"{type(error).__name__}: {error}"
    return None, None, f"expected one msgpack value as its body, found {fault}"


def _own_time(data: bytes) -> msgpack.Timestamp | None:
    """Read a time behind a message; None for anything else, and for a time before 1970."""
    try:
        found = unpacked(data)
    except _FAULTS:
        return None
    return found if isinstance(found, msgpack.Timestamp) and found.seconds >= 0 else None


M = TypeVar("M", bound="FeedMessage")
WHERE = '"beginning", "end", "last", "last_per_topic", an offset, a time, or the position of a feed reader'
_TOKEN = re.compile(r"(?P<log_id>[0-9a-f]{32}):(?P<offset>[0-9]{1,20})(@(?P<timestamp_us>[0-9]{1,20}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMessage:
    """One message, and its place in the log. ``position`` is the resume token of the place right after it.

    ``timestamp_us``, in microseconds since 1970-01-01 UTC, is when it was committed, the same for all messages of a
    fragment: offsets, not times, tell messages apart. ``published_us`` is the message's own time, at most that; where
    it was published without one, it is that.
    """

    topic: str
    message: Any
    offset: int
    timestamp_us: int
    published_us: int
    position: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery(FeedMessage):
    """A message as a subscription gives it, for the ``attempt``-th time: 1 for the first."""

    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """The offsets from ``start`` (inclusive) to ``limit`` (exclusive) are gone: they were never given here."""

    start: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stray:
    """The record at ``offset`` is no message, for that ``reason``: something else than a FeedWriter appended it.

    It is reported once, and passed. ``position`` is the resume token of the place right after it.
    """

    offset: int
    timestamp_us: int
    position: str
    reason: str


def token_of(log_id: LogId, start: int | BegunAtTime) -> str:
    """Name a place in one life of a log."""
    if isinstance(start, BegunAtTime):
        return f"{log_id}:{start.floor}@{start.timestamp_us}"
    return f"{log_id}:{start}"


def start_of(token: str, manifest: Manifest, log: str) -> int | BegunAtTime:
    """Return the place that a token names; LogReplacedError when it is one of another life of the log.

    One of the sealed log that this one follows will do: offsets go on from there.
    """
    match = _TOKEN.fullmatch(token)
    if match is None:
        raise wrong("start", WHERE, token)
    if match["log_id"] not in {manifest.log_id, manifest.follows}:
        raise LogReplacedError(
            f"feed {log}: expected a position in log {manifest.log_id}, found one in log {match['log_id']}, which had"
            f" this name before: its offsets mean nothing here; start at the beginning, or at a time"
        )
    offset, timestamp = int(match["offset"]), match["timestamp_us"]
    if not 1 <= offset <= U64_MAX or (timestamp is not None and int(timestamp) > U64_MAX):
        raise InvalidRequestError(f"feed {log}: expected a position within u64, found {token!r}")
    return offset if timestamp is None else BegunAtTime(int(timestamp), offset)


def message_of(record: Record, log_id: LogId, takes: Callable[[str], bool], make: Callable[..., M]) -> M | Stray | None:
    """Read a record for one who takes some topics; None for one of another topic, of which nothing else is looked at.

    A record that names no topic is a stray to everyone. ``make`` is ``FeedMessage``, or makes a ``Delivery``.
    """
    topic = topic_of(record.key)
    if topic is None:
        found = "none" if not record.key else f"{len(record.key)} bytes that are no text"
        return _stray(record, log_id, f"expected a topic as its key, found {found}")
    if not takes(topic):
        return None
    message, own_us, fault = unpacked_or_error(record.body)
    if fault is not None:
        return _stray(record, log_id, fault)
    at_us = record.timestamp_us
    return make(
        topic=topic,
        message=message,
        offset=record.offset,
        timestamp_us=at_us,
        published_us=at_us if own_us is None else min(own_us, at_us),
        position=f"{log_id}:{record.offset + 1}",
    )


def _stray(record: Record, log_id: LogId, reason: str) -> Stray:
    position = token_of(log_id, record.offset + 1)
    return Stray(offset=record.offset, timestamp_us=record.timestamp_us, position=position, reason=reason)


def topic_of(key: bytes | None) -> str | None:
    """Return the topic that a record's key is; None when it is none."""
    try:
        return key.decode() if key else None
    except UnicodeDecodeError:
        return None
