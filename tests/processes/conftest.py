"""Shared by the tests of this folder: journals, and a proxy in front of the S3 server that fails requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.fault_proxy import FaultProxy, fault_proxy


@pytest.fixture
def journals(tmp_path: Path) -> Path:
    """The folder where the processes of one test write their journals."""
    folder = tmp_path / "journals"
    folder.mkdir()
    return folder


@pytest.fixture
def proxy(s3_endpoint: str) -> Iterator[FaultProxy]:
    """A proxy that passes every request on until it is set to fail some."""
    if not s3_endpoint.startswith("http://"):
        pytest.skip("the proxy speaks plain HTTP: run it with WAL3_TEST_S3_ENDPOINT=http://… or without that variable")
    with fault_proxy(s3_endpoint) as running:
        yield running


@pytest.fixture
def proxied_url(s3_url: str, proxy: FaultProxy) -> str:
    """The empty S3 store at ``s3_url``, through the proxy."""
    return f"{s3_url}{'&' if '?' in s3_url else '?'}endpoint={proxy.endpoint}"
