"""A server in a process of its own, and clients that misuse it: others are served meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from .attacks import BEGUN, BODY_BYTES, MIB, REQUEST, TOKEN, attacked, bodies, flood
from .serving import answer_of, eventually, serving

if TYPE_CHECKING:
    from wal3_core import MemoryStore

    from .attacks import Attacked

pytestmark = pytest.mark.slow
# Beside what a body takes itself, and as text.
MEMORY_MIB = 200
HEALTH_S = 20.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A server that lets three calls wait, and takes four more at a time."""
    with attacked(tmp_path_factory.mktemp("queues"), "--waiting-max", "3", "--requests-max", "4") as running:
        running.ok("POST", "/v1/queues", {"queue": "jobs"})
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A server with an access token, which no client of these tests has."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "tokens").write_text(TOKEN)
    (folder / "tokens").chmod(0o600)
    with attacked(folder, "--tokens-file", f"{folder}/tokens") as running:
        yield running


@pytest.mark.parametrize("name", bodies(100))
def test_body_takes_little_memory_and_holds_up_no_other(server: Attacked, name: str) -> None:
    operation, body = bodies()[name]
    assert BODY_BYTES - 2 * MIB <= len(body) <= BODY_BYTES
    with server.measured() as costs:
        answer = server.ask("POST", f"/v1/queues/jobs/{operation}", body, headers={"content-type": "application/json"})

    if answer.status != 200:
        assert answer.error == (422, "invalid")
        assert len(answer.json["message"]) < 400
    assert (answer.status == 200) == (name == "large values")
    assert costs[0].mib <= MEMORY_MIB
    assert costs[0].health_s <= HEALTH_S


def test_calls_that_wait_lock_out_no_producer(server: Attacked) -> None:
    server.ok("POST", "/v1/queues", {"queue": "waited"})
    waiting = []
    for number in range(3):
        waiting.append(server.begin("waited", "dequeue", timeout_s=300, text=True))
        # The next one comes once this one waits: items go out in the order in which callers came.
        server.until_waiting("waited", number + 1)

    assert server.refused("waited", "dequeue", timeout_s=300) == (503, "busy")
    # One that does not wait is no more than a request.
    assert server.post("waited", "dequeue") == {"items": []}
    server.post("waited", "enqueue_many", items=[{"text": str(number)} for number in range(4)])
    for number, connection in enumerate(waiting):
        assert [item["text"] for item in answer_of(connection).json["items"]] == [str(number)]
        connection.close()
    # Nor is one that finds an item at once.
    waiting = [server.begin("jobs", "dequeue", timeout_s=300, lease_s=1000) for _ in range(3)]
    assert [item["text"] for item in server.post("waited", "dequeue", timeout_s=300, text=True)["items"]] == ["3"]
    for connection in waiting:
        connection.close()


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (BEGUN, b"a" * MIB),
        (BEGUN + b"a\r\n", b"X: a\r\n" * 2**18),
        (b"GET /", b"a" * MIB),
        (b"nonsense", b"\0" * MIB),
        (b"POST /v1/queues HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000000\r\n\r\n", b"a" * MIB),
        (
            b"POST /v1/queues HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"100000\r\n" + b"a" * MIB + b"\r\n",
        ),
    ],
    ids=["a value", "headers", "a path", "nonsense", "a body", "pieces of a body"],
)
def test_stranger_that_sends_without_end_is_cut_off(guarded: Attacked, first: bytes, then: bytes) -> None:
    with guarded.measured() as costs:
        sent_mib, connection = flood(guarded.address, itertools.chain([first], itertools.repeat(then)), 60)
        assert guarded.ends(connection)

    connection.close()
    # What fits into the buffers of a connection.
    assert sent_mib < 100
    assert costs[0].mib < 20


@pytest.mark.parametrize("sent", [b"", BEGUN, REQUEST, REQUEST + BEGUN], ids=["idle", "begun", "asked", "asked again"])
def test_connection_that_asks_for_nothing_more_ends(guarded: Attacked, sent: bytes) -> None:
    connection = guarded.connect()
    connection.sendall(sent)

    assert guarded.ends(connection)
    connection.close()


@pytest.mark.parametrize(
    "path", ["/openapi.json", "/v1/queues/jobs/peek?count=64"], ids=["many answers", "a large answer"]
)
def test_client_that_takes_no_answers_is_cut_off(memory_store: MemoryStore, path: str) -> None:
    with serving(memory_store, answer_s_max=1) as server:
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        server.post("jobs", "enqueue_many", items=[{"text": "a" * 2**18}] * 32)
        parts = urlsplit(server.url)
        asked = b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % path.encode()
        sent_mib, connection = flood((str(parts.hostname), int(parts.port or 0)), itertools.repeat(asked * 2000), 60)
        eventually(lambda: not server.num_connections)

    connection.close()
    assert sent_mib < 100


def test_large_answer_is_whole(server: Attacked) -> None:
    texts = [f"{number}" + "ä\0" * 2**17 for number in range(9)]
    server.ok("POST", "/v1/queues", {"queue": "large"})
    for text in texts:
        server.post("large", "enqueue", text=text)

    assert [item["text"] for item in server.ok("GET", "/v1/queues/large/peek?count=9&text=true")["items"]] == texts
    assert [item["text"] for item in server.post("large", "dequeue", count=9, text=True)["items"]] == texts


def test_idle_connections_end_for_those_of_others(server: Attacked) -> None:
    """There may be twelve: seven requests under way, and some beside."""
    idle = [server.connect() for _ in range(50)]

    assert server.ok("GET", "/health") == {"status": "ok"}
    assert server.ends(idle[0])
    for connection in idle:
        connection.close()


def test_server_that_may_open_few_files_never_runs_out_of_them(tmp_path: Path) -> None:
    with attacked(tmp_path, files_max=600) as server:
        idle = [server.connect() for _ in range(700)]
        server.ok("POST", "/v1/queues", {"queue": "jobs"})
        server.post("jobs", "enqueue", text="a")
        num_files = server.num_files()
        for connection in idle:
            connection.close()

    assert num_files < 300


@pytest.mark.parametrize(
    "headers",
    [b"Host: localhost\r\nHost: page.example", b"", b"Host: localhost\r\nContent-Length: 1\r\nContent-Length: 2"],
    ids=["two hosts", "none", "two lengths"],
)
def test_request_that_a_proxy_could_read_otherwise_is_refused(server: Attacked, headers: bytes) -> None:
    assert server.tell(b"GET /v1/queues HTTP/1.1\r\n" + headers + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")
