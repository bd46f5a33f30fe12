"""A remote store's errors are one line that names the store and says what to do: no XML, no structures of a client."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import pytest
from click.testing import CliRunner
from obstore.exceptions import NotFoundError

from wal3_core import LogReader, LogWriter, StoreDeniedError, UnavailableError, WriterOptions, open_store
from wal3_core.cli.program import cli
from wal3_core.store.backends.remote_errors import trouble
from wal3_core.store.object_store import Unknown

ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?>\n<Error>{}<RequestId>4442587FB7D0A2F9</RequestId><HostId>x</HostId></Error>'
)


@dataclass(frozen=True)
class Refusal:
    """What S3 answers, as Amazon documents it, and what is to be read of it."""

    status: int
    code: str
    more: str
    said: str
    advised: str


REFUSALS = [
    Refusal(
        403,
        "InvalidAccessKeyId",
        "<Message>The AWS Access Key Id you provided does not exist in our records.</Message>"
        "<AWSAccessKeyId>AKIA</AWSAccessKeyId>",
        "the server does not know the access key",
        "AWS_ACCESS_KEY_ID",
    ),
    Refusal(
        403,
        "SignatureDoesNotMatch",
        "<Message>The request signature we calculated does not match the signature you provided. Check your key and"
        " signing method.</Message><StringToSign>AWS4-HMAC-SHA256\n20261122</StringToSign>",
        "the secret key does not fit the access key",
        "AWS_SECRET_ACCESS_KEY",
    ),
    Refusal(
        403,
        "RequestTimeTooSkewed",
        "<Message>The difference between the request time and the current time is too large.</Message>"
        "<RequestTime>20261122T100000Z</RequestTime><ServerTime>2026-11-22T12:00:00Z</ServerTime>",
        "sent 20261122T100000Z, received 2026-11-22T12:00:00Z",
        "set this machine's clock",
    ),
    Refusal(
        400,
        "ExpiredToken",
        "<Message>The provided token has expired.</Message><Token-0>abc</Token-0>",
        "the credentials have expired",
        "renew them",
    ),
    Refusal(
        400,
        "AuthorizationHeaderMalformed",
        "<Message>The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'"
        "</Message><Region>eu-west-1</Region>",
        "the bucket is in another region",
        "set AWS_DEFAULT_REGION=eu-west-1, or add ?region=eu-west-1",
    ),
    Refusal(
        301,
        "PermanentRedirect",
        "<Message>The bucket you are attempting to access must be addressed using the specified endpoint.</Message>"
        "<Endpoint>b.s3.eu-west-1.amazonaws.com</Endpoint><Bucket>b</Bucket>",
        "the bucket is in another region",
        "add ?region=",
    ),
    Refusal(
        403, "AccessDenied", "<Message>Access Denied</Message>", "access is denied", "give these credentials access"
    ),
    Refusal(
        404,
        "NoSuchBucket",
        "<Message>The specified bucket does not exist</Message><BucketName>b</BucketName>",
        "there is no such bucket",
        "create it, or correct the store's URL",
    ),
]


class RefusingServer(BaseHTTPRequestHandler):
    """Answers every request with the refusal whose code is the bucket's name, or with a page of a gateway."""

    protocol_version = "HTTP/1.1"
    requests: ClassVar[list[str]] = []

    def refuse(self) -> None:
        self.requests.append(self.command)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket = self.path.split("/")[1].split("?")[0]
        found = next((each for each in REFUSALS if each.code == bucket), None)
        if found is None:
            status, body = 502, b"<html><body><h1>502 Bad Gateway</h1></body></html>"
        else:
            status, body = found.status, ERROR.format(f"<Code>{found.code}</Code>{found.more}").encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = refuse  # noqa: N815 - the names http.server calls

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), RefusingServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Host and port of a server that refuses everything; there are credentials."""
    for name, value in (("ACCESS_KEY_ID", "x"), ("SECRET_ACCESS_KEY", "y"), ("DEFAULT_REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    RefusingServer.requests.clear()
    with serving() as found:
        yield found


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_line(line: str, url: str) -> None:
    assert url in line
    assert "\n" not in line
    for noise in ("<", ">", "Debug source", "GenericError", "Generic S3", "PermissionDeniedError", "Traceback", "ms -"):
        assert noise not in line
    assert len(line) < 420


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.code)
@pytest.mark.parametrize("asked", ["read", "create", "list"])
def test_refusal_is_a_denial_that_says_what_to_do(address: str, refusal: Refusal, asked: str) -> None:
    url = f"s3://{refusal.code}/folder?endpoint=http://{address}"
    store = open_store(url)

    with pytest.raises(StoreDeniedError) as caught:
        match asked:
            case "read":
                store.read("a/b")
            case "create":
                store.create("a/b", b"x")
            case _:
                store.list_folders("")

    check_line(str(caught.value), url)
    assert refusal.said in str(caught.value)
    assert refusal.advised in str(caught.value)
    assert caught.value.no_bucket == (refusal.code == "NoSuchBucket")


def test_container_that_is_not_there_is_said_as_a_bucket_is() -> None:
    answer = NotFoundError("status code: 404 Not Found <Error><Code>ContainerNotFound</Code></Error>")
    error = trouble(answer).error("az://c", "a")

    assert isinstance(error, StoreDeniedError)
    assert error.no_bucket


@pytest.mark.slow
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda refusal: refusal.code)
def test_commands_report_a_refusal_at_once_in_one_line(address: str, refusal: Refusal) -> None:
    url = f"s3://{refusal.code}/folder?endpoint=http://{address}"
    for arguments, stdin, requests in (
        # A policy may allow to list folders, and not all objects: both are asked for.
        (["ls"], "", 2),
        (["cat", "orders"], "", 1),
        (["append", "--create", "orders"], '{"body": "b"}\n', 1),
    ):
        RefusingServer.requests.clear()
        result = CliRunner().invoke(cli, ["--store", url, *arguments], input=stdin)

        # A bucket that is not there is a mistake in the command, as a directory that is not there.
        assert (result.exit_code, result.stdout) == (2 if refusal.code == "NoSuchBucket" else 1, "")
        check_line(result.stderr.removesuffix("\n"), url)
        assert refusal.said in result.stderr
        assert len(RefusingServer.requests) == requests


@pytest.mark.slow
def test_page_of_a_gateway_is_its_status(address: str) -> None:
    store = open_store(f"s3://gateway?endpoint=http://{address}")

    with pytest.raises(UnavailableError, match=r"a: the server answered 502 Bad Gateway$") as caught:
        store.read("a")

    assert not isinstance(caught.value, StoreDeniedError)
    assert store.create("a", b"") == Unknown("the server answered 502 Bad Gateway")


@pytest.mark.slow
def test_refused_connection_is_retried_and_names_the_address(address: str) -> None:
    del address  # for credentials
    port = closed_port()
    url = f"s3://b?endpoint=http://127.0.0.1:{port}"

    with pytest.raises(UnavailableError, match=f"connection refused: no server listens at 127.0.0.1:{port}") as caught:
        LogReader.open(open_store(f"{url}&timeout_s=0"), "orders")
    result = CliRunner().invoke(cli, ["--store", url, "--timeout", "0", "ls"])

    check_line(str(caught.value), url)
    assert not isinstance(caught.value, StoreDeniedError)
    assert result.exit_code == 1
    check_line(result.stderr.removesuffix("\n"), url)


@pytest.mark.slow
def test_unknown_host_is_named(address: str) -> None:
    del address
    url = "s3://b?endpoint=http://nothing.invalid&timeout_s=0"

    with pytest.raises(UnavailableError, match=r"unknown host nothing\.invalid \(.*\): correct the endpoint") as caught:
        LogReader.open(open_store(url), "orders")

    check_line(str(caught.value), url)


@pytest.mark.slow
def test_server_without_tls_is_a_denial(address: str) -> None:
    url = f"s3://b?endpoint=https://{address}"

    with pytest.raises(StoreDeniedError, match=f"{address} does not speak TLS: write http://") as caught:
        LogWriter.open(open_store(url), "orders", options=WriterOptions(delivery_timeout_s=60))

    check_line(str(caught.value), url)


def test_missing_credentials_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (
        ("EC2_METADATA_DISABLED", "true"),
        ("CONFIG_FILE", "/none"),
        ("SHARED_CREDENTIALS_FILE", "/none"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)

    with pytest.raises(StoreDeniedError, match="^store s3://b/logs: expected AWS credentials, found none: set AWS_P"):
        open_store("s3://b/logs?timeout_s=1")
    with pytest.raises(StoreDeniedError, match=r"profile \(none\) could not be found: correct the URL, the profile"):
        open_store("s3://b?profile=none")
