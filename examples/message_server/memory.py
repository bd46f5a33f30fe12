"""The server's memory: one feed. Nothing else that the server knows has to survive it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any, TypeVar

from examples.message_server.frames import UNACKNOWLEDGED_MAX, encoded
from wal3_core import (
    AtTime,
    FeedMessage,
    FeedMovedError,
    FeedReader,
    FeedWriter,
    LogPosition,
    LogReader,
    ObjectStore,
    OverloadedError,
    ReaderOptions,
    Stray,
    WriterOptions,
)

log = logging.getLogger("message-server")
T = TypeVar("T")
MIB = 2**20
# Small fragments: each client that is behind holds a few of them.
BATCH_BYTES_MAX = MIB
HELD_BYTES_MAX = 16 * MIB
READER = ReaderOptions(prefetch_fragments=1)
# How long a client's thread waits for a message at a time; ``close`` ends it.
WAIT_S = 60.0
# What is on its way to one client at a time: as many characters, and the message that exceeds them.
ON_THE_WAY_MAX = 64 * 1024
# Not 0, with which a reader asks the store at once.
NO_WAIT_S = 1e-4


class Memory:
    """Publishes to one feed and reads it. Its methods are called from the event loop; what blocks runs in ``pool``."""

    def __init__(self, store: ObjectStore, log: str, writer: FeedWriter, pool: Executor) -> None:
        self._store = store
        self._log = log
        self._writer = writer
        self._pool = pool
        # What is not yet durable, by the id that its client has chosen.
        self._in_flight: dict[str, asyncio.Future[LogPosition]] = {}

    @classmethod
    def open(cls, store: ObjectStore, log: str, pool: Executor, *, held_bytes_max: int = HELD_BYTES_MAX) -> Memory:
        """Open the feed, and create it when there is none. ``held_bytes_max`` bytes wait to become durable."""
        options = WriterOptions(batch_bytes_max=BATCH_BYTES_MAX, bytes_held_max=held_bytes_max)
        return cls(store, log, FeedWriter.open_or_create(store, log, options=options), pool)

    def close(self) -> None:
        """Block until what was published is durable."""
        self._writer.close()

    def token(self, position: LogPosition) -> str:
        """Return the resume token of the place right after a message."""
        return self._writer.position_after(position)

    async def end(self) -> str:
        """Return the resume token of the place after the last message."""
        return await self._in_thread(lambda: FeedReader.open(self._store, self._log, start="end").position)

    # ------------------------------------------------------------------ publishing

    def publish(self, message_id: str, topic: str, body: object) -> asyncio.Future[LogPosition] | None:
        """Publish a message; the future gets its place once it is durable. None while too much waits for that."""
        try:
            outcome = self._writer.publish(topic, {"id": message_id, "body": body}, timeout_s=0)
        except OverloadedError:
            return None
        future = self._in_flight[message_id] = asyncio.wrap_future(outcome)
        future.add_done_callback(lambda done: self._landed(message_id, done))
        return future

    def _landed(self, message_id: str, done: asyncio.Future[LogPosition]) -> None:
        if not done.cancelled():
            # Its client may be gone: without a look at it, asyncio reports a failure that no task has seen.
            done.exception()
        if self._in_flight.get(message_id) is done:
            del self._in_flight[message_id]

    async def published(self, ids: list[str], after: str) -> dict[str, str]:
        """Return which of some messages are in the feed behind a place, with the token of each.

        The answer stays true as long as no other connection publishes them: what is on its way is awaited first.
        """
        assert len(ids) <= UNACKNOWLEDGED_MAX
        on_their_way = [self._in_flight[each] for each in ids if each in self._in_flight]
        if on_their_way:
            await asyncio.wait(on_their_way)
        return await self._in_thread(partial(self._find, frozenset(ids), after)) if ids else {}

    def _find(self, ids: frozenset[str], after: str) -> dict[str, str]:
        end = self._end_offset()
        reader = FeedReader.open(self._store, self._log, start=after, options=READER)
        found: dict[str, str] = {}
        while len(found) < len(ids) and (item := reader.recv(0)) is not None and item.offset < end:
            message_id = None if isinstance(item, Stray) else parts(item)[0]
            if message_id in ids:
                found.setdefault(message_id, item.position)
        return found

    # ------------------------------------------------------------------ reading

    async def follow(self, topics: list[str], start: str | AtTime) -> Follower:
        """Begin to read at a token, ``beginning``, ``end`` or a time."""
        return await self._in_thread(partial(self._follow, topics, start))

    def _follow(self, topics: list[str], start: str | AtTime) -> Follower:
        reader = FeedReader.open(self._store, self._log, start=start, topics=topics, options=READER)
        resumed = isinstance(start, str) and start not in {"beginning", "end"}
        return Follower(reader, self._end_offset() if resumed else 0, self._pool)

    def _end_offset(self) -> int:
        return LogReader.open(self._store, self._log, options=READER).manifest().next.position.offset

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


class Follower:
    """One client's place in the feed. No messages wait for a client in memory but those of one batch."""

    def __init__(self, reader: FeedReader, missed_limit: int, pool: Executor) -> None:
        self._reader = reader
        self._missed_limit = missed_limit
        self._pool = pool

    @property
    def token(self) -> str:
        """The resume token of the place after the last message taken."""
        return self._reader.position

    @property
    def ended(self) -> bool:
        """Whether no more messages will come: the log is sealed."""
        return self._reader.ended

    async def take(self) -> list[str]:
        """Return the next messages as frames, none if there are none for ``WAIT_S`` seconds."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._take)

    def close(self) -> None:
        """End a ``take`` that waits: its client is gone."""
        self._reader.close()

    def _take(self) -> list[str]:
        frames: list[str] = []
        num_chars = 0
        # If the feed goes on in another log, its clients hear that this one is sealed.
        with contextlib.suppress(FeedMovedError):
            item = self._reader.recv(WAIT_S)
            while item is not None:
                if isinstance(item, Stray):
                    log.warning("record %d is no message, and is passed: %s", item.offset, item.reason)
                else:
                    frames.append(self._frame(item))
                    num_chars += len(frames[-1])
                item = self._reader.recv(NO_WAIT_S) if num_chars < ON_THE_WAY_MAX else None
        return frames

    def _frame(self, message: FeedMessage) -> str:
        message_id, body = parts(message)
        frame = {
            "type": "message",
            "id": message_id,
            "topic": message.topic,
            "body": body,
            "timestamp_us": message.timestamp_us,
            "token": message.position,
            "missed": message.offset < self._missed_limit,
        }
        return encoded(frame)


def parts(message: FeedMessage) -> tuple[str | None, Any]:
    """Return the id and the body of a message; one that another program published has no id."""
    match message.message:
        case {"id": str(message_id), "body": body, **more} if not more:
            return message_id, body
        case other:
            return None, other
