"""What every request passes first: who asks, how often, and how much it may send."""

import asyncio
import re
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wal3_core.queue_server.answers import error_answer, stopping_answer
from wal3_core.queue_server.load import Load, Rates, Ticket
from wal3_core.queue_server.service import QueueService
from wal3_core.queue_server.tokens import Tokens
from wal3_core.runtime import Runtime

# They show nothing of any queue.
OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})
# A name or an address, and perhaps a port.
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]*)?")
# Of a browser that asks for the page of another site, if only for a picture.
_FOREIGN = frozenset({"cross-site", "same-site"})
# What comes of a body behind a refusal is read and forgotten, unless it is more.
_FORGOTTEN_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask. Without tokens, every program that reaches the server; ``hosts`` are the names it is reached by.

    Hosts are checked so that a web page of another site cannot reach a server on its visitor's machine under a name of
    its own; None: any.
    """

    tokens: Tokens
    hosts: Collection[str] | None


class Gate:
    """ASGI middleware. Refuses what may not pass, and counts the bytes of bodies as they arrive."""

    def __init__(self, app: ASGIApp, service: QueueService, access: Access, runtime: Runtime) -> None:
        self._app = app
        self._service = service
        self._access = access
        self._options = service.options
        self._rates = Rates(service.options.requests_per_s, runtime)
        self._load = Load(service.options)

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
            await self._app(scope, _Body(receive, self._load, ticket).receive, send)
        finally:
            ticket.done()

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Return the answer to a request that may not pass, None for others."""
        if self._service.stopping:
            return stopping_answer()
        is_open = scope["path"] in OPEN_PATHS
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
        if self._access.hosts is None:
            return True
        named = _HOST.fullmatch(host)
        return named is not None and (named[1] or named[2]).lower() in self._access.hosts

    def _client(self, scope: Scope, headers: Headers) -> tuple[object, bool]:
        """Return by what a client is counted, and whether it may ask: a stranger is known by its address alone."""
        address = (scope.get("client") or ("",))[0]
        if not self._access.tokens:
            return address, True
        number = self._access.tokens.known(headers.get("authorization", "").encode("latin-1"))
        return (address, False) if number is None else (number, True)


def _length(headers: Headers) -> int:
    """Return how long a body is, by its header."""
    length = headers.get("content-length", "")
    return int(length[:20]) if length.isdecimal() else 0


class _Body:
    """The body of one request, as it arrives: in time, and not too large, whatever its headers say."""

    def __init__(self, receive: Receive, load: Load, ticket: Ticket) -> None:
        self._receive = receive
        self._options = load.options
        self._load = load
        self._ticket = ticket
        self._until_s: float | None = None
        self._complete = False

    async def receive(self) -> Message:
        """Return the next part of the body; after it, that the client is gone. HTTPException when it is too much."""
        if self._complete:
            return await self._receive()
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + self._options.body_s_max
        try:
            async with asyncio.timeout_at(self._until_s):
                message = await self._receive()
        except TimeoutError:
            detail = f"body: expected it within {self._options.body_s_max:g} s, found it incomplete"
            raise HTTPException(408, detail, {"connection": "close"}) from None
        if message["type"] == "http.request":
            self._take(len(message.get("body", b"")))
            self._complete = not message.get("more_body", False)
        return message

    def _take(self, num_bytes: int) -> None:
        self._ticket.add(num_bytes)
        if self._ticket.num_bytes > self._options.body_bytes_max:
            raise HTTPException(413, self._options.too_large, {"connection": "close"})
        if self._load.num_bytes > self._options.held_bytes_max:
            detail = f"server: expected at most {self._options.held_bytes_max} bytes of bodies at a time, found more"
            raise HTTPException(503, detail, {"connection": "close", "retry-after": "1"})
