"""What boto3 finds for a bucket of S3 is used as boto3 uses it: the endpoint, certificates, and keys that change."""

from __future__ import annotations

import os
import re
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import boto3
import pytest

from wal3_core import InvalidRequestError, StoreDeniedError, UnavailableError, open_store
from wal3_core.store.object_store import Done, ObjectStore

BUCKET = "some-bucket"
VPCE = "https://bucket.vpce-0a1b2c.s3.us-east-1.vpce.amazonaws.com"
WAIT_S_MAX = 60


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of profiles of a user who has keys, and nothing else is set."""
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    keys = tmp_path / "credentials"
    set_keys(keys, "FIRST")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    return tmp_path / "config"


def set_keys(file: Path, name: str) -> None:
    file.write_text(f"[default]\naws_access_key_id={name}\naws_secret_access_key=s\naws_session_token=t-{name}\n")


def url_of_boto3(bucket: str, endpoint: str | None) -> str:
    """Return the URL that boto3 reads an object from, which it is kept from doing."""
    asked: list[str] = []

    def keep_from(request: Any, **_: object) -> None:  # noqa: ANN401 - botocore has no types
        asked.append(request.url)
        raise InterruptedError

    client = boto3.session.Session().client("s3", endpoint_url=endpoint)
    client.meta.events.register("before-send.s3.HeadObject", keep_from)
    with pytest.raises(InterruptedError):
        client.head_object(Bucket=bucket, Key="folder/x")
    return asked[0]


def url_of_store(url: str) -> str:
    with pytest.raises(UnavailableError) as failed:
        open_store(url).read("x")
    found = re.search(r"Error performing GET (\S+) in ", str(failed.value.__cause__))
    assert found is not None
    return found[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "profile"),
    [
        ({}, ""),
        ({"AWS_DEFAULT_REGION": "eu-west-1"}, ""),
        ({"AWS_DEFAULT_REGION": "cn-north-1"}, ""),
        ({"AWS_DEFAULT_REGION": "us-gov-west-1", "AWS_USE_FIPS_ENDPOINT": "true"}, ""),
        ({"AWS_DEFAULT_REGION": ""}, "region=cn-northwest-1"),
        ({"AWS_USE_FIPS_ENDPOINT": "true"}, ""),
        ({}, "use_fips_endpoint=true"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true"}, ""),
        ({}, "use_dualstack_endpoint=true"),
        ({"AWS_USE_DUALSTACK_ENDPOINT": "true", "AWS_USE_FIPS_ENDPOINT": "true"}, ""),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9/s3"}, ""),
        ({"AWS_ENDPOINT_URL_S3": VPCE}, ""),
        ({"AWS_ENDPOINT_URL_S3": "https://s3-fips.us-east-1.amazonaws.com"}, ""),
        ({}, f"endpoint_url={VPCE}"),
        ({}, f"services=mine\n[services mine]\ns3 =\n  endpoint_url={VPCE}"),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, f"endpoint_url={VPCE}"),
        ({"AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "regional"}, ""),
        ({}, "s3 =\n  use_accelerate_endpoint = true"),
        ({}, "s3 =\n  addressing_style = path"),
        ({"AWS_ENDPOINT_URL": "http://localhost:9/s3"}, "s3 =\n  addressing_style = virtual"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3 =\n  addressing_style = virtual"),
    ],
)
def test_requests_go_where_those_of_boto3_go(
    config: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], profile: str
) -> None:
    check_requests_go_there(config, monkeypatch, variables, profile)


@pytest.mark.parametrize(
    ("variables", "profile", "option", "region"),
    [
        ({}, "", "", "us-east-1"),
        ({"AWS_REGION": "eu-west-1"}, "", "", "eu-west-1"),
        ({"AWS_REGION": "eu-west-1"}, "region=eu-west-2", "", "eu-west-2"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-3"}, "region=eu-west-2", "", "eu-west-3"),
        ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-3"}, "", "&region=eu-north-1", "eu-north-1"),
    ],
)
def test_region_is_that_of_the_url_or_of_boto3_or_of_the_other_tools_of_aws(
    config: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], profile: str, option: str, region: str
) -> None:
    config.write_text(f"[default]\n{profile}\n")
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    for name, value in {**variables, "HTTPS_PROXY": "http://127.0.0.1:9"}.items():
        monkeypatch.setenv(name, value)

    asked = url_of_store(f"s3://{BUCKET}?timeout_s=0{option}")

    assert asked == f"https://{BUCKET}.s3{'' if region == 'us-east-1' else f'.{region}'}.amazonaws.com/x"


@pytest.mark.slow
@pytest.mark.parametrize("bucket", ["dotted.bucket", "Old_Bucket"])
@pytest.mark.parametrize("profile", ["", "use_fips_endpoint=true", "s3 =\n  addressing_style = virtual"])
def test_bucket_whose_name_no_host_can_have_is_asked_for_where_boto3_does(
    config: Path, monkeypatch: pytest.MonkeyPatch, bucket: str, profile: str
) -> None:
    check_requests_go_there(config, monkeypatch, {}, profile, bucket=bucket)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "profile"),
    [
        ({}, ""),
        ({"AWS_ENDPOINT_URL_S3": VPCE}, ""),
        ({"AWS_ENDPOINT_URL": VPCE}, ""),
        ({}, f"endpoint_url={VPCE}"),
        ({"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}, f"endpoint_url={VPCE}"),
    ],
)
def test_endpoint_of_the_url_goes_before_others(
    config: Path, monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], profile: str
) -> None:
    check_requests_go_there(config, monkeypatch, variables, profile, endpoint="http://127.0.0.1:9/s3")


def check_requests_go_there(
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: Mapping[str, str],
    profile: str,
    *,
    bucket: str = BUCKET,
    endpoint: str | None = None,
) -> None:
    config.write_text(f"[default]\n{profile}\n")
    for name, value in variables.items():
        if value:
            monkeypatch.setenv(name, value)
        else:
            monkeypatch.delenv(name)
    expected = url_of_boto3(bucket, endpoint)
    # Nothing is sent: no proxy listens there.
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    options = "timeout_s=0" if endpoint is None else f"timeout_s=0&endpoint={endpoint}"

    assert url_of_store(f"s3://{bucket}/folder?{options}") == expected


def test_settings_that_boto3_refuses_are_refused(config: Path) -> None:
    config.write_text("[default]\ns3 =\n  use_accelerate_endpoint = true\n")

    with pytest.raises(StoreDeniedError, match="custom endpoint cannot be combined with S3 Accelerate: correct the"):
        open_store(f"s3://{BUCKET}?endpoint=http://127.0.0.1:9")


class KeyedServer(BaseHTTPRequestHandler):
    """Knows no object, and says of some keys that they have expired."""

    protocol_version = "HTTP/1.1"
    expired: ClassVar[set[str]] = set()
    asked: ClassVar[list[str]] = []

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        key = self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        self.asked.append(key)
        status, code = (400, "ExpiredToken") if key in self.expired else (404, "NoSuchKey")
        if status == 404 and self.command == "PUT":
            self.send_response(200)
            self.send_header("ETag", '"x"')
            body = b""
        else:
            self.send_response(status)
            body = f"<Error><Code>{code}</Code></Error>".encode()
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = answer  # noqa: N815 - the names http.server calls

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[str]:
    KeyedServer.expired.clear()
    KeyedServer.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), KeyedServer) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_port}"
        server.shutdown()


def check_keys_are(store: ObjectStore, name: str) -> None:
    assert store.read("x") is None
    assert isinstance(store.create("x", b"1"), Done)
    assert KeyedServer.asked[-2:] == [name, name]


def test_keys_renewed_in_their_file_are_used_by_an_open_store(config: Path) -> None:
    """Its error says to renew them; it once used the old ones for the rest of its life."""
    keys = config.with_name("credentials")
    with serving() as endpoint:
        store = open_store(f"s3://{BUCKET}?endpoint={endpoint}")
        check_keys_are(store, "FIRST")
        KeyedServer.expired.add("FIRST")
        with pytest.raises(StoreDeniedError, match="the credentials have expired"):
            store.read("x")

        set_keys(keys, "SECOND")

        check_keys_are(store, "SECOND")


def test_keys_changed_in_the_environment_are_used_by_an_open_store(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del config
    with serving() as endpoint:
        store = open_store(f"s3://{BUCKET}?endpoint={endpoint}")
        check_keys_are(store, "FIRST")

        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "SECOND")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

        check_keys_are(store, "SECOND")


@pytest.mark.parametrize("written", ["", "[default]\naws_access_key_id=SECOND\n", "[default"])
def test_keys_of_a_file_that_is_being_written_are_those_of_before(config: Path, written: str) -> None:
    keys = config.with_name("credentials")
    with serving() as endpoint:
        store = open_store(f"s3://{BUCKET}?endpoint={endpoint}")

        keys.write_text(written)

        check_keys_are(store, "FIRST")
        set_keys(keys, "SECOND")
        check_keys_are(store, "SECOND")


def test_keys_of_a_given_session_are_its_own(config: Path) -> None:
    session = boto3.session.Session(aws_access_key_id="GIVEN", aws_secret_access_key="s")
    with serving() as endpoint:
        store = open_store(f"s3://{BUCKET}?endpoint={endpoint}", session=session)

        set_keys(config.with_name("credentials"), "SECOND")

        check_keys_are(store, "GIVEN")


@pytest.fixture
def authority(tmp_path: Path) -> tuple[Path, ssl.SSLContext]:
    """The certificate of an authority of our own, and what a server needs that it vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with: apt-get install openssl")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1")
    for command in (
        "req -x509 -newkey rsa:2048 -nodes -subj /CN=authority -keyout ca.key -out ca.pem",
        "req -newkey rsa:2048 -nodes -subj /CN=server -keyout server.key -out server.csr",
        "x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -out server.pem",
    ):
        subprocess.run(["openssl", *command.split()], check=True, capture_output=True, cwd=tmp_path, timeout=WAIT_S_MAX)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    return tmp_path / "ca.pem", context


