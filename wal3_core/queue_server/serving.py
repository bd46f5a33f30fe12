"""The server: routes behind the gate, where it listens, what its connections may do, and how it ends."""

import asyncio
import logging
import os
import resource
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from uvicorn.protocols.http.h11_impl import H11Protocol

from wal3_core.errors import InvalidRequestError, LogError
from wal3_core.queue_server.answers import answer_of, error_answer
from wal3_core.queue_server.gate import Gate, Tokens, read_tokens, split_tokens
from wal3_core.queue_server.routes import HealthAnswer, router
from wal3_core.queue_server.service import QueueServerOptions, QueueService
from wal3_core.queue_server.wire import TOKENS_VARIABLE
from wal3_core.runtime import shared_runtime
from wal3_core.runtime.loggers import QUEUE
from wal3_core.store.object_store import ObjectStore

_LOOPBACK_NAME = "localhost"
_LOOPBACK_NAMES = (_LOOPBACK_NAME, "127.0.0.1", "::1")
_BACKLOG = 2048
# The largest header of a request; h11 takes apart no more at a time.
_HEADER_BYTES_MAX = 2**14
# The least of an answer that a client takes within the time that it may take nothing.
_TAKEN_BYTES_MIN = 2**20
# Turns of the server's loop between two looks at its connections: half a second.
_TURNS = 5
# Open files besides connections: those of the store.
_FILES_BESIDE = 512
_WORDS = {
    400: "invalid",
    404: "unknown_path",
    405: "unknown_method",
    408: "too_slow",
    413: "too_large",
    503: "busy",
}
# No route has this path, or this method.
_UNROUTED = frozenset({404, 405})
_DESCRIPTION = """Delay queues on object storage. `POST /v1/queues/{queue}/enqueue` answers once the item is durable;
`dequeue` leases due items, and `release` removes one whose work is done.

Values are base64 in `value`, or UTF-8 in `text`. Times are microseconds since 1970 (`…_us`) or seconds (`…_s`). With
access tokens, every request but `/health` has the header `Authorization: Bearer TOKEN`."""


def application(service: QueueService, tokens: Tokens, hosts: Collection[str] | None) -> FastAPI:
    """Return the application; it closes the service's queues when it ends."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="wal3 delay queues",
        version="1",
        description=_DESCRIPTION,
        lifespan=lifespan,
        redoc_url=None,
        middleware=[Middleware(Gate, service=service, tokens=tokens, hosts=hosts, runtime=shared_runtime())],
        exception_handlers={
            LogError: _refused,
            ClientDisconnect: _gone,
            RequestValidationError: _invalid,
            HTTPException: _by_status,
            Exception: _failed,
        },
    )
    app.state.service = service
    app.include_router(router)

    @app.get("/health", response_model=HealthAnswer)
    async def health() -> JSONResponse:
        """Say whether the server takes requests; 503 once it stops. Asks no store."""
        return JSONResponse({"status": "ok"})

    return app


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, LogError)
    return answer_of(error)


async def _gone(_: Request, __: Exception) -> Response:
    """Answer in vain: the client has gone before its body was there."""
    return Response(status_code=400)


async def _invalid(_: Request, error: Exception) -> Response:
    """Say which parameter of the path or the query is not as described."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"]))
    return error_answer(422, "invalid", f"request: expected it as /docs describes, found {where}: {first['msg']}")


async def _by_status(request: Request, error: Exception) -> Response:
    """Answer with what the gate, or the framework, has said."""
    assert isinstance(error, HTTPException)
    word = _WORDS.get(error.status_code, "refused")
    said = error.detail
    if error.status_code in _UNROUTED:
        said = f"request: expected one that /docs describes, found {request.method} {request.url.path}"
    return error_answer(error.status_code, word, said, headers=dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    """Answer without details, which are in the server's log."""
    QUEUE.log(logging.ERROR, "%s %s failed", request.method, request.url.path, exc_info=error)
    return error_answer(500, "failed", "server: expected to answer, found an error of its own: see its log")


# ---------------------------------------------------------------------- connections, and the process


def check_exposure(host: str, tokens: Tokens, *, insecure: bool) -> None:
    """Refuse to let every program that reaches the host use the queues, unless that is said explicitly."""
    if not tokens and not insecure and not is_loopback(host):
        raise InvalidRequestError(
            f"host {host}: expected access tokens, or an address of this machine alone such as 127.0.0.1,"
            f" found neither: name a file of tokens (--tokens-file), set {TOKENS_VARIABLE}, or let every program in"
            f" (--insecure)"
        )


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
        # Bytes to be sent, and since when the client has taken too little of them.
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
                application(service, tokens, hosts),
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


def serve(  # noqa: PLR0913 - its options
    store: ObjectStore,
    prefix: str,
    address: tuple[str, int],
    *,
    options: QueueServerOptions,
    tokens_file: Path | None,
    insecure: bool,
    ready: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C or SIGTERM; ``ready`` gets the URL once the server listens. Warnings go to stderr."""
    # A server has nothing else to report to its operator by.
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    tokens = Tokens(read_tokens(tokens_file) if tokens_file else split_tokens(os.environ.get(TOKENS_VARIABLE, "")))
    check_exposure(address[0], tokens, insecure=insecure)
    service = QueueService(store, prefix, within_open_files(options))
    with listening(*address) as listener:
        # A server that others may reach has names that it does not know.
        hosts = _LOOPBACK_NAMES if is_loopback(listener.getsockname()[0]) and not tokens else None
        # A stranger fills no disk with warnings of requests that are none.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        QueueServer(service, tokens, hosts=hosts, ready=partial(ready, url_of(listener))).run([listener])
