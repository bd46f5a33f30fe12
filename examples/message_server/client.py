"""A client of the message server: as a library, and as a command.

python -m examples.message_server.client publish doors/front '"open"'
python -m examples.message_server.client follow 'doors/*' --start beginning
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import sys
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, WebSocketException

from examples.message_server.frames import BAD_FRAME, UNACKNOWLEDGED_MAX, Frame, decoded, encoded

URL = "ws://127.0.0.1:8765/socket"
PAUSE_S_MIN = 0.1
PAUSE_S_MAX = 2.0
OPEN_S_MAX = 5.0
# The server's answer to a close lies behind all messages that were not taken: it is hardly worth a wait.
CLOSE_S_MAX = 0.2
# A server that is cut off answers no ping: then the client connects again.
PING_S = 10.0
# Of messages that other programs have published, in bytes.
RECEIVED_BYTES_MAX = 64 * 2**20
SEEN_MAX = 10_000

log = logging.getLogger(__name__)


class RefusedError(Exception):
    """The server does not take it, and will not take it later: the request is wrong, or the answer is gone."""


class _Backoff:
    """Pauses between two connections: longer each time, until one works."""

    def __init__(self) -> None:
        self._pause_s = PAUSE_S_MIN

    def reset(self) -> None:
        self._pause_s = PAUSE_S_MIN

    async def pause(self, error: Exception) -> None:
        if isinstance(error, ConnectionClosedError) and error.rcvd is not None and error.rcvd.code == BAD_FRAME:
            raise RefusedError(error.rcvd.reason) from error
        log.info("not connected: %s", error)
        # Clients that were cut off together do not come back together.
        await asyncio.sleep(self._pause_s * random.uniform(0.5, 1))
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)


def _connected(url: str) -> connect:
    return connect(
        url,
        open_timeout=OPEN_S_MAX,
        close_timeout=CLOSE_S_MAX,
        ping_interval=PING_S,
        ping_timeout=PING_S,
        max_size=RECEIVED_BYTES_MAX,
        proxy=None,
    )


async def _frames(socket: ClientConnection) -> AsyncIterator[Frame]:
    async for text in socket:
        assert isinstance(text, str)
        yield decoded(text)


@dataclass(slots=True)
class _Pending:
    """A message without an answer. ``after``: the feed's end, at the latest, when it was sent first."""

    frame: Frame
    durable: asyncio.Future[str]
    after: str | None = None


# ---------------------------------------------------------------------- publishing


class Publisher:
    """Publishes messages in order, each once, over as many connections as it takes. An async context manager."""

    def __init__(self, url: str = URL) -> None:
        self._url = url
        self._name = uuid.uuid4().hex
        # In the order of ``publish``.
        self._pending: OrderedDict[str, _Pending] = OrderedDict()
        # Those that were not sent over this connection.
        self._unsent: deque[_Pending] = deque()
        self._more = asyncio.Event()
        self._room = asyncio.Semaphore(UNACKNOWLEDGED_MAX)
        self._end: str | None = None
        self._backoff = _Backoff()
        self._work: asyncio.Task[None] | None = None
        self.num_overloaded = 0
        self.num_connections = 0

    async def __aenter__(self) -> Self:
        self._work = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._work is not None
        self._work.cancel()
        await asyncio.wait({self._work})

    async def publish(self, topic: str, body: Any) -> str:  # noqa: ANN401 - whatever JSON has
        """Publish a message; return its token once it is durable, however many connections that takes.

        RefusedError when it can never be published. Cancelled, it may be published all the same.
        """
        assert self._work is not None
        await self._room.acquire()
        message_id = uuid.uuid4().hex
        frame = {"type": "publish", "id": message_id, "topic": topic, "body": body}
        pending = _Pending(frame, asyncio.get_running_loop().create_future())
        self._pending[message_id] = pending
        self._unsent.append(pending)
        self._more.set()
        ends: set[asyncio.Future[Any]] = {pending.durable, self._work}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not pending.durable.done():
            self._work.result()
        return pending.durable.result()

    async def _run(self) -> None:
        while True:
            try:
                async with _connected(self._url) as socket:
                    await self._begin(socket)
                    sending = asyncio.create_task(self._send(socket))
                    try:
                        async for frame in _frames(socket):
                            self._take(frame)
                    finally:
                        sending.cancel()
                        await asyncio.wait({sending})
                    raise ConnectionError("the server has closed the connection")
            except (OSError, WebSocketException) as error:
                await self._backoff.pause(error)

    async def _begin(self, socket: ClientConnection) -> None:
        """Ask which of the messages that were sent are durable; the others are sent again, before any new one."""
        sent = [pending for pending in self._pending.values() if pending.after is not None]
        question = {
            "type": "publisher",
            "publisher": self._name,
            "unacknowledged": [pending.frame["id"] for pending in sent],
            "after": sent[0].after if sent else None,
        }
        await socket.send(encoded(question))
        answer = decoded(str(await socket.recv()))
        if answer["type"] != "ready":
            raise RefusedError(answer["reason"])
        for message_id, token in answer["published"].items():
            self._answered(message_id, token)
        self._end = answer["token"]
        self._unsent = deque(self._pending.values())
        self._more.set()
        self._backoff.reset()
        self.num_connections += 1

    async def _send(self, socket: ClientConnection) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while self._unsent:
                pending = self._unsent.popleft()
                pending.after = pending.after or self._end
                await socket.send(encoded(pending.frame))

    def _take(self, frame: Frame) -> None:
        match frame:
            case {"type": "acknowledged", "id": message_id, "token": token}:
                self._end = token
                self._answered(message_id, token)
            case {"type": "refused", "id": message_id, "reason": reason}:
                self._answered(message_id, RefusedError(reason))
            case {"type": "overloaded"}:
                self.num_overloaded += 1
                log.warning("the server is overloaded: messages wait")

    def _answered(self, message_id: str, answer: str | RefusedError) -> None:
        pending = self._pending.pop(message_id, None)
        if pending is None:
            return
        self._room.release()
        if pending.durable.cancelled():
            return
        if isinstance(answer, str):
            pending.durable.set_result(answer)
        else:
            pending.durable.set_exception(answer)


