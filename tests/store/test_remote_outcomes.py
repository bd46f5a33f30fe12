"""A PUT that may have been applied is never reported as denied, whatever is received after it was sent."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from wal3_core import UnavailableError, open_store
from wal3_core.store.object_store import Done, Unknown, Versioned

obstore_store = pytest.importorskip("obstore.store", reason="pip install '.[s3]'")
PAGE = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
WAIT_S_MAX = 60


def answer_outside_of_tls(
    listener: socket.socket, context: ssl.SSLContext, applied: list[bytes], answered: threading.Event
) -> None:
    """Read one PUT to its end, then break the TLS connection by a page in plain text, as a tunnel may do."""
    connection, _ = listener.accept()
    connection.settimeout(WAIT_S_MAX)
    with context.wrap_socket(connection, server_side=True) as secure:
        received = b""
        while not received.endswith(b"the body"):
            received += secure.recv(65536)
        applied.append(received)
        os.write(secure.fileno(), PAGE)
        answered.wait(WAIT_S_MAX)


@pytest.fixture
def context(tmp_path: Path) -> ssl.SSLContext:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with: apt-get install openssl")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    asked = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=127.0.0.1 -keyout {key} -out {certificate}"
    subprocess.run(asked.split(), check=True, capture_output=True, timeout=WAIT_S_MAX)
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(certificate, key)
    return made


def test_put_whose_tls_connection_breaks_after_it_was_sent_is_unknown(context: ssl.SSLContext) -> None:
    from wal3_core.store.backends.remote import NEVER_RETRY, Clients, RemoteStore  # noqa: PLC0415 - needs obstore

    applied: list[bytes] = []
    answered = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(
            target=answer_outside_of_tls, args=(listener, context, applied, answered), daemon=True
        )
        thread.start()
        client = obstore_store.S3Store(
            bucket="b",
            endpoint=f"https://127.0.0.1:{listener.getsockname()[1]}",
            access_key_id="x",
            secret_access_key="y",
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_invalid_certificates": True},
            retry_config=NEVER_RETRY,
        )
        store = RemoteStore("s3://b", Clients(lambda _: client, client))

        outcome = store.create("a", b"the body")

        answered.set()
        thread.join(WAIT_S_MAX)
    assert len(applied) == 1
    assert isinstance(outcome, Unknown)


class FailingServer(BaseHTTPRequestHandler):
    """Answers a PUT with the status and the text that its bucket names, or by sending the client elsewhere."""

    protocol_version = "HTTP/1.1"
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {
        "code": (500, b"<Error><Code>AccessDenied</Code><Message>the other replica refused</Message></Error>"),
        "token": (503, b"the token request of this gateway failed"),
        "redirect": (502, b"the server behind sent a redirect without LOCATION"),
    }

    def fail(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = self.answers[self.path.split("/")[1]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def see_other(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(303)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def show(self) -> None:
        self.send_response(200)
        self.send_header("ETag", '"old"')
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"old")

    def do_PUT(self) -> None:
        if self.path.startswith("/elsewhere/"):
            self.see_other()
        else:
            self.fail()

    do_GET = show  # noqa: N815 - the name http.server calls

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    with ThreadingHTTPServer(("127.0.0.1", 0), FailingServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("bucket", sorted(FailingServer.answers))
def test_put_that_a_failing_server_answers_is_unknown_whatever_the_answer_says(address: str, bucket: str) -> None:
    outcome = open_store(f"s3://{bucket}?endpoint=http://{address}").create("a", b"")

    assert isinstance(outcome, Unknown)
    assert str(FailingServer.answers[bucket][0]) in outcome.cause


def test_replace_whose_answer_is_that_of_a_get_of_the_old_version_is_unknown(address: str) -> None:
    store = open_store(f"s3://elsewhere?endpoint=http://{address}")
    found = store.get("a")
    assert isinstance(found, Versioned)

    assert isinstance(store.replace("a", b"new", found.etag), Unknown)


class SlowServer(BaseHTTPRequestHandler):
    """Takes and gives bodies slowly, or stops in the middle of one, as its bucket says."""

    protocol_version = "HTTP/1.1"
    body = b"x" * 400_000
    pauses, pause_s = 8, 0.25

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("ETag", '"x"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.end_headers()
        part = len(self.body) // self.pauses
        with contextlib.suppress(OSError):
            for begin in range(0, len(self.body), part):
                self.wfile.write(self.body[begin : begin + part])
                self.wfile.flush()
                time.sleep(60 if begin and "silent" in self.path else self.pause_s)

    def do_PUT(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            # Eight parts.
            time.sleep(self.pause_s)
            left -= len(self.rfile.read(min(left, 2**18)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.send_header("ETag", '"x"')
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def slow_endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowServer) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
@pytest.mark.usefixtures("s3_bucket_url")  # for credentials
def test_body_that_takes_longer_than_a_request_may_be_silent_arrives(slow_endpoint: str) -> None:
    """The limit once covered the whole body: a large record never crossed a slow link, however often it was sent."""
    store = open_store(f"s3://slow?endpoint={slow_endpoint}&request_timeout_s=1&timeout_s=0")

    # Both take two seconds.
    assert store.read("a") == SlowServer.body
    assert isinstance(store.create("a", b"x" * 2**21), Done)


@pytest.mark.slow
@pytest.mark.usefixtures("s3_bucket_url")
def test_answer_that_stops_in_its_middle_is_waited_for_as_long_as_any_silence(
    slow_endpoint: str,
) -> None:
    store = open_store(f"s3://silent?endpoint={slow_endpoint}&request_timeout_s=1&timeout_s=0")

    with pytest.raises(UnavailableError, match=r"give requests more time: \?request_timeout_s=60 in the store's URL"):
        store.read("a")
