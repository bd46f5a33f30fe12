"""Receiving from a feed, from any place or time on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Self

from wal3_core.arguments import checked, integer, optional, seconds, text, wrong
from wal3_core.errors import InvalidRequestError
from wal3_core.format.manifest import Manifest
from wal3_core.format.offset_ranges import OffsetRanges
from wal3_core.format.paths import check_log_name
from wal3_core.format.position import AtTime
from wal3_core.format.record import Record
from wal3_core.log.read.scan import BegunAtTime, begun, check_start, newest_first
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.store.object_store import ObjectStore, a_store
from wal3_core.views.feed.messages import WHERE, FeedMessage, Stray, message_of, start_of, token_of
from wal3_core.views.feed.tail import Follower, SharedTailReader, tail_of
from wal3_core.views.feed.topics import EVERY_TOPIC, Pattern, check_patterns

# "beginning", "end", "last", "last_per_topic", an offset, the position of a feed reader or of a message, or a time.
FeedStart = str | int | AtTime | datetime
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


def begun_at(
    start: str | int | AtTime, manifest: Manifest, log: str, *, tail: SharedTailReader, takes: Callable[[str], bool]
) -> tuple[int | BegunAtTime, OffsetRanges]:
    """Return where a read of some topics starts, and what lies behind that place and is passed.

    To find the last message, fragments are read back to it; to find each topic's, the keys of the whole log.
    GarbageCollectedError when the log no longer holds the place.
    """
    if start == "last":
        return tail.with_reloads(manifest, partial(_last, tail, takes)), OffsetRanges()
    if start == "last_per_topic":
        return tail.with_reloads(manifest, partial(_last_per_topic, tail, takes))
    return _fixed(start, manifest, log), OffsetRanges()


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


def _last(tail: SharedTailReader, takes: Callable[[str], bool], manifest: Manifest) -> int:
    for topics in tail.topics(newest_first(manifest.pointers, tail.load_snapshot)):
        found = [offset for offset, topic in topics if topic is not None and takes(topic)]
        if found:
            return found[-1]
    return manifest.next.position.offset


def _last_per_topic(
    tail: SharedTailReader, takes: Callable[[str], bool], manifest: Manifest
) -> tuple[int, OffsetRanges]:
    seen: set[str] = set()
    last = []
    for topics in tail.topics(newest_first(manifest.pointers, tail.load_snapshot)):
        for offset, topic in reversed(topics):
            if topic is not None and topic not in seen and takes(topic):
                seen.add(topic)
                last.append(offset)
    end = manifest.next.position.offset
    wanted = OffsetRanges.of((offset, offset + 1) for offset in last)
    place = wanted.ranges[0][0] if last else end
    return place, OffsetRanges(tuple(wanted.missing(place, end)))


def num_behind(tail: SharedTailReader, manifest: Manifest, start: int, is_wanted: Callable[[int, str], bool]) -> int:
    """Count the messages from an offset on that are wanted, by the keys that are stored there."""

    def count(manifest: Manifest) -> int:
        first = max(start, manifest.first.position.offset)
        pointers = tail.pointers(min(first, manifest.next.position.offset), manifest=manifest)
        return sum(
            offset >= first and topic is not None and is_wanted(offset, topic)
            for topics in tail.topics(pointers)
            for offset, topic in topics
        )

    return tail.with_reloads(manifest, count)


# Records read ahead of the caller, and their bytes.
RECORDS_TAKEN_MAX = 256
BYTES_TAKEN_MAX = 2**22


class FeedReader(Follower[FeedMessage | Stray]):
    """Receives the messages of a log in order, from a place on. Owns no thread; one thread at a time receives.

    Readers of one log and store in a process share what they fetch: a hundred of them cost one GET per new fragment.
    No message is skipped: one that was collected before it was received is a GarbageCollectedError. A record that is
    no message is passed: it is received once, as a ``Stray``. In a log that is compacted by key, messages that a newer
    one of their topic has superseded are not received.

    In asyncio, iterate by ``async for``, or await ``recv_async`` and ``recv_as_of_async``.
    """

    def __init__(
        self, tail: SharedTailReader, log: str, runtime: Runtime, topics: tuple[Pattern, ...], start: str | int | AtTime
    ) -> None:
        super().__init__(tail, runtime, topics)
        self._log = log
        self._begin(start, 0.0)

    @classmethod
    @checked(store=a_store, log=check_log_name, start=feed_start, topics=check_patterns)
    def open(
        cls,
        store: ObjectStore,
        log: str,
        *,
        start: FeedStart = "beginning",
        topics: Pattern | Sequence[Pattern] = EVERY_TOPIC,
        options: ReaderOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a log for receiving: one GET. ``start`` is a place, a time (inclusive), or the token of a place.

        A place is ``beginning``, ``end``, an offset, ``last`` (the last message of the topics) or ``last_per_topic``
        (each topic's last message, then all that follow): the last two are looked for in the log's keys, back from its
        end, for ``last_per_topic`` in all of them. ``topics`` are patterns such as ``sensors/*``, of which a topic has
        to match one; ``*`` stands for any text, in ``Levels`` for text within a level. LogNotFoundError when there is
        no log, LogReplacedError for a token of a log that had this name before, GarbageCollectedError when the place is
        gone.
        """
        runtime = runtime or shared_runtime()
        tail = tail_of(store, log, options or ReaderOptions(), runtime)
        return cls(tail, log, runtime, check_patterns(topics, "topics"), feed_start(start, "start"))

    @property
    def position(self) -> str:
        """The resume token of the place right after the last message received: a short text."""
        return token_of(self._log_id, self._place)

    @property
    def num_strays(self) -> int:
        """How many records that are no messages it has received and passed."""
        return self._num_strays

    @property
    def ended(self) -> bool:
        """Whether the log is sealed, and all its messages were received."""
        return not self._ready and self._following.sealed is not None

    @checked(timestamp=a_time, timeout_s=optional(seconds))
    def recv_as_of(
        self, timestamp: int | AtTime | datetime, timeout_s: float | None = None
    ) -> FeedMessage | Stray | None:
        """Go to a time, back or forward, and return the first message that was published at that time or later.

        ``timestamp`` is in microseconds since 1970-01-01 UTC, or a datetime with a time zone. A message without a time
        of its own was published when it was committed. Of messages with the same time the first is returned, and
        ``recv`` gives all that follow. It opens no fragment that ends before the time. ``timeout_s`` as ``recv``.
        """
        self._begin(a_time(timestamp, "timestamp"), self._runtime.monotonic_s())
        return self.recv(timeout_s)

    @checked(timestamp=a_time, timeout_s=optional(seconds))
    async def recv_as_of_async(
        self, timestamp: int | AtTime | datetime, timeout_s: float | None = None
    ) -> FeedMessage | Stray | None:
        """Await ``recv_as_of``."""
        await self._receiving.made(partial(self._begin, a_time(timestamp, "timestamp"), self._runtime.monotonic_s()))
        return await self.recv_async(timeout_s)

    def _begin(self, start: str | int | AtTime, since_s: float) -> None:
        manifest = self._tail.newest(since_s)
        place, self._passed = begun_at(start, manifest, self._log, tail=self._tail, takes=self._takes)
        # The time that is waited for, until a message of that time was found.
        self._as_of_us = place.timestamp_us if isinstance(place, BegunAtTime) else None
        self._place, self._following = place, self._tail.followed(place, self._newer)
        self._clear()

    def _clear(self) -> None:
        self._ready: deque[Record] = deque()
        # Set while records are on their way: after an interrupt they are read again.
        self._torn = False
        # More each time: the first message waits for no fragments but its own.
        self._take_max = 1

    def _newer(self) -> Manifest:
        start = self._following.start
        return self._manifest(start if isinstance(start, int) else None)

    def _next(self, until_s: float | None) -> FeedMessage | Stray | None:
        """Return the next message that the log holds now; what no pattern matches is passed, until a time."""
        if self._torn:
            self._following.go_back(self._place)
            self._clear()
        while self._ready or self._take():
            item = self._item_of(self._ready[0])
            self._place = self._place_at(self._ready[0].offset + 1)
            self._ready.popleft()
            if item is not None:
                self._num_strays += isinstance(item, Stray)
                return item
            if until_s is not None and self._runtime.monotonic_s() >= until_s:
                break
        return None

    def _item_of(self, record: Record) -> FeedMessage | Stray | None:
        if record.offset in self._passed:
            return None
        item = message_of(record, self._log_id, self._takes, FeedMessage)
        if self._as_of_us is not None and isinstance(item, FeedMessage):
            if item.published_us < self._as_of_us:
                return None
            self._as_of_us = None
        return item

    def _place_at(self, offset: int) -> int | BegunAtTime:
        return offset if self._as_of_us is None else BegunAtTime(self._as_of_us, offset)

    def _give_back(self, item: FeedMessage | Stray | None) -> None:
        """Go back to before an item whose caller is gone."""
        if item is not None:
            self._place, self._torn = self._place_at(item.offset), True
            self._num_strays -= isinstance(item, Stray)

    def _take(self) -> bool:
        self._torn = True
        self._ready = deque(self._following.take(self._take_max, BYTES_TAKEN_MAX))
        self._take_max = 1 if len(self._ready) < self._take_max else min(2 * self._take_max, RECORDS_TAKEN_MAX)
        if not self._ready:
            start = self._following.start
            assert isinstance(start, int | BegunAtTime)
            self._place = self._place_at(start) if isinstance(start, int) else start
        self._torn = False
        return bool(self._ready)
