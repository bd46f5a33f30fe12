"""A proxy in front of an S3 server that fails requests on demand: over real sockets, at run time, from a seed.

Requests are forwarded byte for byte, the Host header included, so signatures hold.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from urllib.parse import urlsplit

UPSTREAM_S_MAX = 30
DELAY_S_MAX = 0.1
# Headers of a connection, not of a message.
_HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Fault(StrEnum):
    """What can happen to a request."""

    DROP_REQUEST = "the connection closes and the server never gets it"
    DROP_REPLY = "the server does it and the connection closes before the reply"
    LATE = "the connection closes, and the request arrives later"
    DELAY = "the request takes its time"
    HANG = "the server does it and the reply never comes"
    SLOW_DOWN = "503 SlowDown, not done"
    INTERNAL = "500 InternalError, though it was done"
    TRUNCATE = "the reply's body ends before its length is reached"
    DENY = "403 AccessDenied"
    FULL = "507 InsufficientStorage"
    CONFLICT = "409 ConditionalRequestConflict, not done"


# HANG is not among them: it lasts as long as the client waits.
WRITE_FAULTS = tuple(fault for fault in Fault if fault not in {Fault.TRUNCATE, Fault.HANG})
READ_FAULTS = (Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.DELAY, Fault.SLOW_DOWN, Fault.TRUNCATE, Fault.DENY)
_UNANSWERED = {Fault.DROP_REQUEST, Fault.DROP_REPLY, Fault.LATE, Fault.HANG}
# A late request is not done yet.
_NOT_DONE = {Fault.DROP_REQUEST, Fault.LATE, Fault.SLOW_DOWN, Fault.DENY, Fault.FULL, Fault.CONFLICT}
_REFUSALS = {
    Fault.SLOW_DOWN: (503, "SlowDown"),
    Fault.INTERNAL: (500, "InternalError"),
    Fault.DENY: (403, "AccessDenied"),
    Fault.FULL: (507, "InsufficientStorage"),
    Fault.CONFLICT: (409, "ConditionalRequestConflict"),
}


@dataclass
class _Rule:
    fault: Fault
    method: str
    part: str
    spared: int
    times: float


@dataclass
class FaultProxy:
    """Decides what happens to each request; passes all of them on until ``fail`` or ``mix``."""

    upstream: str
    endpoint: str = ""
    requests: Counter[str] = field(default_factory=Counter)
    fired: Counter[Fault] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[_Rule] = []
        self._chance = random.Random(0)
        self._rate = 0.0
        self._decks: dict[tuple[Fault, ...], list[Fault]] = {}
        self._healed = threading.Event()
        self._late: list[threading.Thread] = []
        self._down = False
        self._listener: _Listener | None = None

    def fail(self, fault: Fault, method: str, part: str = "", *, spared: int = 0, times: float = 1) -> None:
        """Spare the first ``spared`` requests of a method whose path contains ``part``; fail the next ``times``."""
        with self._lock:
            self._healed.clear()
            self._rules.append(_Rule(fault, method, part, spared, times))

    def mix(self, seed: int, rate: float) -> None:
        """Fail each request with a probability of ``rate``; every kind of fault has its turn."""
        with self._lock:
            self._healed.clear()
            self._chance, self._rate = random.Random(seed), rate

    def heal(self) -> None:
        """Pass every request on again, and wait until the late ones have arrived."""
        with self._lock:
            self._rules.clear()
            self._rate = 0.0
            self._healed.set()
            late, self._late = self._late, []
        for thread in late:
            thread.join(60)

    def listen(self, listener: _Listener | None) -> None:
        """Accept connections, or stop."""
        if self._listener is not None:
            self._listener.close()
        self._listener = listener
        if listener is not None:
            self.endpoint = f"http://127.0.0.1:{listener.port}"

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Refuse connections within the block, and close the open ones."""
        port = int(self.endpoint.rpartition(":")[2])
        self._down = True
        self.listen(None)
        try:
            yield
        finally:
            self._down = False
            self.listen(_Listener(self, port))

    def decide(self, request: Request) -> tuple[Fault | None, float]:
        """Choose the fault of a request, and a delay for faults that have one."""
        with self._lock:
            self.requests[request.method] += 1
            fault = Fault.DROP_REQUEST if self._down else self._decide(request.method, request.path)
            if fault is not None:
                self.fired[fault] += 1
            return fault, self._chance.uniform(0, DELAY_S_MAX)

    def _decide(self, method: str, path: str) -> Fault | None:
        for rule in self._rules:
            if rule.times <= 0 or rule.method != method or rule.part not in path:
                continue
            if rule.spared == 0:
                rule.times -= 1
                return rule.fault
            rule.spared -= 1
        return self._draw(WRITE_FAULTS if method == "PUT" else READ_FAULTS)

    def _draw(self, faults: tuple[Fault, ...]) -> Fault | None:
        if self._chance.random() >= self._rate:
            return None
        deck = self._decks.setdefault(faults, [])
        if not deck:
            deck += self._chance.sample(faults, len(faults))
        return deck.pop()

    def await_healing(self) -> None:
        """Block until the proxy is healed."""
        self._healed.wait(UPSTREAM_S_MAX)

    def send_later(self, request: Request, delay_s: float) -> None:
        """Send a request after its client has stopped waiting."""

        def send() -> None:
            time.sleep(delay_s)
            forward(self.upstream, request)

        thread = threading.Thread(target=send)
        with self._lock:
            self._late.append(thread)
        thread.start()


