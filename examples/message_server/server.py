"""The message server: one page and one WebSocket over HTTP."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import HTMLResponse
from starlette.routing import Route, WebSocketRoute

from examples.message_server.connection import Connection
from examples.message_server.frames import BAD_FRAME, FRAME_BYTES_MAX, FULL
from examples.message_server.memory import HELD_BYTES_MAX, Memory
from wal3_core import LogError, open_store

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.websockets import WebSocket

PAGE = Path(__file__).parent / "page.html"
LOOPBACK = ("127.0.0.1", "localhost")
CLIENTS_MAX = 100
# Beside one for each client that follows: what publishers ask for.
THREADS_MORE = 4


class Server:
    """All connections of one server process."""

    def __init__(self, memory: Memory, clients_max: int) -> None:
        self._memory = memory
        self._clients_max = clients_max
        self._num_clients = 0
        self._publishers: dict[str, Connection] = {}

    async def socket(self, socket: WebSocket) -> None:
        """Serve one client."""
        origin = socket.headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != socket.headers.get("host"):
            # A page of another site, in a browser that reaches this server.
            await socket.close(BAD_FRAME, "wrong origin")
            return
        if self._num_clients >= self._clients_max:
            await socket.accept()
            await socket.close(FULL, "too many clients")
            return
        self._num_clients += 1
        try:
            await Connection(socket, self._memory, self._publishers).serve()
        finally:
            self._num_clients -= 1


async def page(request: Request) -> HTMLResponse:
    """Return the page."""
    assert request
    return HTMLResponse(PAGE.read_text())


def application(memory: Memory, clients_max: int, hosts: Sequence[str]) -> Starlette:
    """Return the server as an ASGI application."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        assert app
        yield
        await asyncio.to_thread(memory.close)

    return Starlette(
        routes=[Route("/", page), WebSocketRoute("/socket", Server(memory, clients_max).socket)],
        # A name that leads to this machine does not let a page of another site read from it.
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))],
        lifespan=lifespan,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until it is interrupted; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m examples.message_server", description=__doc__)
    parser.add_argument("store", help="file:///path or s3://bucket/prefix: where the messages are kept")
    parser.add_argument("--log", default="messages", help="the feed's name (default: messages)")
    parser.add_argument("--host", default=LOOPBACK[0], help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8765, help="default: 8765")
    parser.add_argument("--clients-max", type=int, default=CLIENTS_MAX, help=f"default: {CLIENTS_MAX}")
    parser.add_argument(
        "--held-bytes-max",
        type=int,
        default=HELD_BYTES_MAX,
        help=f"when so much waits to become durable, the server is overloaded (default: {HELD_BYTES_MAX})",
    )
    given = parser.parse_args(arguments)
    with ThreadPoolExecutor(given.clients_max + THREADS_MORE) as pool:
        try:
            store = open_store(given.store)
            memory = Memory.open(store, given.log, pool, held_bytes_max=given.held_bytes_max)
        except LogError as error:
            print(f"{given.store}: {error}", file=sys.stderr)
            return 2
        hosts = LOOPBACK if given.host in LOOPBACK else ["*"]
        if given.host not in LOOPBACK:
            print("Everyone who reaches this address can read and publish.", file=sys.stderr)
        print(f"http://{given.host}:{given.port}", flush=True)
        uvicorn.run(
            application(memory, given.clients_max, hosts),
            host=given.host,
            port=given.port,
            log_level="warning",
            ws="websockets-sansio",
            ws_max_size=FRAME_BYTES_MAX,
            timeout_graceful_shutdown=5,
        )
    return 0
