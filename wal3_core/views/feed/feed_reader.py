"""Receiving from a feed, from any place or time on."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, optional, seconds
from wal3_core.log.read.following import Calls
from wal3_core.log.read.scan import BegunAtTime
from wal3_core.model.paths import check_log_name
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.object_store import a_store
from wal3_core.views.feed.feed_start import FeedStart, a_time, begun_at, ends, feed_start
from wal3_core.views.feed.looking import Looking
from wal3_core.views.feed.messages import FeedMessage, Stray, message_of, token_of
from wal3_core.views.feed.tail import Tail, TimeIsOverError, tail_of
from wal3_core.views.feed.topics import EVERY_TOPIC, Pattern, TopicFilter, check_patterns
from wal3_core.views.feed.vigil import Call

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence
    from datetime import datetime

    from wal3_core.log.read.following import Following
    from wal3_core.model.manifest import Manifest
    from wal3_core.model.position import AtTime
    from wal3_core.model.record import Record
    from wal3_core.storage.object_store import ObjectStore

# Records read ahead of the caller, and their bytes.
RECORDS_TAKEN_MAX = 256
BYTES_TAKEN_MAX = 2**22


class FeedReader:
    """Receives the messages of a log in order, from a place on. Owns no thread; one thread at a time receives.

    Readers of one log and store in a process share what they fetch: a hundred of them cost one GET per new fragment.
    No message is skipped: one that was collected before it was received is a GarbageCollectedError. A record that is
    no message is passed: it is received once, as a ``Stray``. In a log that is compacted by key, messages that a newer
    one of their topic has superseded are not received.

    In asyncio, iterate by ``async for``, or await ``recv_async`` and ``recv_as_of_async``.
    """

    def __init__(self, tail: Tail, log: str, runtime: Runtime, topics: tuple[Pattern, ...]) -> None:
        self._tail = tail
        self._log = log
        self._runtime = runtime
        self._filter = TopicFilter(topics)
        self._log_id = tail.newest(0.0).log_id
        self._looking = Looking(tail, runtime)
        # One thread: a call that was cancelled has ended, and given back its message, before the next one begins.
        self._async = Calls("wal3-feed")
        self._num_strays = 0

    @classmethod
    @checked(
        store=a_store,
        log=check_log_name,
        start=feed_start,
        topics=check_patterns,
        options=optional(instance_of(ReaderOptions)),
        runtime=optional(a_runtime),
    )
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
        reader = cls(tail, log, runtime, check_patterns(topics, "topics"))
        reader._begin(feed_start(start, "start"), 0.0)
        return reader

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

    @checked(timeout_s=optional(seconds))
    def recv(self, timeout_s: float | None = None) -> FeedMessage | Stray | None:
        """Return the next message, as soon as there is one; None after ``timeout_s`` seconds, or once it ``ended``.

        Without a timeout it waits for ever; with 0 it looks at the log, to its end, and does not wait. A commit of this
        process wakes it at once. Others are found by polling, as ``ReaderOptions`` say: all readers of the log together
        cost one conditional GET per poll. FeedMovedError, naming it, when the log is sealed, all its messages were
        received, and the feed goes on in a successor. ClosedError once another thread has called ``close``.
        """
        return self._looking.called(Call(), partial(self._recv, timeout_s))

    def _recv(self, timeout_s: float | None, call: Call) -> FeedMessage | Stray | None:
        limit_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        while not call.called_off:
            self._looking.begin(limit_s, call, at_once=timeout_s == 0)
            item = None
            try:
                item = self._next(limit_s if timeout_s else None)
            except TimeIsOverError:
                if not self._looking.is_over(limit_s):
                    # The look goes on: it need not be news for those that wait.
                    continue
            over = item is not None or ends(self, self._following, self._place, self._tail.url)
            if over or not self._looking.pause(limit_s, call):
                return item
        return None

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

    @checked(timeout_s=optional(seconds))
    async def recv_async(self, timeout_s: float | None = None) -> FeedMessage | Stray | None:
        """Await ``recv``. When its caller is cancelled, no message is lost: the next call returns it."""
        call = Call()
        return await self._async.made(
            partial(self._looking.called, call, partial(self._recv, timeout_s)),
            wake=partial(self._looking.call_off, call),
            give_back=self._give_back,
        )

    @checked(timestamp=a_time, timeout_s=optional(seconds))
    async def recv_as_of_async(
        self, timestamp: int | AtTime | datetime, timeout_s: float | None = None
    ) -> FeedMessage | Stray | None:
        """Await ``recv_as_of``."""
        await self._async.made(partial(self._begin, a_time(timestamp, "timestamp"), self._runtime.monotonic_s()))
        return await self.recv_async(timeout_s)

    def close(self) -> None:
        """End ``recv``, now and later, with ClosedError: from any thread. A reader that is not closed costs nothing."""
        self._looking.close()
        self._async.close()

    def __iter__(self) -> Iterator[FeedMessage | Stray]:
        """Go through the messages, and wait for more, until the feed has ``ended``. Errors as ``recv``."""
        while (item := self.recv()) is not None:
            yield item

    async def __aiter__(self) -> AsyncGenerator[FeedMessage | Stray, None]:
        """Go through the messages from asyncio, as ``iter``."""
        while (item := await self.recv_async()) is not None:
            yield item

    def _begin(self, start: str | int | AtTime, since_s: float) -> None:
        manifest = self._tail.newest(since_s)
        begun = begun_at(start, manifest, self._log, tail=self._tail, takes=self._filter.takes)
        self._place, self._passed = begun.place, begun.passed
        # The time that is waited for, until a message of that time was found.
        self._as_of_us = begun.place.timestamp_us if isinstance(begun.place, BegunAtTime) else None
        self._following: Following = self._tail.followed(begun.place, self._manifest)
        self._clear()

    def _clear(self) -> None:
        self._ready: deque[Record] = deque()
        # Set while records are on their way: after an interrupt they are read again.
        self._torn = False
        # More each time: the first message waits for no fragments but its own.
        self._take_max = 1

    def _manifest(self) -> Manifest:
        start = self._following.start
        return self._looking.manifest(start if isinstance(start, int) else None)

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
        item = message_of(record, self._log_id, self._filter.takes)
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
