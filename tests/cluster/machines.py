"""What a machine of a cluster has of its own: a way to the store that a test watches, and credentials of a role."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.processes.fault_proxy import Fault, FaultProxy, Request

HELD_S_MAX = 240
ROLE_KEY = "key-of-the-role"
PROFILE, PROFILE_KEY = "team", "key-of-the-team"


@dataclass
class WatchedProxy(FaultProxy):
    """The way of one machine to the store: it knows whose requests they are, and can hold them, or refuse them."""

    keys: set[str] = field(default_factory=set)
    refused: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        # Whether a request was let go before its time.
        self.overdue = False
        self._held: tuple[str, str] | None = None
        self.holds = threading.Event()
        self._released = threading.Event()

    @contextmanager
    def holding(self, method: str, part: str) -> Iterator[threading.Event]:
        """Hold the machine's requests of a method whose path contains ``part``; the event says when there is one."""
        self.holds.clear()
        self._released.clear()
        self._held = method, part
        try:
            yield self.holds
        finally:
            self.release()
        assert not self.overdue, f"a {method} request was held for {HELD_S_MAX} s"

    def release(self) -> None:
        """Let go what is held, and hold no more."""
        self._held = None
        self._released.set()

    def decide(self, request: Request) -> tuple[Fault | None, float]:
        """Note the key, wait while the request is held, then do as the base class."""
        key = access_key(request)
        self.keys.add(key)
        held = self._held
        if held is not None and request.method == held[0] and held[1] in request.path:
            self.holds.set()
            self.overdue |= not self._released.wait(HELD_S_MAX)
        return (Fault.DENY, 0.0) if key in self.refused else super().decide(request)


def access_key(request: Request) -> str:
    """Return the access key that a request is signed with."""
    signed = next((value for name, value in request.headers if name.lower() == "authorization"), "")
    return signed.partition("Credential=")[2].partition("/")[0]


class _Role(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        keys = {"AccessKeyId": ROLE_KEY, "SecretAccessKey": "secret", "Token": "token"}
        data = json.dumps({**keys, "Expiration": "2100-01-01T00:00:00Z"}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002 - the base class's name
        """Stay silent."""


def write_profile(path: Path) -> Path:
    """Write a file of credentials with one profile."""
    path.write_text(f"[{PROFILE}]\naws_access_key_id = {PROFILE_KEY}\naws_secret_access_key = secret\n")
    return path


@contextmanager
def role() -> Iterator[dict[str, str]]:
    """Serve the credentials of a role as a container's agent does; give the environment that leads there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Role)
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{server.server_address[1]}/"}
    finally:
        server.shutdown()
        serving.join(60)
        server.server_close()
