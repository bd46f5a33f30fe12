"""Where a feed is read from: its beginning, its end, its last messages, an offset, a time, or a token's place."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from wal3_core.arguments import integer, text, wrong
from wal3_core.errors import FeedMovedError, InvalidRequestError, MissingError
from wal3_core.log.read.scan import BegunAtTime, begun, check_start
from wal3_core.model.offset_ranges import OffsetRanges
from wal3_core.model.position import AtTime
from wal3_core.views.feed.messages import WHERE, start_of, token_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from wal3_core.log.read.following import Following
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.position import ReadStart
    from wal3_core.views.feed.tail import Tail

T = TypeVar("T")

# "beginning", "end", "last", "last_per_topic", an offset, the position of a feed reader or of a message, or a time.
FeedStart = str | int | AtTime | datetime
# A log whose objects are replaced while they are looked through is looked through again, as often.
_LOOKS_MAX = 5
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


def feed_start(value: object, name: str) -> str | int | AtTime:
    """Take a ``FeedStart`` from a caller."""
    if isinstance(value, AtTime | datetime):
        return a_time(value, name)
    if isinstance(value, str):
        return text(value, name)
    try:
        offset = integer(value, name)
    except InvalidRequestError:
        raise wrong(name, WHERE, value) from None
    if offset < 1:
        raise wrong(name, "an offset from 1 on", value)
    return offset


@dataclass(frozen=True, slots=True)
class Begun:
    """Where a read starts, and what lies behind that place and is passed."""

    place: int | BegunAtTime
    passed: OffsetRanges = field(default_factory=OffsetRanges)


def begun_at(
    start: str | int | AtTime, manifest: Manifest, log: str, *, tail: Tail, takes: Callable[[str], bool]
) -> Begun:
    """Fix where a read of some topics starts; GarbageCollectedError when the log no longer holds that place.

    To find the last message, fragments are read back to it; to find each topic's, the keys of the whole log.
    """
    if start == "last":
        return Begun(_looked_up(tail, manifest, partial(_last, tail, takes)))
    if start == "last_per_topic":
        return _looked_up(tail, manifest, partial(_last_per_topic, tail, takes))
    return Begun(_fixed(start, manifest, log))


def _fixed(start: str | int | AtTime, manifest: Manifest, log: str) -> int | BegunAtTime:
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
        case int():
            if start > manifest.next.position.offset:
                message = f"start: expected an offset from 1 to {manifest.next.position.offset}, found {start}"
                raise InvalidRequestError(message)
            place = start
        case _:
            place = start_of(start, manifest, log)
    check_start(manifest, place)
    return place


def _looked_up(tail: Tail, manifest: Manifest, look: Callable[[Manifest], T]) -> T:
    """Look through a log; again in the newest manifest, if objects of the one before were replaced meanwhile."""
    left = _LOOKS_MAX
    while True:
        try:
            return look(manifest)
        except MissingError:
            before, manifest, left = manifest, tail.manifest(), left - 1
            if not left or manifest == before:
                raise


def _last(tail: Tail, takes: Callable[[str], bool], manifest: Manifest) -> int:
    for topics in tail.topics(tail.newest_first(manifest)):
        found = [offset for offset, topic in topics if topic is not None and takes(topic)]
        if found:
            return found[-1]
    return manifest.next.position.offset


def _last_per_topic(tail: Tail, takes: Callable[[str], bool], manifest: Manifest) -> Begun:
    seen: set[str] = set()
    last = []
    for topics in tail.topics(tail.newest_first(manifest)):
        for offset, topic in reversed(topics):
            if topic is not None and topic not in seen and takes(topic):
                seen.add(topic)
                last.append(offset)
    end = manifest.next.position.offset
    wanted = OffsetRanges.of((offset, offset + 1) for offset in last)
    place = wanted.ranges[0][0] if last else end
    return Begun(place, OffsetRanges(tuple(wanted.missing(place, end))))


def num_behind(tail: Tail, manifest: Manifest, start: int, is_wanted: Callable[[int, str], bool]) -> int:
    """Count the messages from an offset on that are wanted, by the keys that are stored there."""

    def count(manifest: Manifest) -> int:
        first = max(start, manifest.first.position.offset)
        pointers = tail.pointers(min(first, manifest.next.position.offset), manifest=manifest)
        return sum(
            offset >= first and topic is not None and is_wanted(offset, topic)
            for topics in tail.topics(pointers)
            for offset, topic in topics
        )

    return _looked_up(tail, manifest, count)


class _Follower(Protocol):
    @property
    def ended(self) -> bool: ...


def ends(follower: _Follower, following: Following | None, place: ReadStart, log: str) -> bool:
    """Return whether a feed has ended; FeedMovedError if it goes on in another log, a successor."""
    ended = follower.ended
    sealed = following.sealed if ended and following is not None else None
    if following is not None and sealed is not None and sealed.seal is not None and sealed.seal.successor is not None:
        successor, offset = sealed.seal.successor, sealed.next.position.offset
        # A time that the log has not reached is waited for in the other one.
        position = token_of(sealed.log_id, place if isinstance(place, BegunAtTime) else offset)
        message = (
            f"feed {log}: expected an open log, found it sealed at offset {offset}, and all its messages received: the"
            f" feed goes on in log {successor}: open that one at {position}"
        )
        raise FeedMovedError(message, successor=successor, position=position)
    return ended
