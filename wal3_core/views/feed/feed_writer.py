"""Publishing to a feed."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Self

from wal3_core.arguments import checked, instance_of, optional, seconds
from wal3_core.format.position import AtTime, LogPosition
from wal3_core.log.read.following import AsyncClosing, Calls
from wal3_core.log.write.writer import LogWriter
from wal3_core.options import View, WriterOptions, of_view
from wal3_core.runtime import Runtime
from wal3_core.store.object_store import ObjectStore
from wal3_core.views.feed.feed_reader import a_time
from wal3_core.views.feed.messages import packed, token_of
from wal3_core.views.feed.topics import check_topic

if TYPE_CHECKING:
    from datetime import datetime

    from wal3_core.log.write.stats import WriterStats


class FeedWriter(AsyncClosing):
    """Publishes messages to a log. Safe to share between threads; close it, or use it as a context manager.

    It writes through a ``LogWriter``, and its options are those of one: messages wait in memory until
    ``batch_bytes_max`` bytes, ``batch_records_max`` messages or ``batch_age_s_max`` seconds have come together, and
    become one fragment. No message waits longer than that age for others to come.
    """

    def __init__(self, writer: LogWriter) -> None:
        self._writer = writer
        self._async = Calls("wal3-feed")

    @classmethod
    def open(
        cls, store: ObjectStore, log: str, *, options: WriterOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Open a log for publishing: one GET. LogNotFoundError when it was never created."""
        return cls(LogWriter.open(store, log, options=of_view(options, View.FEED), runtime=runtime))

    @classmethod
    def open_or_create(
        cls, store: ObjectStore, log: str, *, options: WriterOptions | None = None, runtime: Runtime | None = None
    ) -> Self:
        """Open a log for publishing, creating it first when it does not exist."""
        return cls(LogWriter.open_or_create(store, log, options=of_view(options, View.FEED), runtime=runtime))

    @checked(topic=check_topic, timestamp=optional(a_time), timeout_s=optional(seconds))
    def publish(
        self,
        topic: str,
        message: object,
        *,
        timestamp: int | AtTime | datetime | None = None,
        timeout_s: float | None = None,
    ) -> Future[LogPosition]:
        """Queue one message; the future gets its place once it is durable, or an AppendError.

        A message is whatever msgpack has: None, a bool, a number, text, bytes, lists and dicts of these;
        InvalidRequestError for anything else. ``timestamp`` is its own time, in microseconds since 1970-01-01 UTC or as
        a datetime with a time zone, by which a read as of a time finds it: a msgpack timestamp behind the message,
        which earlier versions take for damage. Blocks only while ``bytes_held_max`` bytes wait to become durable,
        ``timeout_s`` seconds at most (0: not at all); then OverloadedError: the message is certainly not in the log.
        """
        return self._writer.submit(_packed(message, timestamp), key=topic.encode(), timeout_s=timeout_s)

    @checked(topic=check_topic, timestamp=optional(a_time), timeout_s=optional(seconds))
    def publish_async(
        self,
        topic: str,
        message: object,
        *,
        timestamp: int | AtTime | datetime | None = None,
        timeout_s: float | None = None,
    ) -> Awaitable[LogPosition]:
        """Publish one message as ``publish``, and await its place; messages of one caller stay in order.

        Cancelling withdraws no message that is on its way.
        """
        body, key = _packed(message, timestamp), topic.encode()
        return self._async.submitted(partial(self._writer.submit, body, key=key, timeout_s=timeout_s))

    @checked(place=instance_of(LogPosition))
    def position_after(self, place: LogPosition) -> str:
        """Return the resume token of the place right after a message, by the place that ``publish`` gave for it.

        A ``FeedReader`` that starts there receives what comes behind that message.
        """
        return token_of(self._writer.log_id, place.offset + 1)

    def stats(self) -> WriterStats:
        """Return what waits, for how long, and what became of the rest. Cheap; from any thread."""
        return self._writer.stats()

    def flush(self) -> None:
        """Block until everything published so far has its outcome."""
        self._writer.flush()

    def close(self) -> None:
        """Accept no more messages, and block until those published have their outcome."""
        self._writer.close()
        self._async.close()


def _packed(message: object, timestamp: int | AtTime | datetime | None) -> bytes:
    return packed(message, None if timestamp is None else a_time(timestamp, "timestamp").timestamp_us)