@pytest.mark.slow
@pytest.mark.parametrize("by", ["variable", "profile"])
def test_authority_that_boto3_trusts_is_trusted(
    config: Path, authority: tuple[Path, ssl.SSLContext], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    certificate, context = authority
    with serving(context) as endpoint:
        url = f"s3://{BUCKET}?endpoint={endpoint}"
        with pytest.raises(StoreDeniedError, match="unknown authority: set AWS_CA_BUNDLE"):
            open_store(url).read("x")

        if by == "variable":
            monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        else:
            config.write_text(f"[default]\nca_bundle={certificate}\n")

        check_keys_are(open_store(url), "FIRST")


@pytest.mark.slow
def test_file_of_authorities_that_is_missing_is_named(config: Path) -> None:
    config.write_text("[default]\nca_bundle=/none.pem\n")

    with pytest.raises(StoreDeniedError, match=r"ca_bundle\), found .*/none.pem"):
        open_store(f"s3://{BUCKET}")


@pytest.mark.parametrize("named", ["http://user:notsosecret@127.0.0.1:9", "https://notsosecret@minio.example"])
@pytest.mark.parametrize("where", ["url", "variable"])
def test_password_in_an_endpoint_is_refused_and_not_printed(
    config: Path, monkeypatch: pytest.MonkeyPatch, named: str, where: str
) -> None:
    del config
    url = f"s3://{BUCKET}"
    if where == "url":
        url += f"?endpoint={named}"
    else:
        monkeypatch.setenv("AWS_ENDPOINT_URL", named)

    with pytest.raises(InvalidRequestError, match="store endpoint: expected no user or password") as refused:
        open_store(url)

    assert "notsosecret" not in str(refused.value)
