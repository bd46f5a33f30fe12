"""A store that refuses says so as a denial, whatever it was asked, and not as a moment without an answer."""

from __future__ import annotations

import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from wal3_core import StoreDeniedError, list_logs, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from wal3_core.storage.object_store import ObjectStore

ASKED: dict[str, Callable[[ObjectStore], object]] = {
    "read": lambda store: store.read("a"),
    "get": lambda store: store.get("a"),
    "create": lambda store: store.create("a", b""),
    "list": lambda store: list(store.list_objects("a/")),
    "folders": lambda store: store.list_folders("a/"),
    "logs": lambda store: list(list_logs(store)),
}


class RefusingServer(BaseHTTPRequestHandler):
    """Refuses everything with the status that the bucket is named for."""

    protocol_version = "HTTP/1.1"

    def refuse(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        self.send_response(int(self.path.split("/")[1][:3]))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = refuse  # noqa: N815 - http.server calls them so

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def refusing_endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusingServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.usefixtures("s3_bucket_url")  # for credentials
@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("status", [401, 403])
def test_refused_access_is_a_denial(refusing_endpoint: str, asked: str, status: int) -> None:
    store = open_store(f"s3://{status}-bucket/folder?endpoint={refusing_endpoint}")

    with pytest.raises(StoreDeniedError, match=str(status)):
        ASKED[asked](store)


@pytest.mark.usefixtures("s3_bucket_url")
@pytest.mark.parametrize("asked", ASKED)
def test_missing_bucket_is_a_denial(asked: str) -> None:
    store = open_store(f"s3://{uuid.uuid4().hex}/folder")

    with pytest.raises(StoreDeniedError, match="NoSuchBucket"):
        ASKED[asked](store)


@pytest.mark.usefixtures("s3_bucket_url")
def test_folder_that_does_not_exist_lists_as_empty(s3_url: str) -> None:
    store = open_store(s3_url)

    assert list(store.list_objects("none/")) == []
    assert store.list_folders("none/") == []
