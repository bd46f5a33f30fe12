"""One client's WebSocket: what it publishes, the answers to that, and what it follows."""

from __future__ import annotations

import asyncio
from contextlib import closing
from typing import TYPE_CHECKING, TypeGuard

from starlette.websockets import WebSocket, WebSocketDisconnect

from examples.message_server.frames import (
    BAD_FRAME,
    DONE,
    FAILED,
    ID_CHARS_MAX,
    NOT_TEXT,
    UNACKNOWLEDGED_MAX,
    BadFrameError,
    Frame,
    decoded,
    encoded,
)
from wal3_core import AtTime, GarbageCollectedError, InvalidRequestError, LogError, LogPosition, LogReplacedError

if TYPE_CHECKING:
    from examples.message_server.memory import Follower, Memory

# A client that takes nothing for so long is disconnected, and gets the rest when it comes back.
SEND_S_MAX = 30.0
OVERLOADED_PAUSE_S = 0.05
# A close frame has room for 123 bytes.
REASON_CHARS_MAX = 40


class ClosingError(Exception):
    """The connection ends, with a WebSocket close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Connection:
    """Serves one client. ``publishers`` has the connection of each publisher: one publishes through one at a time."""

    def __init__(self, socket: WebSocket, memory: Memory, publishers: dict[str, Connection]) -> None:
        self._socket = socket
        self._memory = memory
        self._publishers = publishers
        self._publisher: str | None = None
        self._before: Connection | None = None
        self._following = False
        self._overloaded = False
        self._answers: asyncio.Queue[tuple[str, asyncio.Future[LogPosition]]] = asyncio.Queue(UNACKNOWLEDGED_MAX)
        self._work: asyncio.Task[None] | None = None

    async def serve(self) -> None:
        """Serve the client until it or the server ends the connection."""
        await self._socket.accept()
        self._work = asyncio.create_task(self._serve())
        try:
            await asyncio.wait({self._work})
        finally:
            await self.stop()
            if self._publisher is not None and self._publishers.get(self._publisher) is self:
                del self._publishers[self._publisher]
        await self._close(None if self._work.cancelled() else self._work.exception())

    async def stop(self) -> None:
        """Stop, and return when this connection publishes nothing any more."""
        assert self._work is not None
        self._work.cancel()
        await asyncio.wait({self._work})
        if self._before is not None:
            # This one was stopped while it waited for an earlier one.
            await self._before.stop()

    async def _serve(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._tasks:
                self._tasks.create_task(self._acknowledge())
                self._tasks.create_task(self._receive())
        except ExceptionGroup as group:
            # The first that failed has cancelled the others.
            raise group.exceptions[0] from None

    async def _close(self, error: BaseException | None) -> None:
        match error:
            case WebSocketDisconnect():
                return
            case ClosingError():
                code = error.code
            case BadFrameError() | InvalidRequestError():
                code = BAD_FRAME
            case None:
                code, error = DONE, Exception("the publisher has another connection")
            case LogError():
                code = FAILED
            case _:
                raise error
        try:
            await asyncio.wait_for(self._socket.close(code, str(error)[:REASON_CHARS_MAX]), SEND_S_MAX)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            return

    async def _send(self, text: str) -> None:
        """Send a frame; wait while the client takes none. What it has not taken stays in the feed, not in memory."""
        try:
            await asyncio.wait_for(self._socket.send_text(text), SEND_S_MAX)
        except TimeoutError:
            raise ClosingError(FAILED, "too slow") from None

    async def _receive(self) -> None:
        while True:
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", DONE))
            if message.get("text") is None:
                raise ClosingError(NOT_TEXT, "expected a text frame")
            frame = decoded(message["text"])
            match frame["type"]:
                case "publisher":
                    await self._begin_to_publish(frame)
                case "publish":
                    await self._publish(frame)
                case "follow":
                    await self._follow(frame)
                case other:
                    raise BadFrameError(f"unknown type {other!r}")

    # ------------------------------------------------------------------ publishing

    async def _begin_to_publish(self, frame: Frame) -> None:
        """Answer which of the publisher's unacknowledged messages are durable: the others it sends again.

        From now on no earlier connection of this publisher publishes: else a message from there, still on its way,
        could come after the answer, and a second time from here.
        """
        publisher, ids, after = frame.get("publisher"), frame.get("unacknowledged", []), frame.get("after")
        known = isinstance(ids, list) and len(ids) <= UNACKNOWLEDGED_MAX and all(map(_is_id, ids))
        if not _is_id(publisher) or not known or self._publisher is not None:
            raise BadFrameError("publisher: expected its id, once, and ids")
        if ids and not isinstance(after, str):
            raise BadFrameError("publisher: expected a token in after")
        self._before, self._publishers[publisher] = self._publishers.get(publisher), self
        self._publisher = publisher
        if self._before is not None:
            await self._before.stop()
            self._before = None
        try:
            published = await self._memory.published(ids, str(after))
        except (GarbageCollectedError, LogReplacedError) as error:
            await self._send(encoded({"type": "unknown", "reason": str(error)}))
            return
        end = await self._memory.end()
        await self._send(encoded({"type": "ready", "published": published, "token": end}))

    async def _publish(self, frame: Frame) -> None:
        message_id, topic = frame.get("id"), frame.get("topic")
        if self._publisher is None or not _is_id(message_id) or not isinstance(topic, str) or "body" not in frame:
            raise BadFrameError("publish: expected a publisher; an id, a topic and a body")
        try:
            while (future := self._memory.publish(message_id, topic, frame["body"])) is None:
                # Nothing else is read from this client meanwhile: its messages keep their order.
                await self._say_overloaded()
                await asyncio.sleep(OVERLOADED_PAUSE_S)
        except InvalidRequestError as error:
            await self._send(encoded({"type": "refused", "id": message_id, "reason": str(error)}))
            return
        if self._answers.full():
            await self._say_overloaded()
        await self._answers.put((message_id, future))

    async def _say_overloaded(self) -> None:
        """Say it once, until the client has the answer to all it has published."""
        if not self._overloaded:
            self._overloaded = True
            await self._send(encoded({"type": "overloaded"}))

    async def _acknowledge(self) -> None:
        while True:
            message_id, future = await self._answers.get()
            # Whether it becomes durable does not depend on this connection.
            position = await asyncio.shield(future)
            token = self._memory.token(position)
            await self._send(encoded({"type": "acknowledged", "id": message_id, "token": token}))
            if self._answers.empty():
                self._overloaded = False

    # ------------------------------------------------------------------ following

    async def _follow(self, frame: Frame) -> None:
        topics, start = frame.get("topics", ["*"]), frame.get("start", "end")
        if self._following or not isinstance(topics, list) or not _is_start(start):
            raise BadFrameError("follow: expected a list of topics and a start, once")
        if isinstance(start, dict):
            start = AtTime(start["timestamp_us"])
        try:
            follower = await self._memory.follow(topics, start)
        except (GarbageCollectedError, LogReplacedError) as error:
            await self._send(encoded({"type": "gone", "reason": str(error)}))
            return
        self._following = True
        await self._send(encoded({"type": "following", "token": follower.token}))
        self._tasks.create_task(self._deliver(follower))

    async def _deliver(self, follower: Follower) -> None:
        with closing(follower):
            while not follower.ended:
                try:
                    frames = await follower.take()
                except (GarbageCollectedError, LogReplacedError) as error:
                    self._following = False
                    await self._send(encoded({"type": "gone", "reason": str(error)}))
                    return
                for frame in frames:
                    await self._send(frame)
        raise ClosingError(DONE, "the log is sealed")


def _is_start(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "timestamp_us" in value)


def _is_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and 1 <= len(value) <= ID_CHARS_MAX
