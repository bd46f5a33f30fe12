"""The server: what every request passes first, the routes behind that gate, its connections, and how it ends.

The gate looks at who asks, how often, and how much it may send.
"""

import asyncio
import hashlib
import hmac
import logging
import os
import re
import resource
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from math import ceil
from pathlib import Path
from typing import Any, cast

import uvicorn
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from wal3_core.errors import FencedError, InvalidRequestError, LogError
from wal3_core.queue_server.routes import HealthAnswer, router
from wal3_core.queue_server.service import QueueServerOptions, QueueService, ServerLoad, Ticket
from wal3_core.queue_server.wire import ERRORS, TOKENS_VARIABLE, StoppingError
from wal3_core.runtime import Runtime, shared_runtime
from wal3_core.runtime.loggers import QUEUE, without_secrets
from wal3_core.store.object_store import ObjectStore

# Paths that show nothing of any queue.
_OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})
# A name or an address, and perhaps a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]*)?")
# Requests that a browser makes for the page of another site, if only for a picture.
_FOREIGN = frozenset({"cross-site", "same-site"})
# The largest body that is read and forgotten behind a refusal.
_FORGOTTEN_BYTES = 2**16
_CLIENTS_MAX = 10_000
_BURST_S = 2.0
_CHARS_MIN = 16
_READ_BY_OTHERS = 0o004


def read_tokens(path: Path) -> list[str]:
    """Return the tokens of a file: one on each line; empty lines and those that begin with # are left out."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        message = f"{path}: expected a file of access tokens, found none that can be read: {type(error).__name__}"
        raise InvalidRequestError(message) from error
    found = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not found:
        raise InvalidRequestError(f"{path}: expected an access token on each line, found none")
    if mode & _READ_BY_OTHERS:
        QUEUE.warning(
            "%s: expected access tokens that only their owner reads, found mode %03o: every user of this machine has"
            " them (chmod 600, and new tokens)",
            path,
            mode & 0o777,
        )
    return found


def split_tokens(text: str) -> list[str]:
    """Return the tokens of a variable: separated by spaces or commas."""
    return text.replace(",", " ").split()


class Tokens:
    """The tokens that a server knows. InvalidRequestError when one is too short, or not printable ASCII."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self._digests: list[bytes] = []
        for number, token in enumerate(tokens, 1):
            if len(token) < _CHARS_MIN or not token.isascii() or not token.isprintable() or " " in token:
                # Not shown: it may be a secret with a slip in it.
                raise InvalidRequestError(
                    f"access token {number}: expected at least {_CHARS_MIN} printable ASCII characters without spaces,"
                    f" found {len(token)} characters"
                )
            self._digests.append(hashlib.sha256(token.encode()).digest())

    def __bool__(self) -> bool:
        return bool(self._digests)

    def known(self, authorization: bytes) -> int | None:
        """Return the number of the token in a header ``Bearer TOKEN``; None for an unknown one."""
        scheme, _, token = authorization.partition(b" ")
        given = hashlib.sha256(token.strip()).digest()
        found = None
        # Every one is compared, also after one has fitted.
        for number, digest in enumerate(self._digests):
            if hmac.compare_digest(digest, given) and scheme.lower() == b"bearer":
                found = number
        return found


class Rates:
    """A token bucket for each client; 0: no limit. Libraries for it count in windows, and bring their own storage."""

    def __init__(self, per_s: float, runtime: Runtime) -> None:
        self._per_s = per_s
        self._burst = max(1.0, per_s * _BURST_S)
        self._runtime = runtime
        # The requests that each client has left, and as of when; the one that asked last is last.
        self._left: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def wait_s(self, client: object) -> float:
        """Count a request; return 0, or after how many seconds the client may make it."""
        if not self._per_s:
            return 0.0
        now_s = self._runtime.monotonic_s()
        left, at_s = self._left.pop(client, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._per_s)
        taken = left >= 1
        self._left[client] = (left - taken, now_s)
        if len(self._left) > _CLIENTS_MAX:
            # Of the others, the one that has been quiet longest: it begins again with a full bucket.
            self._left.popitem(last=False)
        return 0.0 if taken else (1 - left) / self._per_s


# ---------------------------------------------------------------------- the gate


