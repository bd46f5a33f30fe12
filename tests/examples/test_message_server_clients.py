"""Clients of the example message server that take nothing, ask for what is wrong, or come back twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any, cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from examples.message_server import connection, memory
from examples.message_server.client import Follower, Publisher, Received, RefusedError
from examples.message_server.frames import BAD_FRAME, decoded, encoded
from tests.spec.seals import collect as collected_to
from wal3_core import FeedWriter, LogReader, MemoryStore, open_store

from .server_process import DEADLINE_S, ServerProcess, publish

if TYPE_CHECKING:
    from starlette.websockets import WebSocket


HELD_BYTES_MAX = 2**20


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that is never killed, and soon overloaded."""
    store = (tmp_path_factory.mktemp("shared") / "store").as_uri()
    process = ServerProcess(store, "--held-bytes-max", str(HELD_BYTES_MAX))
    process.start()
    publish(process.url, "begin")
    yield process
    process.stop()


@pytest.mark.slow
def test_clients_that_take_nothing_stop_no_other_and_miss_nothing(shared: ServerProcess) -> None:
    # More than the buffers of a connection hold.
    size, num_slow, num_messages = 40_000, 3, 400

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), Publisher(shared.url) as publisher:
            slow = [await connect(shared.url, compression=None) for _ in range(num_slow)]
            for each in slow:
                assert (await asked(each, {"type": "follow", "topics": ["big"], "start": "end"}))["type"] == "following"
            fast = asyncio.create_task(receive(Follower(shared.url, ["big"], "beginning"), num_messages))
            await asyncio.gather(*(publisher.publish("big", [n, "x" * size]) for n in range(num_messages)))
            assert publisher.num_overloaded > 0
            expected = [message.body[0] for message in await fast]
            for each in slow:
                assert [decoded(str(await each.recv()))["body"][0] for _ in range(num_messages)] == expected
                each.transport.abort()

    asyncio.run(run())


class StalledSocket:
    """The server's side of a WebSocket whose client asks for all messages, and takes only a few frames."""

    def __init__(self, frames_max: int) -> None:
        self.sent: list[str] = []
        self._frames_max = frames_max
        self._asked = False

    async def accept(self) -> None:
        return

    async def receive(self) -> dict[str, str]:
        if self._asked:
            await asyncio.sleep(DEADLINE_S)
        self._asked = True
        return {"type": "websocket.receive", "text": encoded({"type": "follow", "start": "beginning"})}

    async def send_text(self, text: str) -> None:
        self.sent.append(text)
        if len(self.sent) > self._frames_max:
            await asyncio.sleep(DEADLINE_S)

    async def close(self, code: int, reason: str) -> None:
        self.sent.append(f"{code} {reason}")


@pytest.mark.slow
def test_client_that_takes_no_messages_is_disconnected_and_they_stay_in_the_feed(
    memory_store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "SEND_S_MAX", 0.5)
    with FeedWriter.open_or_create(memory_store, "messages") as writer:
        for _ in range(1000):
            writer.publish("t", "x" * 10_000)
    taken: list[int] = []
    take = memory.Follower.take

    async def counting(self: memory.Follower) -> list[str]:
        frames = await take(self)
        taken.append(len(frames))
        return frames

    monkeypatch.setattr(memory.Follower, "take", counting)
    stalled = StalledSocket(3)

    async def run() -> None:
        with ThreadPoolExecutor(4) as pool:
            feed = memory.Memory.open(memory_store, "messages", pool)
            served = connection.Connection(cast("WebSocket", stalled), feed, {})
            await asyncio.wait_for(served.serve(), DEADLINE_S)
            feed.close()

    asyncio.run(run())

    assert sum(taken) <= 10
    assert stalled.sent[-1] == "1011 too slow"


async def receive(follower: Follower, number: int) -> list[Received]:
    found: list[Received] = []
    async for message in follower:
        found.append(message)
        if len(found) == number:
            break
    return found


@pytest.mark.slow
def test_message_published_by_an_earlier_connection_is_known_and_that_one_ends(
    shared: ServerProcess,
) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), connect(shared.url) as first, connect(shared.url) as second:
            ready = await asked(first, {"type": "publisher", "publisher": "p"})
            for name in ("a", "b"):
                await first.send(encoded({"type": "publish", "id": name, "topic": "t", "body": name}))
            question = {"type": "publisher", "publisher": "p", "unacknowledged": ["a", "b", "c"]}
            answer = await asked(second, {**question, "after": ready["token"]})
            with pytest.raises(ConnectionClosed):
                while True:
                    await first.recv()
            found = await receive(Follower(shared.url, ["t"], ready["token"]), len(answer["published"]))
            assert {message.id: message.token for message in found} == answer["published"]
            assert "c" not in answer["published"]

    asyncio.run(run())


