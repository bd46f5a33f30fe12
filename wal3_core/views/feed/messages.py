"""What a feed gives: messages and gaps, and the text that names a place between two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wal3_core.arguments import wrong
from wal3_core.errors import CorruptError, InvalidRequestError, LogReplacedError
from wal3_core.log.read.scan import BegunAtTime
from wal3_core.model.strict_json import U64_MAX
from wal3_core.views.feed.encoding import unpacked_or_error

if TYPE_CHECKING:
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.paths import LogId
    from wal3_core.model.record import Record

_TOKEN = re.compile(r"(?P<log_id>[0-9a-f]{32}):(?P<offset>[0-9]{1,20})(@(?P<timestamp_us>[0-9]{1,20}))?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedMessage:
    """One message, and its place in the log. ``position`` is the resume token of the place right after it.

    ``timestamp_us``, in microseconds since 1970-01-01 UTC, is the same for all messages of a fragment: offsets, not
    times, tell messages apart.
    """

    topic: str
    message: Any
    offset: int
    timestamp_us: int
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
        raise wrong("start", '"beginning", "end", a time, or the position of a feed reader', token)
    if match["log_id"] not in {manifest.log_id, manifest.follows}:
        message = (
            f"feed {log}: expected a position in log {manifest.log_id}, found one in log {match['log_id']}, which had"
            f" this name before: its offsets mean nothing here; start at the beginning, or at a time"
        )
        raise LogReplacedError(message)
    offset, timestamp = int(match["offset"]), match["timestamp_us"]
    if not 1 <= offset <= U64_MAX or (timestamp is not None and int(timestamp) > U64_MAX):
        message = f"feed {log}: expected a position within u64, found {token!r}"
        raise InvalidRequestError(message)
    return offset if timestamp is None else BegunAtTime(int(timestamp), offset)


def topic_of(record: Record, url: str) -> str:
    """Return a record's topic; CorruptError for a record that is no message."""
    try:
        if record.key and record.body is not None:
            return record.key.decode()
    except UnicodeDecodeError:
        pass
    raise _no_message(record, url, "expected a topic as its key, and a message as its body, found another record")


def message_of(record: Record, topic: str, log_id: LogId, url: str) -> FeedMessage:
    """Decode the message of a record."""
    return FeedMessage(
        topic=topic,
        message=_value_of(record, url),
        offset=record.offset,
        timestamp_us=record.timestamp_us,
        position=f"{log_id}:{record.offset + 1}",
    )


def delivery_of(record: Record, topic: str, log_id: LogId, url: str) -> Delivery:
    """Decode the message of a record, for its first delivery."""
    return Delivery(
        topic=topic,
        message=_value_of(record, url),
        offset=record.offset,
        timestamp_us=record.timestamp_us,
        position=f"{log_id}:{record.offset + 1}",
        attempt=1,
    )


def _value_of(record: Record, url: str) -> Any:  # noqa: ANN401 - a message is any value
    """Decode what a record carries; CorruptError when that is no msgpack."""
    value, fault = unpacked_or_error(record.body or b"")
    if fault is not None:
        raise _no_message(record, url, f"expected one msgpack value as its body, found {fault}")
    return value


def _no_message(record: Record, url: str, what: str) -> CorruptError:
    return CorruptError(
        f"feed {url}: record {record.offset}: {what}: something else than a FeedWriter appended it; to pass it, start"
        f" at offset {record.offset + 1}"
    )
