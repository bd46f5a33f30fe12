"""What the tests share: a real S3 server, and a store of each kind."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from hypothesis import settings

from wal3_core.runtime import shared_runtime
from wal3_core.storage.memory import MemoryStore
from wal3_core.storage.open_store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wal3_core.storage.object_store import ObjectStore

# Shared machines are slow at times: only what is asserted may fail a test, and a failure prints how to replay it.
settings.register_profile("wal3", deadline=None, print_blob=True)
settings.load_profile("wal3")

ROOT = Path(__file__).parent.parent
BUCKET = "wal3-tests"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 API over HTTP: the one named by WAL3_TEST_S3_ENDPOINT, or a MiniStack of our own."""
    named = os.environ.get("WAL3_TEST_S3_ENDPOINT")
    if named:
        yield named
        return
    program = ROOT / ".venv-ministack" / "bin" / "ministack"
    command = str(program) if program.exists() else shutil.which("ministack")
    if command is None:
        pytest.fail("no S3 server to test against: run `make setup`, or name one in WAL3_TEST_S3_ENDPOINT")
    port = _free_port()
    log = tmp_path_factory.mktemp("ministack") / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            [command],
            env={**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "PERSIST_STATE": "0"},
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
        )
    try:
        _wait_for(f"http://127.0.0.1:{port}/", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return
        except OSError:
            if server.poll() is not None:
                break
            time.sleep(0.1)
        else:
            return
    pytest.fail(f"the S3 server did not come up: {log.read_text()[-2000:]}")


@pytest.fixture(scope="session")
def s3_bucket_url(s3_endpoint: str) -> str:
    """A bucket on the S3 server; the environment then names the server, as a user's would."""
    os.environ["AWS_ENDPOINT_URL"] = s3_endpoint
    os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
    os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    try:
        client.create_bucket(Bucket=BUCKET)
    except (client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        pass
    return f"s3://{BUCKET}"


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind in turn."""
    if request.param == "memory":
        return MemoryStore(shared_runtime(), name=uuid.uuid4().hex)
    return open_store(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def memory_store() -> MemoryStore:
    """An empty store in memory."""
    return MemoryStore(shared_runtime(), name=uuid.uuid4().hex)


@pytest.fixture
def local_url(tmp_path: Path) -> str:
    """An empty local store's URL."""
    return (tmp_path / "store").as_uri()


@pytest.fixture
def s3_url(s3_bucket_url: str) -> str:
    """An empty S3 store's URL."""
    options = os.environ.get("WAL3_TEST_S3_OPTIONS", "")
    return f"{s3_bucket_url}/{uuid.uuid4().hex}{options}"


@pytest.fixture(params=["local", "s3"])
def store_url(request: pytest.FixtureRequest) -> str:
    """URL of an empty store that other processes can open too."""
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture(scope="session")
def python() -> str:
    """The interpreter that runs the tests."""
    return sys.executable
