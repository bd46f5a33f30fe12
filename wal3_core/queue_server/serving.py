"""The server's process: where it listens, and how it ends."""

import socket
from collections.abc import Callable, Sequence
from ipaddress import ip_address

import uvicorn

from wal3_core.errors import InvalidRequestError
from wal3_core.queue_server.application import application
from wal3_core.queue_server.gate import Access
from wal3_core.queue_server.service import QueueService
from wal3_core.queue_server.tokens import TOKENS_VARIABLE, Tokens

_LOOPBACK_NAME = "localhost"
_LOOPBACK_NAMES = (_LOOPBACK_NAME, "127.0.0.1", "::1")
_BACKLOG = 2048


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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: no new requests, answers to those that wait, then the queues."""
        self._service.stop()
        await super().shutdown(sockets)


def serve(service: QueueService, tokens: Tokens, listener: socket.socket, ready: Callable[[], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; call ``ready`` once it does. ``check_exposure`` comes first."""
    host = listener.getsockname()[0]
    # A server that others may reach has names that it does not know.
    hosts = _LOOPBACK_NAMES if is_loopback(host) and not tokens else None
    QueueServer(service, tokens, hosts=hosts, ready=ready).run([listener])