async def asked(client: ClientConnection, frame: dict[str, object]) -> dict[str, Any]:
    await client.send(encoded(frame))
    return decoded(str(await client.recv()))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "{",
        pytest.param("[" * 50_000, id="deep"),
        '{"type": 1}',
        '{"type": "other"}',
        '{"type": "publish", "id": "a", "topic": "t", "body": 1}',
        '{"type": "publisher", "publisher": 1}',
        '{"type": "publisher", "publisher": "p", "unacknowledged": ["a"]}',
        '{"type": "publisher", "publisher": "p", "unacknowledged": ["a"], "after": "x"}',
        '{"type": "follow", "topics": []}',
        '{"type": "follow", "topics": [1]}',
        '{"type": "follow", "topics": "*"}',
        '{"type": "follow", "start": "x"}',
        '{"type": "follow", "start": 1}',
        '{"type": "follow", "start": {"timestamp_us": "x"}}',
        '{"type": "follow", "start": {}}',
    ],
)
def test_wrong_frame_ends_its_connection_with_a_reason(shared: ServerProcess, text: str) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), connect(shared.url) as client:
            await client.send(text)
            with pytest.raises(ConnectionClosedError) as raised:
                await client.recv()
            assert raised.value.rcvd is not None
            assert raised.value.rcvd.code == BAD_FRAME
            assert raised.value.rcvd.reason

    asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(("topic", "body"), [("", 1), ("t" * 2000, 1), ("t", 2**70), ("\ud800", 1), ("t", "\ud800")])
def test_message_that_no_feed_takes_is_refused_and_the_next_one_published(
    shared: ServerProcess, topic: str, body: object
) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), connect(shared.url) as client:
            await asked(client, {"type": "publisher", "publisher": uuid.uuid4().hex})
            wrong = {"type": "publish", "id": uuid.uuid4().hex, "topic": topic, "body": body}
            await client.send(json.dumps(wrong))
            assert decoded(str(await client.recv()))["type"] == "refused"
            right = {**wrong, "topic": "t", "body": 1}
            assert (await asked(client, right))["type"] == "acknowledged"

    asyncio.run(run())


@pytest.mark.slow
def test_message_of_another_program_is_shown_as_far_as_json_has_it(shared: ServerProcess) -> None:
    with FeedWriter.open(open_store(shared.store), "messages") as writer:
        writer.publish("other", {"raw": b"\xff", 7: float("inf"), "list": [None, b""]})

    async def run() -> list[Received]:
        async with asyncio.timeout(DEADLINE_S):
            return await receive(Follower(shared.url, ["other"], "beginning"), 1)

    (message,) = asyncio.run(run())
    assert message.body == {"raw": {"base64": "/w=="}, "7": "inf", "list": [None, {"base64": ""}]}
    assert message.id is None


@pytest.mark.slow
def test_message_that_is_in_the_log_twice_is_received_once(shared: ServerProcess) -> None:
    with FeedWriter.open(open_store(shared.store), "messages") as writer:
        for message_id in ("x", "y", "x", "z"):
            writer.publish("twice", {"id": message_id, "body": message_id})

    async def run() -> list[Received]:
        async with asyncio.timeout(DEADLINE_S):
            return await receive(Follower(shared.url, ["twice"], "beginning"), 3)

    assert [message.body for message in asyncio.run(run())] == ["x", "y", "z"]


@pytest.mark.slow
def test_client_is_answered_that_what_it_asks_for_was_collected(shared: ServerProcess) -> None:
    begin = asyncio.run(first_token(shared))
    publish(shared.url, *range(3))
    end = LogReader.open(open_store(shared.store), "messages").manifest().next.position.offset
    collected_to(open_store(shared.store), "messages", end)

    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S), connect(shared.url) as client:
            question = {"type": "publisher", "publisher": "q", "unacknowledged": ["a"], "after": begin}
            assert (await asked(client, question))["type"] == "unknown"
            assert (await asked(client, {"type": "follow", "start": begin}))["type"] == "gone"
            assert (await asked(client, {"type": "follow", "start": "beginning"}))["type"] == "following"
            with pytest.raises(RefusedError, match="still holds"):
                await receive(Follower(shared.url, ["*"], begin), 1)

    asyncio.run(run())


async def first_token(server: ServerProcess) -> str:
    async with asyncio.timeout(DEADLINE_S), connect(server.url) as client:
        token: str = (await asked(client, {"type": "follow", "start": "beginning"}))["token"]
        return token


@pytest.mark.slow
def test_page_of_another_site_reads_nothing(shared: ServerProcess) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(InvalidStatus):
                await connect(shared.url, additional_headers={"Origin": "http://elsewhere.example"})

    asyncio.run(run())
    for host, status in {"elsewhere.example": 400, f"localhost:{shared.port}": 200}.items():
        with contextlib.closing(HTTPConnection("127.0.0.1", shared.port, timeout=DEADLINE_S)) as client:
            client.request("GET", "/", headers={"Host": host})
            assert client.getresponse().status == status
