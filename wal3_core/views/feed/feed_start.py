"""Where a feed is read from: its beginning, its end, a time, or the place that a token names."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Protocol

from wal3_core.arguments import integer, text, wrong
from wal3_core.errors import FeedMovedError, InvalidRequestError
from wal3_core.log.read.scan import BegunAtTime, begun, check_start
from wal3_core.model.position import AtTime
from wal3_core.views.feed.messages import start_of, token_of

if TYPE_CHECKING:
    from wal3_core.log.read.following import Following
    from wal3_core.model.manifest import Manifest

# "beginning", "end", the position of a feed reader or of a message, or a time.
FeedStart = str | AtTime | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def a_time(value: object, name: str) -> AtTime:
    """Take a time from a caller: microseconds since 1970-01-01 UTC, or a datetime with a time zone."""
    if isinstance(value, AtTime):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise wrong(name, "a datetime with a time zone", value)
        return AtTime(max(0, (value - _EPOCH) // timedelta(microseconds=1)))
    try:
        return AtTime(integer(value, name))
    except InvalidRequestError:
        raise wrong(name, "microseconds since 1970, or a datetime with a time zone", value) from None


def feed_start(value: object, name: str) -> str | AtTime:
    """Take a ``FeedStart`` from a caller."""
    if isinstance(value, AtTime | datetime):
        return a_time(value, name)
    return text(value, name)


def begun_at(start: str | AtTime, manifest: Manifest, log: str) -> int | BegunAtTime:
    """Fix the place where a read starts; GarbageCollectedError when the log no longer holds it."""
    place: int | BegunAtTime
    match start:
        case "beginning":
            place = manifest.first.position.offset
        case "end":
            place = manifest.next.position.offset
        case AtTime():
            fixed = begun(manifest, start)
            assert isinstance(fixed, BegunAtTime)
            place = fixed
        case _:
            place = start_of(start, manifest, log)
    check_start(manifest, place)
    return place


class _Follower(Protocol):
    @property
    def ended(self) -> bool: ...


def ends(follower: _Follower, following: Following | None, log: str) -> bool:
    """Return whether a feed has ended; FeedMovedError if it goes on in another log, a successor."""
    ended = follower.ended
    sealed = following.sealed if ended and following is not None else None
    if following is not None and sealed is not None and sealed.seal is not None and sealed.seal.successor is not None:
        successor, offset = sealed.seal.successor, sealed.next.position.offset
        # A time that the log has not reached is waited for in the other one.
        position = token_of(sealed.log_id, following.start if isinstance(following.start, BegunAtTime) else offset)
        message = (
            f"feed {log}: expected an open log, found it sealed at offset {offset}, and all its messages received: the"
            f" feed goes on in log {successor}: open that one at {position}"
        )
        raise FeedMovedError(message, successor=successor, position=position)
    return ended