# ---------------------------------------------------------------------- following


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """A message. ``token`` names the place right after it. ``missed``: it was published while the client was away."""

    id: str | None
    topic: str
    body: Any
    timestamp_us: int
    token: str
    missed: bool


@dataclass(slots=True)
class Follower:
    """Receives the messages of some topics in order, over as many connections as it takes: iterate over it.

    ``start`` is ``beginning``, ``end`` or a token. ``token`` is where to go on later: the place behind the last message
    that the loop has begun to process.
    """

    url: str = URL
    topics: Sequence[str] = ("*",)
    start: str = "end"
    num_connections: int = 0
    # Ids: a message that was published twice all the same, through two servers, is received once.
    _seen: OrderedDict[str, None] = field(default_factory=OrderedDict)

    @property
    def token(self) -> str:
        """Where it goes on."""
        return self.start

    async def __aiter__(self) -> AsyncIterator[Received]:
        """Go through the messages, and wait for more, until the feed is sealed. RefusedError: not from this start."""
        backoff = _Backoff()
        while True:
            try:
                async with _connected(self.url) as socket:
                    await socket.send(encoded({"type": "follow", "topics": list(self.topics), "start": self.start}))
                    async for frame in _frames(socket):
                        backoff.reset()
                        message = self._taken(frame)
                        if message is not None:
                            yield message
                    return
            except (OSError, WebSocketException) as error:
                await backoff.pause(error)

    def _taken(self, frame: Frame) -> Received | None:
        match frame.pop("type"):
            case "gone":
                raise RefusedError(frame["reason"])
            case "following":
                self.start = frame["token"]
                self.num_connections += 1
            case "message":
                self.start = frame["token"]
                message = Received(**frame)
                return message if self._is_new(message.id) else None
        return None

    def _is_new(self, message_id: str | None) -> bool:
        if message_id is None:
            return True
        if message_id in self._seen:
            return False
        self._seen[message_id] = None
        if len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        return True


# ---------------------------------------------------------------------- the command


async def _publish(url: str, topic: str, bodies: Sequence[str]) -> None:
    async with Publisher(url) as publisher:
        for body in bodies:
            print(await publisher.publish(topic, _body(body)), flush=True)


def _body(text: str) -> object:
    """Take JSON as what it says, and anything else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _follow(url: str, topics: Sequence[str], start: str) -> None:
    async for message in Follower(url, topics, start):
        body = json.dumps(message.body, ensure_ascii=False)
        print(message.token, "missed" if message.missed else "live", message.topic, body, sep="\t", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Publish or follow; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.message_server.client", description="A client.")
    parser.add_argument("--url", default=URL, help=f"default: {URL}")
    commands = parser.add_subparsers(dest="command", required=True)
    publish = commands.add_parser("publish", help="publish messages; print the token of each once it is durable")
    publish.add_argument("topic")
    publish.add_argument("body", nargs="+", help="JSON, or else text")
    follow = commands.add_parser("follow", help="print messages: token, missed or live, topic, body")
    follow.add_argument("topics", nargs="*", default=["*"], help="patterns such as 'doors/*' (default: all)")
    follow.add_argument("--start", default="end", help="beginning, end (default), or a token")
    given = parser.parse_args(arguments)
    # What keeps it waiting, on stderr.
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    logging.getLogger("websockets").setLevel(logging.WARNING)
    work = (
        _publish(given.url, given.topic, given.body)
        if given.command == "publish"
        else _follow(given.url, given.topics, given.start)
    )
    try:
        asyncio.run(work)
    except RefusedError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
