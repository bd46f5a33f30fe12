"""The client of a server: what it raises is what the queue itself raises."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from wal3_core.errors import (
    FencedError,
    InvalidRequestError,
    LogExistsError,
    LogNotFoundError,
    OverloadedError,
    QueueFullError,
    StaleTokenError,
    UnavailableError,
    UnknownDurabilityError,
)
from wal3_core.queue_server.client import QueueClient
from wal3_core.views.queue.delay_queue import DelayQueue
from wal3_core.views.queue.operations import Enqueue, NewItem, Purge, QueueDefinition, Release

from .serving import serving

if TYPE_CHECKING:
    from wal3_core import MemoryStore

    from .serving import Running

TOKEN = "a-token-of-a-test"


def test_client_does_what_a_queue_does(server: Running) -> None:
    client = QueueClient(server.url)
    client.create("mail", QueueDefinition(lease_s=5))
    done = client.run("mail", Enqueue((NewItem(b"a", dedupe_key=b"k"), NewItem(b"\xff", delay_s=0, priority=200))))
    peeked = client.peek("mail", 2)
    items = client.dequeue("mail", 5, timeout_s=0.1)

    assert client.names() == ["jobs", "mail"]
    assert [each["id"] for each in done] == [1, 2]
    assert [item.get("text", item.get("value")) for item in items] == ["a", "/w=="]
    assert [item["id"] for item in peeked] == [1, 2]
    assert client.stats("mail")["leased"] == 2
    client.run("mail", Release(tuple((item["id"], item["token"]) for item in items)))
    assert client.stats("mail")["leased"] == 0
    assert client.run("mail", Purge(pending=True, leased=True, dead=True)) == 0


def test_errors_are_those_of_a_queue(memory_store: MemoryStore) -> None:
    with serving(memory_store) as server:
        client = QueueClient(server.url)
        client.create("jobs", QueueDefinition(items_max=1))
        client.run("jobs", Enqueue((NewItem(b"a"),)))

        with pytest.raises(LogExistsError, match="expected no log"):
            client.create("jobs", QueueDefinition())
        with pytest.raises(LogNotFoundError):
            client.run("none", Enqueue((NewItem(b"a"),)))
        with pytest.raises(QueueFullError, match="may succeed in 5 s"):
            client.run("jobs", Enqueue((NewItem(b"b"),)))
        with pytest.raises(StaleTokenError):
            client.run("jobs", Release(((1, "0" * 16),)))
        with pytest.raises(InvalidRequestError, match="name"):
            client.stats("../secrets")
        client.create("mail", QueueDefinition())
        client.run("mail", Enqueue((NewItem(b"a"),)))
        with DelayQueue.open(memory_store, "queues/mail"), pytest.raises(FencedError, match="restart this server"):
            client.run("mail", Enqueue((NewItem(b"b"),)))


def test_time_that_is_no_number_is_refused_not_waited_for(server: Running) -> None:
    client = QueueClient(server.url)
    client.create("mail", QueueDefinition())

    with pytest.raises(InvalidRequestError, match="timeout_s: expected a number of seconds, found float nan"):
        client.dequeue("mail", timeout_s=float("nan"))


def test_token_is_sent_and_its_absence_explained(memory_store: MemoryStore) -> None:
    with serving(memory_store, tokens=[TOKEN]) as server:
        assert QueueClient(server.url, TOKEN).names() == []
        with pytest.raises(InvalidRequestError, match="WAL3_QUEUE_TOKEN"):
            QueueClient(server.url).names()


def test_rate_is_reported_as_overload(memory_store: MemoryStore) -> None:
    with serving(memory_store, requests_per_s=0.001) as server:
        client = QueueClient(server.url)
        client.names()
        with pytest.raises(OverloadedError, match="may succeed in"):
            client.names()


@pytest.mark.parametrize(
    "url", ["", "nonsense", "ftp://a", "file:///etc/passwd", "http://", "http://me:secret@host", "http://a?b=c"]
)
def test_bad_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="expected a URL") as refused:
        QueueClient(url)

    assert "secret" not in str(refused.value)


def test_server_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    with pytest.raises(UnavailableError, match=r"refused: start a server there .* or correct --server"):
        QueueClient(f"http://127.0.0.1:{port}").run("jobs", Enqueue((NewItem(b"a"),)))


class Elsewhere(http.server.BaseHTTPRequestHandler):
    """Another server: it redirects, cuts an answer short, or answers with a page."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("authorization", ""))
        self.send_response(302)
        self.send_header("location", f"{self.path}/elsewhere")
        self.end_headers()

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "100")
        self.end_headers()
        self.wfile.write(b'{"items"')

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@contextmanager
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Elsewhere,), {"asked": asked})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


def test_redirect_is_not_followed_with_the_token() -> None:
    with elsewhere() as (url, asked), pytest.raises(UnavailableError, match="expected a queue server"):
        QueueClient(url, TOKEN).names()

    assert asked == [f"Bearer {TOKEN}"]


def test_answer_that_is_lost_leaves_the_outcome_unknown() -> None:
    with elsewhere() as (url, _), pytest.raises(UnknownDurabilityError, match="lost"):
        QueueClient(url).run("jobs", Enqueue((NewItem(b"a"),)))


class Failing(http.server.BaseHTTPRequestHandler):
    """Answers with a status: as the server does whose own code fails, or a proxy, or one that breaks off."""

    answer: tuple[int, bytes, int]

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, body, length = self.answer
        self.send_response(status)
        self.send_header("content-length", str(length))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.mark.parametrize(
    ("status", "body", "more"),
    [
        (500, b'{"error": "failed", "message": "an error of its own"}', 0),
        (502, b"<html>Bad Gateway</html>", 0),
        (504, b"<html>Gateway Time-out</html>", 0),
        (503, b'{"error": "busy"', 100),
    ],
)
def test_failure_of_a_proxy_or_the_server_leaves_the_outcome_unknown(status: int, body: bytes, more: int) -> None:
    handler = type("Handler", (Failing,), {"answer": (status, body, len(body) + more)})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = QueueClient(f"http://127.0.0.1:{server.server_address[1]}")

        with pytest.raises(UnknownDurabilityError):
            client.run("jobs", Enqueue((NewItem(b"a"),)))
        with pytest.raises(UnavailableError):
            client.names()
        server.shutdown()