P = TypeVar("P", bound=FaultProxy)


@dataclass(frozen=True, slots=True)
class Request:
    """A request as the client sent it."""

    method: str
    path: str
    headers: list[tuple[str, str]]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    length: str
    body: bytes


def forward(upstream: str, request: Request) -> _Reply:
    """Pass a request on unchanged, once."""
    connection = HTTPConnection(urlsplit(upstream).netloc, timeout=UPSTREAM_S_MAX)
    try:
        connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers:
            connection.putheader(name, value)
        connection.endheaders(request.body)
        found = connection.getresponse()
        body = found.read()
        headers = [(name, value) for name, value in found.getheaders() if name.lower() not in _HOP_HEADERS]
        return _Reply(found.status, found.reason, headers, found.getheader("Content-Length", str(len(body))), body)
    finally:
        connection.close()


def refusal(fault: Fault) -> _Reply:
    """The reply of a server that refuses."""
    status, code = _REFUSALS[fault]
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{fault}</Message></Error>'
    return _Reply(status, code, [("Content-Type", "application/xml")], str(len(text)), text.encode())


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    # Headers and body are two writes; with Nagle, the second would wait for the first one's acknowledgement.
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = Request(self.command, self.path, self.headers.items(), body)
        fault, delay_s = self.proxy.decide(request)
        reply = self._reply(request, fault, delay_s)
        if reply is None:
            self.close_connection = True
        else:
            self._send(reply, torn=fault is Fault.TRUNCATE)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - as the base class calls them

    def _reply(self, request: Request, fault: Fault | None, delay_s: float) -> _Reply | None:
        """Apply the fault at the server; return the client's reply, None for a connection that closes."""
        if fault is Fault.DELAY:
            time.sleep(delay_s)
        if fault is Fault.LATE:
            self.proxy.send_later(request, delay_s)
        reply = None if fault in _NOT_DONE else forward(self.proxy.upstream, request)
        if fault is Fault.HANG:
            self.proxy.await_healing()
        if fault in _REFUSALS:
            return refusal(fault)
        return None if fault in _UNANSWERED else reply

    def _send(self, reply: _Reply, *, torn: bool) -> None:
        self.send_response_only(reply.status, reply.reason)
        for name, value in reply.headers:
            self.send_header(name, value)
        self.send_header("Content-Length", reply.length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body[: len(reply.body) // 2] if torn else reply.body)
        self.close_connection = self.close_connection or torn

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Stay silent: a client killed in mid-request is expected."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Stay silent: a client killed in mid-request is expected."""


class _Listener:
    """Serves a port, a free one by default, until closed."""

    def __init__(self, proxy: FaultProxy, port: int = 0) -> None:
        self._server = _Server(("127.0.0.1", port), type("Handler", (_Handler,), {"proxy": proxy}))
        self.port = int(self._server.server_address[1])
        self._serving = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._serving.start()

    def close(self) -> None:
        """Refuse connections from now on."""
        self._server.shutdown()
        self._serving.join(60)
        self._server.server_close()


@contextmanager
def fault_proxy(upstream: str) -> Iterator[FaultProxy]:
    """Run a proxy on a free port."""
    with listening(FaultProxy(upstream)) as proxy:
        yield proxy


@contextmanager
def listening(proxy: P) -> Iterator[P]:
    """Run a given proxy on a free port."""
    proxy.listen(_Listener(proxy))
    try:
        yield proxy
    finally:
        proxy.heal()
        proxy.listen(None)