def error_answer(
    status: int, error: str, message: str, *, retry_s: float | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Answer with an error."""
    more = dict(headers or {})
    if retry_s is not None:
        more["retry-after"] = str(max(1, ceil(retry_s)))
    # What a client sent may not be encodable.
    shown = without_secrets(message).encode(errors="backslashreplace").decode()
    return JSONResponse({"error": error, "message": shown}, status, more)


def stopping_answer() -> JSONResponse:
    """Answer that the server is about to end."""
    message = "server: expected to go on, found that it is stopping: ask again, once another is there"
    return error_answer(503, "stopping", message, retry_s=1, headers={"connection": "close"})


class Gate:
    """ASGI middleware. Refuses what may not pass, and counts the bytes of bodies as they arrive.

    Without tokens, every program that reaches the server may ask. ``hosts`` are the names that the server is reached
    by, so that a web page of another site cannot reach one on its visitor's machine under a name of its own; None: any.
    """

    def __init__(
        self, app: ASGIApp, service: QueueService, tokens: Tokens, hosts: Collection[str] | None, runtime: Runtime
    ) -> None:
        self._app = app
        self._service = service
        self._tokens = tokens
        self._hosts = hosts
        self._options = service.options
        self._rates = Rates(service.options.requests_per_s, runtime)
        self._load = ServerLoad(service.options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            if "transfer-encoding" in headers or _length(headers) > _FORGOTTEN_BYTES:
                refusal.headers["connection"] = "close"
            await refusal(scope, receive, send)
            return
        ticket = scope["ticket"] = Ticket(self._load)
        try:
            await self._app(scope, _limited(receive, self._load, ticket), send)
        finally:
            ticket.done()

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that may not pass, None for others."""
        if self._service.stopping:
            return stopping_answer()
        is_open = scope["path"] in _OPEN_PATHS
        if not self._is_own(headers) or (not is_open and headers.get("sec-fetch-site") in _FOREIGN):
            message = "host or origin: expected this server's, found another"
            return error_answer(403, "forbidden", message)
        if is_open:
            return None
        return self._stranger(scope, headers) or self._too_much(headers)

    def _stranger(self, scope: Scope, headers: Headers) -> Response | None:
        """Refuse who asks too often, or has no token, in this order: so tokens are not to be guessed quickly."""
        client, known = self._client(scope, headers)
        wait_s = self._rates.wait_s(client)
        if wait_s:
            message = f"client: expected at most {self._options.requests_per_s:g} requests a second, found more"
            return error_answer(429, "too_many_requests", message, retry_s=wait_s)
        if not known:
            found = "another one" if headers.get("authorization") else "none"
            message = f"authorization: expected `Bearer TOKEN` with an access token of this server, found {found}"
            return error_answer(401, "unauthorized", message, headers={"www-authenticate": "Bearer"})
        return None

    def _too_much(self, headers: Headers) -> Response | None:
        if self._load.num_requests >= self._options.requests_max:
            message = f"server: expected at most {self._options.requests_max} requests at a time, found as many"
            return error_answer(503, "busy", message, retry_s=1)
        if _length(headers) > self._options.body_bytes_max:
            return error_answer(413, "too_large", self._options.too_large, headers={"connection": "close"})
        return None

    def _is_own(self, headers: Headers) -> bool:
        host = headers.get("host", "")
        origin = headers.get("origin")
        if origin is not None and origin not in {f"http://{host}", f"https://{host}"}:
            return False
        if self._hosts is None:
            return True
        named = _HOST.fullmatch(host)
        return named is not None and (named[1] or named[2]).lower() in self._hosts

    def _client(self, scope: Scope, headers: Headers) -> tuple[object, bool]:
        """Return by what a client is counted, and whether it may ask: a stranger is known by its address alone."""
        address = (scope.get("client") or ("",))[0]
        if not self._tokens:
            return address, True
        number = self._tokens.known(headers.get("authorization", "").encode("latin-1"))
        return (address, False) if number is None else (number, True)


def _length(headers: Headers) -> int:
    """Return how long a body is, by its header."""
    length = headers.get("content-length", "")
    return int(length[:20]) if length.isdecimal() else 0


def _limited(receive: Receive, load: ServerLoad, ticket: Ticket) -> Receive:
    """Receive a body in time, and not too large, whatever its headers say; HTTPException when it is too much."""
    options = load.options
    until_s: float | None = None
    complete = False

    async def limited() -> Message:
        nonlocal until_s, complete
        if complete:
            return await receive()
        until_s = until_s or asyncio.get_running_loop().time() + options.body_s_max
        try:
            async with asyncio.timeout_at(until_s):
                message = await receive()
        except TimeoutError:
            detail = f"body: expected it within {options.body_s_max:g} s, found it incomplete"
            raise HTTPException(408, detail, {"connection": "close"}) from None
        if message["type"] == "http.request":
            ticket.add(len(message.get("body", b"")))
            if ticket.num_bytes > options.body_bytes_max:
                raise HTTPException(413, options.too_large, {"connection": "close"})
            if load.num_bytes > options.held_bytes_max:
                detail = f"server: expected at most {options.held_bytes_max} bytes of bodies at a time, found more"
                raise HTTPException(503, detail, {"connection": "close", "retry-after": "1"})
            complete = not message.get("more_body", False)
        return message

    return limited


# ---------------------------------------------------------------------- the application

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
_RESTART = (
    "; the server leaves the queue to it: to serve it from here again, stop the other process, and restart this server"
)
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
    """Answer with an error of the library."""
    if isinstance(error, StoppingError):
        return stopping_answer()
    message = f"{error}{_RESTART}" if isinstance(error, FencedError) else str(error)
    for kind, _raised, status, word, retry_s in ERRORS:
        if isinstance(error, kind):
            return error_answer(status, word, message, retry_s=retry_s)
    return error_answer(500, "failed", message)


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
