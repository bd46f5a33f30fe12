"""A webhook that keeps what is posted to it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Webhook(ThreadingHTTPServer):
    """A webhook on this machine; the first ``failures`` requests are answered with an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.failures = 0
        self.posted: list[dict[str, str]] = []
        self.requests = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/secret-part"


class _Handler(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests += 1
        failing = self.server.requests <= self.server.failures
        if not failing:
            self.server.posted.append(json.loads(body))
        self.send_response(503 if failing else 200)
        self.end_headers()

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""
