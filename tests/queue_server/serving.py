"""A queue server in a thread, and requests to it over HTTP."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from wal3_core.queue_server.service import QueueServerOptions, QueueService
from wal3_core.queue_server.serving import QueueServer, Tokens, listening, url_of
from wal3_core.store.object_store import ObjectStore

DEADLINE_S = 120.0
# Whatever a body or an answer holds.
Json = Any


class Answer(NamedTuple):
    """An answer: its status, its headers, its JSON."""

    status: int
    headers: Mapping[str, str]
    json: Json

    @property
    def error(self) -> tuple[int, str]:
        """The status and the word of an error, which has both fields and no others."""
        assert sorted(self.json) == ["error", "message"], self
        return self.status, self.json["error"]


class Served:
    """A server that answers at ``url``."""

    def __init__(self, url: str) -> None:
        self.url = url

    def connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        return http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=DEADLINE_S)

    def ask(self, method: str, path: str, body: Json = None, *, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request; a body that is no bytes is sent as JSON."""
        connection = self.connection()
        try:
            sent = dict(headers or {})
            if body is not None and not isinstance(body, bytes):
                body = json.dumps(body).encode()
                sent.setdefault("content-type", "application/json")
            connection.request(method, path, body, sent)
            return answer_of(connection)
        finally:
            connection.close()

    def ok(self, method: str, path: str, body: Json = None) -> Json:
        """Send a request that succeeds; return its JSON."""
        answer = self.ask(method, path, body)
        assert answer.status in {200, 201}, answer
        return answer.json

    def post(self, queue: str, operation: str, **body: Json) -> Json:
        """Do an operation that succeeds."""
        return self.ok("POST", f"/v1/queues/{queue}/{operation}", body)

    def refused(self, queue: str, operation: str, **body: Json) -> tuple[int, str]:
        """Do an operation that is refused; return the status and the word."""
        return self.ask("POST", f"/v1/queues/{queue}/{operation}", body).error

    def begin(self, queue: str, operation: str, **body: Json) -> http.client.HTTPConnection:
        """Send a request, and return the connection on which its answer comes."""
        connection = self.connection()
        connection.request(
            "POST", f"/v1/queues/{queue}/{operation}", json.dumps(body), {"content-type": "application/json"}
        )
        return connection

    def until_waiting(self, queue: str, count: int) -> None:
        """Return when so many calls wait for an item."""
        for _ in range(int(DEADLINE_S * 50)):
            if self.ok("GET", f"/v1/queues/{queue}/stats")["stats"]["waiting"] == count:
                return
            threading.Event().wait(0.02)
        raise AssertionError(f"expected {count} to wait")


class Running(Served):
    """One in a thread of this process."""

    def __init__(self, server: QueueServer, thread: threading.Thread, url: str) -> None:
        super().__init__(url)
        self._server = server
        self._thread = thread

    @property
    def num_connections(self) -> int:
        """How many connections the server has."""
        return len(self._server.server_state.connections)

    def stop(self) -> None:
        """Let it end, as SIGTERM does."""
        self._server.should_exit = True

    def ended(self) -> None:
        """Return when it has ended."""
        self._thread.join(timeout=DEADLINE_S)
        assert not self._thread.is_alive()


def answer_of(connection: http.client.HTTPConnection) -> Answer:
    """Read an answer."""
    answer = connection.getresponse()
    data = answer.read()
    return Answer(answer.status, dict(answer.getheaders()), json.loads(data))


def eventually(holds: Callable[[], bool]) -> None:
    """Return when it holds."""
    for _ in range(int(DEADLINE_S * 50)):
        if holds():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never held")


@contextmanager
def serving(
    store: ObjectStore, *, tokens: Sequence[str] = (), hosts: Sequence[str] | None = None, **limits: Json
) -> Iterator[Running]:
    """Serve the queues of a store."""
    listener = listening("127.0.0.1", 0)
    server = QueueServer(QueueService(store, options=QueueServerOptions(**limits)), Tokens(tokens), hosts=hosts)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    running = Running(server, thread, url_of(listener))
    thread.start()
    try:
        yield running
    finally:
        running.stop()
        running.ended()
