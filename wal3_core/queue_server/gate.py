"""What every request passes first: who asks, how often, and how much it may send."""

import asyncio
import hashlib
import hmac
import re
from collections import OrderedDict
from collections.abc import Collection, Iterable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.answers import error_answer, stopping_answer
from wal3_core.queue_server.service import QueueService, ServerLoad, Ticket
from wal3_core.runtime import Runtime
from wal3_core.runtime.loggers import QUEUE

# Paths that show nothing of any queue.
OPEN_PATHS = frozenset({"/health", "/docs", "/openapi.json"})
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
    """A token bucket for each client: libraries for it count in windows, and bring storage of their own.

    Lets each client make ``per_s`` requests a second, and two seconds' worth at once; 0: no limit.
    """

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
