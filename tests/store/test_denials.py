"""A refusal by the store is a StoreDeniedError for every request, not a plain UnavailableError."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wal3_core import StoreDeniedError, list_logs, open_store
from wal3_core.store.object_store import ObjectStore

ASKED: dict[str, Callable[[ObjectStore], object]] = {
    "read": lambda store: store.read("a"),
    "get": lambda store: store.get("a"),
    "create": lambda store: store.create("a", b""),
    "list": lambda store: list(store.list_objects("a/")),
    "folders": lambda store: store.list_folders("a/"),
    "logs": lambda store: list(list_logs(store)),
}


class RefusingServer(BaseHTTPRequestHandler):
    """Refuses every request with the status in the bucket's name."""

    protocol_version = "HTTP/1.1"

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(int(self.path.split("/")[1][:3]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = refuse  # noqa: N815 - the names http.server calls

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class RangelessServer(BaseHTTPRequestHandler):
    """Has one object of ten bytes, and returns another range of it than requested."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        whole = self.path.startswith("/whole")
        body = b"0123456789" if whole else b"123456789"
        self.send_response(200 if whole else 206)
        if not whole:
            self.send_header("Content-Range", "bytes 1-9/10")
        self.send_header("Content-Length", "10" if self.command == "HEAD" else str(len(body)))
        self.send_header("Last-Modified", "Sun, 22 Nov 2026 03:00:00 GMT")
        self.send_header("ETag", '"1"')
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the name http.server calls

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server; yield its endpoint."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def refusing_endpoint() -> Iterator[str]:
    with serving(RefusingServer) as endpoint:
        yield endpoint


@pytest.mark.slow
@pytest.mark.usefixtures("s3_bucket_url")  # for credentials
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("status", [401, 403])
def test_refused_access_is_a_denial(refusing_endpoint: str, asked: str, status: int) -> None:
    store = open_store(f"s3://{status}-bucket/folder?endpoint={refusing_endpoint}")

    with pytest.raises(StoreDeniedError, match=str(status)):
        ASKED[asked](store)


@pytest.mark.slow
@pytest.mark.usefixtures("s3_bucket_url")
@pytest.mark.parametrize("asked", ASKED)
def test_missing_bucket_is_a_denial(asked: str) -> None:
    store = open_store(f"s3://{uuid.uuid4().hex}/folder")

    with pytest.raises(StoreDeniedError, match="NoSuchBucket") as caught:
        ASKED[asked](store)

    assert caught.value.no_bucket


@pytest.mark.slow
@pytest.mark.usefixtures("s3_bucket_url")
@pytest.mark.parametrize("bucket", ["whole", "other"])
def test_server_that_returns_another_range_is_named(bucket: str) -> None:
    """It was once reported as a store that does not answer."""
    with serving(RangelessServer) as endpoint:
        store = open_store(f"s3://{bucket}/folder?endpoint={endpoint}")

        with pytest.raises(StoreDeniedError, match="folder.*: a: expected the bytes from 2 on, found that the server"):
            store.read("a", start=2, length=5)


@pytest.mark.usefixtures("s3_bucket_url")
def test_folder_that_does_not_exist_lists_as_empty(s3_url: str) -> None:
    store = open_store(s3_url)

    assert list(store.list_objects("none/")) == []
    assert store.list_folders("none/") == []
