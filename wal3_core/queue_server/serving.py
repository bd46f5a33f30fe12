"""The server's process: where it listens, what its connections may do, and how it ends."""

import asyncio
import logging
import resource
import socket
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.application import application
from wal3_core.queue_server.gate import Access
from wal3_core.queue_server.server_options import QueueServerOptions
from wal3_core.queue_server.service import QueueService
from wal3_core.queue_server.tokens import TOKENS_VARIABLE, Tokens
from wal3_core.runtime.loggers import QUEUE

_LOOPBACK_NAME = "localhost"
_LOOPBACK_NAMES = (_LOOPBACK_NAME, "127.0.0.1", "::1")
_BACKLOG = 2048
# Of a request's header; h11 takes apart no more at a time.
_HEADER_BYTES_MAX = 2**14
# What a client takes of an answer at least, within the time that it may take nothing.
_TAKEN_BYTES_MIN = 2**20
# So many turns of the server's loop pass between two looks at its connections: half a second.
_TURNS = 5
# Open files besides connections: those of the store.
_FILES_BESIDE = 512


def check_exposure(host: str, tokens: Tokens, *, insecure: bool) -> None:
    """Refuse to let every program that reaches the host use the queues, unless that is said explicitly."""
    if not tokens and not insecure and not is_loopback(host):
        message = (
            f"host {host}: expected access tokens, or an address of this machine alone such as 127.0.0.1,"
            f" found neither: name a file of tokens (--tokens-file), set {TOKENS_VARIABLE}, or let every program in"
            f" (--insecure)"
        )
        raise InvalidRequestError(message)


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == _LOOPBACK_NAME


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0: any free one. InvalidRequestError when that cannot be."""
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        made = socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        message = f"host {host}, port {port}: expected an address to listen on, found {error.strerror or error}"
        raise InvalidRequestError(message) from error
    # The peer of a connection that is never closed, since its machine is gone, is found after some time.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return made


def url_of(listener: socket.socket) -> str:
    """Return the URL of a server."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def within_open_files(options: QueueServerOptions) -> QueueServerOptions:
    """Return options for which this process may open enough files, having raised its limit as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = options.connections_max + _FILES_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return options
    files = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, files), hard))
    if files == wanted:
        return options
    share = max(0, files - _FILES_BESIDE) / options.connections_max
    fewer = replace(
        options, requests_max=int(options.requests_max * share) or 1, waiting_max=int(options.waiting_max * share)
    )
    QUEUE.warning(
        "server: expected to open %d files, found a limit of %d (ulimit -Hn): it takes %d requests at a time, and lets"
        " %d others wait",
        wanted,
        files,
        fewer.requests_max,
        fewer.waiting_max,
    )
    return fewer


# Connections between two requests, but for those that have begun one since; the one that was quiet first is first.
_Quiet = OrderedDict["_Connection", None]


class _Connection(H11Protocol):
    """A connection that is ended when its client asks for nothing, or takes no answers.

    Like this only, since a stranger has connections, too: no token is known before a header is there.
    """

    def __init__(self, quiet: _Quiet, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - as uvicorn calls it
        super().__init__(*arguments, **options)
        self._quiet = quiet
        # Since when it is between two requests.
        self._idle_since_s = 0.0
        # What is to be sent, and since when its client has taken too little of it.
        self._unsent = 0
        self._unsent_since_s = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request is under way."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin; with one too many, the connection ends that has been idle longest."""
        super().connection_made(transport)
        self._be_quiet()
        while self._quiet and len(self.connections) >= (self.limit_concurrency or 0):
            first, _ = self._quiet.popitem(last=False)
            if first.is_idle:
                self.connections.discard(first)
                first.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._quiet.pop(self, None)
        super().connection_lost(exc)

    def _be_quiet(self) -> None:
        self._idle_since_s = self.loop.time()
        self._quiet[self] = None
        self._quiet.move_to_end(self)

    def data_received(self, data: bytes) -> None:
        """Take data in pieces, so that a header is refused before too much of it was looked at."""
        for start in range(0, len(data), _HEADER_BYTES_MAX):
            if self.transport.is_closing():
                break
            super().data_received(data[start : start + _HEADER_BYTES_MAX])

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self._be_quiet()
        super().on_response_complete()

    def end_if_stuck(self, options: QueueServerOptions) -> None:
        """End the connection if its client does nothing. What is to be sent is not waited for."""
        now_s = self.loop.time()
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent <= self._unsent - _TAKEN_BYTES_MIN or not self._unsent:
            self._unsent, self._unsent_since_s = unsent, now_s
        is_taken = now_s - self._unsent_since_s <= options.answer_s_max
        if not is_taken or (self.is_idle and not unsent and now_s - self._idle_since_s > options.header_s_max):
            self.transport.abort()


class QueueServer(uvicorn.Server):
    """Serves until SIGTERM or Ctrl-C; then answers requests that wait for an item, and closes the queues."""

    def __init__(
        self,
        service: QueueService,
        tokens: Tokens,
        *,
        hosts: Sequence[str] | None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        self._service = service
        self._ready = ready
        super().__init__(
            uvicorn.Config(
                application(service, Access(tokens, hosts)),
                http=cast("type[H11Protocol]", partial(_Connection, _Quiet())),
                h11_max_incomplete_event_size=_HEADER_BYTES_MAX,
                limit_concurrency=service.options.connections_max,
                log_config=None,
                access_log=False,
                server_header=False,
                ws="none",
                # Peers are counted by their own addresses: any of them could claim another in a header.
                proxy_headers=False,
                timeout_graceful_shutdown=max(1, round(service.options.stop_s_max)),
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin; signals are taken from before ``ready`` is called."""
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        """End connections that are stuck; return whether the server is to end."""
        if counter % _TURNS == 0:
            for connection in list(self.server_state.connections):
                cast("_Connection", connection).end_if_stuck(self._service.options)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: no new requests, answers to those that wait, then the queues."""
        self._service.stop()
        await super().shutdown(sockets)


def serve(service: QueueService, tokens: Tokens, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; call ``ready`` once it does. ``check_exposure`` comes first."""
    host = listener.getsockname()[0]
    # A server that others may reach has names that it does not know.
    hosts = _LOOPBACK_NAMES if is_loopback(host) and not tokens else None
    # A stranger fills no disk with warnings of requests that are none.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    QueueServer(service, tokens, hosts=hosts, ready=ready).run([listener])
