"""Receiving from a feed, from any place or time on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, optional, seconds
from wal3_core.log.read.scan import BegunAtTime
from wal3_core.model.paths import check_log_name
from wal3_core.options import ReaderOptions
from wal3_core.runtime import Runtime, a_runtime, shared_runtime
from wal3_core.storage.object_store import a_store
from wal3_core.views.feed.feed_start import FeedStart, a_time, begun_at, ends, feed_start
from wal3_core.views.feed.looking import Looking
from wal3_core.views.feed.messages import FeedMessage, message_of, token_of, topic_of
from wal3_core.views.feed.tail import Tail, TimeIsOverError, tail_of
from wal3_core.views.feed.topics import EVERY_TOPIC, TopicFilter, check_patterns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
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
    Nothing is skipped: a message that was collected before it was received is a GarbageCollectedError. In a log that is
    compacted by key, messages that a newer one of their topic has superseded are not received.
    """

    def __init__(self, tail: Tail, log: str, runtime: Runtime, topics: tuple[str, ...]) -> None:
        self._tail = tail
        self._log = log
        self._runtime = runtime
        self._filter = TopicFilter(topics)
        self._log_id = tail.newest(0.0).log_id
        self._looking = Looking(tail, runtime)

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
        topics: str | Sequence[str] = EVERY_TOPIC,
        options: ReaderOptions | None = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Open a log for receiving: one GET. ``start`` is a place, a time (inclusive), or the token of a place.

        ``topics`` are patterns such as ``sensors/*``, of which a topic has to match one; ``*`` stands for any text.
        LogNotFoundError when there is no log, LogReplacedError for a token of a log that had this name before,
        GarbageCollectedError when the place is gone.
        """
        runtime = runtime or shared_runtime()
        assert not isinstance(topics, str)
        reader = cls(tail_of(store, log, options or ReaderOptions(), runtime), log, runtime, tuple(topics))
        assert not hasattr(start, "tzinfo")
        reader._begin(begun_at(start, reader._tail.newest(0.0), log))
        return reader

    @property
    def position(self) -> str:
        """The resume token of the place right after the last message received: a short text."""
        return token_of(self._log_id, self._place)

    @property
    def ended(self) -> bool:
        """Whether the log is sealed, and all its messages were received."""
        return not self._ready and self._following.sealed is not None

    @checked(timeout_s=optional(seconds))
    def recv(self, timeout_s: float | None = None) -> FeedMessage | None:
        """Return the next message, as soon as there is one; None after ``timeout_s`` seconds, or once it ``ended``.

        Without a timeout it waits for ever; with 0 it looks at the log, to its end, and does not wait. A commit of this
        process wakes it at once. Others are found by polling, as ``ReaderOptions`` say: all readers of the log together
        cost one conditional GET per poll. FeedMovedError, naming it, when the log is sealed, all its messages were
        received, and the feed goes on in a successor. ClosedError once another thread has called ``close``.
        """
        limit_s = None if timeout_s is None else self._runtime.monotonic_s() + timeout_s
        while True:
            self._looking.begin(limit_s, at_once=timeout_s == 0)
            message = None
            try:
                message = self._next(limit_s if timeout_s else None)
            except TimeIsOverError:
                if not self._looking.is_over(limit_s):
                    # The look goes on: it need not be news for those that wait.
                    continue
            if message is not None or ends(self, self._following, self._tail.url) or not self._looking.pause(limit_s):
                return message

    @checked(timestamp=a_time, timeout_s=optional(seconds))
    def recv_as_of(self, timestamp: int | AtTime | datetime, timeout_s: float | None = None) -> FeedMessage | None:
        """Go to a time, back or forward, and return the first message that was committed at that time or later.

        ``timestamp`` is in microseconds since 1970-01-01 UTC, or a datetime with a time zone. Of messages with the same
        time the first is returned, and ``recv`` gives the others. It opens no fragment that ends before the time.
        ``timeout_s`` as ``recv``.
        """
        at = a_time(timestamp, "timestamp")
        self._begin(begun_at(at, self._tail.newest(self._runtime.monotonic_s()), self._log))
        return self.recv(timeout_s)

    def close(self) -> None:
        """End ``recv``, now and later, with ClosedError: from any thread. A reader that is not closed costs nothing."""
        self._looking.close()

    def __iter__(self) -> Iterator[FeedMessage]:
        """Go through the messages, and wait for more, until the feed has ``ended``. Errors as ``recv``."""
        while (message := self.recv()) is not None:
            yield message

    def _begin(self, place: int | BegunAtTime) -> None:
        self._place = place
        self._following: Following = self._tail.followed(place, self._manifest)
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

    def _next(self, until_s: float | None) -> FeedMessage | None:
        """Return the next message that the log holds now; what no pattern matches is passed, until a time."""
        if self._torn:
            self._following.go_back(self._place)
            self._clear()
        while self._ready or self._take():
            record = self._ready[0]
            topic = topic_of(record, self._tail.url)
            taken = self._filter.takes(topic)
            message = message_of(record, topic, self._log_id, self._tail.url) if taken else None
            self._place = record.offset + 1
            self._ready.popleft()
            if message is not None:
                return message
            if until_s is not None and self._runtime.monotonic_s() >= until_s:
                break
        return None

    def _take(self) -> bool:
        self._torn = True
        self._ready = deque(self._following.take(self._take_max, BYTES_TAKEN_MAX))
        self._take_max = 1 if len(self._ready) < self._take_max else min(2 * self._take_max, RECORDS_TAKEN_MAX)
        if not self._ready:
            start = self._following.start
            assert isinstance(start, int | BegunAtTime)
            self._place = start
        self._torn = False
        return bool(self._ready)
