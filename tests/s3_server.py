"""A real S3 API over HTTP for tests and benchmarks: MiniStack, in an environment of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import boto3

ROOT = Path(__file__).parent.parent
BUCKET = "wal3-tests"


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server on a free port; give its endpoint."""
    program = ROOT / ".venv-ministack" / "bin" / "ministack"
    command = str(program) if program.exists() else shutil.which("ministack")
    if command is None:
        raise RuntimeError("no S3 server: run `make setup`, or name one in WAL3_TEST_S3_ENDPOINT")
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                [command],
                env={**os.environ, "BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "PERSIST_STATE": "0"},
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
            )
        try:
            _wait_for(f"http://127.0.0.1:{port}/", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(10)


def free_port() -> int:
    """Return a port of the loopback that nothing uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
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
    raise RuntimeError(f"the S3 server did not come up: {log.read_text()[-2000:]}")


def use_endpoint(endpoint: str) -> str:
    """Name the server in the environment, as a user would, and make sure of a bucket; give its URL."""
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    if "AWS_PROFILE" not in os.environ:
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    client = boto3.client("s3")
    with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
        client.create_bucket(Bucket=BUCKET)
    return f"s3://{BUCKET}"


def new_s3_url(bucket_url: str) -> str:
    """Make the URL of one more empty store in a bucket."""
    return f"{bucket_url}/{uuid.uuid4().hex}{os.environ.get('WAL3_TEST_S3_OPTIONS', '')}"
